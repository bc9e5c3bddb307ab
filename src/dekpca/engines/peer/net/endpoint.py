"""The endpoint of a node: the protocol and the folder, shared by the program, the server, the clients and the thread that writes.

Whatever they do goes through `changed`, a lock that the program waits on. The clock is read here, and the actions of the protocol are done here.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ..protocol import events
from ..protocol import wire_pb2 as wire
from ..protocol.checks import Limits, MessageHead, check_expected
from ..protocol.membership import Record
from ..protocol.node import NodeProtocol
from ..protocol.views import Key, View
from ..storage.folder import RunFolder
from ..storage.messages import Chunk, MessageLog

log = logging.getLogger("dekpca.peer")

POLL = 0.25  # seconds between looks at the clock while waiting
FAREWELL = 3.0  # seconds in which the neighbors are told that this node stops
# Seconds in which those that have not come yet are told, too: enough for nodes that are started together, and not so long that an
# owner who has corrected the config is kept from starting again.
LATE = 60.0

Message = tuple[MessageHead, Sequence[memoryview]]  # to a neighbor


class Endpoint:
    """`store` is None for a node that refuses to resume, which takes no messages. `addresses` are those of the neighbors."""

    def __init__(self, protocol: NodeProtocol, store: RunFolder | None, addresses: Mapping[str, str]):
        self.protocol, self.store, self.addresses = protocol, store, addresses
        self.name, self.run, self.timeouts = protocol.name, protocol.run, protocol.timeouts
        self.changed = threading.Condition()
        self.wake: Callable[[events.Send], None] = lambda send: None  # the clients
        self.call: Callable[[events.Call], None] = lambda call: None  # begins to call fallback neighbors
        self._processor = ThreadTime()
        if store is not None:
            self._hear_messages()

    @property
    def messages(self) -> MessageLog:
        assert self.store is not None, "a node that refuses to resume takes no messages"
        return self.store.messages

    # ------------------------------------------------------------------ for the server and the clients
    def receive(self, name: str, event: Any) -> None:
        """Something happened to a neighbor; raises what it has done wrong."""
        with self.changed:
            self._do(self.protocol.receive(name, event, time.monotonic()))

    def fail(self, error: BaseException) -> None:
        """This node stops: the program raises this at its next wait."""
        with self.changed:
            self._do(self.protocol.fail(error))

    def heartbeat(self, name: str) -> events.Heartbeat:
        with self.changed:
            now = time.monotonic()
            if self._processor.advanced():
                self.protocol.moved_at = now
            self._do(self.protocol.check_losses(now))
            return self.protocol.heartbeat(name, now)

    def opening(self, name: str, view: Key) -> tuple[int, list[int]]:
        """What a neighbor need not send in this view. Raises Refused if the program runs in another one."""
        with self.changed:
            self.protocol.check_view(view)
            return self.protocol.through, self.messages.held(name)

    def accept(self, name: str, head: wire.Head, view: Key) -> tuple[MessageHead, bool]:
        with self.changed:
            self.protocol.check_view(view)
            return self.protocol.accept(name, head)

    def append(self, chunk: Chunk, view: Key) -> None:
        """Some bytes of a message, for the disk."""
        with self.changed:
            self.protocol.check_view(view)
            self.messages.append(chunk)

    def has_room(self, name: str, round: int) -> bool:
        with self.changed:
            return self.protocol.has_room(name, round)

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
                self._do(self.protocol.views_saved(action.kept))
            elif isinstance(action, events.Call):
                self.call(action)
            elif isinstance(action, events.WakeProgram):
                self.changed.notify_all()
            else:
                self.wake(action)

    # ------------------------------------------------------------------ for the program
    def meet(self) -> dict[str, Record]:
        """Wait until the whole network is known; returns its records."""
        with self.changed:
            while (records := self.protocol.check_meeting(time.monotonic())) is None:
                self.changed.wait(POLL)
            return records

    def begin(self, limits: Limits, round: int, through: int, last_sent: Mapping[str, int]) -> None:
        """From now on messages of the program may come and go."""
        with self.changed:
            self._processor = ThreadTime(threading.get_ident())
            self._do(self.protocol.begin(limits, round, through, last_sent, time.monotonic()))

    def exchange(
        self, round: int, sent: Iterable[tuple[str, MessageHead, Sequence[memoryview]]], expected: Mapping[str, MessageHead]
    ) -> None:  # fmt: skip
        """Begin a round: what goes out, and what will come from whom."""
        with self.changed:
            self._check_disk()
            while not self.protocol.check_window(round, time.monotonic()):
                self._wait()
            messages = [(name, (head, data)) for name, head, data in sent]
            self._do(self.protocol.start_round(round, messages, expected, time.monotonic()))

    def read(self, name: str, into: memoryview) -> None:
        """Wait for the message of a neighbor in this round."""
        with self.changed:
            while not self.protocol.check_waiting(name, time.monotonic()):
                self._wait()
            expected = self.protocol.expected[name]
        came = self.messages.find(name, expected.round)
        assert came is not None
        check_expected(name, came, expected)
        self.messages.read(name, expected.round, into)

    def enter_view(self) -> View:
        """The program begins anew, in another view: nothing of an earlier one is kept."""
        assert self.store is not None
        with self.changed:
            view = self.protocol.enter_view()
            self.store.wipe(view)
            self._hear_messages()
            return view

    def agree(self) -> None:
        """The program has ended: wait until all agree that its answer is the answer. Raises ViewChanged if it is not."""
        self.sync()
        with self.changed:
            while True:
                actions, final = self.protocol.check_answer(time.monotonic())
                self._do(actions)
                if final:
                    return
                self._wait()

    def forget(self, through: int) -> None:
        with self.changed:
            self.protocol.forget(through)

    def all_acknowledged(self, through: int) -> bool:
        with self.changed:
            return self.protocol.all_acknowledged(through)

    def finish(self) -> list[str]:
        """This node has its answer: stay until the neighbors have theirs. Returns those that were not heard from any more."""
        self.sync()
        with self.changed:
            while True:
                actions, gone = self.protocol.try_finish(time.monotonic())
                self._do(actions)
                if gone is not None:
                    return gone
                self.changed.wait(POLL)

    def sync(self) -> None:
        """Until all messages that were received are on disk. A neighbor that hears that this node has finished drops those for it: killed now, this
        node must find them when it runs again.
        """
        synced: queue.Queue[Exception | None] = queue.Queue()
        self.messages.sync(synced.put)
        error = synced.get()
        if error is not None:
            raise error

    def say_farewell(self, error: BaseException) -> None:
        """Tell the neighbors why this node stops, as far as they listen. Those that have not come yet would wait in vain if it cannot go on."""
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
        """For something to happen, or a while. Neighbors that cannot be reached get no heartbeats, so the clock is looked at here, too."""
        self.changed.wait(POLL)
        self._check_disk()
        self._do(self.protocol.check_losses(time.monotonic()))

    def _hear_messages(self) -> None:
        self.messages.whole = lambda sender, round: self.receive(sender, events.MessageStored(round))

    def _check_disk(self) -> None:
        """A write that failed ends the run."""
        if self.store is not None and self.store.messages.failed is not None:
            self._do(self.protocol.fail(self.store.messages.failed))


class ThreadTime:
    """The processor time of a thread. Where it cannot be read, rounds and bytes must do as signs of progress."""

    def __init__(self, thread: int | None = None):
        can = thread is not None and hasattr(time, "pthread_getcpuclockid")
        self._clock: int | None = time.pthread_getcpuclockid(thread) if can and thread is not None else None
        self._spent = 0.0

    def advanced(self) -> bool:
        """Whether the thread has computed since this was last asked."""
        if self._clock is None:
            return False
        try:
            spent = time.clock_gettime(self._clock)
        except OSError:  # the thread has ended
            return False
        before, computed = self._spent, spent - self._spent > 0.01
        self._spent = spent if computed else before
        return computed
