"""Delivery of messages between the blocks of one process, and counts of what each node sends.

All engines share it. Messages inside a process are gathered on the device; messages to and from other processes pass through
`Delivery._exchange` and `Delivery._told`, which an engine with such processes overrides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import array_api_compat as aac
import numpy as np

from ..block import Block, pad_rows
from ..collectives import rows_below
from ..core.nodewise import row_bytes
from ..messages import Edges, Heard, Rows, Say, Slots, Tell, Total
from ..plan import Traffic

Array = Any


@dataclass(frozen=True, eq=False)
class Route:
    """For each receiving block: which message of which sender goes where; and what the senders pay for a row.

    Senders are the blocks here and, numbered after the last of them, all other processes together.
    """

    pieces: list[list[tuple[int, Array]]]  # receiving block -> (sender, places in what it says)
    order: list[Array | None]  # how to put the pieces in the order of `hear`
    edges: list[
        tuple[np.ndarray, np.ndarray]
    ]  # sending block -> which messages do not stay at home, and along which edges
    leaving: np.ndarray  # (., 3) process it goes to, block here, place in its `to`: by process, then by edge
    arriving: np.ndarray  # (., 3) process it comes from, block here, place in its `hear`: by process, then by edge


class Delivery:
    """Delivers between `blocks`. `hosts` says which process hosts each node of the network (default: this one all), `here` which this is."""

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
        """For each block, where its slots are among the nodes of all blocks, one after the other."""
        starts = np.concatenate([[0], np.cumsum([block.n_nodes for block in self.blocks])])
        homes = [self._home[block.slots.ravel()] for block in self.blocks]
        return [_index(self.blocks[0].samples, starts[home[:, 0]] + home[:, 1]) for home in homes]

    def answer(self, requests: Sequence[Any]) -> Iterable[Any]:
        """What the blocks get back for what they ask, which must be of one sort."""
        sorts: dict[type, Callable[[Any], Iterable[Any]]] = {
            Say: self.deliver, Tell: self.tell, Total: self.total, Rows: self.rows,
        }  # fmt: skip
        return sorts[type(requests[0])](requests)

    def deliver(self, says: Sequence[Say]) -> Iterator[Any]:
        """What each block hears, one after the other: nothing waits for other processes before a block that needs them."""
        if says[0].alike is None:
            yield from self._deliver(says)
        elif self.alone:
            xp = aac.array_namespace(says[0].alike)
            rows = says[0].alike if len(says) == 1 else xp.concat([s.alike for s in says])
            for block, place, arrived in zip(self.blocks, self._places, self._deliver(says, copied=False), strict=True):
                yield arrived, Slots(rows, place, block.n_slots)
        else:
            for s, arrived in zip(says, self._deliver([s.joined() for s in says]), strict=True):
                yield s.split(arrived)

    def _deliver(self, says: Sequence[Say], copied: bool = True) -> Iterator[Any]:
        """The messages that arrive at each block, stacked; or where they lie (Slots), if they need not be `copied`."""
        kinds = {(s.kind, s.common) for s in says}
        if len(kinds) > 1:
            raise RuntimeError(f"the nodes of one network say different things at once: {sorted(kinds)}")
        route = self._route(says)
        self._count(says, route)
        from_others = self._exchange(says, route)

        def said(sender: int) -> Array:
            return says[sender].payload if sender < len(says) else from_others()

        for receiver, s in enumerate(says):
            pieces = route.pieces[receiver]
            if not s.common and copied:
                yield self._stack(receiver, s.shape, route, said)
            elif not s.common:
                n_slots = self.blocks[receiver].n_slots
                if len(pieces) == 1 and said(pieces[0][0]).shape[1] == s.shape[0]:
                    yield Slots(said(pieces[0][0]), pieces[0][1], n_slots)
                else:
                    yield Slots.stacked(self._stack(receiver, s.shape, route, said), n_slots)
            else:  # of equal arrays any will do
                yield said(pieces[0][0]) if pieces else None
        from_others()

    def tell(self, tells: Sequence[Tell]) -> list[Heard]:
        pools = tuple(t.payload for t in tells)
        for block, told in zip(self.blocks, tells, strict=True):
            others = block.slots[:, 1:]
            edges = self._edge_numbers(np.repeat(block.nodes, block.n_slots - 1), others.ravel())
            sizes = np.repeat(told.lengths * row_bytes(told.payload, 2), block.n_slots - 1)
            self.traffic.add(told.kind, edges, sizes)
        pools += self._told(tells)
        return [Heard(pools, self._home[block.slots, 0], self._home[block.slots, 1]) for block in self.blocks]

    # ------------------------------------------------------------------ what all nodes come to know, where all are here
    def total(self, requests: Sequence[Total]) -> list[Array | None]:
        """The sum over all nodes, and the messages it would have taken along the tree."""
        if not self.alone:
            return [None] * len(requests)
        result = self._add_up([r.value for r in requests])
        root = requests[int(self._home[self.network.root, 0])]
        if root.finish is not None:
            result = root.finish(result)
        self._count_tree(root.kind, row_bytes(requests[0].value, 0), row_bytes(result, 0))
        return [result] * len(requests)

    @staticmethod
    def _add_up(values: Sequence[Array]) -> Array:
        """The sum over the blocks, in their order."""
        total = values[0]
        for value in values[1:]:
            total = total + value
        return total

    def _count_tree(self, kind: str, up_bytes: int, down_bytes: int) -> None:
        """A message to each parent, and one from it, of the nodes that are hosted here."""
        up, down = (edges[self.hosts[self.traffic.edges[edges, 0]] == self.here] for edges in self._tree_edges)
        self.traffic.add(kind, up, np.full(len(up), up_bytes))
        self.traffic.add(kind, down, np.full(len(down), down_bytes))

    def rows(self, requests: Sequence[Rows]) -> list[Array | None]:
        """The rows of all nodes in the order of their names."""
        if not self.alone:
            return [None] * len(requests)
        xp = aac.array_namespace(requests[0].rows)
        counts = requests[0].counts
        together = xp.concat([r.rows for r in requests]) if len(requests) > 1 else requests[0].rows
        nodes = np.concatenate([block.nodes for block in self.blocks])
        rank = np.empty(len(self.network), dtype=np.int64)
        rank[self.network.by_name] = np.arange(len(rank))
        order = np.argsort(np.repeat(rank[nodes], counts[nodes]), kind="stable")
        result = xp.take(together, _index(together, order), axis=0)
        self._count_rows(requests[0].kind, counts, row_bytes(together, 1))
        return [result] * len(requests)

    def _count_rows(self, kind: str, counts: np.ndarray, size: int) -> None:
        """Rows of `size` bytes go up the tree, each node's with those of its children, and all of them down."""
        up, down = (edges[self.hosts[self.traffic.edges[edges, 0]] == self.here] for edges in self._tree_edges)
        below = rows_below(self.network, counts)[self.traffic.edges[up, 0]]
        speaks = below > 0
        self.traffic.add(kind, up[speaks], below[speaks] * size)
        self.traffic.add(kind, down, np.full(len(down), int(counts.sum()) * size))

    @cached_property
    def _tree_edges(self) -> tuple[np.ndarray, np.ndarray]:
        """The numbers of the edges of the tree, to the parents and from them."""
        child = np.flatnonzero(self.network.parents >= 0)
        parent = self.network.parents[child]
        return self._edge_numbers(child, parent), self._edge_numbers(parent, child)

    # ------------------------------------------------------------------ other processes: here there are none
    def _exchange(self, says: Sequence[Say], route: Route) -> Callable[[], Array]:
        """Send what leaves; returns a function that waits for what arrives, stacked as in `route.arriving` (or the common array)."""
        return lambda: None

    def _told(self, tells: Sequence[Tell]) -> tuple[Array, ...]:
        """What nodes elsewhere told, as further pools (`_home` says where in them)."""
        return ()

    # ------------------------------------------------------------------ routes
    def _route(self, says: Sequence[Say]) -> Route:
        key = tuple(edges for s in says for edges in (s.to, s.hear))
        if key not in self._routes:
            self._routes[key] = self._make_route([s.to for s in says], [s.hear for s in says])
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

        # what other processes say is one more sender; its messages lie in the order of `arriving`
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
        """Which directed edge of the network goes from a to b; -1 where they are the same node."""
        key, by_key = self._edge_keys
        at = np.minimum(np.searchsorted(key, a * len(self.network) + b), max(0, len(key) - 1))
        return np.where(a == b, -1, by_key[at] if len(key) else -1)

    @cached_property
    def _edge_keys(self) -> tuple[np.ndarray, np.ndarray]:
        """From, to as one number, sorted; and which edge it is."""
        known = self.network.directed_edges
        key = known[:, 0] * len(self.network) + known[:, 1]
        by_key = np.argsort(key)
        return key[by_key], by_key

    def _table(self, edges: Sequence[Edges], leaving: bool) -> np.ndarray:
        """All edges of all blocks: block, place in its list, node that speaks, node that hears."""
        rows = [np.empty((0, 4), dtype=np.int64)]
        for i, (block, e) in enumerate(zip(self.blocks, edges, strict=True)):
            own, other = block.nodes[e.rows], block.slots[e.rows, e.slots]
            ends = (own, other) if leaving else (other, own)
            rows.append(np.column_stack([np.full(len(e), i), np.arange(len(e)), *ends]))
        return np.concatenate(rows)

    def _crossing(self, table: np.ndarray, process: np.ndarray) -> np.ndarray:
        """Those edges whose other end another process hosts: process, block, place, from, to. Both ends sort them alike."""
        away = process != self.here
        found = np.column_stack([process[away], table[away]])
        return found[np.lexsort((found[:, 4], found[:, 3], found[:, 0]))]

    # ------------------------------------------------------------------ delivery and counts
    def _stack(self, receiver: int, shape: tuple[int, ...], route: Route, said: Callable[[int], Array]) -> Array:
        like = self.blocks[receiver].samples
        xp = aac.array_namespace(like)
        arrived = []
        for sender, places in route.pieces[receiver]:
            got = xp.take(said(sender), places, axis=0)
            arrived.append(pad_rows(got, shape[0], axis=1) if got.shape[1] != shape[0] else got)
        if not arrived:
            return xp.zeros((0, *shape), dtype=like.dtype, device=aac.device(like))
        if route.order[receiver] is None:
            return arrived[0]
        return xp.take(xp.concat(arrived), route.order[receiver], axis=0)

    def _count(self, says: Sequence[Say], route: Route) -> None:
        for s, (leaving, edges) in zip(says, route.edges, strict=True):
            if s.payload is None or not len(edges):
                continue
            if s.common:
                lengths = np.full(len(edges), row_bytes(s.payload, 0))
            else:
                rows = np.full(len(edges), s.payload.shape[1]) if s.lengths is None else s.lengths[leaving]
                lengths = rows * row_bytes(s.payload, 2) + (0 if s.alike is None else row_bytes(s.alike, 1))
            self.traffic.add(s.kind, edges, lengths)


def _index(like: Array, places: np.ndarray) -> Array:
    xp = aac.array_namespace(like)
    return xp.asarray(places, device=aac.device(like))
