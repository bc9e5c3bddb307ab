"""A client for each neighbor: it makes handshakes, delivers messages, and reconnects when a connection breaks.

A client has one connection for messages and another for heartbeats, so that a large message does not delay a
heartbeat. Retries have exponential backoff with jitter. A broken connection is logged once; the protocol decides
when it has been broken for too long.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from typing import Any

import grpc

from ..errors import Disagreement, PeerError, ProtocolError
from ..protocol import events
from ..protocol import wire_pb2 as wire
from ..protocol.checks import CHUNK, MessageHead, check_handshake, check_heartbeat, metadata, parse
from ..protocol.text import showable
from ..protocol.views import Key
from .endpoint import Endpoint
from .identity import UNTRUSTED, Identity, explain
from .server import BOTH_ENDS, REFUSALS, SERVICE, handshake_of, heartbeat_of, wait_for

CALL = 30.0  # seconds for a handshake
NEWS = 0.02  # seconds in which records of several nodes are batched
CONNECT = 10.0  # seconds for a connection, handshake included
FIRST_LOOK = 0.002  # seconds until the first look for a connection, then twice as long; TLS takes milliseconds
FIRST_DELAY, MOST_DELAY = 0.1, 2.0  # seconds before a retry
OPTIONS = [
    *BOTH_ENDS,
    ("grpc.use_local_subchannel_pool", 1),  # a separate connection
    ("grpc.enable_retries", 0),  # done here
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.min_reconnect_backoff_ms", int(1000 * CONNECT)),  # time to connect
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
]


class Client:
    """The calls to one neighbor."""

    def __init__(self, endpoint: Endpoint, name: str, identity: Identity | None):
        self.endpoint, self.name, self.identity = endpoint, name, identity
        self.address = endpoint.addresses[name]
        self.news = asyncio.Event()  # there is something to send
        self.beat_now = asyncio.Event()
        self.called = asyncio.Event()  # the neighbor has called, so it can probably be reached
        self._metadata = metadata(endpoint.run, endpoint.name)

    def start(self) -> list[asyncio.Task[None]]:
        """Two tasks, cancelled separately: a single task for both would end with the first of them, and leave the other."""
        return [asyncio.create_task(self._forever(work)) for work in (self._talk, self._beat)]

    def _report(self, event: Any) -> None:
        self.endpoint.receive(self.name, event)

    async def _forever(self, work: Any) -> None:
        delay = FIRST_DELAY
        while True:
            try:
                async with self._channel() as channel:
                    async with asyncio.timeout(CONNECT):
                        await self._connect(channel)
                    delay = FIRST_DELAY
                    await work(channel)
            except grpc.aio.AioRpcError as error:
                text, why = showable(error.details() or error.code().name), REFUSALS.get(error.code())
                self._report(self._untrusted(text) if why is None else events.TheyRefused(why, text))
            except TimeoutError:
                self._report(events.Unreachable(f"no connection to {self.address}"))
            except (ProtocolError, asyncio.InvalidStateError) as error:  # the latter: writing to a call that has ended
                self._report(events.Unreachable(str(error)))
            except PeerError as error:
                self.endpoint.fail(error)
                return
            except events.Refused:
                pass  # this node stops
            if delay > FIRST_DELAY:  # a neighbor that calls often must not trigger a retry each time
                await asyncio.sleep(FIRST_DELAY)
            await wait_for(self.called, delay * random.uniform(0.5, 1.0))
            self.called.clear()
            delay = min(2 * delay, MOST_DELAY)

    def _untrusted(self, text: str) -> Any:
        """The event of a broken connection. A certificate that is not trusted stays so: before the run has begun this node stops, and says why."""
        protocol, why = self.endpoint.protocol, explain(text)
        neighbor = protocol.neighbors[self.name]
        if not any(words in text for words in UNTRUSTED) or protocol.begun or neighbor.joined or neighbor.received:
            return events.Unreachable(why)
        remedy = "compare both nodes' ca and certificate (dekpca certs show), and the address"
        return events.WeRefused(Disagreement(f"node {self.name} at {self.address}: {why}; {remedy}"))

    async def _connect(self, channel: Any) -> None:
        """Wait for the TLS handshake. If it fails, a call fails at once with the reason, which the state of a channel lacks."""
        pause = FIRST_LOOK
        while (state := channel.get_state(try_to_connect=True)) != grpc.ChannelConnectivity.READY:
            if state == grpc.ChannelConnectivity.TRANSIENT_FAILURE:
                call = channel.stream_stream(f"/{SERVICE}/Heartbeat")(metadata=self._metadata, timeout=1.0)
                try:
                    await self._read(call)
                finally:
                    call.cancel()
            # not wait_for_state_change: when cancelled, it keeps the channel alive and connecting
            await asyncio.sleep(pause)
            pause = min(2 * pause, FIRST_DELAY)

    def _channel(self) -> Any:
        if self.identity is None:
            return grpc.aio.insecure_channel(self.address, options=OPTIONS)
        options = [*OPTIONS, ("grpc.ssl_target_name_override", self.name)]
        return grpc.aio.secure_channel(self.address, self.identity.channel_credentials(), options=options)

    # ------------------------------------------------------------------ handshakes and messages
    async def _talk(self, channel: Any) -> None:
        protocol = self.endpoint.protocol
        await self._handshake(channel)
        while not protocol.begun or protocol.has_news(self.name):
            self.news.clear()
            if not protocol.has_news(self.name):
                await self.news.wait()
                continue
            await asyncio.sleep(NEWS)  # it may get the records from another node, or have new ones itself
            if protocol.has_news(self.name):
                await self._handshake(channel)
        await self._deliver(channel)

    async def _handshake(self, channel: Any) -> None:
        if self.endpoint.protocol.silenced:
            await asyncio.Event().wait()  # until this client is cancelled; heartbeats have the reason
        said = handshake_of(self.endpoint)
        call = channel.stream_stream(f"/{SERVICE}/Handshake")(metadata=self._metadata, timeout=CALL)
        try:
            await call.write(said.SerializeToString())
            data = await self._read(call)
        finally:
            call.cancel()
        self._report(check_handshake(parse(wire.Handshake, data)))
        self._report(events.HandshakeSent(frozenset(record.name for record in said.records)))
        self._report(events.Answered())

    async def _deliver(self, channel: Any) -> None:
        """Retransmit messages that are not acknowledged, then send new ones."""
        view = self.endpoint.protocol.view
        said = metadata(self.endpoint.run, self.endpoint.name, str(view) if view.number else "")
        call = channel.stream_stream(f"/{SERVICE}/Deliver")(metadata=said)
        try:
            opening = await self._acknowledgement(call)
            if not opening.opening:
                raise ProtocolError("a delivery that does not begin with what is held")
            self._report(events.Opening(frozenset(opening.held), view.key))
            works = (self._send(call, view.key), self._hear(call, view.key))
            sending, hearing = map(asyncio.ensure_future, works)
            try:
                done, _ = await asyncio.wait({sending, hearing}, return_when=asyncio.FIRST_COMPLETED)
                if hearing not in done and self.endpoint.protocol.view.key == view.key:
                    done, _ = await asyncio.wait({hearing}, timeout=1.0)  # reading a failed call gives its error
                for task in done or {sending}:
                    task.result()
            finally:
                for task in (sending, hearing):
                    task.cancel()
                await asyncio.gather(sending, hearing, return_exceptions=True)
        finally:
            call.cancel()

    async def _read(self, call: Any) -> bytes:
        """The next message of a call, or its error."""
        data = await call.read()
        if data is grpc.aio.EOF:
            code, details = await call.code(), await call.details()
            raise grpc.aio.AioRpcError(code, await call.initial_metadata(), await call.trailing_metadata(), details)
        return data

    async def _acknowledgement(self, call: Any) -> wire.Acknowledgement:
        found = parse(wire.Acknowledgement, await self._read(call))
        self._report(events.Answered())
        return found

    async def _hear(self, call: Any, view: Key) -> None:
        while True:
            found = await self._acknowledgement(call)
            self._report(events.Acknowledged(tuple(found.rounds), view))

    async def _send(self, call: Any, view: Key) -> None:
        """Send messages while the program runs in this view."""
        window, last = self.endpoint.protocol.neighbors[self.name].window, 0  # rounds only increase
        while self.endpoint.protocol.view.key == view:
            self.news.clear()
            pending = self.endpoint.pending(self.name, last, view)
            for round, (head, data) in pending:
                for chunk in self._chunks(head, data):
                    await call.write(chunk.SerializeToString())
                    self._report(events.ChunkSent(len(chunk.data)))
                    if round not in window.unacknowledged:  # the neighbor has it already
                        break
                last = round
            if not pending:
                await self.news.wait()

    def _chunks(self, message: MessageHead, data: memoryview) -> Iterator[wire.Chunk]:
        head = wire.Head(
            run=self.endpoint.run, sender=self.endpoint.name, round=message.round, kind=message.kind, dtype=message.dtype,
            shape=message.shape,
        )  # fmt: skip
        for start in range(0, max(message.size, 1), CHUNK):
            yield wire.Chunk(head=None if start else head, offset=start, data=bytes(data[start : start + CHUNK]))

    # ------------------------------------------------------------------ heartbeats
    async def _beat(self, channel: Any) -> None:
        call = channel.stream_stream(f"/{SERVICE}/Heartbeat")(metadata=self._metadata)
        period = self.endpoint.timeouts.beat
        try:
            while True:
                self.beat_now.clear()
                sent = self.endpoint.heartbeat(self.name)
                await call.write(heartbeat_of(sent).SerializeToString())
                async with asyncio.timeout(max(CONNECT, 2 * period)):
                    data = await self._read(call)
                heard = check_heartbeat(parse(wire.Heartbeat, data))
                # Answered first: if its heartbeat stops this node, it is up, and waits for an acknowledgement.
                for event in (events.Answered(), heard, events.HeartbeatAnswered(sent)):
                    self._report(event)
                await wait_for(self.beat_now, period)
        finally:
            call.cancel()
