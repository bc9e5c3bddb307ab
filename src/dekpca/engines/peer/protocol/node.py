"""A node and its neighbors: rounds of messages, limits, and the end of a run. No threads, clocks, sockets or files. losses.py has lost nodes.

The caller (net/endpoint.py, or a simulator) reports events, executes the actions that are returned, and calls
`check_...` regularly, which raise errors that end the run. A run has the phases of events.Phase:

    meet           until the membership records of all nodes are known           check_meeting
    begin          limits for messages are known; neighbors may send
    start_round    messages to send, and messages expected               check_window, check_waiting
    try_finish     it has its answer: stay until the neighbors have theirs
    fail           after any error, the neighbors get a stop notice              all_told
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ....network import listing
from ..errors import KINDS, NEW_RUN, Damaged, Disagreement, PeerLost, ProtocolError, TooMuch
from . import events
from . import wire_pb2 as wire
from .checks import BROKEN_OFF, MOST_WAITS, PROTOCOL, UNSYNCED, WAITING, Limits, MessageHead, check_head
from .events import Action, Log, Phase, Refusal, Refused, SaveFinished, SaveViews, Send, WakeProgram
from .handshake import HandshakeSettings
from .losses import Timeouts, Watch
from .membership import Membership, Record
from .neighbor import Neighbor, Notice
from .progress import Told
from .text import showable
from .views import Key, View, Views
from .window import SendWindow

__all__ = ["NodeProtocol", "Timeouts"]


class NodeProtocol(Watch):
    """One node of a run. `received`: rounds of each neighbor's messages that are on disk; `finished`: neighbors known to have finished.

    `views`: None if the run stops when a node is lost. `fallback`: neighbors that are called only if a loss
    disconnects the network. `process`: a new number for each process of this node. `wall`: the time, in seconds of
    the Unix epoch.
    """

    def __init__(
        self, name: str, run: str, settings: HandshakeSettings, membership: Membership, neighbors: Iterable[str], timeouts: Timeouts, now: float,
        received: Mapping[str, Iterable[int]] | None = None, finished: Iterable[str] = (), views: Views | None = None,
        fallback: Iterable[str] = (), process: int = 0, wall: float = 0.0,
    ):  # fmt: skip
        super().__init__(name, membership, neighbors, timeouts, now, views, fallback, wall)
        self.run, self.settings, self.process = run, settings, process
        self.phase = Phase.MEETING
        self.iteration, self.residual = 0, None  # type: int, float | None
        self.round = 0  # of the program
        self.through = 0  # messages up to this round are not needed again
        self.expected: dict[str, MessageHead] = {}  # messages of this round, by neighbor
        self.learned_at = now  # last new record
        self.urgent = False  # a checkpoint waits for acknowledgements
        self.finished = False
        self._finished_at = now
        self._given_up: set[str] = set()  # neighbors that this node no longer waits for, after its answer
        for other, rounds in (received or {}).items():
            if other in self.neighbors:
                self.neighbors[other].received.update(rounds)
        for other in finished:
            if other in self.neighbors:
                self.neighbors[other].apply(events.FinishSaved())
        # The round that the program had reached before a restart: neighbors may still be in it.
        self.round_before = max((r for n in self.neighbors.values() for r in n.received), default=0)

    # ------------------------------------------------------------------ events
    def receive(self, name: str, event: Any, now: float) -> list[Action]:
        """Process an event of a neighbor. Returns actions; raises an error if the neighbor broke the protocol."""
        return self._HANDLERS[type(event)](self, self.neighbors[name], event, now)

    def _answered(self, n: Neighbor, event: events.Answered, now: float) -> list[Action]:
        came = n.apply(event)
        n.answered_at = now
        if not came:
            return []
        n.trouble = n.stop_reason = ""
        return [Log(logging.INFO, "neighbor is up", {"peer": n.name}), WakeProgram()]

    def _unreachable(self, n: Neighbor, event: events.Unreachable, now: float) -> list[Action]:
        was_up = n.apply(event)
        known, n.trouble = n.trouble, event.why
        if not was_up and event.why == known:
            return []
        level = logging.DEBUG if n.finished else logging.WARNING
        text = "neighbor is down" if was_up else "neighbor cannot be reached"
        return [Log(level, text, {"peer": n.name, "why": event.why})]

    def _handshake(self, n: Neighbor, event: events.HandshakeReceived, now: float) -> list[Action]:
        """Its settings and records. Raises Disagreement if they are not ours, Refused if this node stops."""
        if self.phase is Phase.REFUSING:
            raise Refused(Refusal.LATER, "this node does not resume")
        self.settings.compare(self.name, n.name, event.settings)
        if self.error is not None and self.limits is None:
            raise Refused(
                Refusal.LATER, "this node stops"
            )  # heartbeats have the reason; our record may change before a restart
        new = self.membership.add(event.records, n.name)
        n.knows |= event.records.keys()
        if not n.joined:
            # Silence so far may be that of an earlier process of the neighbor, which only reported an error.
            n.silence = None
            n.answered_at = None if n.answered_at is None else now
            self.learned_at = now
        n.apply(events.Joined())
        if not new:
            return []
        self.learned_at = now
        return [WakeProgram(), Send(tuple(self.neighbors))]

    def _handshake_sent(self, n: Neighbor, event: events.HandshakeSent, now: float) -> list[Action]:
        n.knows |= event.names
        return []

    def _heartbeat(self, n: Neighbor, event: events.Heartbeat, now: float) -> list[Action]:
        n.heard_at = now if n.heard_at is None else n.heard_at
        if event.process != n.heartbeat.process:  # after a restart it may know nothing
            n.has.clear()
        n.heartbeat, n.silence = event, (event.silence, now)
        n.told = Told(event.idle, event.waits_for, now)
        actions = self._hear_statuses(n, event, now)
        # With votes, a neighbor that has finished knows the final answer. It repeats that until this node knows it
        # too: otherwise its loss before then would go undetected.
        if event.finished and not n.finished and (self.views is None or self.views.own.final is not None):
            actions.append(SaveFinished(n.name))
        if event.stop_reason:
            if event.stop_reason != n.stop_reason:
                actions.append(Log(logging.WARNING, "neighbor stops", {"peer": n.name, "why": event.stop_reason}))
            n.stop_reason = event.stop_reason
            n.apply(events.StopNotice())
            # A node that stops before it has begun, perhaps with wrong settings, stops only nodes that have not
            # begun either. A lost node stops no other, even if the program does not know of the loss yet.
            views = self.views
            near = self.near if views is None or not views.begun else views.around(views.own.entered)
            heeded = self.limits is None or (event.phase != Phase.MEETING and n.name in near)
            if event.stops_all and not self.finished and heeded:
                kind = KINDS.get(event.kind, PeerLost)  # so that all nodes end with the same error
                actions += self.fail(kind(f"{event.stop_reason} (says node {n.name})"), event.stop_reason)
            if self.error is not None and (event.stops_all or event.kind in KINDS):
                n.apply(events.StopsToo())  # not if its owner interrupts it: it may come back and wait for this node
        return actions

    def _heartbeat_answered(self, n: Neighbor, event: events.HeartbeatAnswered, now: float) -> list[Action]:
        """The neighbor has the notice in that heartbeat, unless a newer notice is due."""
        said = event.sent
        for name, status in said.statuses.items():
            n.has[name] = max(status.version, n.has.get(name, 0))
        actions: list[Action] = [Send((n.name,), heartbeat=True)] if said.statuses and self._news_of_views(n) else []
        current = said.stop_reason if n.notice in (Notice.STOP, Notice.STOP_REPLY) else said.finished
        return [*actions, WakeProgram()] if current and n.apply(events.NoticeDelivered()) else actions

    def _opening(self, n: Neighbor, event: events.Opening, now: float) -> list[Action]:
        if event.view != self.view.key:
            return []  # late: the window is of another view
        lost = n.window.reopen(event.through, event.held)
        if not lost:
            return [WakeProgram()]
        text = (
            f"node {n.name} has lost what it had acknowledged (round {lost[0]} of node {self.name}): "
            f"its folder is not the one of this run; if that is lost, {NEW_RUN}"
        )
        return self.fail(Damaged(text), text)

    def _acknowledged(self, n: Neighbor, event: events.Acknowledged, now: float) -> list[Action]:
        if event.view != self.view.key:
            return []  # late: the window is of another view
        n.taken_at = self.moved_at = now
        taken = n.window.acknowledge(event.rounds)
        # Otherwise the program waits for another message.
        return [WakeProgram()] if taken and not self.missing and not n.window.unacknowledged else []

    def _chunk_sent(self, n: Neighbor, event: events.ChunkSent, now: float) -> list[Action]:
        n.bytes_sent += event.size
        n.taken_at = self.moved_at = now
        return []

    def _chunk_received(self, n: Neighbor, event: events.ChunkReceived, now: float) -> list[Action]:
        n.bytes_received += event.size
        if event.new:
            n.chunk_at = self.moved_at = now
        return []

    def _stored(self, n: Neighbor, event: events.MessageStored, now: float) -> list[Action]:
        n.received.add(event.round)
        if event.round == self.round:
            self.missing.discard(n.name)
        return [WakeProgram()] if not self.missing else []

    def _broken(self, n: Neighbor, event: events.MessageBroken, now: float) -> list[Action]:
        n.bytes_broken += event.size
        return []

    def _we_refused(self, n: Neighbor, event: events.WeRefused, now: float) -> list[Action]:
        """Before the program has begun both nodes report the difference, and stop. Later a wrong handshake has no effect."""
        if self.limits is not None:
            return []
        actions = self.fail(event.error)
        n.apply(events.NoticeDelivered())
        return actions

    def _they_refused(self, n: Neighbor, event: events.TheyRefused, now: float) -> list[Action]:
        if event.why in (Refusal.SETTINGS, Refusal.STRANGER) and self.limits is None:
            actions = self.fail(Disagreement(f"refused by node {n.name}: {event.text}"))
            n.apply(events.NoticeDelivered())  # it knows already
            return actions
        if event.why is Refusal.MESSAGE:
            text = f"node {n.name} does not take what this node sends: {event.text}; {NEW_RUN}"
            return self.fail(ProtocolError(text))
        if event.why is Refusal.QUOTA:
            return self.fail(PeerLost(f"node {n.name} takes no more of node {self.name}: {event.text}"))
        return [] if event.why is Refusal.LATER else self._unreachable(n, events.Unreachable(event.text), now)

    def _finish_saved(self, n: Neighbor, event: events.FinishSaved, now: float) -> list[Action]:
        n.apply(event)
        n.window.unacknowledged.clear()
        return [WakeProgram()]

    _HANDLERS: dict[type, Callable[..., list[Action]]] = {
        events.Answered: _answered,
        events.Unreachable: _unreachable,
        events.HandshakeReceived: _handshake,
        events.HandshakeSent: _handshake_sent,
        events.Heartbeat: _heartbeat,
        events.HeartbeatAnswered: _heartbeat_answered,
        events.Opening: _opening,
        events.Acknowledged: _acknowledged,
        events.ChunkSent: _chunk_sent,
        events.ChunkReceived: _chunk_received,
        events.MessageStored: _stored,
        events.MessageBroken: _broken,
        events.WeRefused: _we_refused,
        events.TheyRefused: _they_refused,
        events.FinishSaved: _finish_saved,
    }

    # ------------------------------------------------------------------ messages to a neighbor
    def heartbeat(self, name: str, now: float) -> events.Heartbeat:
        """The heartbeat of this node. The stop notice is sent until it is delivered once, so that it does not stop a
        neighbor that was corrected and restarted.
        """
        n = self.neighbors[name]
        since = (n.heard_at if n.answered_at is None else n.answered_at) if n.joined else None
        stops = n.notice in (Notice.STOP, Notice.STOP_REPLY)
        stops_all = n.notice is Notice.STOP and bool(getattr(self.error, "stops_all", False))
        return events.Heartbeat(
            silence=0.0 if since is None else max(0.0, now - since),
            phase=self.phase,
            iteration=self.iteration,
            # A neighbor that was given up may lack a message, and must not conclude that its own disk lost it.
            finished=self.finished and not n.window.unacknowledged,
            stop_reason=showable(self.cause) if stops else "",
            stops_all=stops_all,
            kind=type(self.error).__name__ if stops else "",
            idle=max(0.0, self.idle(now)),
            waits_for=tuple(sorted(self.waits_for)[:MOST_WAITS]),
            view=str(self.view),
            process=self.process,
            statuses=self._news_of_views(n),
        )

    def idle(self, now: float) -> float:
        """Seconds without progress here, or at the nodes that this node waits for."""
        if not self.waits_for:
            return now - self.moved_at
        if self.limits is None:  # start_timeout applies to nodes that have not been started yet
            return 0.0
        awaited = [self.neighbors[name] for name in self.waits_for]
        return min([now - self.moved_at, *(n.told.now(now) if n.up and n.told else 0.0 for n in awaited)])

    @property
    def silenced(self) -> bool:
        """Whether handshakes have ended: this node stops, and its record may change before a restart."""
        return self.error is not None and self.limits is None

    def has_news(self, name: str) -> bool:
        """Whether a neighbor may lack some of our records."""
        return not self.neighbors[name].knows.issuperset(self.membership.records)

    # ------------------------------------------------------------------ checks of a neighbor
    def admit(self, authenticated: str | None, claimed: str, protocol: str, run: str) -> str:
        """The calling neighbor, from the name in its certificate and the metadata of the call. Raises Refused for other callers."""
        if authenticated is None:
            raise Refused(Refusal.UNKNOWN, "a certificate without a node's name")
        if authenticated not in self.neighbors:
            raise Refused(Refusal.STRANGER, f"node {authenticated!r} is not a neighbor of node {self.name}")
        if claimed != authenticated:
            text = f"the certificate is that of node {authenticated}, but the call says {claimed[:80]!r}"
            raise Refused(Refusal.STRANGER, text)
        if protocol != str(PROTOCOL):
            text = f"node {self.name} speaks {PROTOCOL}, node {authenticated} speaks {protocol[:20]!r}"
            raise Refused(Refusal.SETTINGS, f"protocol: {text}; use the same version of dekpca")
        if run != self.run:
            text = f"node {self.name} has {self.run!r}, node {authenticated} has {run[:80]!r}"
            raise Refused(Refusal.SETTINGS, f"run: {text}; give both the same")
        return authenticated

    def check_view(self, view: Key) -> None:
        """Raises Refused for a delivery of a view other than the program's."""
        if view != self.view.key:
            raise Refused(Refusal.LATER, f"a delivery of view {view[0]}, where this node is in view {self.view.number}")

    def accept(self, name: str, head: wire.Head) -> tuple[MessageHead, bool]:
        """The header of a message that a neighbor begins to send, and whether it is new. Raises ProtocolError before memory or disk is allocated."""
        assert self.limits is not None
        n, expected = self.neighbors[name], self.expected.get(name)
        if expected is not None and expected.round != head.round:
            expected = None
        message = check_head(head, name, self.limits, expected, max(self.round, self.round_before))
        if message.round <= self.through or message.round in n.received:
            return message, False
        if n.bytes_broken > BROKEN_OFF * self.limits.largest:
            raise TooMuch(
                f"{n.bytes_broken} bytes of messages that broke off, more than {BROKEN_OFF} of the largest; "
                f"if the line is so bad, start node {self.name} and then node {name} again"
            )
        return message, True

    def has_room(self, name: str, round: int) -> bool:
        """Whether a message of this round may be received now. A neighbor that is far ahead is not read until the program has caught up."""
        furthest = max(self.round, self.round_before)
        return round <= furthest or sum(r > furthest for r in self.neighbors[name].received) < WAITING

    # ------------------------------------------------------------------ the program
    def check_meeting(self, now: float) -> dict[str, Record] | None:
        """The records of all nodes when complete, None until then."""
        self.raise_error()
        missing = self.membership.missing()
        if not missing:
            self.waits_for = set()
            if self.views is not None and not self.views.begun:
                self.views.begin(dict(self.membership.records))
                self.near = self.views.around(self.view)
            return dict(self.membership.records)
        near = [n for n in self.neighbors.values() if n.name in self.near]
        around = [n for n in near if n.name in missing] or near
        waited = [n for n in around if not n.finished]
        self.waits_for = {n.name for n in waited}
        self._check_lost(waited, f"record of node {listing(sorted(missing))}", now)
        start = self.timeouts.start
        for n in self.neighbors.values():
            if n.heard_at is not None and n.up and not n.joined and now - n.heard_at > start:
                raise PeerLost(
                    f"node {n.name} answers, but has made no handshake for {now - n.heard_at:.0f} s (limit start_timeout {start:g} s)"
                )
        most = start + self.timeouts.progress
        if now - self.learned_at > most:
            raise PeerLost(
                f"nothing new was heard for {now - self.learned_at:.0f} s (limit start_timeout and progress_timeout, {most:g} s), "
                f"and nobody has described node {listing(sorted(missing))}; start it, or take it out of its neighbors' configs"
            )
        return None

    def begin(self, limits: Limits, round: int, through: int, last_sent: Mapping[str, int], now: float) -> list[Action]:
        """The program begins after `round`. Messages up to `through` are not needed, and those of `last_sent` were acknowledged."""
        self.limits, self.round, self.through, self.moved_at = limits, round, through, now
        self.round_begun = now
        self.phase = Phase.ITERATING if round else Phase.SETUP
        for name, last in last_sent.items():
            if last:
                self.neighbors[name].window.acknowledged.add(last)
        actions: list[Action] = [WakeProgram(), Send(tuple(self.neighbors))]
        if self.views is not None:
            actions += self._follow(self.views.own.down, self.views.own.fallback, now)
            if self.views.kept != self.views.saved and not any(isinstance(a, SaveViews) for a in actions):
                actions.append(SaveViews(self.views.kept))
        return actions

    def check_window(self, round: int, now: float) -> bool:
        """Whether a round may begin: neighbors have acknowledged all but the last rounds. Raises an error if waiting for them is useless."""
        due = [n for n in self.neighbors.values() if not n.finished]
        late = [n for n in due if next(iter(n.window.unacknowledged), round) <= round - UNSYNCED]
        self.raise_error()
        self.waits_for = {n.name for n in late}
        if late:
            self._check_lost(late, "acknowledgements", now)
        return not late

    def start_round(
        self, round: int, sent: Iterable[tuple[str, Any]], expected: Mapping[str, MessageHead], now: float
    ) -> list[Action]:
        """Begin a round: (neighbor, message) to send, and the messages expected from neighbors."""
        self.raise_error()
        self.round, self.expected, self.round_begun, self.moved_at = round, dict(expected), now, now
        self.missing = {name for name in expected if round not in self.neighbors[name].received}
        self.waits_for = set()
        names = []
        for name, message in sent:
            names.append(name)
            n = self.neighbors[name]
            if not n.window.unacknowledged:
                n.taken_at = now
            if not n.finished:
                n.window.put(round, message)
        return [Send(tuple(names))] if names else []

    def check_waiting(self, name: str, now: float) -> bool:
        """Whether the message of a neighbor in this round can be read. Raises an error if waiting for it is useless."""
        n, head = self.neighbors[name], self.expected[name]
        if head.round in n.received:
            self.waits_for = set()
            return True
        self.raise_error()
        if n.finished:
            raise Damaged(
                f"node {name} has finished, but its {head.kind!r} of round {head.round} is not here: files of node {self.name} are missing; "
                f"bring them back, or {NEW_RUN}"
            )
        self.waits_for = set(self.missing)
        what = f"its {head.kind!r} in round {head.round}"
        self._check_lost([n], what, now)
        for other in sorted(self.missing):
            near = self.neighbors[other]
            if self.views is not None and self._hangs(near, now):
                continue  # the survivors agree on what to do (check_losses)
            if not near.finished and (why := self._stuck(near, self.round_begun, now)):
                raise PeerLost(f"node {other} {why}, and node {self.name} waits for {what}; start node {other} again")
        return False

    def forget(self, through: int) -> None:
        """A checkpoint was written: messages up to this round are not needed again."""
        self.through = through
        for n in self.neighbors.values():
            n.window.forget()
            n.received = {round for round in n.received if round > through}
            n.bytes_broken = 0

    def all_acknowledged(self, through: int) -> bool:
        """Whether the neighbors have all messages of this node up to this round on disk."""
        windows = [n.window.unacknowledged for n in self.neighbors.values() if not n.finished]
        return all(next(iter(window), through + 1) > through for window in windows)

    # ------------------------------------------------------------------ ends
    def try_finish(self, now: float) -> tuple[list[Action], list[str] | None]:
        """This node has its answer. When it may leave, returns the neighbors that may lack theirs; None until then.

        It sends the finish notice only when all its messages are acknowledged, so that a neighbor with the notice lacks none.
        """
        actions: list[Action] = []
        near = [n for n in self.neighbors.values() if n.name in self.near]
        silent = {n.name: n.silent(now, self.started) for n in near}
        self._given_up |= {name for name, seconds in silent.items() if seconds > self.timeouts.peer}
        for n in near:
            if n.name not in self._given_up and not n.finished and (why := self._stuck(n, self.round_begun, now)):
                actions.append(Log(logging.WARNING, f"node {n.name} {why}; it is not waited for", {"peer": n.name}))
                self._given_up.add(n.name)
        here = [n for n in near if n.name not in self._given_up]
        self.waits_for = {n.name for n in here if not n.finished}
        if not self.finished and not any(n.window.unacknowledged and not n.finished for n in here):
            self.finished, self._finished_at, self.phase = True, now, Phase.FINISHED
            for n in self.neighbors.values():
                n.apply(events.WeFinish())
            actions.append(Send(tuple(self.neighbors), heartbeat=True))
        # A neighbor that has finished and cannot be reached has left: it needs no more messages.
        left = {n.name for n in here if n.finished and not n.up and silent[n.name] > 2 * self.timeouts.beat}
        done = all((n.finished and n.notice is Notice.DELIVERED) or n.name in left for n in here)
        if self.finished and done and self._may_leave([n for n in here if n.name not in left], now - self._finished_at):
            return actions, sorted(name for name in self._given_up if not self.neighbors[name].finished)
        return actions, None

    def start_finishing(self, now: float) -> None:
        """The program has ended."""
        self.phase, self.round_begun = Phase.FINISHING, now

    def enter_view(self) -> View:
        """The program restarts in a view that all its members have accepted. Messages of earlier views do not count."""
        assert self.views is not None
        self.view = self.views.saved.program
        self.near = self.views.around(self.view)
        self.round = self.through = self.round_before = 0
        self.expected, self.missing, self.waits_for = {}, set(), set()
        self.iteration, self.residual, self.urgent = 0, None, False
        self.phase = Phase.SETUP
        for n in self.neighbors.values():
            n.window, n.received, n.bytes_broken = SendWindow(), set(), 0
        return self.view

    def check_answer(self, now: float) -> tuple[list[Action], bool]:
        """The program has ended, and received messages are on disk. Returns whether its answer is final; raises an error if it cannot be.

        Neighbors must have all messages of this node before it publishes that it has its answer.
        """
        self.raise_error()
        if self.views is None:
            return [], True
        actions = self.check_losses(now)
        if self.views.own.answered != self.view.key and self.all_acknowledged(self.round):
            before = self.views.kept
            self.views.answer(self.view.key)
            actions += [SaveViews(self.views.kept)] if self.views.kept != before else []
            actions += self._follow(self.views.own.down, self.views.own.fallback, now)
        return actions, self.views.saved.status.final is not None
