"""Detection of stuck nodes. Missing heartbeats show a dead neighbor; this module detects one that is alive without progress.

A heartbeat has the seconds since a node last made progress (`idle`), and the nodes whose messages it waits for
(`waits_for`). A node makes progress when its program begins a round, when a byte of a message is sent or received,
and while its program uses the processor: a slow computation is not stuck. A waiting node makes progress when one of
the nodes that it waits for does. So when one node is stuck, `idle` grows at all nodes, and `waits_for` identifies
the stuck node: it waits for nobody. Its neighbors give up after `progress_timeout`, and name it.

A node may lie. A node that claims to wait has twice the limit; a node that claims to compute, CLAIMS times; a node
that waits for the latter, twice that.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

CLAIMS = 10.0  # times progress_timeout: limit for a node that claims to compute while a message is missing


@dataclass(frozen=True)
class Told:
    """The progress that a neighbor has reported."""

    idle: float = 0.0  # seconds
    waits_for: tuple[str, ...] = ()
    at: float = 0.0  # time of the report

    def now(self, now: float) -> float:
        return self.idle + now - self.at


def stuck(told: Told, others: Iterable[str], waited: float, limit: float, patience: float, now: float) -> str | None:
    """Why a neighbor is given up; None if it is not.

    `waited`: seconds since the last byte of the missing message. `others`: nodes it claims to wait for, if
    plausible. `patience`: minimum seconds for a computing node.

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
