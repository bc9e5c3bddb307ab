"""Detection of lost and stuck neighbors. The node then stops, or goes on with the others in another view (views.py).

`Watch` is the part of a node (node.py) with timeouts. It has the neighbors, the views, and the error that stops the
node. node.py has the rounds of the program.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, replace

from ....network import listing
from ..errors import NEW_RUN, Damaged, Disagreement, Excluded, PeerError, PeerLost
from . import events, progress
from .checks import Limits
from .events import Action, Call, Log, Phase, SaveViews, Send, WakeProgram
from .membership import Membership
from .neighbor import Neighbor, Notice
from .views import Kept, Status, View, ViewChanged, Views

MOST_STATUSES = 1 << 18  # approximate bytes of statuses in a heartbeat


@dataclass(frozen=True)
class Timeouts:
    """Seconds."""

    peer: float = 300.0  # until a silent neighbor counts as lost, while this node waits for it
    start: float = 3600.0  # until a neighbor answers for the first time
    beat: float = 2.0  # between two heartbeats
    progress: float = 3600.0  # until a live neighbor must make progress


class Watch:
    """A node's neighbors and views. The parameters are those of NodeProtocol."""

    def __init__(
        self, name: str, membership: Membership, neighbors: Iterable[str], timeouts: Timeouts, now: float, views: Views | None,
        fallback: Iterable[str], wall: float,
    ):  # fmt: skip
        self.name, self.membership, self.timeouts, self.views = name, membership, timeouts, views
        self.neighbors = {other: Neighbor(other) for other in neighbors}
        self.near = set(self.neighbors)  # the neighbors of this node in the program's view
        self.view = View() if views is None else views.kept.program  # of the program
        used = set() if views is None else views.fallbacks()
        self.neighbors |= {other: Neighbor(other, fallback=True, called=other in used) for other in fallback}
        if views is not None:
            views.reach = set(self.neighbors)
        self.limits: Limits | None = None  # None: the program has not begun
        self.started, self._wall = now, wall - now  # seconds of the Unix epoch when this clock was 0
        self.round_begun = self.moved_at = now  # moved_at: last progress of this node
        self.missing: set[str] = set()  # neighbors whose message of this round has not arrived
        self.waits_for: set[str] = set()  # neighbors, while the program waits
        self._ticked = now
        # A node restarted after its answer was final does not wait for nodes that may not know it: the others have waited.
        self._stays = 0.0 if views is None or views.own.final is not None else timeouts.peer + views.settle
        # Sums are secure or private: an error that is not of this package may hold numbers of rows, and neighbors hear its class only.
        self.sealed = False
        self.error: BaseException | None = None
        self.cause = ""  # the text for the neighbors

    # ------------------------------------------------------------------ stopping
    def fail(self, error: BaseException, cause: str | None = None) -> list[Action]:
        """Stop this node. `cause` is the text for the neighbors, by default the error's text with the name of this
        node. Only the first error counts."""
        if self.error is None:
            if cause is None:
                interrupted = isinstance(error, KeyboardInterrupt)
                text = type(error).__name__ if self.sealed and not isinstance(error, PeerError) else str(error)
                told = getattr(error, "told", None) or text or type(error).__name__
                cause = "stopped by its owner" if interrupted else told
                if not isinstance(error, (PeerLost, Disagreement)):  # these already name the nodes
                    cause = f"node {self.name}: {cause}"
            self.error, self.cause = error, cause
            for n in self.neighbors.values():
                n.apply(events.WeStop())
        return [WakeProgram(), Send(tuple(self.neighbors), heartbeat=True)]

    def latecomers(self) -> list[str]:
        """Neighbors that have not been up yet, and would wait for this node: it stays to send them its stop notice."""
        if not isinstance(self.error, PeerError) or self.error.resumable or isinstance(self.error, Excluded):
            return []
        return [n.name for n in self.neighbors.values() if n.may_come and n.name in self.near]

    def all_told(self, latecomers: Iterable[str]) -> bool:
        """Whether all neighbors that are up, and all of `latecomers`, have the stop notice."""
        late = set(latecomers)
        waited = [n for n in self.neighbors.values() if n.up or (n.name in late and n.may_come)]
        return all(n.notice is Notice.DELIVERED for n in waited)

    def raise_error(self) -> None:
        if self.error is not None:
            raise self.error
        if self.views is not None and self.views.saved.program.key != self.view.key:
            raise ViewChanged

    # ------------------------------------------------------------------ views, with on_loss = "continue"
    def check_losses(self, now: float) -> list[Action]:
        """Check timeouts: neighbors may be lost, or back. To be called at least at every heartbeat."""
        if self.views is None or not self.views.begun or self.limits is None or self.error is not None:
            return []
        self._skip_pause(now)
        # Owners restart their nodes minutes apart: the first one waits longer.
        alone = all(n.answered_at is None and n.heard_at is None for n in self.neighbors.values())
        limit = self.timeouts.start if alone else self.timeouts.peer
        silent = {
            n.name
            for n in self.neighbors.values()
            if n.silent(now, self.started) > limit or self._takes_nothing(n, now)
        }
        hanging = {n.name: why for n in self.neighbors.values() if (why := self._hangs(n, now))}
        # A view that only votes may have other neighbors, but does not change the program's.
        views, said = self.views, self.views.own
        watched = self.near | views.around(said.entered) | views.around(said.view)
        away = silent | hanging.keys()
        down = {name for name in watched & away if not self.neighbors[name].finished}
        fallback = {n.name for n in self.neighbors.values() if n.fallback and n.joined and n.up and n.name not in away}
        if said.down == tuple(sorted(down)) and said.fallback == tuple(sorted(fallback)) and not views.waits:
            return []
        new = sorted(down.intersection(hanging).difference(said.down))
        told: list[Action] = [Log(logging.WARNING, f"node {name} {hanging[name]}", {"peer": name}) for name in new]
        return told + self._follow(down, fallback, now)

    def _follow(self, down: Iterable[str], fallback: Iterable[str], now: float) -> list[Action]:
        """Apply the rules of views.py; returns the actions."""
        assert self.views is not None
        before = self.views.kept
        try:
            self.views.update(down, fallback, now + self._wall, now)
        except PeerError as error:
            return self.fail(error)
        fallbacks = [n.name for n in self.neighbors.values() if n.fallback]
        actions = self._call(name for name in fallbacks if self.views.unreachable or name in self.views.fallbacks())
        kept = self.views.kept
        if kept != before:
            actions += [*_log_views(before, kept), SaveViews(kept)]
        return actions

    def _call(self, names: Iterable[str]) -> list[Action]:
        new = tuple(name for name in names if not self.neighbors[name].called)
        for name in new:
            self.neighbors[name].called = True
        return (
            [Log(logging.WARNING, "fallback neighbors are called", {"peers": listing(new)}), Call(new)] if new else []
        )

    def _skip_pause(self, now: float) -> None:
        """After a suspended process or machine, silence of neighbors does not count: this node was not listening."""
        gap, self._ticked = now - self._ticked, now
        if gap <= 3 * self.timeouts.beat:
            return

        def shifted(time: float) -> float:
            return min(now, time + gap)

        self.started, self.round_begun, self.moved_at = map(shifted, (self.started, self.round_begun, self.moved_at))
        for n in self.neighbors.values():
            n.taken_at, n.chunk_at = shifted(n.taken_at), shifted(n.chunk_at)
            n.answered_at = None if n.answered_at is None else shifted(n.answered_at)
            n.heard_at = None if n.heard_at is None else shifted(n.heard_at)
            n.silence = None if n.silence is None else (n.silence[0], shifted(n.silence[1]))
            n.told = None if n.told is None else replace(n.told, at=shifted(n.told.at))

    def _hear_statuses(self, n: Neighbor, event: events.Heartbeat, now: float) -> list[Action]:
        if self.views is None:
            return []
        actions = self._call([n.name])  # a fallback neighbor calls this node
        for name, status in event.statuses.items():
            n.has[name] = max(status.version, n.has.get(name, 0))
        ours = event.statuses.get(self.name)
        if ours is not None and ours.version > self.views.own.version:
            text = f"node {self.name} has said what it does not know: its folder is not the one of this run; if that is lost, {NEW_RUN}"
            return [*actions, *self.fail(Damaged(text), text)]
        if not self.views.add(event.statuses):
            return actions
        actions += [Send(tuple(self.neighbors), heartbeat=True), WakeProgram()]  # forward it
        if self.views.begun and self.limits is not None and self.error is None:
            actions += self._follow(self.views.own.down, self.views.own.fallback, now)
        return actions

    def _news_of_views(self, n: Neighbor) -> dict[str, Status]:
        """Statuses that a neighbor may not have; if there are many, the next heartbeats have the others."""
        if self.views is None:
            return {}
        news: dict[str, Status] = {}
        size = 0
        for name, status in [(self.name, self.views.saved.status), *self.views.statuses.items()]:
            if status.version > n.has.get(name, 0) and size < MOST_STATUSES:
                news[name] = status
                size += (
                    100
                    + 80 * sum(map(len, (status.view.lost, status.entered.lost, status.down, status.fallback)))
                    + 160 * sum(len(view.broken) + len(view.fallback) for view in (status.view, status.entered))
                )
        return news

    def views_saved(self, kept: Kept) -> list[Action]:
        """This is on disk: it may be sent to neighbors, and the program may act on it."""
        assert self.views is not None
        self.views.saved = kept
        return [Send(tuple(self.neighbors), heartbeat=True), WakeProgram()]

    def _may_leave(self, here: Iterable[Neighbor], seconds: float) -> bool:
        """Whether all know the final answer, and these neighbors know that all do; or this node has waited for so many seconds.

        A node that lacks the final answer may have lost its neighbors, and call others over its fallback edges; they must still be there.
        """
        views = self.views
        if views is None or seconds >= self._stays:
            return True
        if any(self._news_of_views(n) for n in here):
            return False
        return all(views.status(name).final is not None for name in views.members(views.own.entered))

    # ------------------------------------------------------------------ lost and stuck neighbors
    def _check_lost(self, waited: Iterable[Neighbor], what: str, now: float) -> None:
        if self.views is not None and self.limits is not None:
            return  # the survivors agree on what to do (check_losses)
        for n in waited:
            # A neighbor without a handshake may be there only to send its stop notice.
            limit = self.timeouts.peer if n.joined and n.answered_at is not None else self.timeouts.start
            silent = n.silent(now, self.started)
            if silent > limit:
                why = n.stop_reason or n.trouble
                raise PeerLost(
                    f"node {n.name} was not heard from for {silent:.0f} s (limit {limit:g} s), and node {self.name} waits for {what}"
                    + (f"; the last trouble: {why}" if why else "")
                )
        for n in self.neighbors.values():
            if self._takes_nothing(n, now):
                raise PeerLost(
                    f"node {n.name} has taken nothing from node {self.name} for {now - n.taken_at:.0f} s (limit {self._patience(n):g} s), "
                    f"though it is alive; round {next(iter(n.window.unacknowledged))} is due"
                    + (f"; the last trouble: {n.trouble}" if n.trouble else "")
                )

    def _takes_nothing(self, n: Neighbor, now: float) -> bool:
        """Whether the neighbor is alive, but receives no messages. Before it has entered this view it need not accept any."""
        here = self.views is None or n.heartbeat.view == str(self.view)
        due = here and n.window.unacknowledged and not n.finished and n.answered_at is not None
        return bool(due) and now - n.taken_at > self._patience(n)

    def _patience(self, n: Neighbor) -> float:
        return self.timeouts.start if n.heartbeat.phase == Phase.MEETING else self.timeouts.peer

    def _hangs(self, n: Neighbor, now: float) -> str | None:
        """Why a live neighbor that waits for nobody counts as hanging while this node waits; None if it does not."""
        ended = n.heartbeat.view == str(self.view) and n.heartbeat.phase in (Phase.FINISHING, Phase.FINISHED)
        if not self.waits_for or n.finished or ended or self._awaited(n, n.name in self.missing):
            return None
        return self._stuck(n, self.round_begun, now)

    def _stuck(self, n: Neighbor, since: float, now: float) -> str | None:
        """Why a live neighbor is given up; None if it is not."""
        if not n.up or n.told is None:
            return None
        waited = now - max(since, n.chunk_at)
        return progress.stuck(n.told, self._awaited(n), waited, self.timeouts.progress, self.timeouts.start, now)

    def _awaited(self, n: Neighbor, due: bool = True) -> set[str]:
        """The nodes for which its claim to wait is plausible: its own neighbors that are not lost. If its message is
        due, it can wait for this node only if it has unacknowledged messages of this node.
        """
        known = self.membership.records.get(n.name)
        by_fallback = {name for edge in self.view.fallback if n.name in edge for name in edge}
        others = {name for name in n.heartbeat.waits_for if known is None or name in known[0] or name in by_fallback}
        others -= self.view.without
        return set() if due and self.name in others and not n.window.unacknowledged else others


def _log_views(before: Kept, now: Kept) -> list[Action]:
    """Log lines for the owner."""
    lines: list[Action] = []
    if now.status.down != before.status.down:
        gone, back = set(now.status.down) - set(before.status.down), set(before.status.down) - set(now.status.down)
        if gone:
            lines.append(Log(logging.WARNING, "neighbor counts as lost", {"peers": listing(sorted(gone))}))
        if back:
            lines.append(Log(logging.INFO, "neighbor heard from again", {"peers": listing(sorted(back))}))
    if now.status.view.key != before.status.view.key:
        view = now.status.view
        about = {"view": view.number, "proposer": view.proposer, "lost": listing(sorted(view.without))}
        lines.append(Log(logging.WARNING, "view accepted", about))
    entered = now.status.entered
    if entered.key != before.status.entered.key:
        anew = now.program.key == entered.key
        text = (
            "going on without lost nodes, from the start"
            if anew
            else "the answer is complete; agreeing without lost nodes"
        )
        lines.append(Log(logging.WARNING, text, {"view": entered.number, "lost": listing(sorted(entered.without))}))
    if now.status.final != before.status.final:
        lines.append(
            Log(
                logging.INFO,
                "answer is final",
                {"view": now.program.number, "lost": listing(sorted(now.program.without))},
            )
        )
    return lines
