"""Files of the peer engine: values come back bit for bit or not at all, and what was acknowledged is there after a crash."""

from __future__ import annotations

import errno
import os
import stat
import threading
import time

import numpy as np
import pytest

from dekpca.core.consensus import Estimate
from dekpca.engines.peer.errors import Damaged, Disagreement, ProtocolError
from dekpca.engines.peer.net.endpoint import Station, Timeouts
from dekpca.engines.peer.protocol import wire_pb2 as wire
from dekpca.engines.peer.protocol.checks import MOST_NODES, MOST_RECEIVED, MOST_RECORDS, check_greeting
from dekpca.engines.peer.protocol.membership import Roster
from dekpca.engines.peer.storage import codec
from dekpca.engines.peer.storage.codec import raw_bytes
from dekpca.engines.peer.storage.journal import Journal
from dekpca.engines.peer.storage.store import Saved, Store
from dekpca.kernels import Kernel

rng = np.random.default_rng(0)
A = rng.normal(size=(6, 4, 3))


# ---------------------------------------------------------------------- values
@pytest.mark.parametrize(
    "array",
    [A, A[0].T, A[:, 1:3], A[::2], A[::-1, :, 1], np.broadcast_to(A[0, 0], (5, 3)), np.asfortranarray(A[0]), A[:0], A.astype("f4"),
     np.arange(5), np.array(2.5), np.moveaxis(A, 0, 2)],
    ids=lambda a: f"{a.shape} {a.strides} {a.dtype}",
)  # fmt: skip
def test_arrays_keep_bits_and_layout(tmp_path, array):
    codec.write(tmp_path / "a", codec.flatten(array))
    back = codec.read(tmp_path / "a")
    assert back.dtype == array.dtype
    assert back.shape == array.shape
    assert back.tobytes() == array.tobytes()
    if array.size > 1:
        assert back.strides == array.strides


def test_products_round_as_they_did(tmp_path):
    """What the layout is kept for."""
    w = rng.normal(size=(40, 60)).T[:, ::2]
    b = np.broadcast_to(rng.normal(size=(1, 60)), (30, 60))
    codec.write(tmp_path / "a", codec.flatten((w, b)))
    w2, b2 = codec.read(tmp_path / "a")
    assert (w @ w.T).tobytes() == (w2 @ w2.T).tobytes()
    assert (b @ w).tobytes() == (b2 @ w2).tobytes()


def test_values_of_all_kinds(tmp_path):
    shared = np.eye(2)
    value = {
        "z": Estimate(shared, A), "again": shared, "kernel": Kernel("rbf", gamma=0.1), "runs": [("converged", 3), ("", 0)],
        "numbers": [1, -2.5e-300, float("inf"), True, None, "text", np.float64(0.1)],
    }  # fmt: skip
    codec.write(tmp_path / "v", codec.flatten(value))
    back = codec.read(tmp_path / "v")
    assert back["z"].shared is back["again"]
    assert back["kernel"] == value["kernel"]
    assert back["runs"] == value["runs"]
    assert back["numbers"] == value["numbers"]


@pytest.mark.parametrize("value", [object(), lambda x: x, {1: 2}, np.array(["text"]), np.array([object()])])
def test_what_has_no_place_in_a_file(value):
    with pytest.raises(TypeError, match="cannot be stored"):
        codec.flatten(value)


def test_every_flipped_bit_and_every_cut_is_noticed(tmp_path):
    path = tmp_path / "v"
    codec.write(path, codec.flatten({"w": A[0], "round": 7}))
    good = path.read_bytes()
    for at in range(len(good)):
        path.write_bytes(good[:at] + bytes([good[at] ^ (1 << at % 8)]) + good[at + 1 :])
        with pytest.raises(Damaged):
            codec.read(path)
        path.write_bytes(good[:at])
        with pytest.raises(Damaged):
            codec.read(path)
    with pytest.raises(Damaged, match="cannot be read"):
        codec.read(tmp_path / "nothing")


# ---------------------------------------------------------------------- the journal
def put(journal, sender, round, array, attempt=0, pieces=3, last=True):
    """A message in pieces; returns when it is on disk."""
    data = array.tobytes()
    step = -(-len(data) // pieces)
    starts = range(0, len(data), step)
    for start in starts if last else list(starts)[:-1]:
        done = threading.Event()
        entry = wire.Entry(
            sender=sender, round=round, attempt=attempt, kind="data", dtype=array.dtype.str, shape=array.shape, offset=start
        )  # fmt: skip
        journal.append(entry, len(data), data[start : start + step])
        journal.sync(lambda error, done=done: done.set())
        assert done.wait(30)


def get(journal, sender, round):
    message = journal.find(sender, round)
    if message is None:
        return None
    into = np.empty(message.shape, dtype=message.dtype)
    journal.read(message, raw_bytes(into))
    return into


def test_messages_come_back_after_a_crash(tmp_path):
    journal = Journal(tmp_path)
    put(journal, "b", 1, A)
    put(journal, "c", 1, A + 1, pieces=1)
    put(journal, "b", 2, A + 2, last=False)  # never whole
    put(journal, "b", 2, A + 2, attempt=1)
    put(journal, "c", 9, A + 3, last=False)
    for again in (journal, Journal(tmp_path)):  # the second as after a crash: nothing was closed
        assert (get(again, "b", 1) == A).all()
        assert (get(again, "c", 1) == A + 1).all()
        assert (get(again, "b", 2) == A + 2).all()
        assert get(again, "c", 9) is None
        assert again.held("b") == [1, 2]
        again.close()


def test_a_torn_end_is_dropped_and_written_over(tmp_path):
    journal = Journal(tmp_path)
    put(journal, "b", 1, A)
    put(journal, "b", 2, A)
    journal.close()
    path = tmp_path / "journal-0.bin"
    whole = path.read_bytes()
    for cut in (1, 11, 100):
        path.write_bytes(whole[:-cut])
        journal = Journal(tmp_path)
        assert get(journal, "b", 2) is None
        put(journal, "b", 2, A + 5)
        journal.close()
        journal = Journal(tmp_path)
        assert (get(journal, "b", 1) == A).all()
        assert (get(journal, "b", 2) == A + 5).all()
        journal.close()


def test_damage_in_the_middle_stops_the_node(tmp_path):
    journal = Journal(tmp_path)
    put(journal, "b", 1, A)
    put(journal, "b", 2, A)
    journal.close()
    path = tmp_path / "journal-0.bin"
    whole = bytearray(path.read_bytes())
    whole[60] ^= 1
    path.write_bytes(whole)
    with pytest.raises(Damaged, match=r"journal-0.bin: damaged at byte 0"):
        Journal(tmp_path)


def test_damage_under_a_running_node_is_noticed(tmp_path):
    journal = Journal(tmp_path)
    put(journal, "b", 1, A)
    with open(tmp_path / "journal-0.bin", "r+b") as file:
        file.seek(-3, 2)
        file.write(b"x")
    with pytest.raises(Damaged, match="of node b in round 1 is damaged"):
        get(journal, "b", 1)
    journal.close()


def test_files_go_when_nothing_in_them_is_needed(tmp_path):
    journal = Journal(tmp_path)
    put(journal, "b", 1, A)
    put(journal, "b", 5, A + 1)  # early: for after the next checkpoint
    journal.rotate()
    put(journal, "c", 3, A + 2, last=False)
    journal.rotate()
    put(journal, "c", 4, A)
    journal.forget(2)
    assert {p.name for p in tmp_path.iterdir()} == {
        "journal-0.bin",
        "journal-1.bin",
        "journal-2.bin",
    }  # round 5, and half of 3
    journal.drop_partial("c", 3, 0)
    journal.forget(2)
    assert {p.name for p in tmp_path.iterdir()} == {"journal-0.bin", "journal-2.bin"}
    assert (get(journal, "b", 5) == A + 1).all()
    journal.forget(5)
    assert {p.name for p in tmp_path.iterdir()} == {"journal-2.bin"}
    journal.close()


def test_a_message_across_two_files(tmp_path):
    journal = Journal(tmp_path)
    data = A.tobytes()
    for offset, part in ((0, data[:100]), (100, data[100:])):
        done = threading.Event()
        entry = wire.Entry(sender="b", round=1, kind="data", dtype="<f8", shape=A.shape, offset=offset)
        journal.append(entry, len(data), part)
        journal.sync(lambda error, done=done: done.set())
        assert done.wait(30)
        journal.rotate()
    journal.forget(0)
    for again in (journal, Journal(tmp_path)):
        assert (get(again, "b", 1) == A).all()
        again.close()


def test_a_full_disk_is_an_error_and_nothing_is_acknowledged(tmp_path):
    journal = Journal(tmp_path)
    with open("/dev/full", "wb") as full:
        os.dup2(full.fileno(), journal._files[0])
    said: list = []
    done = threading.Event()
    entry = wire.Entry(sender="b", round=1, kind="data", dtype="<f8", shape=[1], offset=0)
    for _ in range(2):
        with pytest.raises(OSError, match="No space left"):
            journal.append(entry, 8, b"12345678")
    journal.sync(lambda error: (said.append(error), done.set()))
    assert done.wait(30)
    assert said[0].errno == errno.ENOSPC
    assert journal.find("b", 1) is None
    with pytest.raises(OSError, match="No space left"):
        journal.rotate()
    journal.close()


# ---------------------------------------------------------------------- the roster
def test_a_text_is_there_whole_or_not_at_all(tmp_path, monkeypatch):
    """As when the process is killed while it writes, say, that it has finished."""
    codec.write_text(tmp_path / "old.json", "before")

    def killed(handle):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", killed)
    for name in ("old.json", "finished.json"):
        with pytest.raises(KeyboardInterrupt):
            codec.write_text(tmp_path / name, "after")
    assert (tmp_path / "old.json").read_text() == "before"
    assert not (tmp_path / "finished.json").exists()


def test_contradictions_name_both_sides():
    roster = Roster("a", ["b"], 30)
    roster.add({"b": (("a", "c"), 20)}, "b")
    with pytest.raises(Disagreement, match=r"node b has 20 rows .* as node b told, but 21 rows .* as node c told"):
        roster.add({"b": (("a", "c"), 21)}, "c")
    with pytest.raises(Disagreement, match=r"node b lists node c as a neighbor, but node c does not list b"):
        roster.add({"c": (("d",), 5)}, "b")
    with pytest.raises(Disagreement, match="node d lists node a as a neighbor, but node a does not list d"):
        roster.add({"d": (("a",), 5)}, "b")
    assert roster.missing() == {"c"}  # nothing of that was believed
    roster.add({"c": (("b",), 5)}, "b")
    assert roster.complete


# At c6f9cc8 whatever neighbors invented was kept, greeting after greeting (issue 17, point 9), and each took as long as all before it together.
def test_a_meeting_is_bounded_as_a_whole_and_what_is_refused_leaves_no_trace(monkeypatch):
    roster = Roster("a", ["b"], 30)
    roster.add({"b": (("a", *(f"x{i}" for i in range(15_000))), 5)}, "b")
    before = roster.missing()
    with pytest.raises(
        ProtocolError, match=r"with what node c tells there would be 25002 nodes .* most of it comes from node b"
    ):
        roster.add({"x0": (("b", *(f"y{i}" for i in range(10_000))), 5)}, "c")
    assert roster.missing() == before
    assert roster.add({"x0": (("b", *(f"y{i}" for i in range(4000))), 5)}, "c")  # within the bounds
    long = {f"x{i}": (("b", *(f"y{j}" for j in range(4000))), 5) for i in range(1, 40)}
    with pytest.raises(ProtocolError, match=f"more than the {MOST_NODES} nodes and {MOST_RECORDS} bytes allowed"):
        roster.add(long, "c")  # no new names, but many bytes


def test_a_greeting_with_everything_fits_into_a_message():
    roster = Roster("a", ["b"], 1 << 40)
    names = [f"n{'o' * 40}{i:05d}" for i in range(200)]

    def tell():
        for name in names:  # each lists the others
            roster.add({name: (tuple(other for other in names if other != name), 1 << 40)}, "b")

    with pytest.raises(ProtocolError):
        tell()
    records = [wire.Record(name=n, neighbors=around, rows=rows) for n, (around, rows) in roster.records.items()]
    size = len(wire.Greeting(records=records).SerializeToString())
    assert MOST_RECEIVED // 2 < size <= MOST_RECORDS < MOST_RECEIVED


def test_a_roster_grows_in_linear_time():
    def seconds(count):
        roster, start = Roster("a", ["n0"], 30), time.perf_counter()
        for i in range(count):
            around = ("a" if i == 0 else f"n{i - 1}", *(() if i == count - 1 else (f"n{i + 1}",)))
            roster.add({f"n{i}": (around, 5)}, "n0")
        assert roster.complete
        return time.perf_counter() - start

    small = min(seconds(500) for _ in range(3))
    assert seconds(8000) < 80 * small  # 16 times as many; at c6f9cc8 about 250 times as long


def test_a_greeting_with_too_many_neighbors_is_refused_before_it_is_looked_at():
    record = wire.Record(name="b", neighbors=["\n"] * MOST_NODES, rows=5)  # not even names
    with pytest.raises(ProtocolError, match=f"a node with {MOST_NODES} neighbors"):
        check_greeting(wire.Greeting(records=[record]))


# ---------------------------------------------------------------------- who may read, and what is left of what was not written
def modes(folder):
    return {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.rglob("*")}


def test_whatever_the_umask_files_are_for_the_owner(tmp_path):
    """At c6f9cc8 checkpoints had mode 0644 (issue 17, point 11)."""
    before = os.umask(0)
    try:
        store = Store(tmp_path / "run")
        store.open({"run": "r"})
        store.save(Saved(1, {"samples": A}, {"w": A}))
        store.private_seed()
        store.keep_records({"a": (("b",), 3)})
        store.close()
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "run").stat().st_mode) == 0o700
    assert set(modes(tmp_path / "run").values()) == {0o600}
    assert {"checkpoint-1.bin", "known-1.a.bin", "journal-0.bin", "seed", "run.json", "lock"} <= modes(
        tmp_path / "run"
    ).keys()


@pytest.mark.parametrize("mode", [0o755, 0o750, 0o711, 0o701, 0o740, 0o777])
def test_a_folder_that_others_can_read_or_enter_is_refused(tmp_path, mode):
    """At c6f9cc8 neighbors' rows went there."""
    folder = tmp_path / "run"
    folder.mkdir()
    folder.chmod(mode)
    with pytest.raises(ValueError, match=rf"others may read or enter it \(mode {mode:04o}\).*; chmod 700 {folder}"):
        Store(folder)
    assert not list(folder.iterdir())
    folder.chmod(0o700)
    Store(folder).close()


def test_a_full_disk_names_the_file(tmp_path, monkeypatch):
    """At c6f9cc8 a checkpoint did not (issue 17, point 12)."""

    def full(handle):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    for write in (lambda path: codec.write(path, codec.flatten(A)), lambda path: codec.write_text(path, "text")):
        with pytest.raises(OSError, match=r"No space left on device: .*/what.bin") as caught:
            write(tmp_path / "what.bin")
        assert caught.value.errno == errno.ENOSPC
        assert not list(tmp_path.iterdir())  # nothing half


@pytest.mark.parametrize("content", ["[]", "7", "null", '"text"', "", "{", "[" * 100_000])
def test_files_that_hold_something_else(tmp_path, content):
    """At c6f9cc8 some of these were an AttributeError (issue 17, point 14)."""
    for name in ("run.json", "network.json"):
        folder = tmp_path / name
        store = Store(folder)
        (folder / name).write_text(content)
        with pytest.raises(
            Damaged, match=f"{name}: damaged; start all nodes anew, with another run id and other folders"
        ):
            store.open({"run": "r"}) if name == "run.json" else store.records
        store.close()
    (tmp_path / "done.json").write_text(content)
    journal = Journal(tmp_path)
    station = Station("a", "r", tmp_path, {"b": ""}, Roster("a", ["b"], 3), journal, Timeouts())
    assert not station.neighbors["b"].done
    journal.close()


def test_who_is_done_is_on_disk_before_it_is_believed(tmp_path, monkeypatch):
    """At c6f9cc8 the file was renamed before it was synced: a power cut could leave it empty."""
    journal, synced = Journal(tmp_path), []
    station = Station("a", "r", tmp_path, {"b": ""}, Roster("a", ["b"], 3), journal, Timeouts())
    fsync = os.fsync

    def noting(handle):
        synced.append((station.neighbors["b"].done, os.readlink(f"/proc/self/fd/{handle}")))
        fsync(handle)

    monkeypatch.setattr(os, "fsync", noting)
    station.note_beat(station.neighbors["b"], wire.Beat(phase="done", done=True))
    assert synced == [(False, str(tmp_path / "done.json.tmp")), (False, str(tmp_path))]
    assert station.neighbors["b"].done
    journal.close()
