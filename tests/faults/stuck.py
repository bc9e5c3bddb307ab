"""A node that gets stuck: it sends heartbeats and acknowledgements, but its program sends nothing from some message on.

What it says of itself meanwhile:

    honest    that nothing has moved since
    waits     that it waits for all its neighbors
    computes  that it computes
"""

from __future__ import annotations

import threading
from typing import Any

ROUND = 12  # from this one on it sends nothing


def hang(claim: str) -> None:
    """For the process that is about to run the node."""
    from dataclasses import replace

    from dekpca.peers.net.endpoint import Endpoint

    exchange, heartbeat = Endpoint.exchange, Endpoint.heartbeat

    def stuck(self: Endpoint, round: int, sent: Any, expected: Any) -> None:
        if round >= ROUND:
            threading.Event().wait()
        exchange(self, round, sent, expected)

    def claims(self: Endpoint, neighbor: Any) -> Any:
        said = heartbeat(self, neighbor)
        if claim == "waits":
            return replace(said, waits_for=tuple(sorted(self.addresses)))
        return replace(said, idle=0.0, waits_for=()) if claim == "computes" else said

    Endpoint.exchange, Endpoint.heartbeat = stuck, claims  # type: ignore[method-assign]
