"""`dekpca bench`: time of fits on this machine, compared with scikit-learn and with the machine's limits."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.table import Table

from ..experiments import scale
from ..network import Network
from .common import Config, Debug, Json, emit, err, out, verb


@verb
def bench(
    data: Annotated[
        Path | None, typer.Option(help="Rows to fit, as `dekpca fit` reads them (default: random clusters).")
    ] = None,
    nodes: Annotated[str, typer.Option(help="Numbers of nodes, the first against scikit-learn too.")] = "80,160,320",
    rows: Annotated[int, typer.Option(min=2, help="Rows a node.")] = 100,
    neighbors: Annotated[int, typer.Option(min=2, help="Neighbors a node, on a ring.")] = 4,
    gamma: Annotated[float | None, typer.Option(help="Of the rbf kernel (default: 1 / (columns * variance)).")] = None,
    device: Annotated[str | None, typer.Option(help='Compute on it, such as "cuda" (needs PyTorch).')] = None,
    dtype: Annotated[str | None, typer.Option(help="float32 or float64 (default: that of the data).")] = None,
    memory_limit: Annotated[str | None, typer.Option(help="Such as 2GB, beside the data.")] = None,
    as_json: Json = False,
    config: Config = None,
    debug: Debug = False,
) -> None:
    """Measure fits of growing networks: time, iterations, agreement with central kernel PCA, peak memory, and the fraction of the machine's limits.

    Examples:

      dekpca bench

      dekpca bench --data mnist.npz --nodes 100,1000 --gamma 2e-7 --memory-limit 2GB

      dekpca bench --nodes 2000 --rows 500 --neighbors 2 --device cuda --dtype float32
    """
    counts = [_count(text) for text in nodes.split(",")]
    X = _rows(data, max(counts) * rows, dtype)
    width = gamma if gamma is not None else float(1.0 / (X.shape[1] * X.var()))
    if device is not None:
        from ..samples import on_device

        X = on_device(X, device)
    networks = [Network.ring(count, neighbors) for count in counts]
    start = time.perf_counter()

    def tell(text: str) -> None:
        err.print(f"{time.perf_counter() - start:5.0f} s  {text}", highlight=False, markup=False)

    tell("measuring this machine's rates")
    machine = scale.rates(X)
    measured: list[scale.Fit] = []
    limit: dict[str, Any] = {"memory_limit": memory_limit}
    if device is None:
        cases = [scale.Case(count, rows, neighbors, limit, min(20, max(counts) // count)) for count in counts]
        measured = scale.apart(X, cases, width, tell=tell)
    else:
        for network in networks:
            some, _ = scale.draw(X, len(network) * rows)
            tell(f"{len(network)} nodes of {rows} rows: fits, and central kernel PCA to compare with")
            measured.append(scale.fit(some, network, width, repeats=2, **limit)[0])
    fits: list[dict[str, Any]] = []
    for network, found in zip(networks, measured, strict=True):
        bounds = scale.work(network, rows, scale.draw(X, found.rows)[0], min(200, found.rows // 10), found.iterations)
        fits.append(
            {
                "nodes": found.nodes, "rows": found.rows, "seconds": found.seconds, "iterations": found.iterations,
                "agreement": found.agreement, "peak_bytes": found.peak_bytes,
                "seconds_by_part": found.parts,
                "of_the_machine": {w.part: w.bound(machine) / found.parts[w.part] for w in bounds},
            }
        )  # fmt: skip
    result: dict[str, Any] = {"flops": machine.flops, "bandwidth": machine.bandwidth, "fits": fits}
    if device is None and counts[0] * rows <= 20_000:
        first, _ = scale.draw(X, counts[0] * rows)
        tell(f"{counts[0]} nodes against scikit-learn, in turn")
        ours, theirs = scale.against_central(first, Network.ring(counts[0], neighbors), width, 2)
        result["central"] = {"nodes": counts[0], "network_seconds": ours.seconds, "scikit_learn_seconds": theirs}
    emit(result, as_json, lambda: _tell(result))


def _count(text: str) -> int:
    if not text.strip().isdecimal() or int(text) < 3:
        raise ValueError(f"--nodes {text.strip()!r}: numbers of at least 3, such as 80,160")
    return int(text)


def _rows(path: Path | None, most: int, dtype: str | None) -> np.ndarray:
    if path is None:
        random = np.random.default_rng(0)
        centers = 3.0 * random.standard_normal((10, 50))
        X = centers[random.integers(10, size=most)] + random.standard_normal((most, 50))
    else:
        from ..data import read

        X = np.asarray(read(path).X, dtype=np.float64)
    return X if dtype is None else X.astype(dtype)


def _tell(result: dict[str, Any]) -> None:
    out.print(
        f"this machine: {result['flops'] / 1e9:.0f} GFLOP/s in matrix products, {result['bandwidth'] / 1e9:.1f} GB/s read and written",
        highlight=False,
    )
    fits = result["fits"]
    table = Table("nodes", "rows", "seconds", "iterations", "agreement, worst node", "peak GB")
    for one in fits:
        table.add_row(
            str(one["nodes"]), str(one["rows"]), f"{one['seconds']:.2f}", str(one["iterations"]),
            " ".join(f"{a:.4f}" for a in one["agreement"]), scale.gigabytes(one["peak_bytes"] or float("nan")),
        )  # fmt: skip
    out.print(table)
    parts = Table("seconds (of the machine's limit)", *(f"{one['nodes']} nodes" for one in fits))
    for part in fits[0]["of_the_machine"]:
        parts.add_row(
            part, *(f"{one['seconds_by_part'][part]:.3f} ({one['of_the_machine'][part]:.0%})" for one in fits)
        )
    out.print(parts)
    if "central" in result:
        central = result["central"]
        out.print(
            f"{central['nodes']} nodes: {central['network_seconds']:.2f} s, scikit-learn on the same rows {central['scikit_learn_seconds']:.2f} s: "
            f"{central['scikit_learn_seconds'] / central['network_seconds']:.2f} times as long",
            highlight=False,
        )
