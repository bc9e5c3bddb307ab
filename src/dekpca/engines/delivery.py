"""Delivery of messages between the blocks of one process, and counts of each node's traffic.

All engines share `Delivery`: messages along edges. Inside a process they are gathered on the device; messages to and from other
processes pass through `_cross` and `_cross_broadcast`, which an engine with such processes overrides. `CollectiveDelivery` adds
reductions, gathers and broadcasts, for processes that trust each other. Other engines build these from messages (tree.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import array_api_compat as aac
import numpy as np

from ..block import Block, pad_rows
from ..core.chunks import row_bytes
from ..messages import Broadcast, Edges, Exchange, Gather, Heard, NeighborBroadcast, Reduce, Send, Slots
from ..plan import Traffic
from .tree import rows_below

Array = Any


@dataclass(frozen=True, eq=False)
class Route:
    """For each receiving block the sources of its messages, and the edges for counting.

    Senders are the blocks here and, numbered after the last of them, all other processes together.
    """

    pieces: list[list[tuple[int, Array]]]  # receiving block -> (sender, places in its payload)
    order: list[Array | None]  # how to put the pieces in the order of `hear`
    edges: list[tuple[np.ndarray, np.ndarray]]  # sending block -> messages to other nodes, and their edges
    leaving: np.ndarray  # (., 3) destination process, block here, place in its `to`: by process, then by edge
    arriving: np.ndarray  # (., 3) source process, block here, place in its `hear`: by process, then by edge


class Delivery:
    """Delivers between `blocks`. `hosts` is the process of each node of the network (default: this one), `here` the number of this process."""

    def __init__(self, blocks: Sequence[Block], hosts: np.ndarray | None = None, here: int = 0):
        self.blocks = blocks
        self.network = blocks[0].network
        self.traffic = Traffic(self.network.directed_edges, len(self.network))
        self.here = here
        self.hosts = np.full(len(self.network), here) if hosts is None else hosts
        self.alone = bool((self.hosts == here).all())
        self._routes: dict[tuple[Any, ...], Route] = {}
        self._home = np.full((len(self.network), 2), -1, dtype=np.int64)  # node -> block, row
        for i, block in enumerate(blocks):
            self._home[block.nodes] = np.stack([np.full(block.n_nodes, i), np.arange(block.n_nodes)], axis=1)

    @cached_property
    def _places(self) -> list[Array]:
        """For each block, the indices of its slots in the concatenated nodes of all blocks."""
        starts = np.concatenate([[0], np.cumsum([block.n_nodes for block in self.blocks])])
        homes = [self._home[block.slots.ravel()] for block in self.blocks]
        return [_index(self.blocks[0].samples, starts[home[:, 0]] + home[:, 1]) for home in homes]

    def _handlers(self) -> dict[type, Callable[[Any], Iterable[Any]]]:
        return {Exchange: self.exchange, NeighborBroadcast: self.neighbor_broadcast, Send: self.send}

    def answer(self, requests: Sequence[Any]) -> Iterable[Any]:
        """The reply to the request of each block. All blocks must make the same request."""
        asked = {(type(request).__name__, request.kind) for request in requests}
        if len(asked) > 1:
            raise RuntimeError(f"the nodes of one network ask for different things at once: {sorted(asked)}")
        handlers, wanted = self._handlers(), type(requests[0])
        if wanted not in handlers:
            raise RuntimeError(f"this engine carries no {wanted.__name__}; wrap the program in over_tree (tree.py)")
        return handlers[wanted](requests)

    def exchange(self, requests: Sequence[Exchange]) -> Iterator[tuple[Slots, Slots]]:
        """In one process no rows are copied."""
        if not self.alone:
            sends = [r.joined(block.everywhere) for block, r in zip(self.blocks, requests, strict=True)]
            for request, arrived in zip(requests, self.send(sends), strict=True):
                yield request.split(arrived)
            return
        xp = aac.array_namespace(requests[0].shared)
        shared = requests[0].shared if len(requests) == 1 else xp.concat([r.shared for r in requests])
        sends = [r.along(block.everywhere) for block, r in zip(self.blocks, requests, strict=True)]
        route = self._route(sends)
        self._count(sends, route, row_bytes(shared))
        for receiver, (send, block, place) in enumerate(zip(sends, self.blocks, self._places, strict=True)):
            pieces = route.pieces[receiver]
            own = sends[pieces[0][0]].payload
            if len(pieces) == 1 and own.shape[1] == send.shape[0]:
                arrived = Slots(own, pieces[0][1], block.n_slots)
            else:
                stacked = self._stack(receiver, send.shape, route, lambda sender: sends[sender].payload)
                arrived = Slots.stacked(stacked, block.n_slots)
            yield arrived, Slots(shared, place, block.n_slots)

    def send(self, sends: Sequence[Send]) -> Iterator[Array]:
        """The messages that arrive at each block, stacked. A block waits only for processes that it hears."""
        route = self._route(sends)
        self._count(sends, route)
        from_others = self._cross(sends, route)

        def payload(sender: int) -> Array:
            return sends[sender].payload if sender < len(sends) else from_others()

        for receiver, send in enumerate(sends):
            yield self._stack(receiver, send.shape, route, payload)
        from_others()

    def neighbor_broadcast(self, requests: Sequence[NeighborBroadcast]) -> list[Heard]:
        for block, request in zip(self.blocks, requests, strict=True):
            others = block.slots[:, 1:]
            edges = self._edge_numbers(np.repeat(block.nodes, block.n_slots - 1), others.ravel())
            sizes = np.repeat(block.own_sizes * row_bytes(request.rows, 2), block.n_slots - 1)
            self.traffic.add(request.kind, edges, sizes)
        pools = tuple(r.rows for r in requests) + self._cross_broadcast(requests)
        return [Heard(pools, self._home[block.slots, 0], self._home[block.slots, 1]) for block in self.blocks]

    # ------------------------------------------------------------------ other processes: here there are none
    def _cross(self, sends: Sequence[Send], route: Route) -> Callable[[], Array]:
        """Send messages to other processes; returns a function that waits for theirs, stacked as in `route.arriving`."""
        return lambda: None

    def _cross_broadcast(self, requests: Sequence[NeighborBroadcast]) -> tuple[Array, ...]:
        """The rows of neighbors in other processes, as further pools (indexed by `_home`)."""
        return ()

    # ------------------------------------------------------------------ routes
    def _route(self, sends: Sequence[Send]) -> Route:
        key = tuple(edges for s in sends for edges in (s.to, s.hear))
        if key not in self._routes:
            self._routes[key] = self._make_route([s.to for s in sends], [s.hear for s in sends])
        return self._routes[key]

    def _make_route(self, to: Sequence[Edges], hear: Sequence[Edges]) -> Route:
        J = len(self.network)
        spoken = self._table(to, leaving=True)  # block, place, from, to
        heard = self._table(hear, leaving=False)
        b = spoken[:, 3]
        numbers = self._edge_numbers(spoken[:, 2], b)
        of_block = [numbers[spoken[:, 0] == i] for i in range(len(self.blocks))]
        edges = [(np.flatnonzero(of >= 0), of[of >= 0]) for of in of_block]
        leaving, arriving = self._crossing(spoken, self.hosts[b]), self._crossing(heard, self.hosts[heard[:, 2]])

        # other processes count as one more sender; its messages are in the order of `arriving`
        others = np.column_stack([np.full(len(arriving), len(self.blocks)), np.arange(len(arriving)), arriving[:, 3:]])
        sources = np.concatenate([spoken, others])
        key = sources[:, 2] * J + sources[:, 3]
        by_key = np.argsort(key)
        wanted = heard[:, 2] * J + heard[:, 3]
        at = np.minimum(np.searchsorted(key, wanted, sorter=by_key), len(key) - 1)
        found = by_key[at] if len(key) else np.zeros(len(wanted), dtype=np.int64)
        silent = np.flatnonzero(key[found] != wanted) if len(key) else np.arange(len(wanted))
        if len(silent):
            speaker, listener = (self.network.names[j] for j in heard[silent[0], 2:])
            raise RuntimeError(f"node {listener} waits for node {speaker}, which says nothing in this round")

        pieces, order = [], []
        like = self.blocks[0].samples
        for i in range(len(self.blocks)):
            mine = sources[found[heard[:, 0] == i]]
            numbers = np.unique(mine[:, 0])
            of_sender = [np.flatnonzero(mine[:, 0] == n) for n in numbers]
            pieces.append([(int(n), _index(like, mine[x, 1])) for n, x in zip(numbers, of_sender, strict=True)])
            order.append(_index(like, np.argsort(np.concatenate(of_sender))) if len(of_sender) > 1 else None)
        return Route(pieces, order, edges, leaving[:, :3], arriving[:, :3])

    def _edge_numbers(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """The number of the directed edge from a to b; -1 if they are the same node."""
        key, by_key = self._edge_keys
        at = np.minimum(np.searchsorted(key, a * len(self.network) + b), max(0, len(key) - 1))
        return np.where(a == b, -1, by_key[at] if len(key) else -1)

    @cached_property
    def _edge_keys(self) -> tuple[np.ndarray, np.ndarray]:
        """Sorted keys (from, to) as single numbers; and the edge of each."""
        known = self.network.directed_edges
        key = known[:, 0] * len(self.network) + known[:, 1]
        by_key = np.argsort(key)
        return key[by_key], by_key

    def _table(self, edges: Sequence[Edges], leaving: bool) -> np.ndarray:
        """All edges of all blocks: block, place in its list, sender, receiver."""
        rows = [np.empty((0, 4), dtype=np.int64)]
        for i, (block, e) in enumerate(zip(self.blocks, edges, strict=True)):
            own, other = block.nodes[e.rows], block.slots[e.rows, e.slots]
            ends = (own, other) if leaving else (other, own)
            rows.append(np.column_stack([np.full(len(e), i), np.arange(len(e)), *ends]))
        return np.concatenate(rows)

    def _crossing(self, table: np.ndarray, process: np.ndarray) -> np.ndarray:
        """The edges to other processes: process, block, place, from, to. Both ends sort them in the same order."""
        away = process != self.here
        found = np.column_stack([process[away], table[away]])
        return found[np.lexsort((found[:, 4], found[:, 3], found[:, 0]))]

    # ------------------------------------------------------------------ delivery and counts
    def _stack(self, receiver: int, shape: tuple[int, ...], route: Route, payload: Callable[[int], Array]) -> Array:
        like = self.blocks[receiver].samples
        xp = aac.array_namespace(like)
        arrived = []
        for sender, places in route.pieces[receiver]:
            got = xp.take(payload(sender), places, axis=0)
            arrived.append(pad_rows(got, shape[0], axis=1) if got.shape[1] != shape[0] else got)
        if not arrived:
            return xp.zeros((0, *shape), dtype=like.dtype, device=aac.device(like))
        if route.order[receiver] is None:
            return arrived[0]
        return xp.take(xp.concat(arrived), route.order[receiver], axis=0)

    def _count(self, sends: Sequence[Send], route: Route, shared_bytes: int = 0) -> None:
        for s, (leaving, edges) in zip(sends, route.edges, strict=True):
            if len(edges):
                self.traffic.add(s.kind, edges, s.lengths[leaving] * row_bytes(s.payload, 2) + shared_bytes)


class CollectiveDelivery(Delivery):
    """Delivery between processes that trust each other: sums in any order. Counts the messages that a tree would need."""

    def _handlers(self) -> dict[type, Callable[[Any], Iterable[Any]]]:
        return super()._handlers() | {Reduce: self.reduce, Gather: self.gather, Broadcast: self.broadcast}

    def reduce(self, requests: Sequence[Reduce]) -> list[Array]:
        first, total = requests[0], requests[0].value
        for request in requests[1:]:
            total = total + request.value
        total = self._at_root(first.kind, total)
        result = self._from_root(lambda: self._root_of(requests).finish(total), (first.size,), first.dtype)
        self._count_up(first.kind, row_bytes(first.value, 0))
        self._count_down(first.kind, row_bytes(result, 0))
        return [result] * len(requests)

    def broadcast(self, requests: Sequence[Broadcast]) -> list[Array]:
        result = self._from_root(lambda: self._root_of(requests).make(), requests[0].shape)
        self._count_down(requests[0].kind, row_bytes(result, 0))
        return [result] * len(requests)

    def gather(self, requests: Sequence[Gather]) -> list[Array]:
        xp, counts = aac.array_namespace(requests[0].rows), requests[0].counts
        rows = xp.concat([r.rows for r in requests]) if len(requests) > 1 else requests[0].rows
        owners = np.concatenate([np.repeat(block.nodes, counts[block.nodes]) for block in self.blocks])
        rows, owners = self._from_all(requests[0].kind, rows, owners, counts)
        rank = np.empty(len(self.network), dtype=np.int64)
        rank[self.network.by_name] = np.arange(len(rank))
        result = xp.take(rows, _index(rows, np.argsort(rank[owners], kind="stable")), axis=0)
        self._count_up(requests[0].kind, rows_below(self.network, counts) * row_bytes(rows))
        self._count_down(requests[0].kind, row_bytes(result, 0))
        return [result] * len(requests)

    def _root_of(self, requests: Sequence[Any]) -> Any:
        """The request of the block with the root of the tree."""
        return requests[int(self._home[self.network.root, 0])]

    # ------------------------------------------------------------------ other processes: here there are none
    def _at_root(self, kind: str, value: Array) -> Array:
        """The sum of the processes' values, in the process that hosts the root."""
        return value

    def _from_root(self, make: Callable[[], Array], shape: tuple[int, ...], dtype: Any = None) -> Array:
        """The array from the process that hosts the root; of `dtype` on the host or, without one, of the dtype and device of the samples."""
        return make()

    def _from_all(self, kind: str, rows: Array, owners: np.ndarray, counts: np.ndarray) -> tuple[Array, np.ndarray]:
        """The rows of all processes, and the node of each."""
        return rows, owners

    # ------------------------------------------------------------------ counts
    def _count_up(self, kind: str, sizes: Any) -> None:
        """A message from each node of this process to its parent. `sizes`: bytes, per node or for all; 0 is no message."""
        up, _ = self._tree_edges
        sizes = np.broadcast_to(sizes, len(self.network))[self.traffic.edges[up, 0]]
        self.traffic.add(kind, up[sizes > 0], sizes[sizes > 0])

    def _count_down(self, kind: str, size: int) -> None:
        """A message of `size` bytes from each node of this process to each of its children."""
        _, down = self._tree_edges
        self.traffic.add(kind, down, np.full(len(down), size))

    @cached_property
    def _tree_edges(self) -> list[np.ndarray]:
        """The numbers of the tree edges from nodes of this process: to parents, to children."""
        child = np.flatnonzero(self.network.parents >= 0)
        parent = self.network.parents[child]
        both = self._edge_numbers(child, parent), self._edge_numbers(parent, child)
        return [edges[self.hosts[self.traffic.edges[edges, 0]] == self.here] for edges in both]


def _index(like: Array, places: np.ndarray) -> Array:
    xp = aac.array_namespace(like)
    return xp.asarray(places, device=aac.device(like))
