"""Calls to one neighbor: connects to it, and again when the connection breaks.

Of two nodes that have each other's address the first by name calls. The other one calls only while it is not called: the first may be unable to
reach it, or may not have its address. If both have connected at the same time, the other one ends its calls. Retries have exponential backoff with
jitter. A broken connection is logged once; the protocol decides when it has been broken for too long.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from typing import Any

import grpc

from ..errors import Disagreement
from ..protocol import events
from ..protocol import wire_pb2 as wire
from ..protocol.checks import metadata
from ..protocol.text import showable
from .edge import CODES, OPTIONS, REFUSALS, SERVICE, Broken, Edge, Stream, Work, cancel, wait_for
from .identity import UNTRUSTED, Identity, explain

log = logging.getLogger("dekpca.peer")

CALL = 30.0  # seconds for a refusal
CONNECT = 10.0  # seconds for a connection, handshake included
FIRST_LOOK = 0.002  # seconds until the first look for a connection, then twice as long; TLS takes milliseconds
FIRST_DELAY, MOST_DELAY = 0.1, 2.0  # seconds before a retry
CHANNEL = [
    *OPTIONS,
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

    def __init__(self, edge: Edge, identity: Identity | None):
        self.edge, self.name, self.identity, self.endpoint = edge, edge.name, identity, edge.endpoint
        self.address = self.endpoint.addresses[self.name]
        self.first = self.endpoint.name < self.name
        self._metadata = metadata(self.endpoint.run, self.endpoint.name)

    async def run(self) -> None:
        delay = FIRST_DELAY
        while True:
            await self._turn()
            why = ""
            try:
                async with self._channel() as channel:
                    async with asyncio.timeout(CONNECT):
                        await self._connect(channel)
                    delay = FIRST_DELAY
                    if not self.edge.called:
                        self.edge.calling = True
                        await self._talk(channel)
            except grpc.aio.AioRpcError as error:
                text = showable(error.details() or error.code().name)
                meaning = explain(text)
                why = f"{meaning} ({self.address})"
                log.debug("a connection failed", extra={"peer": self.name, "address": self.address, "why": text})
                if any(words in text for words in UNTRUSTED):
                    self._untrusted(meaning)
            except TimeoutError:
                why = f"no connection to {self.address}"
            except Broken as error:
                why = str(error)
            finally:
                self.edge.calling = False
            if why:
                self.edge.lost(why)
            await asyncio.sleep(delay * random.uniform(0.5, 1.0))
            delay = min(2 * delay, MOST_DELAY)

    async def _turn(self) -> None:
        """Wait until this node should call."""
        while not self.edge.neighbor.called:  # a fallback neighbor, which is not needed yet
            await self.edge.news.next.wait()
        while True:
            turned = self.edge.turned.next
            if self.edge.called:
                await turned.wait()
            elif self.first or self.edge.neighbor.fallback or not await wait_for(turned, self.endpoint.timeouts.beat):
                return

    def _untrusted(self, why: str) -> None:
        """A certificate that is not trusted stays so: before the run has begun this node stops, and says why."""
        neighbor = self.edge.neighbor
        if not (self.endpoint.protocol.begun or neighbor.joined or neighbor.received):
            remedy = "compare both nodes' ca and certificate (dekpca certs show), and the address"
            text = f"node {self.name} at {self.address}: {why}; {remedy}"
            self.edge.report(events.WeRefused(Disagreement(text)))

    def _channel(self) -> Any:
        if self.identity is None:
            return grpc.aio.insecure_channel(self.address, options=CHANNEL)
        options = [*CHANNEL, ("grpc.ssl_target_name_override", self.name)]
        return grpc.aio.secure_channel(self.address, self.identity.channel_credentials(), options=options)

    async def _connect(self, channel: Any) -> None:
        """Wait for the TLS handshake. If it fails, a call fails at once with the reason, which the state of a channel lacks."""
        pause = FIRST_LOOK
        while (state := channel.get_state(try_to_connect=True)) != grpc.ChannelConnectivity.READY:
            if state == grpc.ChannelConnectivity.TRANSIENT_FAILURE:
                call = self._call(channel, "Heartbeat", 1.0)
                try:
                    await call.read()
                finally:
                    call.cancel()
            # not wait_for_state_change: when cancelled, it keeps the channel alive and connecting
            await asyncio.sleep(pause)
            pause = min(2 * pause, FIRST_DELAY)

    def _call(self, channel: Any, method: str, timeout: float | None = None) -> Any:
        return channel.stream_stream(f"/{SERVICE}/{method}")(metadata=self._metadata, timeout=timeout)

    async def _talk(self, channel: Any) -> None:
        """All calls, until the connection breaks, or the neighbor calls and goes first."""
        works = [self._again(channel, method, work) for method, (work, _) in self.edge.works.items()]
        tasks = [asyncio.ensure_future(work) for work in [*works, *([] if self.first else [self._until_called()])]]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            await cancel(tasks)

    async def _until_called(self) -> None:
        while not self.edge.called:
            await self.edge.turned.next.wait()

    async def _again(self, channel: Any, method: str, work: Work) -> None:
        """Call, and again when the call ends: the program runs in another view, or the neighbor is to be tried again."""
        delay = FIRST_DELAY
        while True:
            begun, refused = asyncio.get_running_loop().time(), None
            call = self._call(channel, method)
            try:
                await work(Stream(call, caller=True))
            except grpc.aio.AioRpcError as error:
                if error.code() not in REFUSALS:
                    raise
                self.edge.report(events.TheyRefused(REFUSALS[error.code()], showable(error.details() or "")))
            except Broken:
                raise
            except Exception as error:
                refused = error
            finally:
                call.cancel()
            if refused is not None:
                await self._refuse(channel, refused)
            lasted = asyncio.get_running_loop().time() - begun
            delay = FIRST_DELAY if lasted > MOST_DELAY else min(2 * delay, MOST_DELAY)
            await asyncio.sleep(delay * random.uniform(0.5, 1.0))

    async def _refuse(self, channel: Any, error: Exception) -> None:
        """Tell the neighbor why what it says is not taken."""
        why, text = self.edge.failed(error)
        if why is None or why is events.Refusal.LATER:
            return
        log.warning("refused", extra={"caller": f"node {self.name}", "why": text})
        call = self._call(channel, "Refuse", CALL)
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            await call.write(wire.Refusal(status=CODES[why].name, text=text[:1500]).SerializeToString())
            await call.done_writing()
            await call.read()
        if isinstance(error, Disagreement):
            self.edge.report(events.WeRefused(error))
