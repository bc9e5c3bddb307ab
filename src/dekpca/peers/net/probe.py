"""The calls of `dekpca node check`: a node calls the neighbors whose address it has, and listens for calls, before the run.

It calls `Check`, which nodes that check and nodes that run answer alike, without an effect on them. All other calls are of nodes that run already:
they are told to call again later. So a check neither joins nor stops a run. One direction is enough, because an edge needs one connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass
from typing import Any, NoReturn

from cryptography import x509

from ..errors import Disagreement
from ..protocol import checks, events
from ..protocol import wire_pb2 as wire
from ..protocol.events import Refusal, Refused
from ..protocol.handshake import HandshakeSettings
from .client import Client
from .edge import CALLS, CLOCK, TROUBLE, Edge, Stream, check_of
from .endpoint import Endpoint
from .identity import peer_name
from .server import Server
from .transport import Transport

AGAIN = 1.0  # seconds between two calls to a neighbor that answers
REFUSED = (Refusal.SETTINGS, Refusal.STRANGER)


@dataclass
class Seen:
    """What a check has seen of a neighbor."""

    reached: bool = False  # it has answered
    heard: bool = False  # it has called
    runs: bool = False  # it is not a check
    certificate: x509.Certificate | None = None  # of its calls
    compared: bool = False  # its settings are known
    calls: bool = True  # it has an address of this node, as far as known
    theirs: str = ""  # why its calls to this node fail, as it says
    denied: str = ""  # why its certificate is refused here
    refused: str = ""  # why it refuses this node
    differs: str = ""  # settings
    ahead: float = 0.0  # seconds that its clock is ahead of ours

    @property
    def wrong(self) -> str:
        """What the owners have to correct."""
        return self.denied or self.refused or self.differs

    @property
    def whole(self) -> bool:
        return (self.reached or self.heard) and self.compared


class Probe(Endpoint):
    """The node that checks: it has no folder, and its protocol never begins."""

    def __init__(self, protocol: Any, addresses: dict[str, str]):
        super().__init__(protocol, None, addresses)
        self.seen = {name: Seen() for name in addresses}

    def in_both_directions(self, name: str) -> bool:
        """Whether a neighbor was seen in each direction for which there is an address."""
        seen = self.seen[name]
        return seen.whole and (seen.reached or not self.can_call(name)) and (seen.heard or not seen.calls)

    def receive(self, name: str, event: Any) -> None:
        seen, neighbor = self.seen[name], self.protocol.neighbors[name]
        match event:
            case events.TheyRefused(why, text) if why in REFUSED:
                seen.reached, seen.refused = True, f"refused by node {name}: {text}"
            case events.TheyRefused(_, text) | events.Unreachable(text):
                neighbor.trouble = text
            case events.WeRefused(error):
                seen.refused = neighbor.trouble = str(error)

    def said(self, name: str, data: bytes, begun: float) -> None:
        """A neighbor has said its settings, since `begun`."""
        settings = checks.check_handshake(checks.parse(wire.Handshake, data)).settings
        seen, values = self.seen[name], dict(settings.values)
        clock, seen.theirs, calls = (values.pop(key, "") for key in (CLOCK, TROUBLE, CALLS))
        seen.calls, seen.compared, seen.differs = calls != "no", True, ""
        with contextlib.suppress(ValueError):
            seen.ahead = float(clock) - (begun + time.time()) / 2
        try:
            self.protocol.settings.compare(self.name, name, HandshakeSettings(values, settings.columns))
        except Disagreement as error:
            seen.differs = str(error)


class ProbeServer(Server):
    endpoint: Probe

    async def _admit(self, context: Any, method: str) -> str:
        """A denied neighbor is refused, and its owner and this one are told why."""
        if self.identity is not None and (seen := self.endpoint.seen.get(peer_name(context.auth_context()) or "")):
            certificates = map(x509.load_pem_x509_certificate, context.auth_context()["x509_pem_cert"])
            seen.denied = f"denied by this node: {why}" if (why := self.identity.denial(certificates)) else ""
        return await super()._admit(context, method)

    async def _refuse(self, context: Any, method: str, why: Refusal, who: str, text: str) -> NoReturn:
        """Nodes that run are not stopped: our own call says what is wrong."""
        await super()._refuse(context, method, why if method == "Check" else Refusal.LATER, who, text)

    async def _serve(self, edge: Edge, method: str, stream: Stream, context: Any) -> None:
        seen = self.endpoint.seen[edge.name]
        seen.heard, seen.runs = True, seen.runs or method != "Check"
        for shown in context.auth_context().get("x509_pem_cert", ()):
            seen.certificate = x509.load_pem_x509_certificate(shown)
        if method in ("Check", "Handshake"):
            async for data in stream.messages():
                self.endpoint.said(edge.name, data, time.time())
                if method == "Check":
                    await stream.write(check_of(self.endpoint, edge.name))
                    continue
                break
        if method != "Check":
            raise Refused(Refusal.LATER, f"node {self.endpoint.name} does not run yet")


class ProbeClient(Client):
    endpoint: Probe

    async def _turn(self) -> None:
        """It calls whoever has an address."""

    async def _talk(self, channel: Any) -> None:
        await self._again(channel, "Check", self._check)

    async def _check(self, stream: Stream) -> None:
        await stream.write(check_of(self.endpoint, self.name))
        begun = time.time()
        async for data in stream.messages():
            self.endpoint.said(self.name, data, begun)
            seen = self.endpoint.seen[self.name]
            seen.reached, seen.refused, self.edge.neighbor.trouble = True, "", ""
            await asyncio.sleep(AGAIN)
            begun = time.time()
            await stream.write(check_of(self.endpoint, self.name))


class ProbeTransport(Transport):
    server, client = ProbeServer, ProbeClient
