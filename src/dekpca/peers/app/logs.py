"""The log of a node. Writing it never holds up the run, also if nobody reads it, and strangers cannot fill the disk with it.

Lines go into a queue, and a thread writes them: if a pipe is full, or a disk hangs, the thread waits, and lines that the queue has no room for
are counted and dropped. gRPC's library writes to standard error by itself; `library_lines` puts that into the log too, with the same limits.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import queue
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ..protocol.text import showable

log = logging.getLogger("dekpca.peer")

STANDARD = set(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
MOST_LINES = 1000  # in the queue
PATIENCE = 1.0  # seconds for the last lines at the end
# Lines with the same message in so many seconds: enough to see the callers, not enough to fill a disk.
BURST, WINDOW = 100, 10.0
MOST_LIBRARY = 1 << 12  # characters of a line of a library


class JsonLines(logging.Formatter):
    """One JSON object a line: time, level, node, message, and whatever else the call gave."""

    def __init__(self, node: str):
        super().__init__()
        self.node = node

    def format(self, record: logging.LogRecord) -> str:
        said: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "node": self.node,
            "message": record.getMessage(),
        }
        said |= {key: value for key, value in vars(record).items() if key not in STANDARD}
        if record.exc_info:
            said["trace"] = self.formatException(record.exc_info)
        return json.dumps(said, default=str)


class Plain(logging.Formatter):
    """For people: one line, without control characters, also if a neighbor wrote what is in it."""

    def format(self, record: logging.LogRecord) -> str:
        more = ", ".join(f"{key} {value}" for key, value in vars(record).items() if key not in STANDARD)
        said = f"{time.strftime('%H:%M:%S')} {record.getMessage()}" + (f": {more}" if more else "")
        return showable(said, len(said))


class Throttle(logging.Filter):
    """At most BURST lines with the same message in WINDOW seconds; the next one says how many were left out."""

    def __init__(self) -> None:
        super().__init__()
        self._seen: dict[str, tuple[float, int]] = {}  # message -> begin of the window, lines since

    def filter(self, record: logging.LogRecord) -> bool:
        begun, count = self._seen.get(record.msg, (record.created, 0))
        if record.created - begun > WINDOW:
            if count > BURST:
                record.left_out = count - BURST
            begun, count = record.created, 0
        self._seen[record.msg] = begun, count + 1
        return count < BURST


class Lines(logging.Handler):
    """Writes to a stream from a thread; never waits for it longer than PATIENCE, and that only at the end."""

    def __init__(self, stream: Any):
        super().__init__()
        self._stream = stream
        self._queue: queue.Queue[str | None] = queue.Queue(MOST_LINES)
        self._dropped = 0
        handle = _handle(stream)
        # A file of its own: a thread that hangs in a write holds no lock of sys.stderr, which is flushed at the end.
        self._handle = None if handle is None else os.dup(handle)
        self._thread = threading.Thread(target=self._write_all, name="log", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._queue.put_nowait(self.format(record))
        except queue.Full:
            self._dropped += 1
        except Exception:
            self.handleError(record)

    def flush(self) -> None:
        """Until all is written, or for PATIENCE seconds."""
        with self._queue.all_tasks_done:
            self._queue.all_tasks_done.wait_for(lambda: not self._queue.unfinished_tasks, PATIENCE)

    def close(self) -> None:
        super().close()
        self.flush()
        with contextlib.suppress(queue.Full):
            self._queue.put_nowait(None)

    def _write_all(self) -> None:
        while (line := self._queue.get()) is not None:
            dropped, self._dropped = self._dropped, 0
            if dropped:
                text = f"{dropped} lines were dropped: nobody has read the log, or its disk is slow"
                record = log.makeRecord(log.name, logging.WARNING, __file__, 0, text, (), None)
                line = f"{self.format(record)}\n{line}"
            with contextlib.suppress(OSError, ValueError):  # nobody reads, the disk is full: without a log
                self._write(line + "\n")
            self._queue.task_done()
        self._queue.task_done()
        if self._handle is not None:
            os.close(self._handle)

    def _write(self, text: str) -> None:
        if self._handle is None:
            self._stream.write(text)
            self._stream.flush()
            return
        data = memoryview(text.encode(errors="backslashreplace"))
        while data:
            data = data[os.write(self._handle, data) :]


def log_to(stream: Any, node: str, as_json: bool) -> None:
    """Send the log of this process there."""
    for before in log.handlers:
        before.close()
    handler = Lines(stream)
    handler.setFormatter(JsonLines(node) if as_json else Plain())
    handler.addFilter(Throttle())
    log.handlers[:] = [handler]
    log.propagate = False
    log.setLevel(logging.INFO)


@contextmanager
def quiet() -> Iterator[None]:
    """Without a log: what happens is shown otherwise."""
    before, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = before


@contextmanager
def library_lines() -> Iterator[None]:
    """Put what libraries write to the standard error of the process into the log; sys.stderr leads to where it led before."""
    kept, (reading, writing) = os.dup(2), os.pipe()
    os.dup2(writing, 2)
    os.close(writing)
    before = sys.stderr
    if isinstance(before, io.TextIOWrapper) and _handle(before) == 2:
        sys.stderr = open(os.dup(kept), "w", buffering=1, encoding=before.encoding, errors=before.errors)  # noqa: SIM115

    def follow() -> None:
        with open(reading, encoding="utf-8", errors="replace") as lines:
            while line := lines.readline(MOST_LIBRARY):
                if line.strip():
                    log.warning("from a library", extra={"why": showable(line)})

    thread = threading.Thread(target=follow, name="library lines", daemon=True)
    thread.start()
    try:
        yield
    finally:
        os.dup2(kept, 2)  # closes the pipe, unless a child process has it
        os.close(kept)
        thread.join(PATIENCE)
        if sys.stderr is not before:
            sys.stderr.close()
            sys.stderr = before


def _handle(stream: Any) -> int | None:
    """The descriptor of a stream, None if it is no real file."""
    try:
        return int(stream.fileno())
    except (OSError, ValueError, AttributeError):
        return None
