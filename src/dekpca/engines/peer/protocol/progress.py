"""Which node is stuck. A dead neighbor is found by missing heartbeats; one that is alive and does nothing is found here.

A heartbeat has the seconds since a node last made progress (`idle`), and the nodes whose messages it waits for (`waits_for`). A node makes
progress when its program begins a round, when a byte of a message comes or goes, and while its program uses the processor: slow computing is
not stuck. A node that waits makes progress when one of the nodes that it waits for does. So `idle` grows everywhere as soon as one node is stuck,
and `waits_for` shows which: the node that waits for nobody. Its neighbors give up after `progress_timeout`, and name it.

A node may lie. One that claims to wait has twice the limit; one that claims to compute, CLAIMS times; a node that waits for such a one, twice that.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

CLAIMS = 10.0  # times progress_timeout: no longer is a node believed to compute, while one message is missing


@dataclass(frozen=True)
class Told:
    """What a neighbor has said of its progress."""

    idle: float = 0.0  # seconds
    waits_for: tuple[str, ...] = ()
    at: float = 0.0  # when it said so

    def now(self, now: float) -> float:
        return self.idle + now - self.at


def stuck(told: Told, others: Iterable[str], waited: float, limit: float, patience: float, now: float) -> str | None:
    """Why a neighbor is given up; None as long as it is not.

    `waited`: seconds since anything of the missing message came. `others`: nodes it claims to wait for, as far as that can be true. `patience`:
    seconds that a computing node has at least.

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
