"""`dekpca demo`: handwritten digits on a ring of 20 nodes, each with mostly one digit."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.table import Table
from sklearn.datasets import load_digits
from sklearn.exceptions import ConvergenceWarning

from .. import baselines, metrics, plot
from ..data.columns import Samples
from ..estimator import DecentralizedKernelPCA
from ..experiments import splits
from ..network import Network
from ..report import measures
from ..report.panels import Panel, Series, draw, pyplot, save_figure
from ..solvers.projection import PAPER
from .common import err, make_folder, out, unless_lacking, verb

NODES, NEIGHBORS, ROWS, COMPONENTS = 20, 4, 80, 4
GAMMA = 1e-3  # 64 pixels from 0 to 16: k is about 0.1 to 0.5 between digits
TOL = 1e-4  # a tenth of the default, for which the first landmarks are enough: here they have to grow
STAGES = ("landmarks", "error", "bound")
SHOWN = 3  # the node whose embedding is drawn


@verb
def demo(
    out_dir: Annotated[Path, typer.Option("--out", help="Folder for the figure and the report.")] = Path("dekpca-demo"),
    seed: Annotated[int, typer.Option(help="Deals the digits and draws the landmarks.")] = 0,
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
    given = {"gamma": GAMMA, "network": network, "random_state": seed}
    paper = DecentralizedKernelPCA(COMPONENTS, solver=replace(PAPER, max_iter=20), normalize=True, **given)
    ours = DecentralizedKernelPCA(COMPONENTS, tol=TOL, **given)

    err.print(f"{len(X)} images on {NODES} nodes, a ring with {NEIGHBORS} neighbors; most of a node show one digit")
    alone: dict[str, Any] = {"gamma": GAMMA, "n_components": COMPONENTS}
    central = _step("central kernel PCA, which sees everything", lambda: baselines.central(parts, **alone))
    local = _step("local kernel PCA: no node talks", lambda: baselines.local(parts, **alone))
    around = _step("neighbors pool their data", lambda: baselines.neighborhood(parts, network, **alone))
    _step("the paper's algorithm, 20 iterations a component", lambda: paper.fit_parts(parts))
    _step(f"dekpca, until the error that it states is below {TOL:g}", lambda: ours.fit_parts(parts))

    models = {"local": local, "neighborhood": around, "the paper's": paper, "dekpca": ours}
    agreement = {name: metrics.agreement(model, central, X) for name, model in models.items()}
    true = measures.true_errors(ours, Samples(X), ours.nodes_, central)
    _tell(agreement, paper, ours, true)
    with unless_lacking("figure"):
        _draw(path := out_dir / "demo.png", ours, central, local, agreement, true, X, y)
        out.print(f"figure: {path}", soft_wrap=True)
    with unless_lacking("report"):
        _report(path := out_dir / "report.html", ours, X, y, central, {"local": local, "neighborhood": around}, seed)
        out.print(f"report: {path} (open it in a browser)", soft_wrap=True)


def _step(what: str, run: Callable[[], Any]) -> Any:
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # the paper's algorithm is stopped early on purpose
        result = run()
    err.print(f"  {what}: {time.perf_counter() - start:.1f} s", highlight=False)
    return result


def _tell(agreement: dict[str, np.ndarray], paper: Any, ours: Any, true: np.ndarray) -> None:
    table = Table(title="Agreement with central kernel PCA (mean over the nodes, worst node)", title_justify="left")
    table.add_column("")
    for name in _names(ours):
        table.add_column(f"component {name}", justify="right")
    for name, values in agreement.items():
        table.add_row(name, *(f"{v.mean():.3f} {v.min():.3f}" for v in values.T))
    table.add_row("stated by dekpca", *(f"{a:.3f}" for a in ours.accuracy_))
    before, after = (" ".join(f"{a:.3f}" for a in agreement[name][SHOWN]) for name in ("local", "dekpca"))
    sent = [sum(model.history_["bytes"].values()).mean() / 1e3 for model in (paper, ours)]
    out.print(table)
    for m, error, bound, known in zip(*(ours.history_[key] for key in STAGES), true, strict=True):
        out.print(f"{m} landmarks: stated error {error:.1e}, at most {bound:.1e}; true error {known:.1e}")
    out.print(f"the paper's: {paper.n_iter_} iterations, {sent[0]:.0f} kB sent by a node; error unknown")
    out.print(f"dekpca: {sum(measures.rounds(ours).values())} rounds, {sent[1]:.0f} kB sent by a node")
    out.print(f"what node {SHOWN} learned from the others: its agreement is {before} alone, and {after} after the fit")


def _names(model: Any) -> list[str]:
    """The components, those marked that cannot be told apart from others."""
    mixed = {c for group in model.mixed_components_ for c in group}
    return [f"{c + 1}{' (mixed)' if c in mixed else ''}" for c in range(COMPONENTS)]


def _report(path: Path, model: Any, X: Any, y: Any, central: Any, others: dict[str, Any], seed: int) -> None:
    from ..report.fit import fit_report

    settings = {"data": "scikit-learn's digits, mostly one digit a node", "command": f"dekpca demo --seed {seed}"}
    title = f"dekpca demo: {len(X):,} handwritten digits on {NODES} nodes"
    fit_report(path, model, X, y, central, others, model.nodes_, settings, title)


def _draw(path: Path, model: Any, central: Any, local: Any, agreement: Any, true: Any, X: Any, y: Any) -> None:
    mosaic = [["net"] * 3 + ["error"] * 3 + ["agree"] * 3 + ["sent"] * 3, [*"aaaabbbbcccc"]]
    figure, axes = pyplot().subplot_mosaic(mosaic, figsize=(16, 9.5), layout="constrained")
    main = [int(np.bincount(y[model.nodes_ == j]).argmax()) for j in range(NODES)]
    plot.network(model, main, SHOWN, axes["net"]).set_title("20 nodes, coloured by their main digit")
    plot.convergence(model, true, axes["error"]).set_title("Error, stage by stage")
    bars = [Series(name, range(COMPONENTS), v.mean(axis=0), v.std(axis=0), "bars") for name, v in agreement.items()]
    draw(axes["agree"], Panel("Agreement, mean and deviation", "component", "", bars, x_ticks=_names(model)))
    plot.traffic(model, axes["sent"]).set_title(f"Sent in {sum(measures.rounds(model).values())} rounds")
    own = model.nodes_ == SHOWN
    for place, title, node, ringed in (
        ("a", "central: sees all images", central, None),
        ("b", f"node {SHOWN} before: knows its own images (ringed)", local[SHOWN], own),
        ("c", f"node {SHOWN} after talking to its neighbors", model.node_models_[SHOWN], own),
    ):
        plot.embedding(node, X, y, reference=central, own=ringed, legend=False, ax=axes[place]).set_title(title)
    handles = axes["a"].get_legend_handles_labels()
    figure.legend(*handles, title="digit", loc="outside right lower", fontsize=8, markerscale=2)
    save_figure(figure, path, dpi=110)
