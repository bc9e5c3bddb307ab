"""A node's part in the agreement on views (views.py), with on_loss = "continue": what it publishes, forwards and logs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from ...network import listing
from ..errors import PeerError
from . import events
from .events import Action, Log, SaveViews, Send
from .liveness import Liveness
from .neighbor import Neighbor
from .view_messages import pack_status
from .views import Kept, Status, Views

MOST_STATUSES = 1 << 18  # bytes of statuses in a heartbeat, after which no more are added


class Agreement:
    """`fail` stops the node, and returns actions. `wall`: seconds of the Unix epoch when the clock was 0."""

    def __init__(self, views: Views, live: Liveness, wall: float, fail: Callable[[PeerError], list[Action]]):
        self.views, self.neighbors, self.live, self._wall, self._fail = views, live.neighbors, live, wall, fail
        views.reach = set(live.neighbors)
        self.false: set[str] = set()  # nodes that have contradicted themselves, which were logged
        # A node restarted after its answer was final does not wait for nodes that may not know it: the others have waited.
        self._stays = 0.0 if views.own.final is not None else live.timeouts.peer + views.settle

    def check(self, now: float) -> list[Action]:
        """Neighbors may be lost, or back."""
        live, views, neighbors = self.live, self.views, self.neighbors.values()
        live.skip_pause(now)
        # Owners restart their nodes minutes apart: the first one waits longer.
        alone = all(n.answered_at is None and n.heard_at is None for n in neighbors)
        limit = live.timeouts.start if alone else live.timeouts.peer
        silent = {n.name for n in neighbors if live.silent(n, now) > limit or live.takes_nothing(n, now)}
        hanging = {n.name: why for n in neighbors if (why := live.hangs(n, now))}
        # A view that only votes may have other neighbors, but does not change the program's.
        said = views.own
        watched = set().union(*map(views.around, (live.rounds.view, said.entered, said.view)))
        away = silent | hanging.keys()
        down = {name for name in watched & away if not self.neighbors[name].finished}
        fallback = {n.name for n in neighbors if n.fallback and n.joined and n.up and n.name not in away}
        if said.down == tuple(sorted(down)) and said.fallback == tuple(sorted(fallback)) and not views.waits:
            return []
        new = sorted(down.intersection(hanging).difference(said.down))
        told: list[Action] = [Log(logging.WARNING, f"node {name} {hanging[name]}", {"peer": name}) for name in new]
        return told + self.follow(now, (down, fallback))

    def follow(self, now: float, seen: tuple[Iterable[str], Iterable[str]] | None = None) -> list[Action]:
        """Apply the rules, and save what is not on disk yet. `seen`: neighbors that are down, fallback neighbors that answer; None: as before."""
        views, before = self.views, self.views.kept
        down, fallback = (views.own.down, views.own.fallback) if seen is None else seen
        try:
            views.update(down, fallback, now + self._wall, now)
        except PeerError as error:
            return self._fail(error)
        fallbacks = [n.name for n in self.neighbors.values() if n.fallback]
        actions = self.call(name for name in fallbacks if views.unreachable or name in views.fallbacks())
        saved = [] if views.kept == views.saved else [SaveViews(views.kept)]
        return [*actions, *_log(before, views.kept), *saved]

    def call(self, names: Iterable[str]) -> list[Action]:
        """Call these neighbors, if they are fallback neighbors that are not called yet."""
        new = tuple(name for name in names if not self.neighbors[name].called)
        for name in new:
            self.neighbors[name].called = True
        said = Log(logging.WARNING, "fallback neighbors are called", {"peers": listing(new)})
        return [said, Send(new)] if new else []

    def news(self, n: Neighbor) -> dict[str, Status]:
        """Statuses that a neighbor may not have; if there are many, the next heartbeats have the others."""
        news: dict[str, Status] = {}
        size = 0
        for name, status in [(self.views.name, self.views.saved.status), *self.views.statuses.items()]:
            if status.version > n.has.get(name, 0) and size < MOST_STATUSES:
                news[name] = status
                size += pack_status(name, status).ByteSize()
        return news

    def refuse(self, names: set[str]) -> list[Action]:
        """These nodes contradict themselves. All are sent what was heard of them first; so whoever has heard the other knows, and they stop."""
        for n in self.neighbors.values():
            for name in names:
                n.has.pop(name, None)
        new, self.false = names - self.false, self.false | names
        text = "node {} contradicts itself: it lies, or runs in an older copy of its folder; what it says is refused"
        return [Log(logging.WARNING, text.format(name), {"peer": name}) for name in sorted(new)]

    def may_leave(self, here: Iterable[Neighbor], seconds: float) -> bool:
        """Whether all know the final answer, and these neighbors know that all do; or this node has waited for so many seconds.

        A node that lacks the final answer may have lost its neighbors, and call others over its fallback edges; they must still be there.
        """
        if seconds >= self._stays:
            return True
        members = self.views.members(self.views.own.entered)
        return not any(map(self.news, here)) and all(self.views.status(name).final is not None for name in members)


def heard(n: Neighbor, said: events.Heartbeat) -> None:
    """The neighbor has the statuses in this heartbeat: it has sent them, or they were sent to it."""
    for name, status in said.statuses.items():
        n.has[name] = max(status.version, n.has.get(name, 0))


def _log(before: Kept, now: Kept) -> list[Action]:
    """Log lines for the owner."""
    was, said, lines = before.status, now.status, []  # type: Status, Status, list[Action]
    if gone := set(said.down) - set(was.down):
        lines.append(Log(logging.WARNING, "neighbor counts as lost", {"peers": listing(sorted(gone))}))
    if back := set(was.down) - set(said.down):
        lines.append(Log(logging.INFO, "neighbor heard from again", {"peers": listing(sorted(back))}))
    if said.view.key != was.view.key:
        about = {"view": said.view.number, "proposer": said.view.proposer, "lost": listing(sorted(said.view.without))}
        lines.append(Log(logging.WARNING, "view accepted", about))
    if said.entered.key != was.entered.key:
        about = {"view": said.entered.number, "lost": listing(sorted(said.entered.without))}
        if now.program.key == said.entered.key:
            lines.append(Log(logging.WARNING, "going on without lost nodes, from the start", about))
        else:
            lines.append(Log(logging.WARNING, "the answer is complete; agreeing without lost nodes", about))
    if said.final != was.final:
        about = {"view": now.program.number, "lost": listing(sorted(now.program.without))}
        lines.append(Log(logging.INFO, "answer is final", about))
    return lines
