"""The endpoint of a node: the protocol and the folder, shared by the program, the edges and the writer thread.

All access goes through `changed`, a condition on which the program waits. The clock is read here, and the actions of the protocol are executed here.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from ..protocol import events
from ..protocol.checks import Limits, MessageHead, check_expected
from ..protocol.events import Refusal, Refused
from ..protocol.membership import Record
from ..protocol.node import NodeProtocol
from ..protocol.proofs import Proofs
from ..protocol.rounds import Rounds
from ..protocol.views import Key
from ..storage.folder import RunFolder
from ..storage.messages import MessageLog

log = logging.getLogger("dekpca.peer")

POLL = 0.25  # seconds between two reads of the clock while waiting
STILL = 60.0  # seconds between two lines about neighbors that have not come
FAREWELL = 3.0  # seconds for stop notices to the neighbors
# Seconds for stop notices to neighbors that have not started yet: enough for nodes that are started together, and
# short enough for an owner who has corrected the config and wants to restart.
LATE = 60.0

REVERSE = "reverse "  # before the address of a forwarder

Message = tuple[MessageHead, memoryview]  # to a neighbor


class Endpoint:
    """`store` is None for a node that refuses to resume: it accepts no messages. `addresses` are those of the neighbors (empty: the neighbor calls;
    after REVERSE: it calls through this forwarder), `proofs` for statuses."""

    def __init__(
        self, protocol: NodeProtocol, store: RunFolder | None, addresses: Mapping[str, str], proofs: Proofs | None = None
    ):  # fmt: skip
        self.protocol, self.store, self.addresses, self.proofs = protocol, store, addresses, proofs or Proofs()
        self.name, self.run, self.timeouts = protocol.name, protocol.run, protocol.timeouts
        self.changed = threading.Condition()
        self.wake: Callable[[events.Send], None] = lambda send: None  # the edges
        self._processor = ThreadTime()
        if protocol.views is not None:  # signed anew: the certificate may have been renewed
            protocol.views.saved = self.proofs.signed(self.name, protocol.views.saved)

    @property
    def messages(self) -> MessageLog:
        assert self.store is not None, "a node that refuses to resume takes no messages"
        return self.store.messages

    # ------------------------------------------------------------------ for the edges
    def can_call(self, name: str) -> bool:
        """Whether this node has an address of the neighbor."""
        return bool(self.addresses[name]) and not self.addresses[name].startswith(REVERSE)

    def forwarders(self) -> list[str]:
        """Addresses to connect to, in order to be called over these connections."""
        return [where.removeprefix(REVERSE) for where in self.addresses.values() if where.startswith(REVERSE)]

    def receive(self, name: str, event: Any) -> None:
        """Process an event of a neighbor; raises an error if the neighbor broke the protocol."""
        with self.changed:
            if isinstance(event, events.Heartbeat):
                event, refused = self.proofs.believed(name, event)
                self._do(refused)
            self._do(self.protocol.receive(name, event, time.monotonic()))

    def fail(self, error: BaseException) -> None:
        """Stop this node: the program raises this error at its next wait."""
        with self.changed:
            self._do(self.protocol.fail(error))

    def heartbeat(self, name: str) -> events.Heartbeat:
        with self.changed:
            now = time.monotonic()
            if self._processor.advanced():
                self.protocol.live.moved_at = now
            self._do(self.protocol.check_losses(now))
            return self.protocol.heartbeat(name, now)

    @contextmanager
    def in_view(self, view: Key) -> Iterator[Rounds]:
        """The rounds of the program, while nothing else changes. Raises Refused if it runs in another view."""
        with self.changed:
            if view != (here := self.protocol.view).key:
                raise Refused(Refusal.LATER, f"a delivery of view {view[0]}, where this node is in view {here.number}")
            yield self.protocol.rounds

    def has_room(self, name: str, round: int) -> bool:
        with self.changed:
            return self.protocol.rounds.has_room(name, round)

    def pending(self, name: str, after: int, view: Key) -> list[tuple[int, Message]]:
        """Messages of later rounds that a neighbor has not acknowledged, in this view."""
        with self.changed:
            return self.protocol.neighbors[name].window.pending(after) if self.protocol.view.key == view else []

    def _do(self, actions: Iterable[events.Action]) -> None:
        for action in actions:
            if isinstance(action, events.Log):
                log.log(action.level, action.text, extra=dict(action.about))
            elif isinstance(action, events.SaveFinished):
                if self.store is not None:
                    self.store.keep_finished(action.name)
                self.receive(action.name, events.FinishSaved())
            elif isinstance(action, events.SaveViews):
                assert self.store is not None
                self.store.keep_views(self.name, action.kept)
                self._do(self.protocol.views_saved(self.proofs.signed(self.name, action.kept)))
            elif isinstance(action, events.SaveStatuses):
                if self.store is not None:
                    self.store.keep_statuses(action.statuses)
            elif isinstance(action, events.WakeProgram):
                self.changed.notify_all()
            else:
                self.wake(action)

    # ------------------------------------------------------------------ for the program
    def meet(self) -> dict[str, Record]:
        """Wait until the whole network is known; returns its records."""
        with self.changed:
            said = time.monotonic()
            while (records := self.protocol.check_meeting(now := time.monotonic())) is None:
                if now - said >= STILL:
                    said = now
                    log.info("still waiting", extra={"peers": self.protocol.awaited()})
                self.changed.wait(POLL)
            return records

    def begin(self, limits: Limits) -> None:
        """From now on messages of the program may be sent and received."""
        with self.changed:
            self._processor = ThreadTime(threading.get_ident())
            self._do(self.protocol.begin(limits, time.monotonic()))

    def exchange(self, round: int, sent: Iterable[tuple[str, Message]], expected: Mapping[str, MessageHead]) -> None:
        """Begin a round: messages to send, and messages expected from neighbors."""
        with self.changed:
            self._check_disk()
            while not self.protocol.check_window(round, time.monotonic()):
                self._wait()
            self._do(self.protocol.start_round(round, sent, expected, time.monotonic()))

    def read(self, name: str, into: memoryview) -> None:
        """Wait for the message of a neighbor in this round."""
        with self.changed:
            while not self.protocol.check_waiting(name, time.monotonic()):
                self._wait()
            expected = self.protocol.rounds.expected[name]
        came = self.messages.find(name, expected.round)
        assert came is not None
        check_expected(name, came, expected)
        self.messages.read(name, expected.round, into)

    def enter_view(self) -> None:
        """The program restarts in another view: data of an earlier one is deleted."""
        assert self.store is not None
        with self.changed:
            self.store.wipe(self.protocol.enter_view())

    def agree(self) -> None:
        """The program has ended: wait until all agree that its answer is final. Raises ViewChanged if it must restart."""
        self.messages.sync().result()
        with self.changed:
            while True:
                actions, final = self.protocol.check_answer(time.monotonic())
                self._do(actions)
                if final:
                    return
                self._wait()

    def finish(self) -> list[str]:
        """This node has its answer: stay until the neighbors have theirs. Returns neighbors that no longer answered."""
        # After the finish notice of this node neighbors drop their messages for it: if it is killed then, it needs them from its own disk.
        self.messages.sync().result()
        with self.changed:
            while True:
                actions, gone = self.protocol.try_finish(time.monotonic())
                self._do(actions)
                if gone is not None:
                    return gone
                self.changed.wait(POLL)

    def tell_lost(self, names: Iterable[str]) -> None:
        """The run has ended without these neighbors: stay for LATE seconds, or until they have heard what the others have said of it."""
        agreement, views = self.protocol.agreement, self.protocol.views
        assert agreement is not None and views is not None  # noqa: PT018
        lost, deadline = [self.protocol.neighbors[name] for name in names], time.monotonic() + LATE
        with self.changed:
            views.statuses |= {name: status for name, status in views.seen.items() if name not in (views.name, *names)}
            self._do([events.SaveViews(views.kept)])  # signed
            while time.monotonic() < deadline and any(n.answered_at is None or agreement.news(n) for n in lost):
                self.changed.wait(POLL)

    def say_farewell(self, error: BaseException) -> None:
        """Send stop notices to the neighbors that can be reached; if this node cannot resume, also to those that have not started yet."""
        self.fail(error)
        with self.changed:
            late, seconds = self.protocol.latecomers(), FAREWELL
            if late:
                seconds = min(LATE, self.timeouts.start)
                text = f"stopping; waiting up to {seconds:g} s to tell node {', '.join(late)} why"
                log.warning(text, extra={"why": self.protocol.cause})
            deadline = time.monotonic() + seconds
            while time.monotonic() < deadline and not self.protocol.all_told(late):
                self.changed.wait(POLL)

    def _wait(self) -> None:
        """Wait for an event, or for POLL seconds. Unreachable neighbors get no heartbeats, so timeouts are checked here too."""
        self.changed.wait(POLL)
        self._check_disk()
        self._do(self.protocol.check_losses(time.monotonic()))

    def _check_disk(self) -> None:
        """A failed write ends the run."""
        if self.store is not None and self.store.messages.failed is not None:
            self._do(self.protocol.fail(self.store.messages.failed))


class ThreadTime:
    """The processor time of a thread. If it cannot be read, only rounds and bytes count as progress."""

    def __init__(self, thread: int | None = None):
        known = thread is not None and hasattr(time, "pthread_getcpuclockid")
        self._clock = time.pthread_getcpuclockid(thread) if known else None  # type: ignore[arg-type]
        self._spent = 0.0

    def advanced(self) -> bool:
        """Whether the thread has computed since the last call."""
        if self._clock is None:
            return False
        try:
            spent = time.clock_gettime(self._clock)
        except OSError:  # the thread has ended
            return False
        computed = spent - self._spent > 0.01
        self._spent = spent if computed else self._spent
        return computed
