"""The MPI engine: every rank hosts some of the nodes; messages between ranks are neighborhood collectives (rank_delivery.py).

rank_agreement.py has the checks before the first message. An exception on one rank ends the job on all: MPI has no recovery on graph communicators.
"""

from __future__ import annotations

import os
import sys
import time
import traceback
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from numbers import Integral
from typing import Any, NoReturn

import numpy as np
from mpi4py import MPI

from ..core.spectrum import to_numpy
from ..deal import make_network, node_numbers
from ..network import Network, listing
from ..node_model import NodeModel
from ..parameters import Parameters
from ..plan import Observer, Outcome, Plan, check_parts, make_plan, refuse_one_array, with_checkpoint
from ..results import run_plan
from .agreement import facts, settings_of
from .checkpoints import Together, keeping
from .local import drive
from .rank_agreement import Ranks
from .rank_delivery import RankDelivery
from .rank_watch import watching
from .ranks import assign, find_mpiexec

__all__ = ["Ranks", "assign", "find_mpiexec", "fit", "guard", "plan_parts", "run"]

Array = Any

PRINT_TIME = 0.5  # seconds between printing an error and ending the job


def fit(
    parts: Sequence[Array],
    nodes: Sequence[Any] | None = None,
    network: Network | int | None = None,
    comm: Any = MPI.COMM_WORLD,
    checkpoint: str | os.PathLike[str] | None = None,
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
    checkpoint : path, optional
        As in `DecentralizedKernelPCA.fit`, the same on all ranks.
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
    with Ranks(comm).checking():
        plan = with_checkpoint(plan, parameters, checkpoint)
    result = run_plan(plan, lambda plan, observer: run(plan, observer, comm), parameters)
    for warning in result.warnings():
        warnings.warn(warning, stacklevel=2)
    return [result.node_models[plan.network.names[j]] for j in plan.nodes]


def plan_parts(
    parameters: Parameters,
    parts: Sequence[Array] | Mapping[Any, Array],
    nodes: Sequence[Any] | None = None,
    comm: Any = MPI.COMM_WORLD,
) -> Plan:
    """The plan of a rank with the samples of its own nodes, after all ranks agree; `nodes` as in `fit`, or the keys of `parts`."""
    ranks = Ranks(comm)
    if isinstance(parts, Mapping):
        nodes, parts = list(parts), list(parts.values())
    with ranks.checking():
        parameters.check()
        refuse_one_array(parts)
        parts, seed = list(parts), parameters.seed()
    counts, common_seed = ranks.counts(len(parts)), ranks.from_first(seed)
    if not isinstance(parameters.random_state, Integral):
        seed = common_seed
    with ranks.checking():
        if nodes is not None and not isinstance(parameters.network, Network):
            raise ValueError("engine='mpi' with named nodes needs network=, the same Network on all ranks")
        network = make_network(parameters.network, int(counts.sum()), seed)
        if len(network) != counts.sum():
            raise ValueError(
                f"{counts.sum()} parts on {len(counts)} ranks for a network of {len(network)} nodes; give one part for each node"
            )
        first = int(counts[: ranks.rank].sum())
        numbers = list(range(first, first + len(parts))) if nodes is None else node_numbers(nodes, network)
        if len(numbers) != len(parts):
            raise ValueError(f"{len(parts)} parts, but {len(numbers)} nodes named for them; give each part its node")
        features, checked = check_parts(parameters, parts, [network.names[j] for j in numbers])
        settings = parameters.settings(features, seed)
    ranks.agree_on_columns(features.sorted_names)
    common = settings_of(settings) | {"expansion": parameters.expansion}
    ranks.agree(facts(network, features.count, checked[0].dtype, common))
    _, sizes = ranks.hosts(network, numbers, [part.shape[0] for part in checked])
    return make_plan(parameters, settings, network, checked, features, numbers, sizes)


def run(plan: Plan, observer: Observer | None = None, comm: Any = MPI.COMM_WORLD) -> Outcome:
    """Run the program for the nodes that this rank hosts; every rank of `comm` must call this.

    The outcome holds the answers of this rank's nodes and what they sent.
    """
    ranks, network, numbers = Ranks(comm), plan.network, plan.nodes
    ranks.agree(facts(network, plan.features.count, to_numpy(plan.parts[0][:0, ...]).dtype, settings_of(plan.options)))
    with ranks.checking():
        if not ((numbers >= 0) & (numbers < len(network))).all():
            raise ValueError(
                f"nodes {listing(numbers)} for a network of {len(network)}, numbered from 0; give one part for each node"
            )
    hosts, _ = ranks.hosts(network, numbers.tolist(), plan.sizes[numbers])
    nodes = [f"node {listing(network.names[j] for j in np.flatnonzero(hosts == rank))}" for rank in range(ranks.size)]
    together = Together(ranks.rank, ranks.size, ranks.checking, ranks.texts, ranks.from_first)
    with (
        keeping(plan, observer, together) as begin,
        guard(comm, f"hosting {nodes[ranks.rank]}"),
        watching(ranks, nodes, lambda: end(comm)),
    ):
        blocks = plan.blocks()
        delivery = RankDelivery(blocks, comm, hosts)
        outcome = drive(blocks, plan.options, *begin(delivery), delivery)
        delivery.close()
    return outcome


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
