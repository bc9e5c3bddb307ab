"""Ranks without MPI: the assignment of nodes to ranks, and the path of mpiexec.

Importing mpi4py starts MPI, and a process that starts `mpiexec` must not do so. Nothing here imports it.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import numpy as np

from ..network import Network


def assign(network: Network, n_ranks: int) -> list[list[int]]:
    """Node numbers for each rank: consecutive ones, the same number within one.

    Examples
    --------
    >>> from dekpca import Network
    >>> from dekpca.engines.ranks import assign
    >>> assign(Network.path(5), 2)
    [[0, 1, 2], [3, 4]]
    """
    if not 1 <= n_ranks <= len(network):
        remedy = f"a rank hosts at least one node; use 1 to {len(network)} ranks"
        raise ValueError(f"{n_ranks} ranks for {len(network)} nodes: {remedy}")
    return [piece.tolist() for piece in np.array_split(np.arange(len(network)), n_ranks)]


def find_mpiexec() -> Path:
    """The `mpiexec` of this environment (next to its Python, where the wheels put it), else the first on PATH."""
    beside = os.path.dirname(sys.executable)
    found = shutil.which("mpiexec", path=beside) or shutil.which("mpiexec")
    if found is None:
        remedy = "pip install 'dekpca[mpi]' brings one, and so does a cluster's MPI module"
        raise FileNotFoundError(f"no mpiexec beside {sys.executable} nor on PATH; {remedy}")
    return Path(found)
