"""A node and its neighbors, from the first handshake to the end of a run. No threads, clocks, sockets or files.

The caller (net/endpoint.py, or a simulator) reports events, executes the actions that are returned, and calls
`check_...` regularly, which raise errors that end the run. A run has the phases of events.Phase:

    check_meeting   until the membership records of all nodes are known
    begin           limits for messages are known; neighbors may send
    start_round     messages to send, and messages expected               check_window, check_waiting
    try_finish      it has its answer: stay until the neighbors have theirs
    fail            after any error, the neighbors get a stop notice      all_told
"""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from ...network import listing
from ..errors import KINDS, NEW_RUN, Damaged, Disagreement, Excluded, OlderCopy, PeerError, PeerLost, ProtocolError
from . import events
from .agreement import Agreement, heard
from .checks import MOST_WAITS, PROTOCOL, Limits, MessageHead
from .events import Action, Log, Phase, Refusal, Refused, SaveFinished, SaveStatuses, Send, WakeProgram
from .handshake import HandshakeSettings
from .liveness import CLAIMS, Liveness, Timeouts
from .membership import Membership, Record
from .neighbor import Neighbor, Notice
from .rounds import Rounds
from .text import showable
from .views import Kept, Status, View, ViewChanged, Views, contradict

__all__ = ["NodeProtocol", "Timeouts"]

OTHER_FOLDER = (
    f": it runs in an older copy of its folder, or in another one; use the latest; if that is lost, {NEW_RUN}"
)


class NodeProtocol:
    """One node of a run. `received`: rounds of each neighbor's messages that are on disk; `finished`: neighbors known to have finished.

    `views`: None if the run stops when a node is lost. `fallback`: neighbors that are called only if a loss
    disconnects the network. `process`: a new number for each process of this node. `wall`: the time, in seconds of
    the Unix epoch.
    """

    def __init__(
        self, name: str, run: str, settings: HandshakeSettings, membership: Membership, neighbors: Iterable[str], timeouts: Timeouts, now: float,
        received: Mapping[str, Iterable[int]] | None = None, finished: Collection[str] = (), views: Views | None = None,
        fallback: Iterable[str] = (), process: int = 0, wall: float = 0.0,
    ):  # fmt: skip
        self.name, self.run, self.settings, self.membership = name, run, settings, membership
        self.timeouts, self.views, self.process = timeouts, views, process
        self.neighbors = {other: Neighbor(other) for other in neighbors}
        self.near = set(self.neighbors)  # the neighbors of this node in the program's view
        used = set() if views is None else views.fallbacks()
        self.neighbors |= {other: Neighbor(other, fallback=True, called=other in used) for other in fallback}
        for n in self.neighbors.values():
            n.received.update((received or {}).get(n.name, ()))
            if n.name in finished:
                n.apply(events.FinishSaved())
        self.rounds = Rounds(name, self.neighbors, View() if views is None else views.kept.program)
        self.live = Liveness(self.rounds, membership, timeouts, views is not None, now)
        self.agreement = None if views is None else Agreement(views, self.live, wall - now, self.fail)
        self.phase = Phase.MEETING
        self.iteration, self.residual = 0, None  # type: int, float | None
        # Sums are secure or private: an error that is not of this package may hold numbers of rows, and neighbors hear its class only.
        self.sealed = False
        self.error: BaseException | None = None
        self.cause = ""  # of the error: the text for the neighbors
        self._learned_at = now  # last new record
        self._finished_at = now
        self._given_up: set[str] = set()  # neighbors that this node no longer waits for, after its answer

    @property
    def view(self) -> View:
        """Of the program."""
        return self.rounds.view

    @property
    def begun(self) -> bool:
        """Whether the program has: before that, nodes may differ in their settings."""
        return self.rounds.limits is not None

    # ------------------------------------------------------------------ events
    def receive(self, name: str, event: Any, now: float) -> list[Action]:
        """Process an event of a neighbor. Returns actions; raises an error if the neighbor broke the protocol."""
        n = self.neighbors[name]
        match event:
            case events.ChunkSent(size):
                n.bytes_sent += size
                n.taken_at = self.live.moved_at = now
            case events.ChunkReceived(size, new):
                n.bytes_received += size
                if new:
                    n.chunk_at = self.live.moved_at = now
            case events.MessageStored(round):
                n.received.add(round)
                n.bytes_broken = 0
                return [] if self.rounds.missing else [WakeProgram()]
            case events.MessageBroken(size):
                n.bytes_broken += size
            case events.Opening(view=view) | events.Acknowledged(view=view) if view != self.view.key:
                return []  # late: the window is of another view
            case events.Acknowledged():
                return self._acknowledged(n, event, now)
            case events.Answered():
                return self._answered(n, event, now)
            case events.Heartbeat():
                return self._heartbeat(n, event, now)
            case events.HeartbeatAnswered(sent):
                return self._heartbeat_answered(n, sent)
            case events.HandshakeReceived():
                return self._handshake(n, event, now)
            case events.Opening():
                return self._opening(n, event)
            case events.Unreachable():
                return self._unreachable(n, event)
            case events.TheyRefused():
                return self._they_refused(n, event)
            case events.WeRefused(error):
                # Before the program has begun both nodes report the difference, and stop. Later it has no effect.
                return [] if self.begun else self._fail_alike(n, error)
            case events.FinishSaved():
                n.apply(event)
                n.window.unacknowledged.clear()
                return [WakeProgram()]
        return []

    def _answered(self, n: Neighbor, event: events.Answered, now: float) -> list[Action]:
        came = n.apply(event)
        n.answered_at = now
        if not came:
            return []
        n.trouble = n.stop_reason = n.refused = ""
        return [Log(logging.INFO, "neighbor is up", {"peer": n.name}), WakeProgram()]

    def _unreachable(self, n: Neighbor, event: events.Unreachable) -> list[Action]:
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
        if self.silenced:
            raise Refused(Refusal.LATER, "this node stops")  # heartbeats have the reason
        new = self.membership.add(event.records, n.name)
        n.knows |= event.records.keys()
        if not n.joined:
            # Silence so far may be that of an earlier process of the neighbor, which only reported an error.
            n.heartbeat, n.beat_at = events.Heartbeat(), None
            n.answered_at = None if n.answered_at is None else now
            self._learned_at = now
        n.apply(events.Turn.JOINED)
        if not new:
            return []
        self._learned_at = now
        return [WakeProgram(), Send(tuple(self.neighbors))]

    def _heartbeat(self, n: Neighbor, event: events.Heartbeat, now: float) -> list[Action]:
        n.heard_at = now if n.heard_at is None else n.heard_at
        if event.process != n.heartbeat.process:  # after a restart it may know nothing
            n.has.clear()
        n.heartbeat, n.beat_at = event, now
        actions = self._hear_statuses(n, event, now)
        # With votes, a neighbor that has finished knows the final answer. It repeats that until this node knows it
        # too: otherwise its loss before then would go undetected.
        if event.finished and not n.finished and (self.views is None or self.views.own.final is not None):
            actions.append(SaveFinished(n.name))
        if event.stop_reason:
            if event.stop_reason != n.stop_reason:
                actions.append(Log(logging.WARNING, "neighbor stops", {"peer": n.name, "why": event.stop_reason}))
            n.stop_reason = event.stop_reason
            n.apply(events.Turn.STOP_NOTICE)
            # A node that stops before it has begun, perhaps with wrong settings, stops only nodes that have not
            # begun either. A lost node stops no other, even if the program does not know of the loss yet.
            views = self.views
            near = self.near if views is None or not views.begun else views.around(views.own.entered)
            heeded = not self.begun or (event.phase != Phase.MEETING and n.name in near)
            if event.stops_all and self.phase is not Phase.FINISHED and heeded:
                kind = KINDS.get(event.kind, PeerLost)  # so that all nodes end with the same error
                actions += self.fail(kind(f"{event.stop_reason} (says node {n.name})"), event.stop_reason)
            if self.error is not None and (event.stops_all or event.kind in KINDS):
                # Not if its owner interrupts it: it may come back and wait for this node.
                n.apply(events.Turn.STOPS_TOO)
        return actions

    def _hear_statuses(self, n: Neighbor, event: events.Heartbeat, now: float) -> list[Action]:
        if self.agreement is None or self.views is None:
            return []
        actions = self.agreement.call([n.name])  # a fallback neighbor calls this node
        heard(n, event)
        own, ours = self.views.own, event.statuses.get(self.name)
        if ours is not None and (ours.version > own.version or contradict(ours, own)):
            text = f"node {self.name} has said what it does not know{OTHER_FOLDER}"
            return [*actions, *self.fail(OlderCopy(text), text)]
        new, false = self.views.add(event.statuses)
        actions += self.agreement.refuse(false)
        if not new and not false:
            return actions
        if self.views.begun:
            actions.append(SaveStatuses(new))
        actions += self._tell_all()  # forward it
        return actions + self.agreement.follow(now) if self._watches else actions

    def _heartbeat_answered(self, n: Neighbor, said: events.Heartbeat) -> list[Action]:
        """The neighbor has the notice in that heartbeat, unless a newer notice is due."""
        heard(n, said)
        actions: list[Action] = [Send((n.name,), heartbeat=True)] if said.statuses and self._news(n) else []
        current = said.stop_reason if n.notice in (Notice.STOP, Notice.STOP_REPLY) else said.finished
        return [*actions, WakeProgram()] if current and n.apply(events.Turn.NOTICE_DELIVERED) else actions

    def _opening(self, n: Neighbor, event: events.Opening) -> list[Action]:
        lost = n.window.reopen(event.held)
        if not lost:
            return [WakeProgram()]
        text = f"node {n.name} has lost what it had acknowledged (round {lost[0]} of node {self.name}){OTHER_FOLDER}"
        return self.fail(Damaged(text), text)

    def _acknowledged(self, n: Neighbor, event: events.Acknowledged, now: float) -> list[Action]:
        taken = n.window.acknowledge(event.rounds)
        if taken:
            n.taken_at = self.live.moved_at = now
        # Otherwise the program waits for another message.
        return [WakeProgram()] if taken and not self.rounds.missing and not n.window.unacknowledged else []

    def _they_refused(self, n: Neighbor, event: events.TheyRefused) -> list[Action]:
        if event.why in (Refusal.SETTINGS, Refusal.STRANGER) and not self.begun:
            return self._fail_alike(n, Disagreement(f"refused by node {n.name}: {event.text}"))
        if event.why is Refusal.MESSAGE:
            text = f"node {n.name} does not take what this node sends: {event.text}; {NEW_RUN}"
            return self.fail(ProtocolError(text))
        if event.why is Refusal.QUOTA:
            return self.fail(PeerLost(f"node {n.name} takes no more of node {self.name}: {event.text}"))
        return [] if event.why is Refusal.LATER else self._unreachable(n, events.Unreachable(event.text))

    # ------------------------------------------------------------------ calls to a neighbor and from it
    def heartbeat(self, name: str, now: float) -> events.Heartbeat:
        """The stop notice is sent until it is delivered once, so that it does not stop a neighbor that was corrected and restarted."""
        n = self.neighbors[name]
        since = (n.heard_at if n.answered_at is None else n.answered_at) if n.joined else None
        stops = n.notice in (Notice.STOP, Notice.STOP_REPLY)
        return events.Heartbeat(
            silence=0.0 if since is None else max(0.0, now - since),
            phase=self.phase,
            iteration=self.iteration,
            # A neighbor that was given up may lack a message, and must not conclude that its own disk lost it.
            finished=self.phase is Phase.FINISHED and not n.window.unacknowledged,
            stop_reason=showable(self.cause) if stops else "",
            stops_all=n.notice is Notice.STOP and bool(getattr(self.error, "stops_all", False)),
            kind=type(self.error).__name__ if stops else "",
            idle=max(0.0, self.live.idle(now)),
            waits_for=tuple(sorted(self.live.waits_for)[:MOST_WAITS]),
            view=str(self.view),
            process=self.process,
            statuses=self._news(n),
        )

    def _news(self, n: Neighbor) -> dict[str, Status]:
        return {} if self.agreement is None else self.agreement.news(n)

    @property
    def silenced(self) -> bool:
        """Whether handshakes have ended: this node stops, and its record may change before a restart."""
        return self.error is not None and not self.begun

    def admit(self, authenticated: str | None, claimed: str, protocol: str, run: str) -> str:
        """The calling neighbor, from the name in its certificate and the metadata of the call. Raises Refused for other callers."""
        if authenticated is None:
            raise Refused(Refusal.UNKNOWN, "a certificate without a node's name")
        if authenticated not in self.neighbors:
            text = f"node {authenticated!r} is not a neighbor of node {self.name}"
            raise Refused(Refusal.STRANGER, f"{text}; compare [neighbors] in node.toml of both")
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

    # ------------------------------------------------------------------ the program
    def check_meeting(self, now: float) -> dict[str, Record] | None:
        """The records of all nodes when complete, None until then."""
        self.raise_error()
        missing = self.membership.missing()
        if not missing:
            self.live.waits_for = set()
            if self.phase is Phase.MEETING:  # its neighbors have its settings: an error concerns them from now on
                self.phase = Phase.SETUP
            if self.views is not None and not self.views.begun:
                self.views.begin(dict(self.membership.records))
                self.near = self.views.around(self.view)
            return dict(self.membership.records)
        near = [n for n in self.neighbors.values() if n.name in self.near]
        waited = [n for n in [n for n in near if n.name in missing] or near if not n.finished]
        self.live.waits_for = {n.name for n in waited}
        self.live.check_lost(waited, f"record of node {listing(sorted(missing))}", now)
        start, most = self.timeouts.start, self.timeouts.start + self.timeouts.progress
        for n in self.neighbors.values():
            if n.heard_at is not None and n.up and not n.joined and now - n.heard_at > start:
                limit = f"for {now - n.heard_at:.0f} s (limit start_timeout {start:g} s)"
                raise PeerLost(f"node {n.name} answers, but has made no handshake {limit}")
        if now - self._learned_at > most:
            limit = f"for {now - self._learned_at:.0f} s (limit start_timeout and progress_timeout, {most:g} s)"
            remedy = "start it, or take it out of its neighbors' configs"
            who = listing(sorted(missing))
            raise PeerLost(f"nothing new was heard {limit}, and nobody has described node {who}; {remedy}")
        if (long := now - self.live.started) > CLAIMS * most:
            limit = (
                f"after {long:.0f} s (limit {CLAIMS:g} times start_timeout and progress_timeout, {CLAIMS * most:g} s)"
            )
            last = self.membership.told_by[next(reversed(self.membership.records))]
            remedy = "a node may invent others: name all members in node.toml"
            raise PeerLost(f"{limit} new nodes are still told of, the last by node {last}; {remedy}")
        return None

    def awaited(self) -> str:
        """Neighbors that this node waits for before the program, and what it knows of each."""
        waited = [self.neighbors[name] for name in sorted(self.live.waits_for)]
        seen = {
            n.name: "it is up" if n.up else "it was up" if n.heard_at or n.answered_at else "never heard of it"
            for n in waited
        }
        said = {n.name: n.stop_reason or n.trouble or seen[n.name] for n in waited}
        said |= {n.name: f"its call was refused ({n.refused}), now: {said[n.name]}" for n in waited if n.refused}
        return "; ".join(f"{name}: {text}" for name, text in said.items())

    def begin(self, limits: Limits, now: float) -> list[Action]:
        """The program begins, from its start."""
        self.rounds.limits = limits
        self.live.moved_at = self.live.round_begun = now
        self.phase = Phase.SETUP
        actions: list[Action] = [WakeProgram(), Send(tuple(self.neighbors))]
        if self.agreement is not None and self.views is not None:
            actions += [SaveStatuses(self.views.statuses), *self.agreement.follow(now)]
        return actions

    def check_window(self, round: int, now: float) -> bool:
        """Whether a round may begin: neighbors have acknowledged all but the last rounds. Raises an error if waiting for them is useless."""
        late = self.rounds.late(round)
        self.raise_error()
        self.live.waits_for = {n.name for n in late}
        if late:
            self.live.check_lost(late, "acknowledgements", now)
        return not late

    def start_round(
        self, round: int, sent: Iterable[tuple[str, Any]], expected: Mapping[str, MessageHead], now: float
    ) -> list[Action]:
        """Begin a round: (neighbor, message) to send, and the messages expected from neighbors."""
        self.raise_error()
        self.live.round_begun = self.live.moved_at = now
        self.live.waits_for = set()
        names = self.rounds.start(round, sent, expected, now)
        return [Send(tuple(names))] if names else []

    def check_waiting(self, name: str, now: float) -> bool:
        """Whether the message of a neighbor in this round can be read. Raises an error if waiting for it is useless."""
        n, head = self.neighbors[name], self.rounds.expected[name]
        if head.round in n.received:
            self.live.waits_for = set()
            return True
        self.raise_error()
        if n.finished:
            what = f"its {head.kind!r} of round {head.round} is not here: files of node {self.name} are missing"
            raise Damaged(f"node {name} has finished, but {what}; bring them back, or {NEW_RUN}")
        self.live.waits_for = self.rounds.missing
        what = f"its {head.kind!r} in round {head.round}"
        self.live.check_lost([n], what, now)
        for other in sorted(self.rounds.missing):
            near = self.neighbors[other]
            if self.views is not None and self.live.hangs(near, now):
                continue  # the survivors agree on what to do (check_losses)
            patience = 0.0 if self.views is None else math.inf  # an agreement has a limit of its own (check_losses)
            if not near.finished and (why := self.live.stuck(near, now, patience)):
                raise PeerLost(f"node {other} {why}, and node {self.name} waits for {what}; start node {other} again")
        return False

    @property
    def _watches(self) -> bool:
        """Whether the survivors of a loss could agree to go on."""
        return self.views is not None and self.views.begun and self.begun and self.error is None

    def check_losses(self, now: float) -> list[Action]:
        """Check timeouts: neighbors may be lost, or back. To be called at least at every heartbeat."""
        if self.agreement is None or not self._watches:
            return []
        actions, still = self.agreement.check(now), now - self.live.moved_at
        most = 2 * max(CLAIMS * self.timeouts.progress, self.timeouts.start)
        if still > most and self.phase is not Phase.FINISHED and self.error is None:
            late = self.agreement.false | self.agreement.views.awaited() | self.live.waits_for or self.near
            who = sorted(late | self.agreement.views.between(late))
            text = f"node {self.name}: nothing has moved for {still:.0f} s (limit {most:g} s), and the nodes have not agreed on going on: "
            text += f"node {', node '.join(who)}, or one on the way, may lie or keep back what others say"
            actions += self.fail(PeerLost(text))
        return actions

    def views_saved(self, kept: Kept) -> list[Action]:
        """This is on disk: it may be sent to neighbors, and the program may act on it."""
        assert self.views is not None
        self.views.saved = kept
        return self._tell_all()

    def enter_view(self) -> View:
        """The program restarts in a view that all its members have accepted. Messages of earlier views do not count."""
        assert self.views is not None
        self.rounds.restart(self.views.saved.program)
        self.near = self.views.around(self.view)
        self.live.waits_for = set()
        self.iteration, self.residual = 0, None
        self.phase = Phase.SETUP
        return self.view

    # ------------------------------------------------------------------ ends
    def start_finishing(self, now: float) -> None:
        """The program has ended."""
        self.phase, self.live.round_begun = Phase.FINISHING, now

    def check_answer(self, now: float) -> tuple[list[Action], bool]:
        """The program has ended, and received messages are on disk. Returns whether its answer is final; raises an error if it cannot be.

        Neighbors must have all messages of this node before it publishes that it has its answer.
        """
        self.raise_error()
        if self.agreement is None or self.views is None:
            return [], True
        actions = self.check_losses(now)
        if self.views.own.answered != self.view.key and self.rounds.all_acknowledged():
            self.views.answer(self.view.key)
            actions += self.agreement.follow(now)
        return actions, self.views.saved.status.final is not None

    def try_finish(self, now: float) -> tuple[list[Action], list[str] | None]:
        """This node has its answer. When it may leave, returns the neighbors that may lack theirs; None until then.

        It sends the finish notice only when all its messages are acknowledged, so that a neighbor with the notice lacks none.
        """
        actions: list[Action] = []
        near = [n for n in self.neighbors.values() if n.name in self.near]
        silent = {n.name: self.live.silent(n, now) for n in near}
        self._given_up |= {name for name, seconds in silent.items() if seconds > self.timeouts.peer}
        for n in near:
            if n.name not in self._given_up and not n.finished and (why := self.live.stuck(n, now)):
                actions.append(Log(logging.WARNING, f"node {n.name} {why}; it is not waited for", {"peer": n.name}))
                self._given_up.add(n.name)
        here = [n for n in near if n.name not in self._given_up]
        self.live.waits_for = {n.name for n in here if not n.finished}
        if self.phase is not Phase.FINISHED and not any(n.window.unacknowledged and not n.finished for n in here):
            self.phase, self._finished_at = Phase.FINISHED, now
            for n in self.neighbors.values():
                n.apply(events.Turn.WE_FINISH)
            actions.append(Send(tuple(self.neighbors), heartbeat=True))
        # A neighbor that has finished and cannot be reached has left: it needs no more messages.
        left = {n.name for n in here if n.finished and not n.up and silent[n.name] > 2 * self.timeouts.beat}
        done = all((n.finished and n.notice is Notice.DELIVERED) or n.name in left for n in here)
        stay = [n for n in here if n.name not in left]
        if self.phase is not Phase.FINISHED or not done:
            return actions, None
        if self.agreement is not None and not self.agreement.may_leave(stay, now - self._finished_at):
            return actions, None
        return actions, sorted(name for name in self._given_up if not self.neighbors[name].finished)

    def fail(self, error: BaseException, cause: str | None = None) -> list[Action]:
        """Stop this node; only the first error counts. `cause`: the text for the neighbors, by default that of the error, with this node's name."""
        if self.error is None:
            if cause is None:
                interrupted = isinstance(error, KeyboardInterrupt)
                text = type(error).__name__ if self.sealed and not isinstance(error, PeerError) else str(error)
                told = getattr(error, "told", None) or text or type(error).__name__
                cause = "stopped by its owner" if interrupted else told
                if not isinstance(error, (PeerLost, Disagreement)):  # these already name the nodes
                    who = f"node {self.name}: "
                    cause = who + cause.removeprefix(who)
            self.error, self.cause = error, cause
            for n in self.neighbors.values():
                n.apply(events.Turn.WE_STOP)
        return self._tell_all()

    def _fail_alike(self, n: Neighbor, error: Exception) -> list[Action]:
        """Stop, for a reason that the neighbor knows already."""
        actions = self.fail(error)
        n.apply(events.Turn.NOTICE_DELIVERED)
        return actions

    def _tell_all(self) -> list[Action]:
        return [WakeProgram(), Send(tuple(self.neighbors), heartbeat=True)]

    def raise_error(self) -> None:
        if self.error is not None:
            raise self.error
        if self.views is not None and self.views.saved.program.key != self.view.key:
            raise ViewChanged

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
