"""Which neighbors are silent, and which are alive without progress (docs/reference/protocol.md, heartbeats).

When one node is stuck, `idle` grows at all nodes, and `waits_for` identifies the stuck node: it waits for nobody. Its
neighbors give up after `progress_timeout`, and name it. A node may lie: one that claims to wait has twice the limit; one
that claims to compute, CLAIMS times; one that waits for the latter, twice that.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..errors import PeerLost
from .events import Phase
from .membership import Membership
from .neighbor import Neighbor
from .rounds import Rounds
from .views import GONE

CLAIMS = 10.0  # times progress_timeout: limit for a node that claims to compute while a message is missing


@dataclass(frozen=True)
class Timeouts:
    """Seconds."""

    peer: float = 300.0  # until a silent neighbor counts as lost, while this node waits for it
    start: float = 3600.0  # until a neighbor answers for the first time
    beat: float = 2.0  # between two heartbeats
    progress: float = 3600.0  # until a live neighbor must make progress


def stuck(idle: float, others: Iterable[str], waited: float, limit: float, patience: float) -> str | None:
    """Why a neighbor is given up; None if it is not.

    `idle`: seconds without progress, as it says. `others`: nodes it claims to wait for, if plausible. `waited`:
    seconds since the last byte of the missing message. `patience`: minimum seconds for a computing node.

    Examples
    --------
    >>> stuck(11, (), 12, limit=10, patience=0)
    'has made no progress for 11 s (limit progress_timeout 10 s), though it is alive'
    >>> stuck(11, ("c",), 12, limit=10, patience=0)
    >>> stuck(0, (), 99, limit=10, patience=0)
    """
    still, others = min(waited, idle), sorted(others)
    none = f"has made no progress for {still:.0f} s"
    if still > limit and not others:
        return f"{none} (limit progress_timeout {limit:g} s), though it is alive"
    if still > 2 * limit:
        return f"{none} (limit twice progress_timeout, {2 * limit:g} s); it says that it waits for node {', '.join(others)}"
    most = max(CLAIMS * limit, patience) * (2 if others else 1)
    if waited > most:
        return f"has sent nothing for {waited:.0f} s (limit {most:g} s); it says that something moves"
    return None


class Liveness:
    """The clocks of a node. `goes_on`: survivors agree on what to do about lost nodes (agreement.py)."""

    def __init__(self, rounds: Rounds, membership: Membership, timeouts: Timeouts, goes_on: bool, now: float):
        self.name, self.neighbors, self.rounds, self.membership = rounds.name, rounds.neighbors, rounds, membership
        self.timeouts, self.goes_on = timeouts, goes_on
        self.started = self.round_begun = self._ticked = now
        self.moved_at = now  # last progress of this node
        self.waits_for: set[str] = set()  # neighbors, while the program waits

    def idle(self, now: float) -> float:
        """Seconds without progress here, or at the nodes that this node waits for."""
        if not self.waits_for:
            return now - self.moved_at
        if self.rounds.limits is None:  # start_timeout applies to nodes that have not been started yet
            return 0.0
        awaited = [self.neighbors[name] for name in self.waits_for]
        return min([now - self.moved_at, *(n.idle(now) if n.up else 0.0 for n in awaited)])

    def silent(self, n: Neighbor, now: float) -> float:
        """Seconds since messages last passed in both directions."""
        known = [at for at in (n.answered_at, n.heard_at) if at is not None]
        theirs = 0.0 if n.beat_at is None else n.heartbeat.silence + now - n.beat_at
        return max(now - (known[0] if known else self.started), theirs)

    def skip_pause(self, now: float) -> None:
        """After a suspended process or machine, silence of neighbors does not count: this node was not listening."""
        gap, self._ticked = now - self._ticked, now
        if gap <= 3 * self.timeouts.beat:
            return
        times = ("taken_at", "chunk_at", "answered_at", "heard_at", "beat_at")
        clocks = [(self, time) for time in ("started", "round_begun", "moved_at")]
        for who, time in [*clocks, *((n, time) for n in self.neighbors.values() for time in times)]:
            if (at := getattr(who, time)) is not None:
                setattr(who, time, min(now, at + gap))

    def check_lost(self, waited: Iterable[Neighbor], what: str, now: float) -> None:
        """Raises PeerLost for a neighbor that is waited for and silent, or that receives nothing."""
        if self.goes_on and self.rounds.limits is not None:
            return  # the survivors agree on what to do
        for n in waited:
            # A neighbor without a handshake may be there only to send its stop notice.
            limit = self.timeouts.peer if n.joined and n.answered_at is not None else self.timeouts.start
            if (silent := self.silent(n, now)) > limit:
                text = f"node {n.name} was not heard from for {silent:.0f} s (limit {limit:g} s)"
                text += f", and node {self.name} waits for {what}"
                if n.answered_at is None:
                    text += f"; {GONE}; or a firewall may drop all calls between them: dekpca node check names it"
                raise PeerLost(text + _trouble(n.stop_reason or n.trouble))
        for n in self.neighbors.values():
            if self.takes_nothing(n, now):
                since = f"for {now - n.taken_at:.0f} s (limit {self._patience(n):g} s), though it is alive"
                due = f"round {next(iter(n.window.unacknowledged))} is due{_trouble(n.trouble)}"
                raise PeerLost(f"node {n.name} has taken nothing from node {self.name} {since}; {due}")

    def takes_nothing(self, n: Neighbor, now: float) -> bool:
        """Whether the neighbor is alive, but receives no messages. Before it has entered this view it need not accept any."""
        here = not self.goes_on or n.heartbeat.view == str(self.rounds.view)
        due = here and n.window.unacknowledged and not n.finished and n.answered_at is not None
        return bool(due) and now - n.taken_at > self._patience(n)

    def _patience(self, n: Neighbor) -> float:
        return self.timeouts.start if n.heartbeat.phase == Phase.MEETING else self.timeouts.peer

    def hangs(self, n: Neighbor, now: float) -> str | None:
        """Why a live neighbor that waits for nobody counts as hanging while this node waits; None if it does not."""
        ended = n.heartbeat.view == str(self.rounds.view) and n.heartbeat.phase in (Phase.FINISHING, Phase.FINISHED)
        if not self.waits_for or n.finished or ended or self._awaited(n, n.name in self.rounds.missing):
            return None
        return self.stuck(n, now)

    def stuck(self, n: Neighbor, now: float, patience: float = 0.0) -> str | None:
        """Why a live neighbor is given up; None if it is not."""
        if not n.up or n.beat_at is None:
            return None
        waited = now - max(self.round_begun, n.chunk_at)
        return stuck(n.idle(now), self._awaited(n), waited, self.timeouts.progress, max(patience, self.timeouts.start))

    def _awaited(self, n: Neighbor, due: bool = True) -> set[str]:
        """The nodes for which its claim to wait is plausible: its own neighbors that are not lost. If its message is
        due, it can wait for this node only if it has unacknowledged messages of this node.
        """
        known, view = self.membership.records.get(n.name), self.rounds.view
        by_fallback = {name for edge in view.fallback if n.name in edge for name in edge}
        others = {name for name in n.heartbeat.waits_for if known is None or name in known[0] or name in by_fallback}
        others -= view.without
        return set() if due and self.name in others and not n.window.unacknowledged else others


def _trouble(why: str) -> str:
    return f"; the last trouble: {why}" if why else ""
