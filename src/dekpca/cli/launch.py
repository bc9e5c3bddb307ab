"""`dekpca launch`: start a command on several ranks with the mpiexec of this environment."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Annotated

import typer

from ..engines.ranks import find_mpiexec
from .common import verb


@verb
def launch(
    command: Annotated[list[str], typer.Argument(help="A dekpca command and its options.")],
    ranks: Annotated[int, typer.Option("--ranks", "-n", min=1, help="How many ranks.")] = 2,
) -> None:
    """Run a dekpca command on several MPI ranks of this machine; on a cluster use its own launcher (docs/howto/clusters.md).

    One BLAS thread per rank unless OMP_NUM_THREADS is set.

    Examples:

      dekpca launch -n 4 fit "parts/node-*.npz" --network ring:20:4

      dekpca launch -n 2 fit rows.npy --nodes 40
    """
    if command[0] != "fit":
        remedy = f"write dekpca launch -n {ranks} fit FILES, and its options behind"
        raise ValueError(f"launch {command[0]}: only fit runs on ranks; {remedy}")
    misplaced = next((word for word in command if word == "-n" or word.split("=")[0] == "--ranks"), None)
    if misplaced is not None:
        raise ValueError(f"{misplaced} behind fit: the number of ranks goes before it: dekpca launch -n 4 fit FILES")
    mine = [] if any(word.split("=")[0] == "--engine" for word in command) else ["--engine", "mpi"]
    environment = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"} | os.environ
    started = [str(find_mpiexec()), "-n", str(ranks), sys.executable, "-m", "dekpca.cli", *command, *mine]
    raise typer.Exit(subprocess.run(started, env=environment, check=False).returncode)
