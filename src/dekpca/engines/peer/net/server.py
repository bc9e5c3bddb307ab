"""The server of a node: what its neighbors may call. Who calls is settled before any message of the call is read.

Every refusal is logged with its reason and ends the call, nothing else: a stranger or a broken neighbor does not disturb the run.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Any, NoReturn
from urllib.parse import quote

import grpc

from ..errors import Disagreement, ProtocolError, TooMuch
from ..protocol import wire_pb2 as wire
from ..protocol.checks import (
    MOST_RECEIVED,
    PROTOCOL,
    Letter,
    check_beat,
    check_greeting,
    check_head,
    check_piece,
    parse,
    read_metadata,
)
from ..protocol.handshake import Terms
from .endpoint import REFUSING, Neighbor, Station
from .identity import Identity, peer_name
from .listener import Listener, descriptors

log = logging.getLogger("dekpca.peer")
logging.getLogger("grpc._cython.cygrpc").setLevel(
    logging.CRITICAL
)  # it tells of every call that is cancelled; we log what matters

SERVICE = "dekpca.peer.v1.Peer"
STREAMS = 4  # deliveries of one neighbor at once: one lives, others may not have noticed yet that they are cut
TOGETHER = 0.1  # seconds of messages that are synced and acknowledged together; who waits for a receipt says so
MOST_TAKEN = (
    1000  # messages of one delivery that are not acknowledged: a neighbor that reads no receipts is not read either
)
GRACE = 0.5  # seconds in which neighbors that leave too end their calls themselves
OPTIONS = [
    ("grpc.max_receive_message_length", MOST_RECEIVED),
    ("grpc.max_send_message_length", MOST_RECEIVED),
    ("grpc.max_metadata_size", 16 << 10),
    ("grpc.max_concurrent_streams", 16),  # on one connection; a neighbor uses one or two
    ("grpc.http2.max_ping_strikes", 0),  # neighbors ping as often as they like
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.http2.ping_timeout_ms", 20_000),
    # So much of a message may be under way, not more: pings queue behind it, and on a slow line (1 Mbit/s: 4 s of data) must not be late.
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", 1 << 19),
    ("grpc.keepalive_permit_without_calls", 1),
]

Code = grpc.StatusCode


class NotYet(Exception):
    """To be tried again."""


class Server:
    """Answers the neighbors' calls. `terms` is what both must hold alike."""

    def __init__(self, station: Station, terms: Terms, identity: Identity | None):
        self.station, self.terms, self.identity = station, terms, identity
        self.ready = asyncio.Event()  # the network is known, so that the size of messages can be judged
        self._wanted: set[asyncio.Event] = set()  # of each delivery: that its receipts are waited for
        self._ended = False  # the program, so that neighbors wait for nothing but receipts
        self._attempts = itertools.count()
        self._streams: dict[str, int] = {}
        self._server: Any = None
        self._listener: Listener | None = None
        self._stopping = False

    async def start(self, listen: str) -> str:
        """Listen; returns the address, with the port that was found if 0 was asked for."""
        room = descriptors(len(self.station.neighbors))
        self._server = grpc.aio.server(options=OPTIONS, maximum_concurrent_rpcs=8 * len(self.station.neighbors) + 32)
        handlers = {
            "Greet": grpc.stream_stream_rpc_method_handler(self._admitted(self._greet)),
            "Deliver": grpc.stream_stream_rpc_method_handler(self._admitted(self._deliver)),
            "Pulse": grpc.stream_stream_rpc_method_handler(self._admitted(self._pulse)),
        }
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        self._listener = Listener(self.station.folder, room, tls=self.identity is not None)
        inside = f"unix:{quote(str(self._listener.inside))}"
        if self.identity is None:
            self._server.add_insecure_port(inside)
        else:
            self._server.add_secure_port(inside, self.identity.server_credentials())
        await self._server.start()
        host, _, port = listen.rpartition(":")
        try:
            return f"{host}:{self._listener.open(host.strip('[]'), int(port))}"
        except OSError as error:
            await self.stop()
            raise ValueError(
                f"listen {listen}: cannot be bound ({error.strerror}); choose another address or port"
            ) from error

    async def stop(self) -> None:
        self._stopping = True
        if self._server is not None:
            await self._server.stop(GRACE)
        if self._listener is not None:
            self._listener.close()  # in a moment: its thread never waits

    # ------------------------------------------------------------------ who calls
    async def _admit(self, context: Any) -> Neighbor:
        """The neighbor that calls; anybody else is refused."""
        protocol, run, claimed = read_metadata(dict(context.invocation_metadata()))
        if self.identity is None:
            name: str | None = claimed
        else:
            name = peer_name(context.auth_context())
        connection = None if self._listener is None else self._listener.connection(context.peer())
        where = "a connection that has ended" if connection is None else connection.address
        if name is None:
            await self._refuse(context, Code.UNAUTHENTICATED, where, "a certificate without a node's name")
        if name not in self.station.neighbors:
            await self._refuse(
                context, Code.PERMISSION_DENIED, where, f"node {name!r} is not a neighbor of node {self.station.name}"
            )
        if claimed != name:
            await self._refuse(
                context,
                Code.PERMISSION_DENIED,
                where,
                f"the certificate is that of node {name}, but the call says {claimed[:80]!r}",
            )
        if protocol != str(PROTOCOL):
            await self._refuse(
                context, Code.FAILED_PRECONDITION, where,
                f"protocol: node {self.station.name} speaks {PROTOCOL}, node {name} speaks {protocol[:20]!r}; use the same version of dekpca",
            )  # fmt: skip
        if run != self.station.run:
            await self._refuse(
                context, Code.FAILED_PRECONDITION, where,
                f"run: node {self.station.name} has {self.station.run!r}, node {name} has {run[:80]!r}; give both the same",
            )  # fmt: skip
        if self._listener is not None and connection is not None:
            self._listener.admit(connection, name)
        self.station.neighbors[name].called()
        return self.station.neighbors[name]

    async def _refuse(self, context: Any, code: Any, who: str, why: str) -> NoReturn:
        log.warning("refused", extra={"caller": who, "why": why})
        await context.abort(code, why[:1500])
        raise AssertionError  # abort raises

    def _admitted(self, handler: Callable[[Neighbor, AsyncIterator[bytes]], AsyncIterator[bytes]]) -> Any:
        """A call of a neighbor: whatever is wrong with it ends it, and is logged."""

        async def call(messages: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
            neighbor = await self._admit(context)
            # A refusal is said after the error is gone: it holds the message, and gRPC would keep both until the next garbage collection.
            code, why, logged = Code.OK, "", True
            try:
                async for answer in handler(neighbor, messages):
                    yield answer
            except TooMuch as error:
                code, why = Code.OUT_OF_RANGE, str(error)
            except ProtocolError as error:
                code, why = Code.INVALID_ARGUMENT, str(error)
            except Disagreement as error:
                if self.station.limits is None:  # nothing has begun: both say it, and stop
                    self.station.fail(error)
                    neighbor.told_done = True  # with this refusal
                code, why = Code.FAILED_PRECONDITION, str(error)
            except NotYet as error:
                code, why, logged = Code.ABORTED, str(error), False
            except OSError as error:
                self.station.fail(error)
                code, why, logged = Code.UNAVAILABLE, "cannot write its journal", False
            except Exception as error:
                if self._stopping:  # gRPC's way to tell a call
                    log.debug("a call ended while stopping", extra={"peer": neighbor.name, "why": repr(error)})
                    return
                log.exception("a call failed", extra={"peer": neighbor.name})
                self.station.fail(error)
                code, why, logged = Code.INTERNAL, "an error of ours", False
            if logged and code is not Code.OK:
                await self._refuse(context, code, f"node {neighbor.name}", why)
            elif code is not Code.OK:
                await context.abort(code, why)

        return call

    # ------------------------------------------------------------------ the calls
    async def _greet(self, neighbor: Neighbor, messages: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """Compare settings, and exchange what is known of the network."""
        greeted = False
        async for data in messages:
            if greeted:
                raise ProtocolError("two greetings in one call")
            greeted = True
            told = check_greeting(parse(wire.Greeting, data))
            if self.station.phase == REFUSING:
                raise NotYet("this node does not resume")
            self.terms.refuse_differences(self.station.name, neighbor.name, Terms(told.facts, told.columns))
            if self.station.error is not None and self.station.limits is None:
                # a beat says why; our record may change before we are back
                raise NotYet("this node stops")
            self.learn(told.records, neighbor)
            self.station.agree(neighbor)
            answer = self.greeting()
            yield answer.SerializeToString()
            neighbor.knows |= {record.name for record in answer.records}

    def learn(self, records: Any, neighbor: Neighbor) -> None:
        new = self.station.roster.add(records, neighbor.name)
        neighbor.knows |= records.keys()
        if new:
            self.station.learned = time.monotonic()
            self.station.arrived()
            self.station.wake(list(self.station.neighbors))

    def greeting(self) -> wire.Greeting:
        facts = [wire.Fact(what=what, value=value) for what, value in self.terms.facts.items()]
        records = [
            wire.Record(name=name, neighbors=around, rows=rows)
            for name, (around, rows) in self.station.roster.records.items()
        ]
        return wire.Greeting(facts=facts, records=records, columns=self.terms.columns)

    async def _pulse(self, neighbor: Neighbor, messages: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        async for data in messages:
            self.station.note_beat(neighbor, check_beat(parse(wire.Beat, data)))
            yield self.station.beat(neighbor).SerializeToString()

    async def _deliver(self, neighbor: Neighbor, messages: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """Take messages of the program: to the journal, then the receipt."""
        name = neighbor.name
        if not neighbor.agreed:
            raise NotYet("greet first")
        if self._streams.get(name, 0) >= STREAMS:
            raise NotYet(f"{STREAMS} deliveries at once are enough")
        self._streams[name] = self._streams.get(name, 0) + 1
        try:
            await self.ready.wait()
            held = self.station.journal.held(name)
            await self._on_disk()
            yield wire.Receipt(opening=True, through=self.station.through, held=held).SerializeToString()
            async with contextlib.aclosing(self._receipts(neighbor, messages)) as receipts:
                async for rounds in receipts:
                    yield wire.Receipt(rounds=rounds).SerializeToString()
        finally:
            self._streams[name] -= 1

    async def _receipts(self, neighbor: Neighbor, messages: AsyncIterator[bytes]) -> AsyncGenerator[list[int]]:
        """The rounds of messages that are on disk, some together: what came meanwhile is synced once."""
        taken: asyncio.Queue[int | None] = asyncio.Queue()
        wanted = asyncio.Event()
        self._wanted.add(wanted)
        taking = asyncio.ensure_future(self._take(neighbor, messages, taken, wanted))
        taking.add_done_callback(lambda _: taken.put_nowait(None))
        try:
            going = True
            while going:
                rounds = [await taken.get()]
                if rounds != [None]:
                    await self._pause(wanted)
                while not taken.empty():
                    rounds.append(taken.get_nowait())
                going = None not in rounds
                whole = [round for round in rounds if round is not None]
                if whole:
                    await self._on_disk()
                    yield whole
            await taking
        finally:
            self._wanted.discard(wanted)
            taking.cancel()
            await asyncio.gather(taking, return_exceptions=True)

    async def _pause(self, wanted: asyncio.Event) -> None:
        """Until receipts are wanted or due, those to all neighbors at the same time."""
        if not self._ended:
            due = TOGETHER - asyncio.get_running_loop().time() % TOGETHER
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(due):
                    await wanted.wait()
            wanted.clear()

    def hurry(self) -> None:
        """The program has ended: from now on receipts are sent at once."""
        self._ended = True
        for wanted in self._wanted:
            wanted.set()

    async def _take(
        self, neighbor: Neighbor, messages: AsyncIterator[bytes], taken: asyncio.Queue[int | None], wanted: asyncio.Event
    ) -> None:  # fmt: skip
        """Messages to the journal, and the rounds of those that are whole, or were here before, to `taken`; `wanted` if the sender waits."""
        station = self.station
        letter: Letter | None = None  # being received
        dropping = False  # the rest of a message that is here already
        held, attempt, soon = 0, 0, False
        try:
            async for data in messages:
                while taken.qsize() >= MOST_TAKEN:
                    await asyncio.sleep(TOGETHER)
                piece = parse(wire.Piece, data)
                if piece.HasField("head"):
                    if letter is not None and not dropping:
                        raise ProtocolError("a new message before the last one was whole")
                    assert station.limits is not None
                    expected = station.expected.get(neighbor.name)
                    if expected is not None and expected.round != piece.head.round:
                        expected = None
                    letter = check_head(piece.head, neighbor.name, station.limits, expected, station.furthest)
                    held, attempt, soon = 0, next(self._attempts), piece.head.soon
                    dropping = (
                        letter.round <= station.through or station.journal.find(neighbor.name, letter.round) is not None
                    )
                    if dropping:
                        taken.put_nowait(letter.round)
                    else:
                        station.may_wait(neighbor, letter.round)
                if letter is None:
                    raise ProtocolError("a piece without a message")
                before, held = held, check_piece(piece, letter.size, held)
                neighbor.received += len(piece.data)
                if not dropping:
                    neighbor.came = time.monotonic()
                    station.effort.mark()
                    entry = wire.Entry(
                        sender=neighbor.name, round=letter.round, attempt=attempt, kind=letter.kind, dtype=letter.dtype,
                        shape=letter.shape, offset=before,
                    )  # fmt: skip
                    station.journal.append(entry, letter.size, piece.data)
                if held == letter.size:
                    if soon:
                        wanted.set()
                    done, letter = letter, None
                    if not dropping:
                        station.arrived(neighbor.name, done.round)
                        taken.put_nowait(done.round)
        finally:
            if letter is not None and not dropping:
                station.journal.drop_partial(neighbor.name, letter.round, attempt)
                neighbor.broken_off += held

    async def _on_disk(self) -> None:
        """Until all that the journal has is synced."""
        loop = asyncio.get_running_loop()
        synced: asyncio.Future[None] = loop.create_future()

        def then(error: OSError | None) -> None:
            def settle() -> None:
                if not synced.done():
                    synced.set_exception(error) if error else synced.set_result(None)

            with contextlib.suppress(RuntimeError):  # the loop is gone: nobody waits
                loop.call_soon_threadsafe(settle)

        self.station.journal.sync(then)
        await synced
