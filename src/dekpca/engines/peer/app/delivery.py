"""PeerDelivery between peers: what the program of one node sends goes to its neighbors' processes, round by round.

Every node's program makes the same requests in the same order, so the number of the request tells both ends which message is meant. Lengths are
known to both ends: a message that is not just as expected is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np

from ....block import Block, size_class
from ....core.chunks import row_bytes
from ....messages import Exchange, NeighborBroadcast, Send, Slots
from ...delivery import Delivery, Route
from ..net.endpoint import Endpoint
from ..protocol.checks import MessageHead
from ..storage.codec import raw_bytes

Array = Any


class PeerDelivery(Delivery):
    """Delivers what one node says and hears. `round` counts its requests since the start of the program."""

    def __init__(self, block: Block, endpoint: Endpoint, round: int = 0):
        here = int(block.nodes[0])
        super().__init__([block], np.arange(len(block.network)), here)
        self.block, self.endpoint, self.round = block, endpoint, round
        self.last_sent = dict.fromkeys(endpoint.addresses, 0)  # round of the last message to each neighbor
        self._dtype = block.samples.dtype
        self._pools: list[list[int]] = self._make_pools()

    # ------------------------------------------------------------------ rounds
    def exchange(self, requests: Sequence[Exchange]) -> Iterator[tuple[Slots, Slots]]:
        """As every engine's. Rows go from the program's arrays to the wire, and from the disk to its arrays."""
        (request,) = requests
        own, lengths, arriving = request.own[0], request.lengths.tolist(), request.arriving.tolist()
        common, m, width = np.ascontiguousarray(request.shared[0]), request.shared.shape[1], request.shared.shape[2:]
        send = request.along(self.block.everywhere)
        self._count([send], self._route([send]), row_bytes(common, 0))
        (around,) = self.block.slots.tolist()
        others = range(1, len(around))  # slots; all speak
        self._begin(
            request.kind,
            [(around[slot], common, own[slot, : lengths[slot]]) for slot in others],
            {around[slot]: (m + arriving[slot], *width) for slot in others},
        )
        arrived = np.empty((len(around), m + request.rows, *width), dtype=self._dtype)
        arrived[0, :m], arrived[0, m : m + arriving[0]] = common, own[0, : arriving[0]]
        for slot in range(len(around)):
            arrived[slot, m + arriving[slot] :] = 0
        for slot in others:
            self._receive(around[slot], arrived[slot, : m + arriving[slot]])
        yield request.split(arrived)

    def _cross(self, sends: Sequence[Send], route: Route) -> Callable[[], Array]:
        (send,) = sends
        sent = [(node, send.payload[place, : send.lengths[place]]) for node, _, place in route.leaving.tolist()]
        rows_of = {node: int(send.arriving[place]) for node, _, place in route.arriving.tolist()}
        shapes = {node: (rows, *send.shape[1:]) for node, rows in rows_of.items()}
        self._begin(send.kind, sent, shapes, send.payload.dtype)  # of integers, if sums are under masks

        def arrived() -> Array:
            stack = np.zeros((len(rows_of), *send.shape), dtype=send.payload.dtype)
            for i, (node, rows) in enumerate(rows_of.items()):
                self._receive(node, stack[i, :rows])
            return stack

        return cache(arrived)

    def _cross_broadcast(self, requests: Sequence[NeighborBroadcast]) -> tuple[Array, ...]:
        (request,) = requests
        own, sizes = int(self.block.own_sizes[0]), self.block.sizes
        width = request.rows.shape[2:]
        around = self.block.slots[0, 1:].tolist()
        self._begin(
            request.kind,
            [(node, request.rows[0, :own, ...]) for node in around],
            {node: (int(sizes[node]), *width) for node in around},
        )
        pools = []
        for nodes in self._pools:
            pool = np.zeros((len(nodes), int(sizes[nodes].max()), *width), dtype=self._dtype)
            for row, node in enumerate(nodes):
                self._receive(node, pool[row, : int(sizes[node]), ...])  # straight to where it will be used
            pools.append(pool)
        return tuple(pools)

    # ------------------------------------------------------------------ the wire
    def _begin(
        self, kind: str, sent: Sequence[tuple[Any, ...]], shapes: dict[int, tuple[int, ...]], dtype: Any = None
    ) -> None:
        """Count the round; send (to a node, arrays of which the rows follow each other), and say what must come."""
        self.round += 1
        names, dtype = self.network.names, self._dtype if dtype is None else dtype
        messages = []
        for node, *arrays in sent:
            parts = [np.ascontiguousarray(array) for array in arrays]
            shape = (sum(len(part) for part in parts), *parts[-1].shape[1:]) if len(parts) > 1 else parts[0].shape
            messages.append((names[node], self._head(kind, shape, dtype), [raw_bytes(part) for part in parts]))
            self.last_sent[names[node]] = self.round
        expected = {names[node]: self._head(kind, shape, dtype) for node, shape in shapes.items()}
        self.endpoint.exchange(self.round, messages, expected)

    def _head(self, kind: str, shape: tuple[int, ...], dtype: Any) -> MessageHead:
        exact = tuple(map(int, shape))
        return MessageHead(self.round, kind, dtype.newbyteorder("<").str, exact)

    def _receive(self, node: int, into: np.ndarray) -> None:
        self.endpoint.read(self.network.names[node], raw_bytes(into))

    def _make_pools(self) -> list[list[int]]:
        """Neighbors of about the same size together, in the order of the slots; notes their places in `_home`."""
        alike: dict[int, list[int]] = {}
        for node in self.block.slots[0, 1:].tolist():
            alike.setdefault(size_class(int(self.block.sizes[node])), []).append(node)
        for pool, nodes in enumerate(alike.values()):
            self._home[nodes] = np.column_stack([np.full(len(nodes), 1 + pool), np.arange(len(nodes))])
        return list(alike.values())
