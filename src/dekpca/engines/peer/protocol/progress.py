"""Who is stuck. A neighbor that is silent is found by its missing beats; one that is alive and does nothing is found here.

Every beat says for how many seconds nothing has moved at a node (`idle`), and whose messages it waits for (`waits_for`). Something moves when
the program begins a round, when a byte of a message comes or goes, and while the program's thread uses the processor: slow computing is not
stuck. For a node that waits, something moves when it moves at whom it waits for. So `idle` grows everywhere as soon as one node is stuck, and
`waits_for` shows which one it is: the one that waits for nobody. Whoever waits for that one gives up after `progress_timeout`, and names it.

A node may say anything. One that says that it waits has twice as long, one that says that it computes CLAIMS times, and whoever waits for such a
one twice that.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

CLAIMS = 10.0  # times progress_timeout: longer is nobody believed to be computing, while one message is missing


@dataclass(frozen=True)
class Told:
    """What a neighbor has said of itself."""

    idle: float = 0.0  # seconds
    waits_for: tuple[str, ...] = ()
    at: float = 0.0  # when it said so

    def now(self, now: float) -> float:
        return self.idle + now - self.at


class Effort:
    """What moves at this node."""

    def __init__(self) -> None:
        self.moved = time.monotonic()
        self._clock: int | None = None  # of the thread that computes
        self._spent = 0.0

    def begin(self, thread: int) -> None:
        """The program runs in this thread. Where a thread's processor time cannot be read, rounds and bytes must do."""
        if hasattr(time, "pthread_getcpuclockid"):
            self._clock = time.pthread_getcpuclockid(thread)
        self.mark()

    def mark(self) -> None:
        """Something has moved."""
        self.moved = time.monotonic()

    def computing(self) -> float:
        """Seconds for which nothing has moved, of a node that waits for nobody."""
        if self._clock is not None:
            try:
                spent = time.clock_gettime(self._clock)
            except OSError:  # the thread has ended
                spent = self._spent
            if spent - self._spent > 0.01:
                self._spent = spent
                self.mark()
        return time.monotonic() - self.moved

    def waiting(self, now: float, awaited: Iterable[Told | None]) -> float:
        """The same of a node that waits for others. None is one that does not answer: its silence has limits of its own.

        Examples
        --------
        >>> effort = Effort()
        >>> effort.moved = 0.0
        >>> effort.waiting(100.0, [Told(idle=60, at=90), Told(idle=5, at=98)])
        7.0
        """
        return min([now - self.moved, *(0.0 if told is None else told.now(now) for told in awaited)])


def stuck(told: Told, others: Iterable[str], waited: float, limit: float, patience: float, now: float) -> str | None:
    """Why a neighbor is not waited for any longer; None as long as it is.

    `waited`: seconds since anything of the missing message came; `others`: whom it waits for, as far as that can be true; `patience`: seconds
    that whoever computes has at least.

    Examples
    --------
    >>> stuck(Told(idle=11), (), 12, limit=10, patience=0, now=0)
    'has made no progress for 11 s (limit progress_timeout 10 s), though it is alive'
    >>> stuck(Told(idle=11, waits_for=("c",)), ("c",), 12, limit=10, patience=0, now=0)
    >>> stuck(Told(idle=0), (), 99, limit=10, patience=0, now=0)
    """
    still, others = min(waited, told.now(now)), sorted(others)
    none = f"has made no progress for {still:.0f} s"
    if still > limit and not others:
        return f"{none} (limit progress_timeout {limit:g} s), though it is alive"
    if still > 2 * limit:
        return f"{none} (limit twice progress_timeout, {2 * limit:g} s); it says that it waits for node {', '.join(others)}"
    most = max(CLAIMS * limit, patience) * (2 if others else 1)
    if waited > most:
        return f"has sent nothing for {waited:.0f} s (limit {most:g} s); it says that something moves"
    return None
