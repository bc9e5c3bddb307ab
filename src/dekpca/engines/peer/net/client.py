"""The links of a node: one to each neighbor, for what this node says. Each greets, delivers, and begins again when it breaks.

A link is a connection for messages and another for signs of life, so that these are not held up by a large message. Both wait a little longer, with
jitter, after each failure. What breaks a link is logged once; whether it has been broken for too long, the station decides.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

import grpc

from ..errors import NEW_RUN, Disagreement, PeerError, PeerLost, ProtocolError
from ..protocol import wire_pb2 as wire
from ..protocol.checks import MOST_RECEIVED, PIECE, Letter, check_beat, check_greeting, metadata, parse
from ..protocol.handshake import Terms
from ..protocol.text import showable
from ..storage.codec import take_bytes
from .endpoint import Neighbor, Station
from .identity import Identity, explain
from .server import SERVICE, Server

CALL = 30.0  # seconds for a greeting
NEWS = 0.02  # seconds in which news of several nodes are told together
CONNECT = 10.0  # seconds for a connection, handshake included
FIRST_LOOK = 0.002  # seconds until we look whether there is one, then twice as long; a handshake takes milliseconds
FIRST_DELAY, MOST_DELAY = 0.1, 2.0  # seconds before trying again
OPTIONS = [
    ("grpc.max_receive_message_length", MOST_RECEIVED),
    ("grpc.max_send_message_length", MOST_RECEIVED),
    ("grpc.use_local_subchannel_pool", 1),  # a connection of its own
    ("grpc.enable_retries", 0),  # we do that
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.min_reconnect_backoff_ms", int(1000 * CONNECT)),  # so long may connecting take
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.http2.ping_timeout_ms", 20_000),  # or a dead connection is noticed after a minute, whatever keepalive says
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
]


class Link:
    """What this node says to one neighbor."""

    def __init__(self, station: Station, server: Server, neighbor: Neighbor, identity: Identity | None):
        self.station, self.server, self.neighbor, self.identity = station, server, neighbor, identity
        self.news = asyncio.Event()  # something to say
        self.beat_now = asyncio.Event()
        self._called = asyncio.Event()
        neighbor.called = self._called.set
        self._metadata = metadata(station.run, station.name)

    def start(self) -> list[asyncio.Task[None]]:
        """Until cancelled, each: a task for both would end with the first of them, and leave the other if that missed it."""
        return [asyncio.create_task(self._again(work)) for work in (self._talk, self._live)]

    async def _again(self, work: Any) -> None:
        delay = FIRST_DELAY
        while True:
            try:
                async with self._channel() as channel:
                    async with asyncio.timeout(CONNECT):
                        await self._connect(channel)
                    delay = FIRST_DELAY
                    await work(channel)
            except grpc.aio.AioRpcError as error:
                self._broken(error)
            except TimeoutError:
                self.station.unreachable(self.neighbor, f"no connection to {self.neighbor.address}")
            except (ProtocolError, asyncio.InvalidStateError) as error:  # the latter: writing to a call that has ended
                self.station.unreachable(self.neighbor, str(error))
            except PeerError as error:
                self.station.fail(error)
                return
            if delay > FIRST_DELAY:  # a neighbor that calls often does not set the pace
                await asyncio.sleep(FIRST_DELAY)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(delay * random.uniform(0.5, 1.0)):
                    await self._called.wait()
            self._called.clear()
            delay = min(2 * delay, MOST_DELAY)

    async def _connect(self, channel: Any) -> None:
        """Until the handshake is over. If it fails, a call fails at once and says why, which the state of a channel does not."""
        pause = FIRST_LOOK
        while (state := channel.get_state(try_to_connect=True)) != grpc.ChannelConnectivity.READY:
            if state == grpc.ChannelConnectivity.TRANSIENT_FAILURE:
                call = channel.stream_stream(f"/{SERVICE}/Pulse")(metadata=self._metadata, timeout=1.0)
                try:
                    await self._read(call)
                finally:
                    call.cancel()
            # not wait_for_state_change: if we stop waiting, it keeps the channel alive, and calling
            await asyncio.sleep(pause)
            pause = min(2 * pause, FIRST_DELAY)

    def _channel(self) -> Any:
        options: list[tuple[str, Any]] = list(OPTIONS)
        if self.identity is None:
            return grpc.aio.insecure_channel(self.neighbor.address, options=options)
        options.append(("grpc.ssl_target_name_override", self.neighbor.name))
        return grpc.aio.secure_channel(self.neighbor.address, self.identity.channel_credentials(), options=options)

    def _broken(self, error: grpc.aio.AioRpcError) -> None:
        code, text = error.code(), showable(error.details() or error.code().name)
        refused = code in (grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.PERMISSION_DENIED)
        if refused and self.station.limits is None:  # nothing has begun, so nothing is lost by saying it at once
            self.station.fail(Disagreement(f"refused by node {self.neighbor.name}: {text}"))
            self.neighbor.told_done = True  # it told us
        elif code == grpc.StatusCode.INVALID_ARGUMENT:
            self.station.fail(
                ProtocolError(f"node {self.neighbor.name} does not take what this node sends: {text}; {NEW_RUN}")
            )
        elif code == grpc.StatusCode.OUT_OF_RANGE:
            self.station.fail(PeerLost(f"node {self.neighbor.name} takes no more of node {self.station.name}: {text}"))
        elif code != grpc.StatusCode.ABORTED:
            self.station.unreachable(self.neighbor, explain(text))

    # ------------------------------------------------------------------ greetings and messages
    async def _talk(self, channel: Any) -> None:
        await self._greet(channel)
        while self.station.limits is None or self._has_news:
            self.news.clear()
            if not self._has_news:
                await self.news.wait()
                continue
            await asyncio.sleep(NEWS)  # it may be told by somebody else, or have news itself
            if self._has_news:
                await self._greet(channel)
        await self._deliver(channel)

    @property
    def _has_news(self) -> bool:
        return not self.neighbor.knows.issuperset(self.station.roster.records)

    async def _greet(self, channel: Any) -> None:
        if self.station.error is not None and self.station.limits is None:
            await asyncio.Event().wait()  # until it ends: beats say why, and our record may change before we are back
        said = self.server.greeting()
        call = channel.stream_stream(f"/{SERVICE}/Greet")(metadata=self._metadata, timeout=CALL)
        try:
            await call.write(said.SerializeToString())
            data = await self._read(call)
        finally:
            call.cancel()
        told = check_greeting(parse(wire.Greeting, data))
        self.server.terms.refuse_differences(self.station.name, self.neighbor.name, Terms(told.facts, told.columns))
        self.server.learn(told.records, self.neighbor)
        self.neighbor.knows |= {record.name for record in said.records}
        self.station.agree(self.neighbor)
        self.station.answered(self.neighbor)

    async def _deliver(self, channel: Any) -> None:
        """Send what the neighbor has not acknowledged, then whatever comes."""
        call = channel.stream_stream(f"/{SERVICE}/Deliver")(metadata=self._metadata)
        try:
            opening = await self._receipt(call)
            if not opening.opening:
                raise ProtocolError("a delivery that does not begin with what is held")
            self.station.check_held(self.neighbor, opening.through, set(opening.held))
            saying, hearing = asyncio.ensure_future(self._say(call)), asyncio.ensure_future(self._hear(call))
            try:
                done, _ = await asyncio.wait({saying, hearing}, return_when=asyncio.FIRST_COMPLETED)
                if hearing not in done:  # a call that fails says why when it is read
                    done, _ = await asyncio.wait({hearing}, timeout=1.0)
                for task in done or {saying}:
                    task.result()
            finally:
                for task in (saying, hearing):
                    task.cancel()
                await asyncio.gather(saying, hearing, return_exceptions=True)
        finally:
            call.cancel()

    async def _read(self, call: Any) -> bytes:
        """The next message of a call; its error if there is none."""
        data = await call.read()
        if data is grpc.aio.EOF:
            code, details = await call.code(), await call.details()
            raise grpc.aio.AioRpcError(code, await call.initial_metadata(), await call.trailing_metadata(), details)
        return data

    async def _receipt(self, call: Any) -> wire.Receipt:
        receipt = parse(wire.Receipt, await self._read(call))
        self.station.answered(self.neighbor)
        return receipt

    async def _hear(self, call: Any) -> None:
        while True:
            receipt = await self._receipt(call)
            self.station.acknowledge(self.neighbor, receipt.rounds)

    async def _say(self, call: Any) -> None:
        spoken = 0  # rounds only go up
        while True:
            self.news.clear()
            with self.station.changed:
                waiting = [(round, *item) for round, item in self.neighbor.outbox.items() if round > spoken]
            for round, letter, data in waiting:
                for piece in self._pieces(letter, data):
                    await call.write(piece.SerializeToString())
                    self.station.effort.mark()
                    self.neighbor.sent += len(piece.data)
                    self.neighbor.progress = time.monotonic()
                    if round not in self.neighbor.outbox:  # it had it already
                        break
                spoken = round
            if not waiting:
                await self.news.wait()

    def _pieces(self, letter: Letter, data: Iterable[memoryview]) -> Iterator[wire.Piece]:
        head = wire.Head(
            run=self.station.run, sender=self.station.name, round=letter.round, kind=letter.kind, dtype=letter.dtype, shape=letter.shape,
            soon=self.station.wants_receipts,
        )  # fmt: skip
        buffers = deque(data)
        for start in range(0, max(letter.size, 1), PIECE):
            part = b"".join(take_bytes(buffers, min(PIECE, letter.size - start)))
            yield wire.Piece(head=None if start else head, offset=start, data=part)

    # ------------------------------------------------------------------ signs of life
    async def _live(self, channel: Any) -> None:
        call = channel.stream_stream(f"/{SERVICE}/Pulse")(metadata=self._metadata)
        period = self.station.timeouts.beat
        try:
            while True:
                self.beat_now.clear()
                said = self.station.beat(self.neighbor)
                await call.write(said.SerializeToString())
                async with asyncio.timeout(max(CONNECT, 2 * period)):
                    data = await self._read(call)
                beat = check_beat(parse(wire.Beat, data))
                self.station.answered(self.neighbor)  # first: if it stops us, it is up, and waits to hear that we know
                self.station.note_beat(self.neighbor, beat)
                if said.done and not self.neighbor.told_done:
                    self.neighbor.told_done = True
                    self.station.arrived()
                if said.stopped:
                    self.neighbor.told_done = True
                    self.station.arrived()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(period):
                        await self.beat_now.wait()
        finally:
            call.cancel()
