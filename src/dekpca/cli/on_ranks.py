"""`dekpca fit --engine mpi`: every rank reads only its own nodes' files, or its own rows of one memory-mapped .npy file."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import typer

from .. import engines
from ..data import Data, Roles, read, remembered
from ..deal import deal_rows, named_network, renamed
from ..engines.ranks import assign
from ..estimator import DecentralizedKernelPCA
from ..network import Network
from .common import USAGE, parse_network


def by_node(paths: list[Path]) -> dict[str, Path]:
    """Files by the node that they are named after."""
    names = [path.stem for path in paths]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise ValueError(f"two files for node {sorted(twice)[0]}; a file is named after its node: rename one")
    return dict(zip(names, paths, strict=True))


def over_names(network: Network, names: list[str]) -> Network:
    """A topology of numbers, such as ring:20 makes, over as many names; one that has names keeps them."""
    if len(network) != len(names) or network.names != tuple(map(str, range(len(names)))):
        return network
    return renamed(network, names)


def fit(
    model: DecentralizedKernelPCA, paths: list[Path], nodes: int | None, roles: Roles, missing: Any, network: str | None, seed: int,
    checkpoint: Path | None,
) -> tuple[dict[str, Any], bool, dict[str, Any]]:  # fmt: skip
    """Fit the nodes of this rank; returns what the summary needs of all ranks, whether this rank is to tell it, and what models remember."""
    ranks = engines.module("mpi").Ranks()
    start = time.perf_counter()
    try:
        with ranks.checking():
            net, parts = _own(paths, nodes, roles, missing, network, seed, ranks)
        reading = time.perf_counter() - start
        samples = {name: part.samples for name, part in parts.items()}
        model.set_params(network=net, engine="mpi").fit_parts(samples, checkpoint=checkpoint)
    except Exception as error:  # raised on all ranks: one prints it
        if ranks.rank:
            raise typer.Exit(USAGE) from error
        raise ValueError(str(error)) from error
    phases = sorted(model.history_["bytes"])
    counts = [len(model.nodes_), sum(part.dropped for part in parts.values())]
    mine = np.array([*counts, *(model.history_["bytes"][phase].sum() for phase in phases)], dtype=np.int64)
    total = np.empty_like(mine)
    ranks.comm.Allreduce(mine, total)
    seconds = {"reading": reading, "fitting": time.perf_counter() - start - reading}
    found: dict[str, Any] = {"rows": int(total[0]), "rows_dropped": int(total[1])}
    found |= {
        "bytes_by_phase": dict(zip(phases, total[2:].tolist(), strict=True)),
        "seconds": seconds,
        "ranks": ranks.size,
    }
    return found, ranks.rank == 0, remembered(roles, list(parts.values()))


def _own(
    paths: list[Path], nodes: int | None, roles: Roles, missing: Any, network: str | None, seed: int, ranks: Any
) -> tuple[Network, dict[str, Data]]:  # fmt: skip
    """The network, and the samples of the nodes that this rank hosts."""
    if roles.owner is not None:
        raise ValueError("--owner with --engine mpi: every rank would have to read all rows; give one file a node")
    open_ = [name for name, given in roles.one_hot.items() if given is None]
    if open_:
        raise ValueError(
            f"--one-hot {open_[0]} with --engine mpi: no rank sees all categories; list them: --one-hot {open_[0]}=red,green"
        )
    made = None if network is None else parse_network(network, seed)
    if len(paths) == 1:
        if paths[0].suffix != ".npy":
            raise ValueError(
                f"{paths[0]}: with --engine mpi give one file a node, or one .npy file, of which each rank reads its rows"
            )
        X = read(paths[0], roles, missing).X  # memory-mapped
        net, rows = deal_rows(made or nodes, len(X), seed)
        return net, {net.names[j]: Data(np.asarray(X[rows[j]])) for j in _hosted(net, ranks)}
    if nodes is not None:
        raise ValueError("--nodes is for one file; each of several files is a node: leave it out")
    files = by_node(paths)
    net = over_names(made, list(files)) if made else named_network(None, list(files), seed)
    unknown = [name for name in files if name not in net.number]
    if unknown or len(net) != len(files):
        raise ValueError(
            f"{len(files)} files for a network of {len(net)} nodes; give one file for each node, named after it"
        )
    return net, {net.names[j]: read(files[net.names[j]], roles, missing) for j in _hosted(net, ranks)}


def _hosted(network: Network, ranks: Any) -> list[int]:
    return assign(network, ranks.size)[ranks.rank]
