"""A node that gets stuck: it beats and acknowledges, but its program sends nothing from some message on.

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
    from dekpca.engines.peer.net.endpoint import Station

    exchange, beat = Station.exchange, Station.beat

    def stuck(self: Station, round: int, sent: Any, expected: Any) -> None:
        if round >= ROUND:
            threading.Event().wait()
        exchange(self, round, sent, expected)

    def claims(self: Station, neighbor: Any) -> Any:
        said = beat(self, neighbor)
        if claim == "waits":
            said.waits_for[:] = sorted(self.neighbors)
        if claim == "computes":
            said.idle, said.waits_for[:] = 0.0, []
        return said

    Station.exchange, Station.beat = stuck, claims  # type: ignore[method-assign]
