"""An edge between this node and a neighbor: what both say to each other, over one connection.

One of the two has opened the connection and makes the calls (client.py), the other is called (server.py). In each call both speak, so that it
makes no difference who calls:

    Handshake   greet, greet     settings and membership records
    Heartbeat   beat, beat       liveness and progress
    Deliver     send, take       messages of the caller's program
    Collect     take, send       messages of the called node's program

Calls are streams of one HTTP/2 connection, each with its own flow control: a large message, or a receiver that does not read messages for a while,
does not hold up heartbeats.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import logging
import time
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterable, Iterator
from typing import Any

import grpc
from google.protobuf.message import Message

from ..errors import Disagreement, ProtocolError, TooMuch
from ..protocol import checks, events
from ..protocol import wire_pb2 as wire
from ..protocol.checks import CHUNK, MessageHead, parse
from ..protocol.events import Refusal, Refused
from ..protocol.text import showable
from ..protocol.view_messages import pack_status, parse_key
from ..protocol.views import Key
from ..storage.messages import Chunk
from .endpoint import Endpoint

log = logging.getLogger("dekpca.peer")

SERVICE = "dekpca.peer.v1.Peer"
ANSWER = 20.0  # seconds for the answer to a heartbeat: on a slow line it waits for the data that are under way, 4 s at 1 Mbit/s
NEWS = 0.02  # seconds in which records of several nodes are batched
TOGETHER = 0.1  # seconds of messages that are synced and acknowledged together while the program runs
MOST_TAKEN = 1000  # unacknowledged messages of one delivery: backpressure on a neighbor that does not read them
MOST_BACKLOG = 64  # chunks in memory: backpressure if the disk is slower than the network
DISK = 0.005  # polling interval in seconds for such a disk, or for a program that must catch up
VIEW = 0.02  # polling interval in seconds for a program that must enter a view
STREAMS = 8  # concurrent calls of one neighbor, of a kind: one is active, others may be broken but not detected yet
REASON = 1.0  # seconds for the reason why nothing can be written to a call any more
OPTIONS = [
    ("grpc.max_receive_message_length", checks.MOST_RECEIVED),
    ("grpc.max_send_message_length", checks.MOST_RECEIVED),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.http2.ping_timeout_ms", 20_000),  # else a dead connection is detected after a minute, whatever the keepalive
    ("grpc.keepalive_permit_without_calls", 1),
    # Flow-control window of a message: pings and heartbeats queue behind its data, and must not be late on a slow line (1 Mbit/s: 4 s of data).
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", 1 << 19),
]  # of both ends
Code = grpc.StatusCode
CODES = {
    Refusal.UNKNOWN: Code.UNAUTHENTICATED,
    Refusal.STRANGER: Code.PERMISSION_DENIED,
    Refusal.SETTINGS: Code.FAILED_PRECONDITION,
    Refusal.MESSAGE: Code.INVALID_ARGUMENT,
    Refusal.QUOTA: Code.OUT_OF_RANGE,
    Refusal.LATER: Code.ABORTED,
}
REFUSALS = {code: why for why, code in CODES.items() if why is not Refusal.UNKNOWN}


class Broken(Exception):
    """Nothing passes over this connection any more."""


class Stream:
    """One end of a call. In a handshake and in heartbeats the called node says nothing before it has `heard` the caller; in Collect it says its view
    first, and nothing more before the caller has answered."""

    def __init__(self, call: Any, caller: bool):
        self._call, self._writing, self.heard = call, asyncio.Lock(), asyncio.Event()
        if caller:
            self.heard.set()

    async def write(self, message: Message) -> None:
        data = message.SerializeToString()
        try:
            async with self._writing:
                await self._call.write(data)
        except (grpc.aio.BaseError, asyncio.InvalidStateError) as error:  # the call has ended
            raise Broken(str(error)) from error

    async def messages(self) -> AsyncGenerator[bytes]:
        """What the other end writes, until it ends the call; raises AioRpcError if that is by an error."""
        try:
            while (data := await self._call.read()) is not grpc.aio.EOF:
                yield data
        except grpc.aio.BaseError as error:
            raise Broken(str(error)) from error


class Bell:
    """Wakes all who wait at that moment. Whoever looks for work takes `next` before, and waits for it after."""

    def __init__(self) -> None:
        self.next = asyncio.Event()

    def ring(self) -> None:
        self.next.set()
        self.next = asyncio.Event()


Work = Callable[[Stream], Coroutine[Any, Any, None]]


class Edge:
    """The edge to the neighbor `name`."""

    def __init__(self, endpoint: Endpoint, name: str):
        self.endpoint, self.name, self.neighbor = endpoint, name, endpoint.protocol.neighbors[name]
        self.at_once = asyncio.Event()  # the program has ended: neighbors wait only for acknowledgements
        self.news, self.beat_now = Bell(), Bell()  # there is something to send
        self.calling = False  # this node has connected to the neighbor
        self.calls: Counter[str] = Counter()  # of the neighbor, by method
        self.turned = Bell()  # the neighbor has begun to call, or has ended that
        self.leaving = False
        self._attempts = itertools.count()
        # method: what the caller does, what the called node does
        self.works: dict[str, tuple[Work, Work]] = {
            "Heartbeat": (self.beat, self.beat),
            "Handshake": (self.greet, self.greet),
            "Deliver": (self.send, self.take),
            "Collect": (self.take, self.send),
        }

    def report(self, event: Any) -> None:
        self.endpoint.receive(self.name, event)

    # ------------------------------------------------------------------ the connection
    @property
    def called(self) -> bool:
        """Whether the neighbor has connected to this node, to take part in the run."""
        return any(self.calls[method] for method in self.works)

    @contextlib.contextmanager
    def during_call(self, method: str) -> Iterator[None]:
        if self.calls[method] >= STREAMS:
            raise Refused(Refusal.LATER, f"{STREAMS} calls at once are enough")
        self.calls[method] += 1
        if method in self.works:
            self.turned.ring()
        try:
            yield
        finally:
            self.calls[method] -= 1
            if method in self.works and not self.called:
                self.turned.ring()
                self.lost("its connection has ended")

    def lost(self, why: str) -> None:
        """A connection has ended, or was not made."""
        if not (self.called or self.calling or self.leaving):
            self.report(events.Unreachable(why))

    def failed(self, error: Exception) -> tuple[Refusal | None, str]:
        """Why the neighbor is refused, if it is, and what it is told of an error, which may also stop this node."""
        if isinstance(error, Refused):
            return error.why, str(error)
        if isinstance(error, ProtocolError):
            return Refusal.QUOTA if isinstance(error, TooMuch) else Refusal.MESSAGE, str(error)
        if isinstance(error, Disagreement):
            return Refusal.SETTINGS, str(error)
        if self.leaving and not isinstance(error, OSError):  # gRPC cancels calls when this node stops
            log.debug("a call ended while stopping", extra={"peer": self.name, "why": repr(error)})
            return None, ""
        self.endpoint.fail(error)
        if isinstance(error, OSError):
            return None, "cannot write to its disk"
        log.error("a call failed", extra={"peer": self.name}, exc_info=error)
        return None, "an error of ours"

    # ------------------------------------------------------------------ handshakes and heartbeats
    async def greet(self, stream: Stream) -> None:
        """Compare settings, and exchange membership records: all of them at first, then new ones."""
        await both(self._say_records(stream), self._hear_records(stream))

    async def _say_records(self, stream: Stream) -> None:
        await stream.heard.wait()
        protocol, told = self.endpoint.protocol, set[str]()
        while True:
            rung = self.news.next
            if protocol.silenced:
                await asyncio.Event().wait()  # until this is cancelled; heartbeats have the reason
            if not told or protocol.membership.records.keys() - self.neighbor.knows - told:
                said = handshake_of(self.endpoint)
                await stream.write(said)
                told.update(record.name for record in said.records)
            await rung.wait()
            await asyncio.sleep(NEWS)  # it may get the records from another node, or have new ones itself

    async def _hear_records(self, stream: Stream) -> None:
        async for data in stream.messages():
            self.report(checks.check_handshake(parse(wire.Handshake, data)))
            stream.heard.set()

    async def beat(self, stream: Stream) -> None:
        """Send heartbeats, each of which the neighbor answers, and answer those of the neighbor."""
        asked: list[tuple[events.Heartbeat, asyncio.Event]] = []  # the heartbeat that is to be answered
        await both(self._send_beats(stream, asked), self._hear_beats(stream, asked))

    async def _send_beats(self, stream: Stream, asked: list[tuple[events.Heartbeat, asyncio.Event]]) -> None:
        await stream.heard.wait()
        period = self.endpoint.timeouts.beat
        while True:
            rung, sent, answered = self.beat_now.next, self.endpoint.heartbeat(self.name), asyncio.Event()
            asked.append((sent, answered))
            await stream.write(heartbeat_of(sent))
            if not await wait_for(answered, max(ANSWER, 2 * period)):
                raise Broken("a heartbeat was not answered")
            await wait_for(rung, period)

    async def _hear_beats(self, stream: Stream, asked: list[tuple[events.Heartbeat, asyncio.Event]]) -> None:
        async for data in stream.messages():
            beat = parse(wire.Heartbeat, data)
            heard = checks.check_heartbeat(beat)
            if not beat.answer:
                self.report(heard)
                await stream.write(heartbeat_of(self.endpoint.heartbeat(self.name), answer=True))
            elif asked:
                sent, answered = asked.pop()
                # Answered first: if its heartbeat stops this node, it is up, and waits for an acknowledgement.
                for event in (events.Answered(), heard, events.HeartbeatAnswered(sent)):
                    self.report(event)
                answered.set()
            else:
                raise ProtocolError("an answer to no heartbeat")
            stream.heard.set()

    async def refused(self, stream: Stream) -> None:
        """The neighbor, which calls, says why it does not take what this node sends."""
        async for data in stream.messages():
            said = parse(wire.Refusal, data)
            why = next((why for code, why in REFUSALS.items() if code.name == said.status), None)
            if why is None:
                raise ProtocolError("a refusal without a reason")
            self.report(events.TheyRefused(why, showable(said.text)))

    # ------------------------------------------------------------------ messages to the neighbor
    async def send(self, stream: Stream) -> None:
        """Retransmit messages of this view that are not acknowledged, then send new ones, until the program runs in another view."""
        while not self.endpoint.protocol.begun:
            await asyncio.sleep(VIEW)
        view, opened = self.endpoint.protocol.view, asyncio.Event()
        await stream.write(wire.Chunk(view=str(view)))
        await both(self._send_messages(stream, view.key, opened), self._hear_acknowledgements(stream, view.key, opened))

    async def _hear_acknowledgements(self, stream: Stream, view: Key, opened: asyncio.Event) -> None:
        async for data in stream.messages():
            found = parse(wire.Acknowledgement, data)
            self.report(events.Answered())
            if found.opening == opened.is_set():
                raise ProtocolError("a delivery that does not begin with what is held, or says it twice")
            if found.opening:
                self.report(events.Opening(frozenset(found.held), view))
                opened.set()
            else:
                self.report(events.Acknowledged(tuple(found.rounds), view))

    async def _send_messages(self, stream: Stream, view: Key, opened: asyncio.Event) -> None:
        """Send messages while the program runs in this view."""
        await opened.wait()
        window, last = self.neighbor.window, 0  # rounds only increase
        while self.endpoint.protocol.view.key == view:
            rung = self.news.next
            pending = self.endpoint.pending(self.name, last, view)
            for round, (head, data) in pending:
                for chunk in self._chunks(head, data):
                    await stream.write(chunk)
                    self.report(events.ChunkSent(len(chunk.data)))
                    if round not in window.unacknowledged:  # the neighbor has it already
                        break
                last = round
            if not pending:
                await rung.wait()

    def _chunks(self, message: MessageHead, data: memoryview) -> Iterator[wire.Chunk]:
        head = wire.Head(
            run=self.endpoint.run, sender=self.endpoint.name, round=message.round, kind=message.kind, dtype=message.dtype,
            shape=message.shape,
        )  # fmt: skip
        for start in range(0, max(message.size, 1), CHUNK):
            yield wire.Chunk(head=None if start else head, offset=start, data=bytes(data[start : start + CHUNK]))

    # ------------------------------------------------------------------ messages of the neighbor
    async def take(self, stream: Stream) -> None:
        """Receive messages of the program: write them to disk, then acknowledge them."""
        while not (self.neighbor.joined and self.endpoint.protocol.begun):  # a handshake comes first; limits are known
            await asyncio.sleep(VIEW)
        messages = stream.messages()
        begun = await anext(messages, None)
        if begun is None:
            return
        first = parse(wire.Chunk, begun)
        if first.data or first.offset or first.HasField("head"):
            raise ProtocolError("a delivery that does not begin with its view")
        key = parse_key(first.view)
        while self.endpoint.protocol.view.key < key:  # the program will enter that view
            await asyncio.sleep(VIEW)
        with self.endpoint.in_view(key):
            held = self.endpoint.messages.held(self.name)
        await self._on_disk()
        await stream.write(wire.Acknowledgement(opening=True, held=held))
        async with contextlib.aclosing(self._acknowledgements(messages, key)) as acknowledgements:
            async for rounds in acknowledgements:
                await stream.write(wire.Acknowledgement(rounds=rounds))

    async def _acknowledgements(self, messages: AsyncIterator[bytes], view: Key) -> AsyncGenerator[list[int]]:
        """The rounds of messages that are on disk, in batches: messages that arrive during a sync share the next one."""
        taken: asyncio.Queue[int | None] = asyncio.Queue()
        taking = asyncio.ensure_future(self._take(messages, view, taken))
        taking.add_done_callback(lambda _: taken.put_nowait(None))
        try:
            rounds: list[int | None] = []
            while None not in rounds:
                rounds = [await taken.get()]
                if rounds != [None]:  # acknowledgements to all neighbors are due at the same time
                    await wait_for(self.at_once, TOGETHER - asyncio.get_running_loop().time() % TOGETHER)
                while not taken.empty():
                    rounds.append(taken.get_nowait())
                if whole := [round for round in rounds if round is not None]:
                    await self._on_disk()
                    yield whole
            await taking
        finally:
            await cancel([taking])

    async def _take(self, messages: AsyncIterator[bytes], view: Key, taken: asyncio.Queue[int | None]) -> None:
        """Write messages to disk; put the rounds of complete ones and of duplicates into `taken`."""
        message: MessageHead | None = None  # being received
        stored, name = self.endpoint.messages, self.name
        new = False  # False: the rest of a duplicate
        held, attempt = 0, 0
        try:
            async for data in messages:
                while taken.qsize() >= MOST_TAKEN:
                    await asyncio.sleep(TOGETHER)
                while stored.backlog > MOST_BACKLOG:
                    await asyncio.sleep(DISK)
                chunk = parse(wire.Chunk, data)
                if chunk.HasField("head"):
                    if message is not None and new:
                        raise ProtocolError("a new message before the last one was complete")
                    with self.endpoint.in_view(view) as rounds:
                        message, new = rounds.accept(name, chunk.head)
                    while new and not self.endpoint.has_room(name, message.round):
                        await asyncio.sleep(DISK)
                    held, attempt = 0, next(self._attempts)
                    if not new:
                        taken.put_nowait(message.round)
                if message is None:
                    raise ProtocolError("a chunk without a message")
                before, held = held, checks.check_chunk(chunk, message.size, held)
                self.report(events.ChunkReceived(len(chunk.data), new))
                if new:
                    with self.endpoint.in_view(view):
                        if self.endpoint.messages.append(Chunk(name, message, attempt, before, chunk.data)):
                            self.report(events.MessageStored(message.round))
                if held == message.size:
                    if new:
                        taken.put_nowait(message.round)
                    message = None
        finally:
            if message is not None and new:
                stored.drop_partial(name, message.round, attempt)
                self.report(events.MessageBroken(held))

    async def _on_disk(self) -> None:
        """Wait until all appended chunks are synced."""
        await asyncio.wrap_future(self.endpoint.messages.sync())


# ---------------------------------------------------------------------- tasks
async def wait_for(event: asyncio.Event, seconds: float) -> bool:
    """Wait for an event, at most so long; returns whether it came."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
    return event.is_set()


async def both(saying: Coroutine[Any, Any, None], hearing: Coroutine[Any, Any, None]) -> None:
    """Speak and listen, until one of the two ends. If speaking fails, listening gives the reason."""
    tasks = said, heard = asyncio.ensure_future(saying), asyncio.ensure_future(hearing)
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if not heard.done() and said.exception() is not None:
            await asyncio.wait({heard}, timeout=REASON)
        (heard if heard.done() else said).result()
    finally:
        await cancel(tasks)
        # An error refers to this frame: else it would refer to itself, and keep the message until the next garbage collection.
        del tasks, said, heard


async def cancel(tasks: Iterable[asyncio.Future[Any]]) -> None:
    """End tasks. More than once, because a gRPC call loses a cancellation if it ends at that moment."""
    tasks = list(tasks)
    while going := [task for task in tasks if not task.done()]:
        for task in going:
            task.cancel()
        await asyncio.wait(going, timeout=0.1)
    for task in tasks:
        if not task.cancelled():
            task.exception()


# ---------------------------------------------------------------------- messages
def handshake_of(endpoint: Endpoint) -> wire.Handshake:
    """The handshake of this node: its settings and records."""
    settings = endpoint.protocol.settings
    with endpoint.changed:
        known = list(endpoint.protocol.membership.records.items())
    return wire.Handshake(
        settings=[wire.Setting(name=name, value=value) for name, value in settings.values.items()],
        records=[wire.Record(name=name, neighbors=around, rows=rows) for name, (around, rows) in known],
        columns=settings.columns,
    )


def heartbeat_of(beat: events.Heartbeat, answer: bool = False) -> wire.Heartbeat:
    said = {field.name: getattr(beat, field.name) for field in dataclasses.fields(beat)}
    statuses = [pack_status(name, status) for name, status in beat.statuses.items()]
    return wire.Heartbeat(**said | {"statuses": statuses, "answer": answer})


CLOCK, TROUBLE, CALLS = "clock", "trouble", "calls"  # beside the settings in a check


def check_of(endpoint: Endpoint, name: str) -> wire.Handshake:
    """What a node says in a check: its settings, its clock, whether it has the neighbor's address, and why its calls there fail; not how many
    rows it has."""
    settings, trouble = endpoint.protocol.settings, endpoint.protocol.neighbors[name].trouble
    calls = "yes" if endpoint.can_call(name) else "no"
    said = {**settings.values, CLOCK: repr(time.time()), TROUBLE: showable(trouble), CALLS: calls}
    return wire.Handshake(settings=[wire.Setting(name=n, value=v) for n, v in said.items()], columns=settings.columns)
