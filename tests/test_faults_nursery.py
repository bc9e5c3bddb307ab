"""The nursery of node processes: it reports ends, passes signals on, and leaves nothing behind."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from faults.supervisor import Node, Nursery, until


def gone(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except OSError:
        return True


@pytest.mark.parametrize("fresh", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_verb_runs_and_its_exit_code_comes_back(nursery, tmp_path, fresh):
    good = nursery.start(["--version"], tmp_path / "good", fresh)
    bad = nursery.start(["fit", tmp_path / "nothing.npz"], tmp_path / "bad", fresh)
    until(lambda: {good, bad} <= nursery.ended.keys(), "both end", 60)
    assert nursery.ended[good][0] == 0
    assert (tmp_path / "good").read_text().startswith("dekpca ")
    assert nursery.ended[bad][0] == 2
    assert "nothing.npz" in (tmp_path / "bad").read_text()


@pytest.mark.slow
def test_signals_and_the_end_of_all(tmp_path):
    with Nursery() as nursery:
        keys = [nursery.start(["demo"], tmp_path / f"{i}") for i in range(3)]
        pids = [nursery.pids[key] for key in keys]
        nursery.signal(keys[0], signal.SIGKILL)
        until(lambda: keys[0] in nursery.ended, "the killed one ends", 60)
        assert nursery.ended[keys[0]][0] == -signal.SIGKILL
        nursery.signal(keys[1], signal.SIGSTOP)
    assert all(gone(pid) for pid in pids)


@pytest.mark.slow
def test_no_process_survives_a_nursery_that_is_killed(tmp_path):
    nursery = Nursery()
    key = nursery.start(["demo"], tmp_path / "out")
    nursery.signal(key, signal.SIGSTOP)
    os.kill(nursery._process.pid, signal.SIGKILL)
    nursery._process.wait(30)
    until(lambda: gone(nursery.pids[key]), "the child is gone", 30)


def test_a_log_is_read_line_by_line(nursery, tmp_path):
    node = Node("a", tmp_path / "a.toml", nursery, tmp_path / "log")
    assert not node.happened(lambda event: True)
    node.log.write_bytes(b'{"event": "one"}\nnot json\n{"event": "tw')
    assert node.happened(lambda event: event.get("event") == "one")
    assert not node.happened(lambda event: event.get("event") == "two")
    with node.log.open("ab") as file:
        file.write(b'o"}\n')
    assert node.happened(lambda event: event.get("event") == "two")
    assert node.events[1] == {"text": "not json"}
