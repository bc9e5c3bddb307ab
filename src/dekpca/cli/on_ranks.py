"""`dekpca fit --engine mpi`: every rank reads only its own nodes' files, or its own rows of one memory-mapped .npy file."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import typer

from .. import engines
from ..data import Data, Roles, read
from ..data.owners import deal_rows, named_network, renamed
from ..engines.ranks import assign
from ..estimator import DecentralizedKernelPCA
from ..network import Network
from .common import USAGE


def by_node(paths: list[Path]) -> dict[str, Path]:
    """Files by node, from their names."""
    names = [path.stem for path in paths]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise ValueError(f"two files for node {sorted(twice)[0]}; a file is named after its node: rename one")
    return dict(zip(names, paths, strict=True))


def over_names(network: Network | None, names: list[str]) -> Network | None:
    """A numbered topology, such as ring:20, with these names; a topology with names keeps its own."""
    if network is None or len(network) != len(names) or network.names != tuple(map(str, range(len(names)))):
        return network
    return renamed(network, names)


def fit(
    model: DecentralizedKernelPCA, paths: list[Path], nodes: int | None, roles: Roles, network: Network | None
) -> tuple[Any, dict[str, Data], float]:  # fmt: skip
    """Fit the nodes of this rank; returns all ranks, what was read here, and the time of reading."""
    ranks, start = engines.module("mpi").Ranks(), time.perf_counter()
    try:
        with ranks.checking():
            net, parts = _own(model, paths, nodes, roles, network, ranks)
        read_in = time.perf_counter()
        model.set_params(network=net).fit_parts({name: part.samples for name, part in parts.items()})
    except Exception as error:  # raised on all ranks: one prints it
        if ranks.rank:
            raise typer.Exit(USAGE) from error
        raise ValueError(str(error)) from error
    return ranks, parts, read_in - start


def _own(
    model: DecentralizedKernelPCA, paths: list[Path], nodes: int | None, roles: Roles, network: Network | None, ranks: Any
) -> tuple[Network, dict[str, Data]]:  # fmt: skip
    """The network, and the samples of the nodes of this rank."""
    if roles.owner is not None:
        raise ValueError("--owner with --engine mpi: every rank would have to read all rows; give one file a node")
    unlisted = next((name for name, given in roles.one_hot.items() if given is None), None)
    if unlisted is not None:
        remedy = f"list them: --one-hot {unlisted}=red,green"
        raise ValueError(f"--one-hot {unlisted} with --engine mpi: no rank sees all categories; {remedy}")
    if len(paths) == 1:
        if paths[0].suffix != ".npy":
            remedy = "give one file a node, or one .npy file, of which each rank reads its rows"
            raise ValueError(f"{paths[0]}: with --engine mpi {remedy}")
        X = read(paths[0], roles, model.missing).X  # memory-mapped
        net, rows = deal_rows(network or nodes, len(X), model.random_state)
        return net, {net.names[j]: Data(np.asarray(X[rows[j]])) for j in assign(net, ranks.size)[ranks.rank]}
    if nodes is not None:
        raise ValueError("--nodes is for one file; each of several files is a node: leave it out")
    files = by_node(paths)
    net = named_network(over_names(network, list(files)), list(files), model.random_state)
    hosted = [net.names[j] for j in assign(net, ranks.size)[ranks.rank]]
    return net, {name: read(files[name], roles, model.missing) for name in hosted}
