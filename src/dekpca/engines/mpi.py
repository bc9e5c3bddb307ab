"""The MPI engine: every rank hosts some of the nodes; messages between ranks are neighborhood collectives.

Inside a rank messages go as in the local engine (post.py). What crosses goes along the edges of a distributed graph communicator over
the ranks, in typed buffers whose lengths both ends know. Each round of the program is one `Ineighbor_alltoallv`, which every rank starts in the same
order. Network sums, and landmarks that all nodes come to know, are reductions and gathers over all ranks: these trust each other. What ranks settle
before is in company.py.

An exception on one rank ends the job on all: MPI offers no recovery on graph communicators.
"""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import array_api_compat as aac
import numpy as np
from mpi4py import MPI

from ..block import Block, make_blocks, size_class
from ..core.spectrum import to_numpy
from ..messages import Rows, Say, Tell, Total
from ..network import Network, listing
from ..node_model import NodeModel
from ..options import Options
from .company import Company
from .facts import facts, settings_of
from .local import Observer, Outcome, drive
from .post import Post, Route
from .ranks import assign, find_mpiexec

__all__ = ["Company", "Mail", "assign", "find_mpiexec", "fit", "guard", "run"]

Array = Any

LAST_WORDS = 0.5  # seconds between printing an error and ending the job


def fit(
    parts: Sequence[Array],
    nodes: Sequence[Any] | None = None,
    network: Network | int | None = None,
    comm: Any = MPI.COMM_WORLD,
    **params: Any,
) -> list[NodeModel]:
    """Find the components of data that sits on the ranks of `comm`; every one of them must call this.

    No rank ever holds more than its own nodes' samples, their neighbors' and the landmarks.

    Parameters
    ----------
    parts : sequence of arrays (n_j, columns)
        The samples of the nodes that this rank hosts, at least one.
    nodes : sequence of names or numbers, optional
        Whose they are. By default the nodes are numbered from rank to rank: if rank 0 has 3 parts, rank 1 starts with node 3.
    network : Network, int or None
        The same on all ranks. None: a random network, as in `DecentralizedKernelPCA`.
    comm : mpi4py communicator
    **params
        Of `DecentralizedKernelPCA`, the same on all ranks.

    Returns
    -------
    models : list of NodeModel
        Of the nodes of this rank, in the order of `parts`.

    Examples
    --------
    In `mpiexec -n 4 python script.py`, and here with a single rank:

    >>> import numpy as np
    >>> from dekpca import Network
    >>> from dekpca.engines import mpi
    >>> rng = np.random.default_rng(0)
    >>> parts = [rng.normal(size=(30, 4)) for _ in range(6)]
    >>> models = mpi.fit(parts, network=Network.ring(6), n_components=2, gamma=0.1, random_state=0)
    >>> [model.name for model in models]
    ['0', '1', '2', '3', '4', '5']
    """
    from ..estimator import DecentralizedKernelPCA  # it stands above the engines

    company = Company(comm)
    with company.checking():
        model = DecentralizedKernelPCA(network=network, engine="mpi", **params)
    hosted = model._fit_hosted(parts, nodes, company)
    return [model.node_models_[name] for name in hosted]


def run(
    parts: Sequence[Array],
    network: Network,
    options: Options,
    observer: Observer | None = None,
    resume: Any = None,
    nodes: Sequence[int] | None = None,
    comm: Any = MPI.COMM_WORLD,
    overlap: bool = False,
) -> Outcome:
    """Run the program for the nodes that this rank hosts; every rank of `comm` must call this.

    `parts` are the samples of the nodes numbered `nodes` (default: consecutive numbers in rank order). The outcome holds the answers of this
    rank's nodes and what they sent. With `overlap` nodes without neighbors on other ranks are blocks of their own, which compute
    while messages travel; benchmarks/mpi.py measures whether that pays.
    """
    company = Company(comm)
    counts = company.counts(len(parts))
    numbers = counts[: company.rank].sum() + np.arange(len(parts)) if nodes is None else np.asarray(nodes)
    company.agree(facts(network, parts[0].shape[1], _dtype(parts[0]), settings_of(options)))
    with company.checking():
        if not ((numbers >= 0) & (numbers < len(network))).all():
            raise ValueError(
                f"nodes {listing(numbers)} for a network of {len(network)}, numbered from 0; give one part for each node"
            )
    hosts, sizes = company.roster(network, numbers.tolist(), [part.shape[0] for part in parts])
    with guard(comm, f"hosting node {listing(network.names[j] for j in numbers)}"):
        blocks = hosted_blocks(parts, network, numbers, sizes, hosts, overlap)
        post = Mail(blocks, comm, hosts)
        outcome = drive(blocks, options, observer, resume, post)
        post.close()
    return outcome


def hosted_blocks(
    parts: Sequence[Array], network: Network, nodes: Any, sizes: np.ndarray, hosts: np.ndarray, overlap: bool
) -> list[Block]:
    """The blocks of a rank. With `overlap` those that hear nobody on other ranks come apart, and first: nothing holds them up."""
    if not overlap:
        return make_blocks(parts, network, nodes, sizes)
    outside = np.array([(hosts[network.neighbors(j)] != hosts[j]).any() for j in nodes])
    sorts = [np.flatnonzero(outside == side).tolist() for side in (False, True)]
    return [
        block
        for members in sorts
        if len(members)
        for block in make_blocks([parts[i] for i in members], network, nodes[members], sizes)
    ]


@contextmanager
def guard(comm: Any, who: str = "") -> Iterator[None]:
    """An exception inside ends the job on all ranks of `comm`, which would wait forever: it is printed, and mpiexec returns 1.

    On a single rank nobody waits, and it is raised as usual.
    """
    try:
        yield
    except BaseException as error:
        if comm.Get_size() == 1:
            raise
        where = f"rank {comm.Get_rank()}" + (f", {who}" if who else "")
        said = f"dekpca: {where}: {type(error).__name__}: {error}; ending the job on all ranks\n"
        sys.stdout.flush()
        # in one piece: mpiexec passes on what it is given as it finds the time, and lives no longer than the job
        sys.stderr.write(traceback.format_exc() + said)
        sys.stderr.flush()
        time.sleep(LAST_WORDS)
        comm.Abort(1)
        os._exit(1)  # MPICH 5.0 may come back from it when two ranks abort at once


class Mail(Post):
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
        letters: list[list[np.ndarray]] = [[] for _ in self.around]
        for rank, block, place in route.leaving.tolist():
            s = says[block]
            assert s.payload is not None
            rows = s.payload.shape[1] if s.lengths is None else int(s.lengths[place])
            letters[self._place[rank]].append(to_numpy(s.payload[place, :rows, ...]).ravel())
        rows_of, owner = np.empty(len(route.arriving), dtype=np.int64), np.empty(len(route.arriving), dtype=np.int64)
        for i, (rank, block, place) in enumerate(route.arriving.tolist()):
            s = says[block]
            owner[i], rows_of[i] = self._place[rank], s.shape[0] if s.arriving is None else s.arriving[place]
        width = int(np.prod(says[0].shape[1:]))
        finish = self._swap(
            says[0].kind, letters, np.bincount(owner, weights=rows_of * width, minlength=len(self.around))
        )

        def arrived() -> Array:
            received = finish()
            stack = np.zeros((len(rows_of), int(rows_of.max(initial=0)), width), dtype=self._dtype)
            ends = np.cumsum(rows_of * width)
            for i, (rows, end) in enumerate(zip(rows_of.tolist(), ends.tolist(), strict=True)):
                stack[i, :rows] = received[end - rows * width : end].reshape(rows, width)
            return self._on_device(stack.reshape(*stack.shape[:2], *says[0].shape[1:]))

        return _once(arrived)

    def _pass_on(self, says: Sequence[Say], route: Route) -> Callable[[], Array]:
        """What all will know goes once to every rank that hears it."""
        letters: list[list[np.ndarray]] = [[] for _ in self.around]
        for rank in np.unique(route.leaving[:, 0]).tolist():
            block = route.leaving[route.leaving[:, 0] == rank][0, 1]
            letters[self._place[rank]].append(to_numpy(says[block].payload).ravel())
        counts = np.zeros(len(self.around))
        counts[[self._place[rank] for rank in np.unique(route.arriving[:, 0]).tolist()]] = np.prod(says[0].shape)
        finish = self._swap(says[0].kind, letters, counts)
        length = int(np.prod(says[0].shape))
        return _once(lambda: self._on_device(finish()[:length].reshape(says[0].shape)) if counts.any() else finish())

    def _told(self, tells: Sequence[Tell]) -> tuple[Array, ...]:
        """A node's message goes once to every rank where a neighbor is; how long it is, the number of its samples says."""
        sizes = self.blocks[0].sizes
        for block, told in zip(self.blocks, tells, strict=True):
            if not (told.lengths == block.own_sizes).all():
                raise RuntimeError(f"{told.kind}: a node tells other rows than one for each of its samples")
        width = int(np.prod(tells[0].payload.shape[2:]))
        letters = [
            [to_numpy(tells[block].payload[int(row), : int(sizes[j]), ...]).ravel() for j in nodes for block, row in [self._home[j]]]
            for nodes in self._tell_to
        ]  # fmt: skip
        counts = np.array([width * sizes[nodes].sum() for nodes in self._hear_of], dtype=np.int64)
        received = self._swap(tells[0].kind, letters, counts)()
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
    def _swap(self, kind: str, letters: list[list[np.ndarray]], counts: np.ndarray) -> Callable[[], np.ndarray]:
        """Start to send each neighboring rank its letters; returns a function that waits for what they send, `counts` numbers each."""
        if self._graph is None:
            return lambda: np.empty(0, dtype=self._dtype)
        sent = [sum(len(letter) for letter in pile) for pile in letters]
        out = np.concatenate([np.empty(0, dtype=self._dtype), *(x for pile in letters for x in pile)], casting="no")
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


def _once(function: Callable[[], Array]) -> Callable[[], Array]:
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
