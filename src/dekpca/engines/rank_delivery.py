"""Delivery between MPI ranks, along the edges of a distributed graph communicator over the ranks that host neighbors.

Inside a rank messages are delivered as in the local engine (delivery.py). Messages between ranks are in typed
buffers whose lengths both ends know. Each round of the program is one `Ineighbor_alltoallv`, which every rank starts
in the same order. Network sums and landmarks are reductions and gathers over all ranks, which trust each other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import array_api_compat as aac
import numpy as np
from mpi4py import MPI

from ..block import Block, size_class
from ..core.spectrum import to_numpy
from ..messages import NeighborBroadcast, Send
from .delivery import CollectiveDelivery, Route

Array = Any


class RankDelivery(CollectiveDelivery):
    """Delivers between the blocks of a rank and, along the edges of the network, those of other ranks.

    A message to one node of another rank is sent separately. A `NeighborBroadcast` is sent once to each rank that
    hosts a neighbor. `traffic` counts per edge, as on every engine; `wire` counts what left this rank, by phase:
    rounds, nonempty messages, and bytes.
    """

    def __init__(self, blocks: Sequence[Block], comm: Any, hosts: np.ndarray):
        super().__init__(blocks, hosts, comm.Get_rank())
        self._comm = comm
        self.wire: dict[str, np.ndarray] = {}
        self._dtype = _dtype(blocks[0].samples)
        ends = self.network.directed_edges
        crossing = ends[(hosts[ends[:, 0]] == self.here) & (hosts[ends[:, 1]] != self.here)]
        self.around = np.unique(hosts[crossing[:, 1]])  # neighboring ranks
        self._place = {int(rank): i for i, rank in enumerate(self.around)}
        # a rank without neighbors is the only one, since the network is connected. Empty lists have crashed MPIs.
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

    # ------------------------------------------------------------------ reductions, gathers and broadcasts over all ranks
    @property
    def _root(self) -> int:
        """The rank that hosts the root of the tree."""
        return int(self.hosts[self.network.root])

    def _at_root(self, kind: str, value: Array) -> Array:
        mine = np.ascontiguousarray(to_numpy(value))
        total = np.empty_like(mine)
        self._comm.Reduce(mine, total if self.here == self._root else None, root=self._root)
        self._count_wire(kind, 1, mine.nbytes)
        return total if isinstance(value, np.ndarray) else self._on_device(total)

    def _from_root(self, make: Callable[[], Array], shape: tuple[int, ...], dtype: Any = None) -> Array:
        result = np.empty(shape, dtype=self._dtype if dtype is None else dtype)
        if self.here == self._root:
            result = np.ascontiguousarray(to_numpy(make()))
        self._comm.Bcast(result, root=self._root)
        return self._on_device(result) if dtype is None else result

    def _from_all(self, kind: str, rows: Array, owners: np.ndarray, counts: np.ndarray) -> tuple[Array, np.ndarray]:
        mine, width = np.ascontiguousarray(to_numpy(rows).astype(self._dtype, copy=False)), rows.shape[1]
        sizes = np.array([counts[self.hosts == rank].sum() for rank in range(self._comm.Get_size())])
        everything = np.empty((int(counts.sum()), width), dtype=self._dtype)
        owner_of = np.empty(int(counts.sum()), dtype=np.int64)
        self._comm.Allgatherv(mine, [everything, sizes * width])
        self._comm.Allgatherv(owners.astype(np.int64), [owner_of, sizes])
        self._count_wire(kind, 1, mine.nbytes)
        return self._on_device(everything), owner_of

    # ------------------------------------------------------------------ rounds
    def _cross(self, sends: Sequence[Send], route: Route) -> Callable[[], Array]:
        """One message per edge; received ones are stacked, and padded to the longest."""
        outgoing: list[list[np.ndarray]] = [[] for _ in self.around]
        for rank, block, place in route.leaving.tolist():
            s = sends[block]
            outgoing[self._place[rank]].append(to_numpy(s.payload[place, : int(s.lengths[place]), ...]).ravel())
        rows_of, owner = np.empty(len(route.arriving), dtype=np.int64), np.empty(len(route.arriving), dtype=np.int64)
        for i, (rank, block, place) in enumerate(route.arriving.tolist()):
            owner[i], rows_of[i] = self._place[rank], sends[block].arriving[place]
        trailing = sends[0].payload.shape[2:]
        width = int(np.prod(trailing))
        counts = np.bincount(owner, weights=rows_of * width, minlength=len(self.around))
        finish = self._swap(sends[0].kind, outgoing, counts)

        def arrived() -> Array:
            received = finish()
            stack = np.zeros((len(rows_of), int(rows_of.max(initial=0)), width), dtype=self._dtype)
            ends = np.cumsum(rows_of * width)
            for i, (rows, end) in enumerate(zip(rows_of.tolist(), ends.tolist(), strict=True)):
                stack[i, :rows] = received[end - rows * width : end].reshape(rows, width)
            return self._on_device(stack.reshape(*stack.shape[:2], *trailing))

        return cache(arrived)

    def _cross_broadcast(self, requests: Sequence[NeighborBroadcast]) -> tuple[Array, ...]:
        """Send a node's rows once to every rank that hosts a neighbor."""
        sizes, trailing = self.blocks[0].sizes, requests[0].rows.shape[2:]
        width = int(np.prod(trailing))
        outgoing = [
            [to_numpy(requests[block].rows[int(row), : int(sizes[j]), ...]).ravel() for j in nodes for block, row in [self._home[j]]]
            for nodes in self._tell_to
        ]  # fmt: skip
        counts = np.array([width * sizes[nodes].sum() for nodes in self._hear_of], dtype=np.int64)
        received = self._swap(requests[0].kind, outgoing, counts)()
        pools = [np.zeros((*shape, width), dtype=self._dtype) for shape in self._pools]
        start = 0
        for node in np.concatenate([np.empty(0, dtype=np.int64), *self._hear_of]):
            pool, row = self._home[node]
            stop = start + int(sizes[node]) * width
            pools[pool - len(self.blocks)][row, : int(sizes[node])] = received[start:stop].reshape(-1, width)
            start = stop
        return tuple(self._on_device(pool.reshape(*pool.shape[:2], *trailing)) for pool in pools)

    def _make_pools(self) -> list[tuple[int, int]]:
        """Shapes of the pools for rows of nodes on other ranks, grouped by size. Records their places in `_home`."""
        sizes = self.blocks[0].sizes
        by_class: dict[int, list[int]] = {}
        for node in np.concatenate([np.empty(0, dtype=np.int64), *self._hear_of]).tolist():
            by_class.setdefault(size_class(int(sizes[node])), []).append(node)
        for pool, nodes in enumerate(by_class.values()):
            self._home[nodes] = np.column_stack([np.full(len(nodes), len(self.blocks) + pool), np.arange(len(nodes))])
        return [(len(nodes), int(sizes[nodes].max())) for nodes in by_class.values()]

    # ------------------------------------------------------------------ the wire
    def _swap(self, kind: str, outgoing: list[list[np.ndarray]], counts: np.ndarray) -> Callable[[], np.ndarray]:
        """Start to send each neighboring rank its messages; returns a function that waits for theirs, `counts` numbers each."""
        if self._graph is None:
            return lambda: np.empty(0, dtype=self._dtype)
        sent = [sum(len(message) for message in pile) for pile in outgoing]
        out = np.concatenate([np.empty(0, dtype=self._dtype), *(x for pile in outgoing for x in pile)], casting="no")
        into = np.empty(int(counts.sum()), dtype=self._dtype)
        number = MPI.DOUBLE if self._dtype == np.float64 else MPI.FLOAT
        request = self._graph.Ineighbor_alltoallv(
            [out, (sent, _starts(sent)), number], [into, (counts.astype(int).tolist(), _starts(counts)), number]
        )
        self._count_wire(kind, sum(map(bool, sent)), out.nbytes)

        def finish() -> np.ndarray:
            request.Wait()
            return into

        return finish

    def _count_wire(self, kind: str, messages: int, size: int) -> None:
        self.wire.setdefault(kind, np.zeros(3, dtype=np.int64))[:] += 1, messages, size

    def _on_device(self, host: np.ndarray) -> Array:
        like = self.blocks[0].samples
        return host if aac.is_numpy_array(like) else aac.array_namespace(like).asarray(host, device=aac.device(like))


def _starts(counts: Any) -> list[int]:
    return np.concatenate([[0], np.cumsum(counts)[:-1]]).astype(int).tolist() if len(counts) else []


def _dtype(x: Array) -> np.dtype:
    return to_numpy(x[:0, ...]).dtype
