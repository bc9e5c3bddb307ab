"""The calls of `dekpca node check`: a node calls its neighbors and listens for their calls, before the run.

It calls `Check`, which nodes that check and nodes that run answer alike, without an effect on them. All other calls are of nodes that run already:
they are told to call again later. So a check neither joins nor stops a run.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cryptography import x509

from ..errors import Disagreement
from ..protocol import checks, events
from ..protocol import wire_pb2 as wire
from ..protocol.handshake import HandshakeSettings
from .client import CALL, Client
from .endpoint import Endpoint
from .server import CLOCK, CODES, SERVICE, TROUBLE, Messages, Server, check_of, wait_for
from .transport import Transport

AGAIN = 1.0  # seconds between two calls to a neighbor that answers
REFUSED = (events.Refusal.SETTINGS, events.Refusal.STRANGER)


@dataclass
class Seen:
    """What a check has seen of a neighbor."""

    reached: bool = False  # it has answered
    heard: bool = False  # it has called
    runs: bool = False  # it is not a check
    certificate: x509.Certificate | None = None  # of its calls
    theirs: str = ""  # why its calls to this node fail, as it says
    wrong: str = ""  # what the owners have to correct
    ahead: float = 0.0  # seconds that its clock is ahead of ours

    @property
    def whole(self) -> bool:
        return self.reached and self.heard


class Probe(Endpoint):
    """The node that checks: it has no folder, and its protocol never begins."""

    def __init__(self, protocol: Any, addresses: dict[str, str]):
        super().__init__(protocol, None, addresses)
        self.seen = {name: Seen() for name in addresses}

    def heard(self, name: str, context: Any) -> Seen:
        seen = self.seen[name]
        seen.heard = True
        for shown in context.auth_context().get("x509_pem_cert", ()):
            seen.certificate = x509.load_pem_x509_certificate(shown)
        return seen

    def answered(self, name: str, settings: HandshakeSettings, begun: float) -> None:
        """A neighbor has said its settings."""
        seen, values = self.seen[name], dict(settings.values)
        clock, seen.theirs = values.pop(CLOCK, ""), values.pop(TROUBLE, "")
        seen.reached, seen.wrong = True, ""
        with contextlib.suppress(ValueError):
            seen.ahead = float(clock) - (begun + time.time()) / 2
        try:
            self.protocol.settings.compare(self.name, name, HandshakeSettings(values, settings.columns))
        except Disagreement as error:
            seen.wrong = str(error)


class ProbeServer(Server):
    endpoint: Probe

    async def _admit(self, context: Any) -> tuple[str, str]:
        name, view = await super()._admit(context)
        self.endpoint.heard(name, context)
        return name, view

    def _admitted(self, handler: Callable[[str, Messages, str], Messages]) -> Any:
        if handler == self._check:
            return super()._admitted(handler)

        async def later(messages: Messages, context: Any) -> Messages:
            protocol, run, claimed, _ = checks.read_metadata(dict(context.invocation_metadata()))
            with contextlib.suppress(events.Refused):  # our own call to that node says what is wrong
                shown = None if self.identity is None else self.identity.peer_name(context.auth_context())
                name = self.endpoint.protocol.admit(shown, claimed, protocol, run)
                self.endpoint.heard(name, context).runs = True
            await context.abort(CODES[events.Refusal.LATER], f"node {self.endpoint.name} does not run yet")
            yield b""  # a generator, as gRPC expects

        return later


class ProbeClient(Client):
    endpoint: Probe

    def start(self) -> list[asyncio.Task[None]]:
        return [asyncio.create_task(self._forever(self._check))]

    def _report(self, event: Any) -> None:
        seen, neighbor = self.endpoint.seen[self.name], self.endpoint.protocol.neighbors[self.name]
        match event:
            case events.Unreachable(why):
                neighbor.trouble = why
            case events.TheyRefused(why, text) if why in REFUSED:
                seen.reached, seen.wrong = True, f"refused by node {self.name}: {text}"
            case events.TheyRefused(_, text):
                neighbor.trouble = text
            case events.WeRefused(error):
                seen.wrong = neighbor.trouble = str(error)

    async def _check(self, channel: Any) -> None:
        while True:
            call = channel.stream_stream(f"/{SERVICE}/Check")(metadata=self._metadata, timeout=CALL)
            try:
                begun = time.time()
                await call.write(check_of(self.endpoint, self.name).SerializeToString())
                said = checks.check_handshake(checks.parse(wire.Handshake, await self._read(call)))
            finally:
                call.cancel()
            self.endpoint.protocol.neighbors[self.name].trouble = ""
            self.endpoint.answered(self.name, said.settings, begun)
            await wait_for(self.called, AGAIN)
            self.called.clear()


class ProbeTransport(Transport):
    server, client = ProbeServer, ProbeClient
