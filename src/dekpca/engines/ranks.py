"""Ranks without MPI: the assignment of nodes to ranks, and the path of mpiexec.

Importing mpi4py starts MPI, and a process that starts `mpiexec` must not do so. Nothing here imports it.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import networkx as nx
import numpy as np
from scipy.sparse.csgraph import reverse_cuthill_mckee

from ..network import Network


def assign(network: Network, n_ranks: int) -> list[list[int]]:
    """Node numbers for each rank: the same number (within one), with few edges between ranks.

    The nodes are ordered by number, by name and by bandwidth (reverse Cuthill-McKee). Each order is cut into equal
    pieces and improved by recursive Kernighan-Lin bisection; the best partition is taken. Nothing depends on
    rounding (the Fiedler vector would), so that every rank computes the same.

    Parameters
    ----------
    network : Network
    n_ranks : int
        At most the number of nodes.

    Examples
    --------
    >>> from dekpca import Network
    >>> from dekpca.engines.ranks import assign
    >>> assign(Network.path(5), 2)
    [[0, 1, 2], [3, 4]]
    """
    if not 1 <= n_ranks <= len(network):
        raise ValueError(
            f"{n_ranks} ranks for {len(network)} nodes: a rank hosts at least one node; use 1 to {len(network)} ranks"
        )
    best = min(_proposals(network, n_ranks), key=lambda proposal: crossing(network, proposal))
    return [sorted(nodes) for nodes in best]


def crossing(network: Network, hosted: Sequence[Sequence[int]]) -> int:
    """The number of edges between nodes of different ranks."""
    host = np.empty(len(network), dtype=np.int64)
    for rank, nodes in enumerate(hosted):
        host[list(nodes)] = rank
    ends = host[network.directed_edges]
    return int((ends[:, 0] != ends[:, 1]).sum()) // 2


def _proposals(network: Network, n_ranks: int) -> Iterator[list[list[int]]]:
    graph = nx.from_edgelist(network.directed_edges.tolist())
    graph.add_nodes_from(range(len(network)))
    narrow = reverse_cuthill_mckee(
        nx.to_scipy_sparse_array(graph, range(len(network)), format="csr"), symmetric_mode=True
    )
    lines = [list(range(len(network))), network.by_name.tolist(), narrow.tolist()]
    for line in lines:
        yield [piece.tolist() for piece in np.array_split(np.array(line), n_ranks)]
        yield _bisected(graph, line, n_ranks)


def _bisected(graph: nx.Graph, line: list[int], n_ranks: int) -> list[list[int]]:
    """Cut in two, in proportion to the ranks on each side; swap nodes while that saves edges; recurse into the halves."""
    if n_ranks == 1:
        return [line]
    left = n_ranks // 2 + n_ranks % 2
    sizes = [len(piece) for piece in np.array_split(np.array(line), n_ranks)]
    cut = sum(sizes[:left])
    start = set(line[:cut]), set(line[cut:])
    # it returns the part grown from the second set first
    _, grown = nx.algorithms.community.kernighan_lin_bisection(graph.subgraph(line), start, seed=0)
    first, second = [j for j in line if j in grown], [j for j in line if j not in grown]
    return _bisected(graph, first, left) + _bisected(graph, second, n_ranks - left)


def find_mpiexec() -> Path:
    """The `mpiexec` of this environment (next to its Python, where the wheels put it), else the first on PATH."""
    beside = os.path.dirname(sys.executable)
    found = shutil.which("mpiexec", path=beside) or shutil.which("mpiexec")
    if found is None:
        raise FileNotFoundError(
            f"no mpiexec beside {sys.executable} nor on PATH; pip install 'dekpca[mpi]' brings one, and so does a cluster's MPI module"
        )
    return Path(found)
