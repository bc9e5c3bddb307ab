"""Delivery between MPI ranks, along the edges of a distributed graph communicator over the ranks that host neighbors.

Inside a rank messages go as in the local engine (delivery.py). What crosses is in typed buffers whose lengths both ends know. Each round of the
program is one `Ineighbor_alltoallv`, which every rank starts in the same order. Network sums, and landmarks that all nodes come to know, are
reductions and gathers over all ranks: these trust each other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import array_api_compat as aac
import numpy as np
from mpi4py import MPI

from ..block import Block, size_class
from ..core.spectrum import to_numpy
from ..messages import Rows, Say, Tell, Total
from .delivery import Delivery, Route

Array = Any


class RankDelivery(Delivery):
    """Delivers between the blocks of a rank and, along the edges of the network, those of other ranks.

    A message to one node of another rank crosses by itself. What several nodes of a rank hear alike crosses once for that rank: the samples of a
    node (`Tell`) and what all will know (`Say(common)`). `traffic` counts per edge, as on every engine; `wire` what
    left this rank, by phase: rounds, messages that are not empty, and bytes.
    """

    def __init__(self, blocks: Sequence[Block], comm: Any, hosts: np.ndarray):
        super().__init__(blocks, hosts, comm.Get_rank())
        self._comm = comm
        self.wire: dict[str, np.ndarray] = {}
        self._dtype = _dtype(blocks[0].samples)
        ends = self.network.directed_edges
        crossing = ends[(hosts[ends[:, 0]] == self.here) & (hosts[ends[:, 1]] != self.here)]
        self.around = np.unique(hosts[crossing[:, 1]])  # ranks that this one talks to
        self._place = {int(rank): i for i, rank in enumerate(self.around)}
        # a rank without neighbors is alone: the network is connected. Empty lists have crashed MPIs.
        self._graph = None
        if len(self.around):
            around = self.around.tolist()
            self._graph = comm.Create_dist_graph_adjacent(around, around, reorder=False)
        to = hosts[crossing[:, 1]]
        self._tell_to = [np.unique(crossing[to == rank, 0]) for rank in self.around]
        self._hear_of = [np.unique(crossing[to == rank, 1]) for rank in self.around]
        self._pools = self._make_pools()

    def close(self) -> None:
        if self._graph is not None:
            self._graph.Free()

    # ------------------------------------------------------------------ what all nodes come to know: ranks of one job trust each other
    def total(self, requests: Sequence[Total]) -> list[Array | None]:
        """A reduction to the rank that hosts the root of the tree, which finishes the sum and tells all."""
        value = self._add_up([r.value for r in requests])
        mine = np.ascontiguousarray(to_numpy(value))
        root = int(self.hosts[self.network.root])
        into = np.empty_like(mine)
        self._comm.Reduce(mine, into if self.here == root else None, root=root)
        first = requests[0]
        result = np.empty(first.size, dtype=mine.dtype)
        if self.here == root:
            finished = self._on_device(into)
            asked = requests[int(self._home[self.network.root, 0])]
            result = np.ascontiguousarray(to_numpy(finished if asked.finish is None else asked.finish(finished)))
        self._comm.Bcast(result, root=root)
        self._count_tree(first.kind, mine.nbytes, result.nbytes)
        self.wire.setdefault(first.kind, np.zeros(3, dtype=np.int64))[:] += 1, 1, mine.nbytes
        return [self._on_device(result)] * len(requests)

    def rows(self, requests: Sequence[Rows]) -> list[Array | None]:
        """Rows of all ranks, in the order of the names of their nodes."""
        counts, width = requests[0].counts, int(requests[0].rows.shape[1])
        mine = np.concatenate([to_numpy(r.rows) for r in requests]).astype(self._dtype, copy=False)
        order = np.concatenate([np.repeat(b.nodes, counts[b.nodes]) for b in self.blocks])
        sizes = np.array([counts[self.hosts == rank].sum() for rank in range(self._comm.Get_size())])
        everything = np.empty((int(counts.sum()), width), dtype=self._dtype)
        owners = np.empty(int(counts.sum()), dtype=np.int64)
        self._comm.Allgatherv(np.ascontiguousarray(mine), [everything, sizes * width])
        self._comm.Allgatherv(order.astype(np.int64), [owners, sizes])
        rank_of_name = np.empty(len(self.network), dtype=np.int64)
        rank_of_name[self.network.by_name] = np.arange(len(self.network))
        found = everything[np.argsort(rank_of_name[owners], kind="stable")]
        self._count_rows(requests[0].kind, counts, width * self._dtype.itemsize)
        self.wire.setdefault(requests[0].kind, np.zeros(3, dtype=np.int64))[:] += 1, 1, mine.nbytes
        return [self._on_device(found)] * len(requests)

    # ------------------------------------------------------------------ rounds
    def _exchange(self, says: Sequence[Say], route: Route) -> Callable[[], Array]:
        return self._pass_on(says, route) if says[0].common else self._send_apart(says, route)

    def _send_apart(self, says: Sequence[Say], route: Route) -> Callable[[], Array]:
        """Every edge's message by itself; arrivals are stacked, and padded to the longest."""
        outgoing: list[list[np.ndarray]] = [[] for _ in self.around]
        for rank, block, place in route.leaving.tolist():
            s = says[block]
            assert s.payload is not None
            rows = s.payload.shape[1] if s.lengths is None else int(s.lengths[place])
            outgoing[self._place[rank]].append(to_numpy(s.payload[place, :rows, ...]).ravel())
        rows_of, owner = np.empty(len(route.arriving), dtype=np.int64), np.empty(len(route.arriving), dtype=np.int64)
        for i, (rank, block, place) in enumerate(route.arriving.tolist()):
            s = says[block]
            owner[i], rows_of[i] = self._place[rank], s.shape[0] if s.arriving is None else s.arriving[place]
        width = int(np.prod(says[0].shape[1:]))
        finish = self._swap(
            says[0].kind, outgoing, np.bincount(owner, weights=rows_of * width, minlength=len(self.around))
        )

        def arrived() -> Array:
            received = finish()
            stack = np.zeros((len(rows_of), int(rows_of.max(initial=0)), width), dtype=self._dtype)
            ends = np.cumsum(rows_of * width)
            for i, (rows, end) in enumerate(zip(rows_of.tolist(), ends.tolist(), strict=True)):
                stack[i, :rows] = received[end - rows * width : end].reshape(rows, width)
            return self._on_device(stack.reshape(*stack.shape[:2], *says[0].shape[1:]))

        return once(arrived)

    def _pass_on(self, says: Sequence[Say], route: Route) -> Callable[[], Array]:
        """What all will know goes once to every rank that hears it."""
        outgoing: list[list[np.ndarray]] = [[] for _ in self.around]
        for rank in np.unique(route.leaving[:, 0]).tolist():
            block = route.leaving[route.leaving[:, 0] == rank][0, 1]
            outgoing[self._place[rank]].append(to_numpy(says[block].payload).ravel())
        counts = np.zeros(len(self.around))
        counts[[self._place[rank] for rank in np.unique(route.arriving[:, 0]).tolist()]] = np.prod(says[0].shape)
        finish = self._swap(says[0].kind, outgoing, counts)
        length = int(np.prod(says[0].shape))
        return once(lambda: self._on_device(finish()[:length].reshape(says[0].shape)) if counts.any() else finish())

    def _told(self, tells: Sequence[Tell]) -> tuple[Array, ...]:
        """A node's message goes once to every rank where a neighbor is; how long it is, the number of its samples says."""
        sizes = self.blocks[0].sizes
        for block, told in zip(self.blocks, tells, strict=True):
            if not (told.lengths == block.own_sizes).all():
                raise RuntimeError(f"{told.kind}: a node tells other rows than one for each of its samples")
        width = int(np.prod(tells[0].payload.shape[2:]))
        outgoing = [
            [to_numpy(tells[block].payload[int(row), : int(sizes[j]), ...]).ravel() for j in nodes for block, row in [self._home[j]]]
            for nodes in self._tell_to
        ]  # fmt: skip
        counts = np.array([width * sizes[nodes].sum() for nodes in self._hear_of], dtype=np.int64)
        received = self._swap(tells[0].kind, outgoing, counts)()
        pools = [np.zeros((*shape, width), dtype=self._dtype) for shape in self._pools]
        start = 0
        for node in np.concatenate([np.empty(0, dtype=np.int64), *self._hear_of]):
            pool, row = self._home[node]
            stop = start + int(sizes[node]) * width
            pools[pool - len(self.blocks)][row, : int(sizes[node])] = received[start:stop].reshape(-1, width)
            start = stop
        trailing = tells[0].payload.shape[2:]
        return tuple(self._on_device(pool.reshape(*pool.shape[:2], *trailing)) for pool in pools)

    def _make_pools(self) -> list[tuple[int, int]]:
        """Shapes of the pools for what nodes elsewhere tell: those of about the same size together. Notes their places in `_home`."""
        sizes = self.blocks[0].sizes
        alike: dict[int, list[int]] = {}
        for node in np.concatenate([np.empty(0, dtype=np.int64), *self._hear_of]).tolist():
            alike.setdefault(size_class(int(sizes[node])), []).append(node)
        for pool, nodes in enumerate(alike.values()):
            self._home[nodes] = np.column_stack([np.full(len(nodes), len(self.blocks) + pool), np.arange(len(nodes))])
        return [(len(nodes), int(sizes[nodes].max())) for nodes in alike.values()]

    # ------------------------------------------------------------------ the wire
    def _swap(self, kind: str, outgoing: list[list[np.ndarray]], counts: np.ndarray) -> Callable[[], np.ndarray]:
        """Start to send each neighboring rank its messages; returns a function that waits for what they send, `counts` numbers each."""
        if self._graph is None:
            return lambda: np.empty(0, dtype=self._dtype)
        sent = [sum(len(message) for message in pile) for pile in outgoing]
        out = np.concatenate([np.empty(0, dtype=self._dtype), *(x for pile in outgoing for x in pile)], casting="no")
        into = np.empty(int(counts.sum()), dtype=self._dtype)
        number = MPI.DOUBLE if self._dtype == np.float64 else MPI.FLOAT
        request = self._graph.Ineighbor_alltoallv(
            [out, (sent, _starts(sent)), number], [into, (counts.astype(int).tolist(), _starts(counts)), number]
        )
        self.wire.setdefault(kind, np.zeros(3, dtype=np.int64))[:] += 1, np.count_nonzero(sent), out.nbytes

        def finish() -> np.ndarray:
            self._wait(request)
            return into

        return finish

    def _wait(self, request: Any) -> None:
        request.Wait()

    def _on_device(self, host: np.ndarray) -> Array:
        like = self.blocks[0].samples
        return host if aac.is_numpy_array(like) else aac.array_namespace(like).asarray(host, device=aac.device(like))


def once(function: Callable[[], Array]) -> Callable[[], Array]:
    """Called many times, works the first time."""
    held: list[Array] = []

    def call() -> Array:
        if not held:
            held.append(function())
        return held[0]

    return call


def _starts(counts: Any) -> list[int]:
    return np.concatenate([[0], np.cumsum(counts)[:-1]]).astype(int).tolist() if len(counts) else []


def _dtype(x: Array) -> np.dtype:
    return to_numpy(x[:0, ...]).dtype
