"""`dekpca privacy`: the accuracy to expect for an epsilon, without private data."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from sklearn.datasets import load_digits

from ..data import read
from ..data.columns import Features
from ..kernels import make_kernel
from ..privacy.settings import Privacy, kernel_size
from ..solvers.private import expected
from .common import Said, print_plain, verb
from .parameters import NComponents

MOST_POINTS = 600  # their kernel matrix is decomposed for every rank
RANKS = (20, 30, 60, 120, 200)  # candidates


@verb
def privacy(
    rows: Annotated[int, typer.Option(min=2, help="About how many rows all nodes have together.")],
    epsilon: Annotated[float, typer.Option(help="What the fit may spend, for each row (add or remove one).")] = 1.0,
    delta: Annotated[float, typer.Option(help="And the probability with which that may fail.")] = 1e-6,
    nodes: Annotated[int, typer.Option(min=1, help="Nodes of the network.")] = 20,
    colluding: Annotated[int | None, typer.Option(help="So many may put together what they know; default 1.")] = None,
    n_components: NComponents = 4,
    points: Annotated[
        Path | None, typer.Option(help="Public points like the rows: npz, csv, ...; default: digits.")
    ] = None,
    kernel: Annotated[str, typer.Option(help="rbf, laplacian, cosine, linear or poly.")] = "rbf",
    gamma: Annotated[float | None, typer.Option(help="Default: 1 / (columns * variance) of the points.")] = None,
    norm: Annotated[float | None, typer.Option(help="Public bound to which rows are clipped (linear, poly).")] = None,
    ranges: Annotated[tuple[float, float] | None, typer.Option(help="Lowest and highest value of the columns.")] = None,
    synthetic: Annotated[bool, typer.Option("--synthetic", help="Half of the budget makes synthetic points.")] = False,
) -> Said:
    """Plan a fit with differential privacy: noise, rank and the agreement to expect with kernel PCA without noise.

    No private data is read: the spectrum is that of public points. The plan is accurate if these resemble the rows.

    Examples:

      dekpca privacy --rows 20000 --epsilon 1

      dekpca privacy --rows 100000 --epsilon 0.5 --points public.npz --gamma 2e-7
    """
    asked = Privacy(epsilon, delta, colluding=colluding, norm=norm, ranges=ranges)
    X, where = _points(points)
    asked = asked.with_columns(Features(X.shape[1]))
    scaled = X if asked.ranges is None else (X - asked.ranges.mean(axis=1)) / (np.ptp(asked.ranges, axis=1) / 2)
    width = 1.0 / (X.shape[1] * float(scaled.var())) if gamma is None else gamma
    kind = "synthetic" if synthetic else "points"
    given = make_kernel(kernel, gamma=width)
    kernel_size(given, norm)
    ranks = [rank for rank in RANKS if n_components < rank <= len(X)]
    if not ranks:
        raise ValueError(f"{where}: {len(X)} points are too few for {n_components} components; give more of them")
    tried = [expected(X, given, rows, replace(asked, rank=rank), nodes, n_components, kind) for rank in ranks]
    best = max(tried, key=lambda plan: round(plan.span, 4))  # ties: the smallest, with fewer numbers to send
    entries = [release.entry() for release in best.releases]
    result: dict[str, Any] = {
        "rows": rows, "epsilon": epsilon, "delta": delta, "nodes": nodes, "colluding": entries[-1].colluding,
        "points": where, "kernel": kernel, "gamma": width,
        "rank": best.rank, "agreement": best.components.tolist(), "span": best.span, "noise": best.noise,
        "tried": [{"rank": plan.rank, "agreement": plan.components.tolist(), "span": plan.span} for plan in tried],
        "releases": [{"covers": e.covers, "numbers": e.numbers, "multiplier": e.multiplier} for e in entries],
    }  # fmt: skip
    return Said(result, lambda: _tell(result))


def _points(path: Path | None) -> tuple[np.ndarray, str]:
    if path is None:
        return load_digits().data[:MOST_POINTS], "scikit-learn's digits (--points takes yours)"
    X = np.asarray(read(path).X, dtype=np.float64)
    return X[:: -(-len(X) // MOST_POINTS)], str(path)


def _tell(result: dict[str, Any]) -> None:
    print_plain(f"epsilon {result['epsilon']:g}, delta {result['delta']:g}, for adding or removing one row")
    print_plain(f"{result['rows']:,} rows on {result['nodes']} nodes, {result['colluding']} of them colluding")
    for release in result["releases"]:
        noise = f"noise of {release['multiplier']:.3g} times the sensitivity"
        print_plain(f"{noise} on {release['numbers']:,} numbers: {release['covers']}")
    print_plain(f"spectrum of {result['points']}, {result['kernel']} kernel, gamma {result['gamma']:.3g}")
    for plan in result["tried"]:
        mark = "  <- rank to use" if plan["rank"] == result["rank"] else ""
        agreement = " ".join(f"{a:.4f}" for a in plan["agreement"])
        print_plain(f"  rank {plan['rank']:>3}: expected agreement {agreement}, span {plan['span']:.4f}{mark}")
    numbers = f"epsilon = {result['epsilon']:g}, delta = {result['delta']:g}, rank = {result['rank']}"
    print_plain(f"node.toml, [model.privacy]: {numbers}")
    print_plain(f"--privacy epsilon={result['epsilon']:g},delta={result['delta']:g},rank={result['rank']}")
