"""PeerDelivery between peers: what the program of one node sends goes to its neighbors' processes, round by round.

Every node's program makes the same requests in the same order, so the number of the request tells both ends which message is meant. Lengths are
known to both ends: a message that is not just as expected is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from ....block import Block, size_class
from ....messages import Say, Tell
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
        self._wire_dtype = self._dtype.newbyteorder("<").str
        self._pools: list[list[int]] = self._make_pools()

    # ------------------------------------------------------------------ rounds
    def deliver(self, says: Sequence[Say]) -> Iterator[Any]:
        """As every engine's. What all neighbors hear goes from the program's arrays to the wire, and from the disk to its arrays."""
        (s,) = says
        if s.alike is None or s.payload is None or s.lengths is None or s.arriving is None:
            yield from super().deliver(says)
            return
        route = self._route(says)
        self._count(says, route)
        (around,), m, width = self.block.slots.tolist(), s.alike.shape[1], s.alike.shape[2:]
        common, lengths, arriving = np.ascontiguousarray(s.alike[0]), s.lengths.tolist(), s.arriving.tolist()
        others = range(1, len(around))  # slots; all speak
        self._begin(
            s.kind,
            [(around[slot], common, s.payload[slot, : lengths[slot]]) for slot in others],
            {around[slot]: (m + arriving[slot], *width) for slot in others},
        )
        arrived = np.empty((len(around), m + s.shape[0], *width), dtype=self._dtype)
        arrived[0, :m], arrived[0, m : m + arriving[0]] = common, s.payload[0, : arriving[0]]
        for slot in range(len(around)):
            arrived[slot, m + arriving[slot] :] = 0
        for slot in others:
            self._receive(around[slot], arrived[slot, : m + arriving[slot]])
        yield s.split(arrived)

    def _exchange(self, says: Sequence[Say], route: Route) -> Callable[[], Array]:
        (s,) = says
        sent = []
        for node, _, place in route.leaving.tolist():
            if s.common:
                sent.append((node, s.payload))
            else:
                assert s.payload is not None
                rows = s.payload.shape[1] if s.lengths is None else int(s.lengths[place])
                sent.append((node, s.payload[place, :rows, ...]))
        heard = route.arriving.tolist()
        if s.common:
            shapes = {node: s.shape for node, _, _ in heard}
        else:
            rows_of = [s.shape[0] if s.arriving is None else int(s.arriving[place]) for _, _, place in heard]
            shapes = {node: (rows, *s.shape[1:]) for (node, _, _), rows in zip(heard, rows_of, strict=True)}
        self._begin(s.kind, sent, shapes)
        arrived: list[Array] = []

        def stacked() -> Array:
            if arrived or not shapes:
                return arrived[0] if arrived else None
            if s.common:
                stack = np.empty(s.shape, dtype=self._dtype)
                self._receive(heard[0][0], stack)
                for node, _, _ in heard[1:]:
                    self._receive(node, np.empty_like(stack))
            else:
                stack = np.zeros((len(heard), max(rows_of), *s.shape[1:]), dtype=self._dtype)
                for i, (node, _, _) in enumerate(heard):
                    self._receive(node, stack[i, : rows_of[i], ...])
            arrived.append(stack)
            return stack

        return stacked

    def _told(self, tells: Sequence[Tell]) -> tuple[Array, ...]:
        (told,) = tells
        own, sizes = int(self.block.own_sizes[0]), self.block.sizes
        if int(told.lengths[0]) != own:
            raise RuntimeError(f"{told.kind}: a node tells other rows than one for each of its samples")
        width = told.payload.shape[2:]
        around = self.block.slots[0, 1:].tolist()
        self._begin(
            told.kind,
            [(node, told.payload[0, :own, ...]) for node in around],
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
    def _begin(self, kind: str, sent: Sequence[tuple[Any, ...]], shapes: dict[int, tuple[int, ...]]) -> None:
        """Count the round; send (to a node, arrays of which the rows follow each other), and say what must come."""
        self.round += 1
        names = self.network.names
        messages = []
        for node, *arrays in sent:
            parts = [np.ascontiguousarray(array) for array in arrays]
            shape = (sum(len(part) for part in parts), *parts[-1].shape[1:]) if len(parts) > 1 else parts[0].shape
            messages.append((names[node], self._head(kind, shape), [raw_bytes(part) for part in parts]))
            self.last_sent[names[node]] = self.round
        expected = {names[node]: self._head(kind, shape) for node, shape in shapes.items()}
        self.endpoint.exchange(self.round, messages, expected)

    def _head(self, kind: str, shape: tuple[int, ...]) -> MessageHead:
        exact = tuple(map(int, shape))
        return MessageHead(self.round, kind, self._wire_dtype, exact)

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
