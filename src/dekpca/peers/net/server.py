"""The server of a node, for calls of its neighbors. The caller is identified before any message of the call is read.

A refusal is logged with its reason and ends only the call: a stranger or a faulty neighbor does not disturb the run.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import quote

import grpc

from ..errors import Disagreement, ProtocolError, TooMuch
from ..protocol import checks, events
from ..protocol import wire_pb2 as wire
from ..protocol.checks import MessageHead, parse
from ..protocol.events import Refusal, Refused
from ..protocol.text import showable
from ..protocol.view_messages import pack_status, parse_key
from ..protocol.views import Key
from ..storage.messages import Chunk
from .endpoint import Endpoint
from .identity import Identity
from .listener import Listener, descriptors

log = logging.getLogger("dekpca.peer")
logging.getLogger("grpc._cython.cygrpc").setLevel(logging.CRITICAL)  # it logs every cancelled call; we log what matters

SERVICE = "dekpca.peer.v1.Peer"
STREAMS = 4  # concurrent deliveries of one neighbor: one is active, others may be broken but not detected yet
TOGETHER = 0.1  # seconds of messages that are synced and acknowledged together while the program runs
MOST_TAKEN = 1000  # unacknowledged messages of one delivery: backpressure on a neighbor that does not read them
MOST_BACKLOG = 64  # chunks in memory: backpressure if the disk is slower than the network
DISK = 0.005  # polling interval in seconds for such a disk, or for a program that must catch up
VIEW = 0.02  # polling interval in seconds for a program that must enter a view
GRACE = 0.5  # seconds for neighbors that leave too to end their own calls
BOTH_ENDS = [
    ("grpc.max_receive_message_length", checks.MOST_RECEIVED),
    ("grpc.max_send_message_length", checks.MOST_RECEIVED),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.http2.ping_timeout_ms", 20_000),  # else a dead connection is detected after a minute, whatever the keepalive
    ("grpc.keepalive_permit_without_calls", 1),
]
OPTIONS = [
    *BOTH_ENDS,
    ("grpc.max_metadata_size", 16 << 10),
    ("grpc.max_concurrent_streams", 16),  # on one connection; a neighbor uses one or two
    ("grpc.http2.max_ping_strikes", 0),  # no limit on pings of neighbors
    ("grpc.keepalive_time_ms", 20_000),
    # Flow-control window of a message: pings queue behind its data, and must not be late on a slow line (1 Mbit/s: 4 s of data).
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", 1 << 19),
]

Messages = AsyncIterator[bytes]
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


class Server:
    """Answers the neighbors' calls."""

    def __init__(self, endpoint: Endpoint, folder: Path, identity: Identity | None):
        self.endpoint, self.folder, self.identity = endpoint, folder, identity
        self.ready = asyncio.Event()  # the network is known, and with it the limits of messages
        self.on_call: dict[str, Callable[[], Any]] = {}  # callbacks for calls of a neighbor
        self._at_once = asyncio.Event()  # the program has ended: neighbors wait only for acknowledgements
        self._attempts = itertools.count()
        self._streams: dict[str, int] = {}
        self._server: Any = None
        self._listener: Listener | None = None
        self._stopping = False

    async def start(self, listen: str) -> str:
        """Listen; returns the address, with the port that the system chose for 0."""
        neighbors = len(self.endpoint.protocol.neighbors)
        room = descriptors(neighbors)
        self._server = grpc.aio.server(options=OPTIONS, maximum_concurrent_rpcs=8 * neighbors + 32)
        calls = {
            "Handshake": self._handshake,
            "Deliver": self._deliver,
            "Heartbeat": self._heartbeat,
            "Check": self._check,
        }
        handlers = {name: grpc.stream_stream_rpc_method_handler(self._admitted(call)) for name, call in calls.items()}
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        self._listener = Listener(self.folder, room, tls=self.identity is not None)
        inside = f"unix:{quote(str(self._listener.inside))}"
        if self.identity is None:
            self._server.add_insecure_port(inside)
        else:
            self._server.add_secure_port(inside, self.identity.server_credentials())
        await self._server.start()
        host, _, port = listen.rpartition(":")
        try:
            return f"{host}:{await self._listener.open(host.strip('[]'), int(port))}"
        except OSError as error:
            await self.stop()
            text = f"cannot be bound ({error.strerror}); choose another address or port"
            raise ValueError(f"listen {listen}: {text}") from error

    async def stop(self) -> None:
        self._stopping = True
        if self._server is not None:
            await self._server.stop(GRACE)
        if self._listener is not None:
            await self._listener.close()

    # ------------------------------------------------------------------ callers
    async def _admit(self, context: Any) -> tuple[str, str]:
        """The calling neighbor, and the view of a delivery; other callers are refused."""
        protocol, run, claimed, view = checks.read_metadata(dict(context.invocation_metadata()))
        connection = None if self._listener is None else self._listener.connection(context.peer())
        try:
            authenticated = claimed if self.identity is None else self.identity.peer_name(context.auth_context())
            name = self.endpoint.protocol.admit(authenticated, claimed, protocol, run)
        except Refused as error:
            where = "a connection that has ended" if connection is None else connection.address
            await self._refuse(context, error.why, where, str(error))
        if self._listener is not None and connection is not None:
            self._listener.admit(connection, name)
        if name in self.on_call:
            self.on_call[name]()
        return name, view

    async def _refuse(self, context: Any, why: Refusal, who: str, text: str) -> NoReturn:
        if why is not Refusal.LATER:
            log.warning("refused", extra={"caller": who, "why": text})
        await context.abort(CODES[why], text[:1500])
        raise AssertionError  # abort raises

    def _admitted(self, handler: Callable[[str, Messages, str], Messages]) -> Any:
        """A call of a neighbor: an error ends the call, and is logged."""

        async def call(messages: Messages, context: Any) -> Messages:
            name, view = await self._admit(context)
            try:
                async for answer in handler(name, messages, view):
                    yield answer
                return
            except Exception as error:
                why, text = self._ended(name, error)
            # Outside the except clause: the error refers to the message, and gRPC would keep both until the next garbage collection.
            if isinstance(why, Refusal):
                await self._refuse(context, why, f"node {name}", text)
            elif why is not Code.OK:
                await context.abort(why, text)

        return call

    def _ended(self, name: str, error: Exception) -> tuple[Refusal | grpc.StatusCode, str]:
        """What the caller is told of an error, which may also stop this node."""
        if isinstance(error, Refused):
            return error.why, str(error)
        if isinstance(error, ProtocolError):
            return Refusal.QUOTA if isinstance(error, TooMuch) else Refusal.MESSAGE, str(error)
        if isinstance(error, Disagreement):
            self.endpoint.receive(name, events.WeRefused(error))
            return Refusal.SETTINGS, str(error)
        if self._stopping and not isinstance(error, OSError):  # gRPC cancels calls when the server stops
            log.debug("a call ended while stopping", extra={"peer": name, "why": repr(error)})
            return Code.OK, ""
        self.endpoint.fail(error)
        if isinstance(error, OSError):
            return Code.UNAVAILABLE, "cannot write to its disk"
        log.exception("a call failed", extra={"peer": name})
        return Code.INTERNAL, "an error of ours"

    # ------------------------------------------------------------------ the calls
    async def _handshake(self, name: str, messages: Messages, view: str) -> Messages:
        """Compare settings, and exchange membership records."""
        seen = False
        async for data in messages:
            if seen:
                raise ProtocolError("two handshakes in one call")
            seen = True
            self.endpoint.receive(name, checks.check_handshake(parse(wire.Handshake, data)))
            answer = handshake_of(self.endpoint)
            yield answer.SerializeToString()
            self.endpoint.receive(name, events.HandshakeSent(frozenset(record.name for record in answer.records)))

    async def _heartbeat(self, name: str, messages: Messages, view: str) -> Messages:
        async for data in messages:
            self.endpoint.receive(name, checks.check_heartbeat(parse(wire.Heartbeat, data)))
            yield heartbeat_of(self.endpoint.heartbeat(name)).SerializeToString()

    async def _check(self, name: str, messages: Messages, view: str) -> Messages:
        """Answer `dekpca node check` of a neighbor, which compares the settings itself: it has no effect on this node."""
        async for data in messages:
            checks.check_handshake(parse(wire.Handshake, data))
            yield check_of(self.endpoint, name).SerializeToString()

    async def _deliver(self, name: str, messages: Messages, view: str) -> Messages:
        """Receive messages of the program: write them to disk, then acknowledge them."""
        if not self.endpoint.protocol.neighbors[name].joined:
            raise Refused(Refusal.LATER, "a handshake comes first")
        if self._streams.get(name, 0) >= STREAMS:
            raise Refused(Refusal.LATER, f"{STREAMS} deliveries at once are enough")
        self._streams[name] = self._streams.get(name, 0) + 1
        try:
            await self.ready.wait()
            key = parse_key(view or "0")
            while self.endpoint.protocol.view.key < key:  # the program will enter that view
                await asyncio.sleep(VIEW)
            with self.endpoint.in_view(key):
                held = self.endpoint.messages.held(name)
            await self._on_disk()
            yield wire.Acknowledgement(opening=True, held=held).SerializeToString()
            async with contextlib.aclosing(self._acknowledgements(name, messages, key)) as acknowledgements:
                async for rounds in acknowledgements:
                    yield wire.Acknowledgement(rounds=rounds).SerializeToString()
        finally:
            self._streams[name] -= 1

    async def _acknowledgements(self, name: str, messages: Messages, view: Key) -> AsyncGenerator[list[int]]:
        """The rounds of messages that are on disk, in batches: messages that arrive during a sync share the next one."""
        taken: asyncio.Queue[int | None] = asyncio.Queue()
        taking = asyncio.ensure_future(self._take(name, messages, view, taken))
        taking.add_done_callback(lambda _: taken.put_nowait(None))
        try:
            going = True
            while going:
                rounds = [await taken.get()]
                if rounds != [None]:
                    await self._pause()
                while not taken.empty():
                    rounds.append(taken.get_nowait())
                going = None not in rounds
                whole = [round for round in rounds if round is not None]
                if whole:
                    await self._on_disk()
                    yield whole
            await taking
        finally:
            taking.cancel()
            await asyncio.gather(taking, return_exceptions=True)

    async def _pause(self) -> None:
        """Wait until acknowledgements are due; those to all neighbors are due at the same time."""
        await wait_for(self._at_once, TOGETHER - asyncio.get_running_loop().time() % TOGETHER)

    def acknowledge_at_once(self, at_once: bool = True) -> None:
        """The program has ended: from now on acknowledgements are not delayed. (After a restart of the program they are.)"""
        self._at_once.set() if at_once else self._at_once.clear()

    async def _take(self, name: str, messages: Messages, view: Key, taken: asyncio.Queue[int | None]) -> None:
        """Write messages to disk; put the rounds of complete ones and of duplicates into `taken`."""
        message: MessageHead | None = None  # being received
        stored = self.endpoint.messages
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
                self.endpoint.receive(name, events.ChunkReceived(len(chunk.data), new))
                if new:
                    with self.endpoint.in_view(view):
                        self.endpoint.messages.append(Chunk(name, message, attempt, before, chunk.data))
                if held == message.size:
                    if new:
                        taken.put_nowait(message.round)
                    message = None
        finally:
            if message is not None and new:
                stored.drop_partial(name, message.round, attempt)
                self.endpoint.receive(name, events.MessageBroken(held))

    async def _on_disk(self) -> None:
        """Wait until all appended chunks are synced."""
        await asyncio.wrap_future(self.endpoint.messages.sync())


async def wait_for(event: asyncio.Event, seconds: float) -> None:
    """Wait for an event, at most so long."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()


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


CLOCK, TROUBLE = "clock", "trouble"  # beside the settings in a check


def check_of(endpoint: Endpoint, name: str) -> wire.Handshake:
    """What a node says in a check: its settings, its clock, and why its calls to the neighbor fail; not how many rows it has."""
    settings, trouble = endpoint.protocol.settings, endpoint.protocol.neighbors[name].trouble
    said = {**settings.values, CLOCK: repr(time.time()), TROUBLE: showable(trouble)}
    return wire.Handshake(settings=[wire.Setting(name=n, value=v) for n, v in said.items()], columns=settings.columns)


def heartbeat_of(beat: events.Heartbeat) -> wire.Heartbeat:
    said = {field.name: getattr(beat, field.name) for field in dataclasses.fields(beat)}
    return wire.Heartbeat(**said | {"statuses": [pack_status(name, status) for name, status in beat.statuses.items()]})
