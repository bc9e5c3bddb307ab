"""Delivery between peers: what the program of one node sends goes to its neighbors' processes, round by round.

Every node's program makes the same requests in the same order, so the number of the request tells both ends which message is meant. Shapes are
known to both ends: a message that is not just as expected is refused.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...messages import Exchange
from ...plan import Traffic
from ...site import Site
from ..net.endpoint import Endpoint
from ..protocol.checks import MessageHead
from ..storage.messages import raw_bytes
from .audit import Audit


class PeerDelivery:
    """Delivers what the node of a site says and hears; sums are exchanges along the tree (engines/tree.py)."""

    def __init__(self, site: Site, endpoint: Endpoint, audit: Audit | None = None):
        self.network, self.endpoint, self.audit, self.round = site.network, endpoint, audit, 0
        self.traffic = Traffic(site.network)

    def exchange(self, requests: Sequence[Exchange]) -> dict[tuple[int, int], np.ndarray]:
        (request,) = requests
        self.round += 1
        names, messages = self.network.names, []
        for (_, to), array in request.messages.items():
            whole = np.ascontiguousarray(array, dtype=request.dtype)
            messages.append((names[to], (self._head(request, whole.shape), raw_bytes(whole))))
            self._note("sent", request.kind, names[to], messages[-1][1][1])
        self.traffic.add_messages(request.kind, request.messages)
        expected = {names[sender]: self._head(request, shape) for (sender, _), shape in request.expected.items()}
        self.endpoint.exchange(self.round, messages, expected)
        arrived = {}
        for edge, shape in request.expected.items():
            arrived[edge] = np.empty(shape, dtype=request.dtype)
            self.endpoint.read(names[edge[0]], raw_bytes(arrived[edge]))
            self._note("received", request.kind, names[edge[0]], raw_bytes(arrived[edge]))
        return arrived

    def _note(self, what: str, kind: str, node: str, data: memoryview) -> None:
        if self.audit is not None:
            self.audit.message(what, str(self.endpoint.protocol.view), self.round, kind, node, data)

    def _head(self, request: Exchange, shape: tuple[int, ...]) -> MessageHead:
        return MessageHead(self.round, request.kind, request.dtype.newbyteorder("<").str, tuple(map(int, shape)))
