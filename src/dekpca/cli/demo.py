"""`dekpca demo`: handwritten digits on a ring of 20 nodes, each with mostly one digit."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.table import Table
from sklearn.datasets import load_digits
from sklearn.exceptions import ConvergenceWarning

from .. import baselines, metrics
from ..estimator import DecentralizedKernelPCA
from ..experiments import splits
from ..files import PUBLIC, atomic_write
from ..network import Network
from ..options import PAPER
from .common import Debug, err, make_folder, out, verb

NODES, NEIGHBORS, ROWS, COMPONENTS = 20, 4, 80, 4
GAMMA = 1e-3  # 64 pixels from 0 to 16: k is about 0.1 to 0.5 between digits
SHOWN = 3  # the node whose embedding is drawn


@verb
def demo(
    out_dir: Annotated[Path, typer.Option("--out", help="Folder for the figure and the report.")] = Path("dekpca-demo"),
    seed: Annotated[int, typer.Option(help="Deals the digits and draws the landmarks.")] = 0,
    debug: Debug = False,
) -> None:
    """Demonstrate decentralized kernel PCA, on data where every node has mostly one digit.

    Example: dekpca demo --out /tmp/demo
    """
    make_folder(out_dir)
    digits = load_digits()
    rows = splits.mostly_one_class(digits.target, np.full(NODES, ROWS), 0.8, seed)
    parts = [digits.data[r] for r in rows]
    X, y = digits.data[np.concatenate(rows)], digits.target[np.concatenate(rows)]
    network = Network.ring(NODES, NEIGHBORS)
    settings = {"gamma": GAMMA, "network": network, "random_state": seed, "verbose": True}

    err.print(
        f"{len(X)} images of digits on {NODES} nodes, a ring with {NEIGHBORS} neighbors; 80 % of a node's images are of one digit"
    )
    central = _step(
        "central kernel PCA, which sees everything", lambda: baselines.central(parts, COMPONENTS, gamma=GAMMA)
    )
    local = _step("local kernel PCA: no node talks", lambda: baselines.local(parts, COMPONENTS, gamma=GAMMA))
    around = _step(
        "neighborhood kernel PCA: neighbors pool their data",
        lambda: baselines.neighborhood(parts, network, COMPONENTS, gamma=GAMMA),
    )
    paper = DecentralizedKernelPCA(COMPONENTS, max_iter=20, **settings).set_params(**PAPER)
    _step("the paper's settings, 20 iterations a component", lambda: paper.fit_parts(parts))
    ours = DecentralizedKernelPCA(COMPONENTS, **settings)
    _step("dekpca's default, until it stops by itself", lambda: ours.fit_parts(parts))

    methods = [("local", local), ("neighborhood", around), ("paper's settings", paper), ("dekpca", ours)]
    oracles = {"paper's settings": "oracle, own samples", "dekpca": "oracle, landmarks"}
    similar = _table("Similarity of the nodes' own functions to the central ones (mean, worst)")
    agree = _table("Agreement of the nodes' values with the central ones (mean, worst)")
    for name, model in methods:
        similar.add_row(name, *_cells(metrics.similarity(model, central)))
        agree.add_row(name, *_cells(metrics.agreement(model, central, X)))
        if name in oracles:
            similar.add_row(f"[dim]{oracles[name]}", *(f"[dim]{c}" for c in _cells(metrics.oracle(model, central))))
    cost = Table(title="What it took", title_justify="left")
    for column in ("", "iterations", "kB sent by a node", "of that, samples"):
        cost.add_column(column, justify="left" if not column else "right")
    for name, model in (("paper's settings", paper), ("dekpca", ours)):
        sent = model.history_["bytes"]
        data = sum(sent[kind].mean() for kind in ("data", "landmarks") if kind in sent)
        cost.add_row(name, str(model.n_iter_), f"{sum(sent.values()).mean() / 1e3:.0f}", f"{data / 1e3:.0f}")
    for table in (similar, agree, cost):
        out.print(table)
    ratio = ours.eigenvalues_ / central.eigenvalues_
    out.print(f"eigenvalues over the central ones: {' '.join(f'{r:.3f}' for r in ratio)}")
    path = out_dir / "demo.png"
    if _draw(path, network, ours, paper, local, central, X, y, rows, digits.target):
        out.print(f"figure: {path}")
    report = out_dir / "report.html"
    owner = np.repeat(np.arange(NODES), [len(r) for r in rows])
    if _report(report, ours, X, y, central, {"local": local, "neighborhood": around}, owner, seed):
        out.print(f"report: {report} (open it in a browser)")


def _step(what: str, run: Callable[[], Any]) -> Any:
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # the paper's settings are stopped early on purpose
        result = run()
    err.print(f"  {what}: {time.perf_counter() - start:.1f} s", highlight=False)
    return result


def _table(title: str) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column("")
    for i in range(COMPONENTS):
        table.add_column(f"component {i + 1}", justify="right")
    return table


def _cells(values: np.ndarray) -> list[str]:
    return [f"{column.mean():.3f} {column.min():.3f}" for column in values.T]


def _report(
    path: Path, model: Any, X: Any, y: Any, central: Any, others: dict[str, Any], owner: np.ndarray, seed: int
) -> bool:
    try:
        from ..report.fit import fit_report
    except ImportError as error:
        err.print(f"no report: {error}", markup=False)
        return False
    fit_report(
        path,
        model,
        X,
        y,
        central,
        others,
        owner,
        settings={"data": "scikit-learn's digits, mostly one digit a node", "command": f"dekpca demo --seed {seed}"},
        title=f"dekpca demo: {len(X):,} handwritten digits on {NODES} nodes",
    )
    return True


def _draw(
    path: Path,
    network: Network,
    ours: Any,
    paper: Any,
    local: Any,
    central: Any,
    X: Any,
    y: Any,
    rows: Any,
    target: Any,
) -> bool:
    try:
        import matplotlib

        matplotlib.use("Agg")
        import matplotlib.pyplot as plt

        from ..report import figures
    except ImportError:
        err.print("no figure: matplotlib is not installed; pip install 'dekpca[plot]'", markup=False)
        return False
    figure, axes = plt.subplot_mosaic(
        [["net", "net", "run", "run", "run", "run"], ["a", "a", "b", "b", "c", "c"]],
        figsize=(13, 9),
        layout="constrained",
    )
    main = [int(np.bincount(target[r]).argmax()) for r in rows]
    figures.draw_network(axes["net"], network, main, "20 nodes, coloured by their main digit", SHOWN)
    curves = {
        "dekpca, all 4 components": ours.history_["residual"],
        "paper's settings, component after component": paper.history_["residual"],
    }
    figures.draw_convergence(
        axes["run"], curves, "Disagreement with the neighbors, worst node", "relative residual", ours.tol**0.5
    )
    truth = central.transform(X)
    own = np.repeat(np.arange(NODES), [len(r) for r in rows]) == SHOWN
    views = {
        "a": (truth, "central: sees all images"),
        "b": (local[SHOWN].transform(X), f"node {SHOWN} before: knows its own images (ringed)"),
    }
    views["c"] = (ours.node_models_[SHOWN].transform(X), f"node {SHOWN} after talking to its neighbors")
    for place, (values, title) in views.items():
        scatter = figures.draw_embedding(
            axes[place], figures.aligned(values, truth), y, title, own if place != "a" else None
        )
    figure.legend(*scatter.legend_elements(), title="digit", loc="outside right lower", fontsize=8)
    with atomic_write(path, PUBLIC) as file:
        figure.savefig(file, dpi=110, format="png")
    plt.close(figure)
    return True
