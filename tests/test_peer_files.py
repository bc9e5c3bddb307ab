"""Files of the peer engine: messages come back bit for bit or not at all, and what was acknowledged is there after a crash."""

from __future__ import annotations

import errno
import os
import stat
import sys
import threading
import time
from contextlib import contextmanager

import numpy as np
import pytest

from dekpca import files
from dekpca.peers.errors import Changed, Damaged, Disagreement, PeerLost, ProtocolError
from dekpca.peers.net import endpoint as endpoints
from dekpca.peers.protocol import wire_pb2 as wire
from dekpca.peers.protocol.checks import MOST_RECEIVED, MessageHead, check_handshake
from dekpca.peers.protocol.events import Heartbeat
from dekpca.peers.protocol.handshake import HandshakeSettings
from dekpca.peers.protocol.liveness import Timeouts
from dekpca.peers.protocol.membership import MOST_NODES, MOST_RECORDS, Membership
from dekpca.peers.storage.database import FILE, Database
from dekpca.peers.storage.folder import RunFolder
from dekpca.peers.storage.messages import Chunk, MessageLog, raw_bytes
from peer_nodes import PATIENCE, change, endpoint

rng = np.random.default_rng(0)
A = rng.normal(size=(6, 4, 3))


# ---------------------------------------------------------------------- messages
@contextmanager
def log_in(folder):
    """The message log of a folder."""
    database = Database(folder)
    try:
        messages = MessageLog(database)
        try:
            yield messages
        finally:
            messages.close()
    finally:
        database.close()


def put(messages, sender, round, array, attempt=0, pieces=3, last=True):
    """A message in chunks; returns which of these completed it."""
    data, head = array.tobytes(), MessageHead(round, "data", array.dtype.str, array.shape)
    step = -(-len(data) // pieces)
    starts = list(range(0, len(data), step))
    given = starts if last else starts[:-1]
    return [messages.append(Chunk(sender, head, attempt, start, data[start : start + step])) for start in given]


def synced(messages):
    """Wait until all is on disk; returns what went wrong."""
    return messages.sync().exception(PATIENCE)


def get(messages, sender, round):
    head = messages.find(sender, round)
    if head is None:
        return None
    into = np.empty(head.shape, dtype=head.dtype)
    messages.read(sender, round, raw_bytes(into))
    return into


def test_messages_come_back_after_a_crash(tmp_path):
    with log_in(tmp_path) as messages:
        put(messages, "b", 1, A)
        put(messages, "c", 1, A + 1, pieces=1)
        put(messages, "b", 2, A + 2, last=False)  # never whole
        put(messages, "b", 2, A + 2, attempt=1)
        put(messages, "c", 9, A + 3, last=False)
        assert synced(messages) is None
        put(messages, "c", 2, A)  # not synced: a power cut may take it
        (tmp_path / "crash").mkdir()
        for path in tmp_path.glob("run.db*"):  # as a crash leaves the files: nothing was closed
            (tmp_path / "crash" / path.name).write_bytes(path.read_bytes())
    with log_in(tmp_path / "crash") as messages:
        assert (get(messages, "b", 1) == A).all()
        assert (get(messages, "c", 1) == A + 1).all()
        assert (get(messages, "b", 2) == A + 2).all()
        assert get(messages, "c", 9) is None
        assert messages.held("b") == [1, 2]
    ((count,),) = change(tmp_path / "crash", "SELECT count(*) FROM chunk WHERE round = 9")
    assert count == 0  # nobody will send the rest


def test_a_message_can_be_read_before_it_is_synced(tmp_path):
    with log_in(tmp_path) as messages:
        with messages.database.lock:  # nothing is committed meanwhile
            assert put(messages, "b", 1, A) == [False, False, True]
        assert (get(messages, "b", 1) == A).all()


def test_a_log_that_is_closed_while_it_writes_does_not_hang():
    """At 9bb1076 it could: the writer missed that it was to end, if told between its look and its work."""
    database, interval = Database(None), sys.getswitchinterval()

    def open_and_close():
        for _ in range(1000):
            messages = MessageLog(database)
            messages.sync()
            messages.close()

    sys.setswitchinterval(1e-6)
    try:
        thread = threading.Thread(target=open_and_close, daemon=True)
        thread.start()
        thread.join(PATIENCE)
        assert not thread.is_alive()
    finally:
        sys.setswitchinterval(interval)


@pytest.mark.parametrize(
    "what", ["data = zeroblob(length(data))", "round = 7", "start = start + 8", "sender = 'c'", "crc = 0"]
)
def test_a_changed_message_is_refused(tmp_path, what):
    with log_in(tmp_path) as messages:
        put(messages, "b", 1, A)
        synced(messages)
    change(tmp_path, f"UPDATE chunk SET {what} WHERE id = 2")
    with (
        pytest.raises(Damaged, match=r"run.db: the message of node [bc] in round [17] damaged; start all nodes anew"),
        log_in(tmp_path),
    ):
        pass


def test_damage_under_a_running_node_is_noticed(tmp_path):
    with log_in(tmp_path) as messages:
        put(messages, "b", 1, A)
        synced(messages)
        change(tmp_path, "UPDATE chunk SET data = zeroblob(length(data)) WHERE id = 2")
        with pytest.raises(Damaged, match="of node b in round 1 damaged"):
            get(messages, "b", 1)


def test_every_flipped_byte_of_the_database_is_noticed_or_harmless(tmp_path):
    """SQLite checks structure, this package content: whatever is read is what was written."""
    with log_in(tmp_path) as messages:
        for round in range(1, 4):
            put(messages, "b", round, A + round)
        synced(messages)
    change(tmp_path, "PRAGMA wal_checkpoint(TRUNCATE)")
    good, refused = (tmp_path / FILE).read_bytes(), 0
    random = np.random.default_rng(0)
    for at in random.choice(len(good), 150, replace=False).tolist():
        (tmp_path / FILE).write_bytes(good[:at] + bytes([good[at] ^ (1 << at % 8)]) + good[at + 1 :])
        try:
            with log_in(tmp_path) as messages:
                for round in messages.held("b"):
                    assert (get(messages, "b", round) == A + round).all()
                if messages.held("b") != [1, 2, 3]:  # a neighbor that calls will say that they are lost
                    refused += 1
        except (Damaged, OSError):
            refused += 1
        for path in tmp_path.glob("run.db-*"):
            path.unlink()
    assert refused


def test_rows_of_incomplete_and_repeated_messages_go(tmp_path):
    def rounds():
        synced(messages)
        return [r for (r,) in change(tmp_path, "SELECT DISTINCT round FROM chunk ORDER BY round")]

    with log_in(tmp_path) as messages:
        put(messages, "b", 1, A)
        put(messages, "b", 5, A + 1)
        put(messages, "c", 3, A + 2, last=False)
        put(messages, "b", 5, A + 9, attempt=1)  # again: the first counts
        assert rounds() == [1, 3, 5]
        messages.drop_partial("c", 3, 0)
        synced(messages)
        assert rounds() == [1, 5]
        assert (get(messages, "b", 5) == A + 1).all()
        assert len(change(tmp_path, "SELECT id FROM chunk")) == 6


def test_a_full_disk_is_an_error_and_nothing_is_acknowledged(tmp_path):
    with log_in(tmp_path) as messages:
        put(messages, "b", 1, A)
        assert synced(messages) is None
        messages.database.read("PRAGMA max_page_count=1")  # no more pages: as on a full disk
        with messages.database.lock:  # all come before the disk is seen to be full
            for round in range(2, 40):
                messages.append(Chunk("b", MessageHead(round, "data", "<f8", (1000,)), 0, 0, bytes(8000)))
        error = synced(messages)
        assert isinstance(error, OSError)
        assert error.errno == errno.ENOSPC
        assert error.filename == str(tmp_path / FILE)
        with pytest.raises(OSError, match=r"No space left on device: .*run.db"):
            put(messages, "b", 50, A)
        assert synced(messages) is error  # and it stays so
    assert change(tmp_path, "SELECT DISTINCT round FROM chunk") == [(1,)]


# ---------------------------------------------------------------------- membership
def test_a_text_is_there_whole_or_not_at_all(tmp_path, monkeypatch):
    """As when the process is killed while it writes, say, that it has finished."""
    files.write_text(tmp_path / "old.json", "before")

    def killed(handle):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", killed)
    for name in ("old.json", "finished.json"):
        with pytest.raises(KeyboardInterrupt):
            files.write_text(tmp_path / name, "after")
    assert (tmp_path / "old.json").read_text() == "before"
    assert not (tmp_path / "finished.json").exists()


def test_contradictions_name_both_sides():
    membership = Membership("a", ["b"], 30)
    membership.add({"b": (("a", "c"), 20)}, "b")
    with pytest.raises(Disagreement, match=r"node b has 20 rows .* as node b told, but 21 rows .* as node c told"):
        membership.add({"b": (("a", "c"), 21)}, "c")
    with pytest.raises(Disagreement, match=r"node b lists node c as a neighbor, but node c does not list b"):
        membership.add({"c": (("d",), 5)}, "b")
    with pytest.raises(Disagreement, match="node d lists node a as a neighbor, but node a does not list d"):
        membership.add({"d": (("a",), 5)}, "b")
    assert membership.missing() == {"c"}  # nothing of that was believed
    membership.add({"c": (("b",), 5)}, "b")
    assert not membership.missing()


# At c6f9cc8 whatever neighbors invented was kept, greeting after greeting (issue 17, point 9), and each took as long as all before it together.
def test_membership_is_bounded_as_a_whole_and_what_is_refused_leaves_no_trace():
    membership = Membership("a", ["b"], 30)
    membership.add({"b": (("a", *(f"x{i}" for i in range(15_000))), 5)}, "b")
    before = membership.missing()
    with pytest.raises(
        ProtocolError, match=r"with what node c tells there would be 25002 nodes .* most of it comes from node b"
    ):
        membership.add({"x0": (("b", *(f"y{i}" for i in range(10_000))), 5)}, "c")
    assert membership.missing() == before
    assert membership.add({"x0": (("b", *(f"y{i}" for i in range(4000))), 5)}, "c")  # within the bounds
    long = {f"x{i}": (("b", *(f"y{j}" for j in range(4000))), 5) for i in range(1, 40)}
    with pytest.raises(ProtocolError, match=f"more than the {MOST_NODES} nodes and {MOST_RECORDS} bytes allowed"):
        membership.add(long, "c")  # no new names, but many bytes


def test_a_handshake_with_everything_fits_into_a_message():
    membership = Membership("a", ["b"], 1 << 40)
    names = [f"n{'o' * 40}{i:05d}" for i in range(200)]

    def tell():
        for name in names:  # each lists the others
            membership.add({name: (tuple(other for other in names if other != name), 1 << 40)}, "b")

    with pytest.raises(ProtocolError):
        tell()
    records = [wire.Record(name=n, neighbors=around, rows=rows) for n, (around, rows) in membership.records.items()]
    size = len(wire.Handshake(records=records).SerializeToString())
    assert MOST_RECEIVED // 2 < size <= MOST_RECORDS < MOST_RECEIVED


def test_a_membership_grows_in_linear_time():
    def seconds(count):
        membership, start = Membership("a", ["n0"], 30), time.thread_time()
        for i in range(count):
            around = ("a" if i == 0 else f"n{i - 1}", *(() if i == count - 1 else (f"n{i + 1}",)))
            membership.add({f"n{i}": (around, 5)}, "n0")
        assert not membership.missing()
        return time.thread_time() - start

    small = min(seconds(500) for _ in range(3))
    large = min(seconds(8000) for _ in range(3))
    assert large < 80 * small  # 16 times as many; at c6f9cc8 about 250 times as long


def test_a_handshake_with_too_many_neighbors_is_refused_before_it_is_looked_at():
    record = wire.Record(name="b", neighbors=["\n"] * MOST_NODES, rows=5)  # not even names
    with pytest.raises(ProtocolError, match=f"a node with {MOST_NODES} neighbors"):
        check_handshake(wire.Handshake(records=[record]))


# ---------------------------------------------------------------------- who may read, and what is left of what was not written
def modes(folder):
    return {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.rglob("*")}


def test_whatever_the_umask_files_are_for_the_owner(tmp_path):
    """At c6f9cc8 files had mode 0644 (issue 17, point 11)."""
    before = os.umask(0)
    try:
        store = RunFolder(tmp_path / "run")
        store.open({"run": "r"})
        put(store.messages, "b", 1, A)
        assert synced(store.messages) is None
        store.private_seed()
        while_open = modes(tmp_path / "run")
        store.close()
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "run").stat().st_mode) == 0o700
    assert set(while_open.values()) == {0o600}
    assert {"run.db", "run.db-wal", "run.db-shm", "lock"} <= while_open.keys()


@pytest.mark.parametrize("mode", [0o755, 0o750, 0o711, 0o701, 0o740, 0o777])
def test_a_folder_that_others_can_read_or_enter_is_refused(tmp_path, mode):
    """At c6f9cc8 neighbors' rows went there."""
    folder = tmp_path / "run"
    folder.mkdir()
    folder.chmod(mode)
    with pytest.raises(
        ValueError,
        match=rf"others may read or enter it \(mode {mode:04o}\), and it will hold messages.*; chmod 700 {folder}",
    ):
        RunFolder(folder)
    assert not list(folder.iterdir())
    folder.chmod(0o700)
    RunFolder(folder).close()


def test_a_full_disk_names_the_file(tmp_path, monkeypatch):
    """At c6f9cc8 an error did not (issue 17, point 12)."""

    def full(handle):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"cannot be written \(No space left on device\): .*/what.bin") as caught:
        files.write_text(tmp_path / "what.bin", "text")
    assert caught.value.errno == errno.ENOSPC
    assert not list(tmp_path.iterdir())  # nothing half


@pytest.mark.parametrize("content", [b"", b"{", b"SQLite format 3\0" + bytes(1000), b"x" * 50_000])
def test_files_that_hold_something_else(tmp_path, content):
    """At c6f9cc8 some of these were an AttributeError (issue 17, point 14)."""
    store = RunFolder(tmp_path)
    (tmp_path / FILE).write_bytes(content)
    if len(content) > 1:
        with pytest.raises(
            Damaged, match=r"run.db: damaged .*; start all nodes anew, with another run id and other folders"
        ):
            store.open({"run": "r"})
    else:  # SQLite takes these for new: neighbors that had sent to it notice
        store.open({"run": "r"})
        assert store.messages.held("b") == []
    store.close()


@pytest.mark.parametrize("name", ["run", "seed", "network", "finished"])
def test_changed_facts_are_refused(tmp_path, name):
    def everything():
        store.open({"run": "r"})
        store.private_seed()
        store.keep_records({"a": (("b",), 3)})
        return store.finished

    store = RunFolder(tmp_path)
    everything()
    store.keep_finished("b")
    store.close()
    change(tmp_path, "UPDATE fact SET value = '[1]' WHERE name = ?", name)
    store = RunFolder(tmp_path)
    with pytest.raises(Damaged, match=f"its '{name}' damaged"):
        everything()
    store.close()


def test_a_finished_neighbor_is_on_disk_before_it_is_believed(tmp_path, monkeypatch):
    """At c6f9cc8 the file was renamed before it was synced: a power cut could leave it empty."""
    with endpoint(tmp_path, "b") as here:
        believed, commit = [], Database.commit

        def noting(database):
            believed.append(here.protocol.neighbors["b"].finished)
            commit(database)

        monkeypatch.setattr(Database, "commit", noting)
        here.receive("b", Heartbeat(phase="done", finished=True))
        assert believed == [False]
        assert here.protocol.neighbors["b"].finished
        assert change(tmp_path / "a", "SELECT value FROM fact WHERE name = 'finished'") == [('["b"]',)]


def test_another_run_in_the_same_folder_is_all_that_differs(tmp_path):
    """The fingerprint of the columns is one in the run."""
    first, second = (
        {"run": run, **HandshakeSettings.of({}, ("age", "bmi"), run).values} for run in ("study-7", "study-8")
    )
    store = RunFolder(tmp_path / "node")
    try:
        store.open(first)
        with pytest.raises(Changed, match="settings: run was study-7 and is study-8; use the same"):
            store.claim(second)
    finally:
        store.close()


def test_a_node_that_waits_before_the_beginning_says_for_whom(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(endpoints, "STILL", 0.1)
    caplog.set_level("INFO", logger="dekpca.peer")
    with endpoint(tmp_path, "oslo", timeouts=Timeouts(start=0.7)) as waiting, pytest.raises(PeerLost, match="oslo"):
        waiting.meet()
    lines = [record.peers for record in caplog.records if record.message == "still waiting"]
    assert set(lines) == {"oslo: never heard of it"}
    assert len(lines) < 7  # not at every look at the clock
