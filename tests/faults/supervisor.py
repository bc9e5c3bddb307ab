"""Node processes under supervision: started, killed, stopped and restarted when something has happened, never left behind.

`Nursery` is the process that hosts them (nursery.py). `Node` is one node: its configuration, its log, its process of the moment.
Waiting is always for something to become true, with a deadline; nothing here sleeps and hopes.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

IMPORTS = 300  # seconds; 5 on an idle machine, more than 60 beside twenty busy processes
POLL = 0.002  # seconds between looks at a log: an iteration of the smallest network takes longer


class Overdue(AssertionError):
    """Something did not happen before its deadline: a hang, as far as a test can tell."""


def until(condition: Callable[[], Any], what: str | Callable[[], str], seconds: float) -> Any:
    """Wait for `condition` to be true and return what it returned."""
    end = time.monotonic() + seconds
    while True:
        if found := condition():
            return found
        if time.monotonic() > end:
            raise Overdue(f"not within {seconds:g} s: {what if isinstance(what, str) else what()}")
        time.sleep(POLL)


class Nursery:
    """Starts processes and hears of their ends; a context manager that leaves none behind."""

    def __init__(self) -> None:
        env = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "COVERAGE_PROCESS_START": ""}
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("nursery.py"))],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env,
        )  # fmt: skip
        self._lock = threading.Lock()  # scenarios are played in several threads
        self._next = 0
        self.pids: dict[int, int] = {}
        self.ended: dict[int, tuple[int, int]] = {}  # key -> exit code, peak memory in KiB
        self._ready: queue.Queue[bool] = queue.Queue()
        self._listener = threading.Thread(target=self._listen, name="nursery", daemon=True)
        self._listener.start()
        if not self._ready.get(timeout=IMPORTS):
            raise RuntimeError("the nursery ended before it was ready; what it said is above")

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            said = json.loads(line)
            if "ready" in said:
                self._ready.put(True)
            elif "pid" in said:
                self.pids[said["key"]] = said["pid"]
            else:
                self.ended[said["key"]] = said["code"], said["peak"]
        self._ready.put(False)

    def start(self, argv: Iterable[Any], out: Path, fresh: bool = False, **more: Any) -> int:
        """A process that runs `dekpca` with these arguments and writes to `out`; returns its key. nursery.py says what `more` there is."""
        with self._lock:
            self._next += 1
            key = self._next
        self._order(do="start", key=key, argv=[str(a) for a in argv], out=str(out), fresh=fresh, **more)
        until(lambda: key in self.pids, "the nursery starts a process", 120)
        return key

    def signal(self, key: int, number: int) -> None:
        self._order(do="signal", key=key, signal=int(number))

    def _order(self, **order: Any) -> None:
        assert self._process.stdin is not None
        with self._lock:
            self._process.stdin.write(json.dumps(order).encode() + b"\n")
            self._process.stdin.flush()

    def __enter__(self) -> Nursery:
        return self

    def __exit__(self, *unused: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(30)
        self._listener.join(10)
        assert self._process.stdout is not None
        self._process.stdout.close()


@dataclass(eq=False)
class Node:
    """One node: `dekpca node run CONFIG --yes`, as often as it is started."""

    name: str
    config: Path
    nursery: Nursery
    log: Path
    file_limit: int | None = None  # bytes
    open_files: int | None = None
    stuck: str | None = None  # what it says of itself when it hangs (stuck.py)
    fresh: bool = False
    key: int | None = None
    codes: list[int] = field(default_factory=list)  # of all its ends
    peak: int = 0  # KiB, of all its processes
    _offset: int = 0
    _tail: bytes = b""
    events: list[dict[str, Any]] = field(default_factory=list)  # since its last start

    def start(self) -> None:
        assert not self.running, f"node {self.name} runs already"
        self._read()
        self.events.clear()
        argv = ["node", "run", self.config, "--yes"]
        more = {"file_limit": self.file_limit, "open_files": self.open_files, "stuck": self.stuck}
        self.key = self.nursery.start(argv, self.log, self.fresh, **more)

    @property
    def running(self) -> bool:
        return self.key is not None and self.code is None

    @property
    def code(self) -> int | None:
        """The exit code of the last process, None while it runs."""
        if self.key is None or self.key not in self.nursery.ended:
            return None
        code, peak = self.nursery.ended[self.key]
        self.peak = max(self.peak, peak)
        return code

    @property
    def pid(self) -> int:
        assert self.key is not None
        return self.nursery.pids[self.key]

    def signal(self, number: int) -> None:
        assert self.key is not None
        self.nursery.signal(self.key, number)

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        self.signal(signal.SIGKILL)
        until(lambda: not self.running, f"node {self.name} is gone after SIGKILL", 30)

    def _read(self) -> None:
        if not self.log.exists():
            return
        with self.log.open("rb") as file:
            file.seek(self._offset)
            new = file.read()
        self._offset += len(new)
        *lines, self._tail = (self._tail + new).split(b"\n")
        for line in lines:
            try:
                self.events.append(json.loads(line))
            except ValueError:
                self.events.append({"text": line.decode(errors="replace")})

    def happened(self, wanted: Callable[[dict[str, Any]], bool]) -> bool:
        """Whether the node's log has had such a line since its last start."""
        self._read()
        return any(wanted(event) for event in self.events)

    def text(self) -> str:
        """The whole log, all starts together."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def error(self) -> str:
        """What it said was wrong since its last start; nothing if all was well."""
        self._read()
        return next((t for e in reversed(self.events) if (t := e.get("text", "")).startswith("error: ")), "")
