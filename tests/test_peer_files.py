"""Files of the peer engine: values come back bit for bit or not at all, and what was acknowledged is there after a crash."""

from __future__ import annotations

import errno
import os
import threading

import numpy as np
import pytest

from dekpca.core.consensus import Estimate
from dekpca.engines.peer import codec
from dekpca.engines.peer import wire_pb2 as wire
from dekpca.engines.peer.codec import raw_bytes
from dekpca.engines.peer.errors import Damaged, Disagreement
from dekpca.engines.peer.journal import Journal
from dekpca.engines.peer.roster import Roster
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
