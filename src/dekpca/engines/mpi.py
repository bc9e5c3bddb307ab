"""The MPI engine: every rank hosts some of the nodes. Sums are reductions over all ranks; other messages go from rank to rank.

rank_agreement.py has the checks before the first message. An exception on one rank ends the job on all: MPI has no recovery.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
import traceback
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any, NoReturn

import numpy as np
from mpi4py import MPI

from ..arrays import to_numpy
from ..data.checks import check_parts
from ..data.columns import split_off
from ..data.owners import deal_more, list_parts, make_network, named_network, node_numbers
from ..messages import Exchange, Sum
from ..network import Network, listing
from ..node_model import NodeModel
from ..parameters import Parameters, check, refuse, seed_of, settings_of
from ..plan import Outcome, Plan, Watch, make_plan
from ..program import program
from ..results import run_plan
from ..settings import Settings
from ..site import Dealt, RowNumbers, Site
from ..solvers.sums import Basis, Stream
from . import local
from .agreement import facts, flattened
from .local import Before, Delivery, arranged, began_with, drive
from .rank_agreement import Ranks
from .ranks import assign, find_mpiexec

__all__ = ["Ranks", "assign", "find_mpiexec", "fit", "guard", "plan_parts", "run"]

Array = Any

WORLD = MPI.COMM_WORLD
CANNOT = dict.fromkeys(("memory_limit", "device"), "limits and devices are for engine='local'; leave it at None")
CANNOT["privacy"] = (
    "ranks of one owner have no need of it; use engine='local', which simulates it, or `dekpca node run`"
)
PRINT_TIME = 0.5  # seconds between printing an error and ending the job


def fit(
    parts: Sequence[Array],
    nodes: Sequence[Any] | None = None,
    network: Network | int | None = None,
    comm: Any = MPI.COMM_WORLD,
    **params: Any,
) -> list[NodeModel]:
    """Find the components of data on the ranks of `comm`; every rank must call this.

    A rank holds only its own nodes' samples, their neighbors' and the landmarks.

    Parameters
    ----------
    parts : sequence of arrays (n_j, columns)
        The samples of the nodes that this rank hosts, at least one.
    nodes : sequence of names or numbers, optional
        The nodes of the parts. By default nodes are numbered in rank order: if rank 0 has 3 parts, rank 1 starts with node 3.
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
    with Ranks(comm).checking():
        parameters = Parameters(network=network, engine="mpi", **params)
    plan = plan_parts(parameters, parts, nodes, comm)
    result = run_plan(plan, lambda plan, watch: run(plan, watch, comm), parameters)
    for warning in result.warnings():
        warnings.warn(warning, stacklevel=2)
    return [result.node_models[plan.network.names[j]] for j in plan.nodes]


def plan_parts(parameters: Parameters, parts: Any, nodes: Sequence[Any] | None = None, comm: Any = WORLD) -> Plan:
    """The plan of a rank with the samples of its own nodes, after all ranks agree; `nodes` as in `fit`, or the keys of `parts`."""
    ranks = Ranks(comm)
    if isinstance(parts, Mapping):
        nodes, parts = list(parts), list(parts.values())
    with ranks.checking():
        check(parameters)
        refuse(parameters, "engine='mpi'", CANNOT)
        parts, seed = list(list_parts(parts)), seed_of(parameters)
    counts, common_seed = ranks.counts(len(parts)), ranks.from_first(seed)
    if not isinstance(parameters.random_state, Integral):
        seed = common_seed
    with ranks.checking():
        if nodes is not None and not isinstance(parameters.network, Network):
            raise ValueError("engine='mpi' with named nodes needs network=, the same Network on all ranks")
        network = make_network(parameters.network, int(counts.sum()), seed)
        if len(network) != counts.sum():
            what = f"{counts.sum()} parts on {len(counts)} ranks for a network of {len(network)} nodes"
            raise ValueError(f"{what}; give one part for each node")
        first = int(counts[: ranks.rank].sum())
        numbers = list(range(first, first + len(parts))) if nodes is None else node_numbers(nodes, network)
        if len(numbers) != len(parts):
            raise ValueError(f"{len(parts)} parts, but {len(numbers)} nodes named for them; give each part its node")
        names = [network.names[j] for j in numbers]
        features, checked = check_parts(parts, names, parameters.dtype, parameters.missing)
        settings = settings_of(parameters, features, seed)
    ranks.agree_on_columns(features.sorted_names)
    ranks.agree(facts(network, features.count, checked[0].dtype, flattened(settings)))
    _, sizes = ranks.hosts(network, numbers, [part.shape[0] for part in checked])
    return make_plan(parameters, settings, network, checked, features, numbers, sizes)


def run(plan: Plan, watch: Watch | None = None, comm: Any = MPI.COMM_WORLD, script: Any = program) -> Outcome:
    """Run the program (`script` as of `local.drive`) for the nodes that this rank hosts; every rank of `comm` must call this.

    The outcome holds the answers of this rank's nodes and what they sent.
    """
    ranks, network, numbers = Ranks(comm), plan.network, plan.nodes
    ranks.agree(facts(network, plan.features.count, to_numpy(plan.parts[0][:0, ...]).dtype, flattened(plan.options)))
    with ranks.checking():
        if not ((numbers >= 0) & (numbers < len(network))).all():
            what = f"nodes {listing(numbers)} for a network of {len(network)}, numbered from 0"
            raise ValueError(f"{what}; give one part for each node")
    hosts, _ = ranks.hosts(network, numbers.tolist(), plan.sizes[numbers])
    with guard(comm, f"hosting node {listing(network.names[j] for j in numbers)}"):
        sites = plan.sites()
        return drive(sites, plan.options, RankDelivery(sites, comm, hosts), watch, script)


# ---------------------------------------------------------------------- rows that keep coming
def together() -> AbstractContextManager[None]:
    """Checks on all ranks: what one refuses, all refuse."""
    return Ranks(WORLD).checking()


def new_rows(given: Parameters, X: Any, nodes: Any, before: Before | None, what: str) -> NewRows:
    """As `local.new_rows`, of the rows that this rank gives, possibly none; every rank must call this.

    Without `nodes` the nodes are dealt to the ranks in order, one to each by default. With them a node belongs to the rank that gives rows of it
    first.
    """
    ranks = Ranks(WORLD)
    first, labelled = "the first rows" if before is None else "more rows", "given" if nodes is not None else "None"
    ranks.agree({"call": f"{what} of {first}", "nodes": labelled})
    with ranks.checking():
        seed, wanted, ever = began_with(given, before, what)
        named = nodes is not None and not isinstance(wanted, Network)
        labels = split_off(X, nodes, f"nodes={nodes!r}")[0] if isinstance(nodes, str) else nodes
        names = sorted({str(label) for label in np.asarray(labels).ravel().tolist()}) if named else []
    common = ranks.from_first(seed)
    seed = seed if isinstance(given.random_state, Integral) else common
    said = ranks.texts(json.dumps(names))
    with ranks.checking():
        if named:
            wanted = named_network(wanted, sorted({name for text in said for name in json.loads(text)}), seed)
        network = make_network(wanted, ranks.size, seed)
        own = assign(network, ranks.size)[ranks.rank] if nodes is None else []
        more = deal_more(X, nodes, network, seed, int(ever.sum()), given.dtype, given.missing, own)
        more = arranged(more, given, before)
        settings = settings_of(given, more.features, seed)
    if before is None:
        ranks.agree_on_columns(more.features.sorted_names)
        ranks.agree(facts(network, more.features.count, more.X.dtype, flattened(settings)))
    rows = np.bincount(more.node, minlength=len(network))
    hosts = ranks.claims(network, rows + (ever if len(ever) else 0) > 0)
    hosted = np.flatnonzero(hosts == ranks.rank)
    return NewRows(**vars(more), seed=seed, ranks=ranks, hosted=hosted, everywhere=ranks.total(rows))


@dataclass(frozen=True, eq=False)
class NewRows(local.NewRows):
    """All ranks call each method. They compute an answer at the end of each call: if it were computed when it is asked for, a rank that asks alone
    would wait forever."""

    ranks: Ranks
    hosted: np.ndarray  # numbers of the nodes of this rank
    everywhere: np.ndarray  # (nodes,) how many rows each node is given
    lazy = False

    def run(self, plan: Plan, watch: Watch | None = None, script: Any = program) -> Outcome:
        return run(plan, watch, WORLD, script)

    def plan(self, given: Parameters, settings: Settings, basis: Basis | None = None) -> Plan:
        if not self.everywhere.sum():
            raise ValueError("X: no rank has a row; give one of them rows")
        X = self.X if basis is None else basis.prepared(self.X)
        node = np.searchsorted(self.hosted, self.node)  # among the nodes of this rank
        parts = Dealt(X, RowNumbers.of(node, np.ones_like(node), len(self.hosted)))
        return make_plan(given, settings, self.network, parts, self.features, self.hosted.tolist(), self.everywhere)

    def sizes(self, stream: Stream) -> np.ndarray:
        return self.ranks.total(stream.sizes)

    def answering(self, plan: Plan, stream: Stream) -> Plan:
        """The plan of an answer from the sums of all ranks. The landmarks stand for the rows, which are in the sums."""
        points = stream.basis.marks.points
        parts = [points, *(points[:0, :] for _ in self.hosted[1:])]
        return replace(plan, sizes=self.sizes(stream), parts=parts, nodes=self.hosted)

    def rows_of_all(self, count: int) -> int:
        return int(self.ranks.total(np.array([count]))[0])

    @contextmanager
    def _working(self) -> Iterator[None]:
        with self.ranks.checking(), super()._working():
            yield


# ---------------------------------------------------------------------- messages
class RankDelivery(Delivery):
    """Delivers between the nodes of a rank and those of other ranks; `hosts` is the rank of each node."""

    def __init__(self, sites: Sequence[Site], comm: Any, hosts: np.ndarray):
        super().__init__(sites)
        self.comm, self.hosts, self.here = comm, hosts.tolist(), comm.Get_rank()
        self.root = int(hosts[self.network.root])
        self.rounds = 0

    def total(self, requests: Sequence[Sum]) -> np.ndarray:
        mine = np.ascontiguousarray(super().total(requests))
        total = np.empty_like(mine)
        if len(mine):
            self.comm.Reduce(mine, total if self.here == self.root else None, root=self.root)
        return total

    def conclude(self, requests: Sequence[Sum], total: np.ndarray) -> np.ndarray:
        told = np.empty(requests[0].size, dtype=requests[0].dtype)
        if self.here == self.root:
            told = np.ascontiguousarray(super().conclude(requests, total))
        self.comm.Bcast(told, root=self.root)
        return told

    def exchange(self, requests: Sequence[Exchange]) -> dict[tuple[int, int], np.ndarray]:
        """One message between two ranks, with what their nodes send each other in the order of the edges."""
        dtype, sent = requests[0].dtype, self.sent(requests)
        expected = {edge: shape for request in requests for edge, shape in request.expected.items()}
        self.rounds += 1
        arrived = {edge: message for edge, message in sent.items() if self.hosts[edge[1]] == self.here}
        leaving: dict[int, list[np.ndarray]] = {}
        coming: dict[int, list[tuple[int, int]]] = {}
        for edge in sorted(sent.keys() - arrived.keys()):
            leaving.setdefault(self.hosts[edge[1]], []).append(sent[edge].ravel())
        for edge in sorted(expected.keys() - arrived.keys()):
            coming.setdefault(self.hosts[edge[0]], []).append(edge)
        tag, size = self.rounds % 2**14, {edge: math.prod(shape) for edge, shape in expected.items()}
        out = {rank: np.concatenate(messages).astype(dtype, copy=False) for rank, messages in leaving.items()}
        into = {rank: np.empty(sum(size[edge] for edge in edges), dtype) for rank, edges in coming.items()}
        waiting = [self.comm.Irecv(buffer, rank, tag) for rank, buffer in into.items()]
        waiting += [self.comm.Isend(buffer, rank, tag) for rank, buffer in out.items()]
        MPI.Request.Waitall(waiting)
        for rank, edges in coming.items():
            pieces = np.split(into[rank], np.cumsum([size[edge] for edge in edges])[:-1])
            arrived |= {edge: piece.reshape(expected[edge]) for edge, piece in zip(edges, pieces, strict=True)}
        return arrived


@contextmanager
def guard(comm: Any, who: str = "") -> Iterator[None]:
    """An exception inside is printed and ends the job on all ranks of `comm`, which would otherwise wait forever; mpiexec returns 1.

    On a single rank it is raised as usual.
    """
    try:
        yield
    except BaseException as error:
        if comm.Get_size() == 1:
            raise
        where = f"rank {comm.Get_rank()}" + (f", {who}" if who else "")
        said = f"dekpca: {where}: {type(error).__name__}: {error}; ending the job on all ranks\n"
        sys.stdout.flush()
        # one write: mpiexec forwards output when it can, and exits with the job
        sys.stderr.write(traceback.format_exc() + said)
        sys.stderr.flush()
        time.sleep(PRINT_TIME)
        end(comm)


def end(comm: Any) -> NoReturn:
    """End the job on all ranks."""
    comm.Abort(1)
    os._exit(1)  # MPICH 5.0 may return from Abort when two ranks abort at once
