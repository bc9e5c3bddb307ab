"""The server of a node, for calls of its neighbors. The caller is identified before any message of the call is read.

A refusal is logged with its reason and ends only the call: a stranger or a faulty neighbor does not disturb the run.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import quote

import grpc

from ..errors import Disagreement
from ..protocol import checks, events
from ..protocol import wire_pb2 as wire
from ..protocol.checks import parse
from ..protocol.events import Refusal, Refused
from .edge import CODES, OPTIONS, SERVICE, STREAMS, Broken, Code, Edge, Stream, check_of
from .endpoint import Endpoint
from .identity import Identity
from .listener import Listener, descriptors

log = logging.getLogger("dekpca.peer")
logging.getLogger("grpc._cython.cygrpc").setLevel(logging.CRITICAL)  # it logs every cancelled call; we log what matters

STRANGERS = 32  # concurrent calls that are not admitted yet, or are being refused
GRACE = 0.5  # seconds for neighbors that leave too to end their own calls
SERVER = [
    *OPTIONS,
    ("grpc.max_metadata_size", 16 << 10),
    ("grpc.max_concurrent_streams", 16),  # on one connection; a neighbor uses four, and for moments Refuse or Check
    ("grpc.http2.max_ping_strikes", 0),  # no limit on pings of neighbors
    ("grpc.keepalive_time_ms", 20_000),
]


class Server:
    """Answers the neighbors' calls."""

    def __init__(self, endpoint: Endpoint, edges: Mapping[str, Edge], folder: Path, identity: Identity | None):
        self.endpoint, self.edges, self.folder, self.identity = endpoint, edges, folder, identity
        self._open = AsyncExitStack()

    async def start(self, listen: str | None) -> str:
        """Listen, and connect to forwarders; returns the address, with the port that the system chose for 0."""
        forwarders = self.endpoint.forwarders()
        if listen is None and not forwarders:
            return ""
        neighbors = len(self.endpoint.protocol.neighbors)
        self._listener = Listener(self.folder, descriptors(neighbors), tls=self.identity is not None)
        self._open.push_async_callback(self._listener.close)
        methods = (*next(iter(self.edges.values())).works, "Refuse", "Check")
        most = STREAMS * len(methods) * neighbors + STRANGERS
        server = grpc.aio.server(options=SERVER, maximum_concurrent_rpcs=most)
        self._open.push_async_callback(server.stop, GRACE)
        handlers = {method: grpc.stream_stream_rpc_method_handler(self._handler(method)) for method in methods}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        inside = f"unix:{quote(str(self._listener.inside))}"
        if self.identity is None:
            server.add_insecure_port(inside)
        else:
            server.add_secure_port(inside, self.identity.server_credentials())
        await server.start()
        for address in forwarders:
            self._listener.start(self._listener.dial(address))
        if listen is None:
            return ""
        host, _, port = listen.rpartition(":")
        try:
            return f"{host}:{await self._listener.open(host.strip('[]'), int(port))}"
        except OSError as error:
            await self.stop()
            text = f"cannot be bound ({error.strerror}); choose another address or port"
            raise ValueError(f"listen {listen}: {text}") from error

    async def stop(self) -> None:
        await self._open.aclose()

    # ------------------------------------------------------------------ callers
    async def _admit(self, context: Any, method: str) -> str:
        """The calling neighbor; other callers are refused."""
        protocol, run, claimed = checks.read_metadata(dict(context.invocation_metadata()))
        connection = self._listener.connection(context.peer())
        authenticated: str | None = None
        try:
            authenticated = claimed if self.identity is None else self.identity.peer_name(context.auth_context())
            name = self.endpoint.protocol.admit(authenticated, claimed, protocol, run)
        except Refused as error:
            if caller := self.endpoint.protocol.neighbors.get(authenticated or ""):
                caller.refused = str(error)
            where = "a connection that has ended" if connection is None else connection.address
            await self._refuse(context, method, error.why, where, str(error))
        if connection is not None:
            self._listener.admit(connection, name)
        return name

    async def _refuse(self, context: Any, method: str, why: Refusal, who: str, text: str) -> NoReturn:
        if why is not Refusal.LATER:
            log.warning("refused", extra={"caller": who, "why": text})
        await context.abort(CODES[why], text[:1500])
        raise AssertionError  # abort raises

    def _handler(self, method: str) -> Any:
        """A call of a neighbor: an error ends the call, and is logged."""

        async def call(_: Any, context: Any) -> None:
            edge = self.edges[await self._admit(context, method)]
            try:
                await self._serve(edge, method, Stream(context, caller=False), context)
                return
            except Broken:
                return
            except Exception as error:
                why, text = edge.failed(error)
                if isinstance(error, Disagreement):
                    edge.report(events.WeRefused(error))
            # Outside the except clause: the error refers to the message, and gRPC would keep both until the next garbage collection.
            if why is not None:
                await self._refuse(context, method, why, f"node {edge.name}", text)
            elif text:
                await context.abort(Code.UNAVAILABLE, text)

        return call

    async def _serve(self, edge: Edge, method: str, stream: Stream, context: Any) -> None:
        with edge.during_call(method):
            if method == "Check":  # of `dekpca node check`, which compares the settings itself: no effect on this node
                async for data in stream.messages():
                    checks.check_handshake(parse(wire.Handshake, data))
                    await stream.write(check_of(self.endpoint, edge.name))
            elif method == "Refuse":
                await edge.refused(stream)
            else:
                await edge.works[method][1](stream)
