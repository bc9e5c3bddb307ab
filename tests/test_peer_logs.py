"""The log of a node never holds up its run, cannot be filled by strangers, and holds nothing that would harm a terminal."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import select
import subprocess
import sys
import time

import pytest
from typer.testing import CliRunner

from dekpca.cli import app
from peer_nodes import PATIENCE

COMMAND = [sys.executable, "-m", "dekpca.cli", "node", "run", "--yes"]


@pytest.fixture
def two(tmp_path):
    """Two nodes, ready to be started."""
    out = tmp_path / "peers"
    made = CliRunner().invoke(app, ["node", "simulate", "--nodes", "2", "--out", str(out), "--write-only"])
    assert made.exit_code == 0, made.output
    return [out / f"node-{j}.toml" for j in (0, 1)]


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(fcntl, "F_SETPIPE_SZ"), reason="a small pipe needs Linux")
def test_a_log_that_nobody_reads_does_not_stop_the_run(two):
    """At c6f9cc8 the node hung in the first line that the pipe had no room for, and its neighbor waited for ever."""
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)
    os.write(writing, b"x" * 2600)  # room for what is said before the run begins, and for no more than a few lines
    first = subprocess.Popen([*COMMAND, two[0]], stdout=subprocess.PIPE, stderr=writing)
    second = subprocess.Popen([*COMMAND, two[1]], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    os.close(writing)
    try:
        for process in (second, first):
            said = process.communicate(timeout=PATIENCE)[0]
            assert process.returncode in (0, 3)
            assert b"the answer of 2 nodes" in said
        os.set_blocking(reading, False)
        assert len(os.read(reading, 1 << 16)) > 3500  # it was full
    finally:
        for process in (first, second):
            process.kill()
            process.communicate()
        os.close(reading)


@pytest.mark.skipif(not hasattr(fcntl, "F_SETPIPE_SZ"), reason="a small pipe needs Linux")
def test_lines_that_are_dropped_are_counted():
    from dekpca.peers.app import logs

    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)
    with open(writing, "w") as stream:
        handler = logs.Lines(stream)
        handler.setFormatter(logs.Plain())
        since = time.monotonic()
        for number in range(3 * logs.MOST_LINES):
            handler.emit(logging.makeLogRecord({"msg": f"line {number} {'x' * 80}"}))
        handler.flush()
        assert time.monotonic() - since < logs.PATIENCE + 5
        text, numbers, dropped = b"", [], 0
        while len(numbers) + dropped < 3 * logs.MOST_LINES:  # now somebody reads; drops may be told of more than once
            assert select.select([reading], [], [], 30)[0], (len(numbers), dropped)
            *lines, text = (text + os.read(reading, 4096)).split(b"\n")
            for words in map(bytes.split, lines):
                if b"dropped:" in words:
                    dropped += int(words[1])
                else:
                    numbers.append(int(words[2]))
        os.close(reading)
        assert dropped > logs.MOST_LINES
        assert numbers == sorted(numbers)
        handler.close()


def test_strangers_cannot_fill_the_log():
    from dekpca.peers.app.logs import BURST, WINDOW, Throttle

    throttle, now = Throttle(), 1000.0

    def lines(message, count, at):
        records = [logging.makeLogRecord({"msg": message, "created": at}) for _ in range(count)]
        return [record for record in records if throttle.filter(record)]

    assert len(lines("refused", 50 * BURST, now)) == BURST
    assert len(lines("neighbor is up", 1, now)) == 1  # others are not concerned
    after = lines("refused", 5, now + WINDOW + 1)
    assert len(after) == 5
    assert after[0].left_out == 49 * BURST


def test_what_a_library_writes_is_in_the_log_and_nowhere_else(capfd, monkeypatch):
    """At c6f9cc8 gRPC's lines went straight to standard error, also when that was a pipe that nobody read."""
    from dekpca.peers.app import logs

    records = []
    monkeypatch.setattr(logs.log, "handlers", [])
    monkeypatch.setattr(logs.log, "propagate", False)
    handler = logging.Handler()
    handler.emit = records.append
    logs.log.addHandler(handler)
    with logs.library_lines():
        os.write(2, b"E0000 something \x1b[31m failed\n")
    os.write(2, b"afterwards\n")
    assert [record.why for record in records] == ["E0000 something ?[31m failed"]
    assert capfd.readouterr().err == "afterwards\n"


def test_lines_for_people_hold_no_control_characters():
    """At c6f9cc8 they did."""
    from dekpca.peers.app import logs

    record = logging.makeLogRecord({"msg": "refused", "why": "a\nname \x1b[2J \u202e here", "caller": "x" * 5000})
    for line in (logs.Plain().format(record), logs.JsonLines("a").format(record)):
        assert line.isprintable()
        assert "x" * 5000 in line
    assert json.loads(logs.JsonLines("a").format(record))["why"] == record.why
