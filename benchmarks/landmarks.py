"""How many landmarks, of which kind, for which solver: agreement, traffic and time.

    python benchmarks/landmarks.py --data mnist-0358.npz --figure landmarks.png

Nodes of 100 images on a ring with 4 neighbors, alike and with one class each. "clusters" are centres of k-means of all rows, and rows where
clusters are too small; "points" are images that no node holds, as a public data set would give. The agreement is that of the worst node; at
400 landmarks (4000 features) also the worst of three seeds, and has to hold its floors.
"""

from __future__ import annotations

import time
from itertools import product
from pathlib import Path

import numpy as np
from rich.progress import track

from common import GAMMA, Floors, arguments, console, load, numbers, table
from dekpca import DecentralizedKernelPCA, Network, Projection, baselines, metrics
from dekpca.experiments import splits

K = 4
COUNTS = (25, 50, 100, 200, 400, 800, 1600)
AT = 400
FEATURES = 4000
SEEDS = 3
SPLITS = {"alike": splits.evenly, "one class a node": splits.one_class_a_node}
KINDS = [("auto", kind) for kind in ("clusters", "points", "random-features")]
KINDS += [("projection", kind) for kind in ("clusters", "points")]
FLOORS = {  # at 400 landmarks: components 1 and 2, components 3 and 4
    ("auto", "clusters"): (0.9995, 0.99),
    ("projection", "clusters"): (0.9998, 0.999),
    ("auto", "random-features"): (0.99, 0.0),  # 4000 of them; components 3 and 4 have nearly equal eigenvalues
}


class Problem:
    """One way to deal the images, with its central answer."""

    def __init__(self, X, y, n_nodes: int, split: str, seed: int):
        rows = SPLITS[split](y, np.full(n_nodes, 100), seed)
        self.parts = [X[r] for r in rows]
        self.together = np.concatenate(self.parts)
        self.central = baselines.central(self.parts, K, gamma=GAMMA)
        self.network, self.seed = Network.ring(n_nodes, 4), seed
        others = np.setdiff1d(np.arange(len(X)), np.concatenate(rows))
        self.public = X[np.random.default_rng(seed).permutation(others)]

    def measure(self, solver: str, kind: str, count: int) -> dict:
        given = {
            "clusters": {"landmarks": count},
            "points": {"landmarks": self.public[:count]},
            "random-features": {"landmarks": kind, "max_landmarks": count},
        }[kind]
        if solver == "projection":
            given = (
                {"solver": Projection(n_landmarks=count)} if kind == "clusters" else given | {"solver": Projection()}
            )
        start = time.perf_counter()
        model = DecentralizedKernelPCA(K, gamma=GAMMA, network=self.network, random_state=self.seed, **given).fit_parts(
            self.parts
        )
        seconds = time.perf_counter() - start
        return {
            "agreement": metrics.agreement(model, self.central, self.together).min(axis=0),
            "eigenvalues": model.eigenvalues_ / self.central.eigenvalues_,
            "bytes": float(sum(model.history_["bytes"].values()).mean()),
            "seconds": seconds,
            "rows": len(model.node_models_[0].functions["landmarks"].coefficients[0]),
        }


def cells(counts: list[int]) -> list[tuple[str, str, int]]:
    """What to measure."""
    wanted = []
    for solver, kind in KINDS:
        wanted += [(solver, kind, c) for c in ([*counts, FEATURES] if kind == "random-features" else counts)]
    return wanted


def main() -> None:
    parser = arguments(__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, nargs="+", default=[20, 80])
    parser.add_argument("--counts", type=int, nargs="+", default=list(COUNTS))
    parser.add_argument("--figure", type=Path, help="where to draw it")
    a = parser.parse_args()
    X, y = load(a.data)
    floors, found = Floors(), {}
    for n_nodes, split in product(a.nodes, SPLITS):
        problems = [Problem(X, y, n_nodes, split, seed) for seed in range(SEEDS)]
        shown = table(
            f"{n_nodes} nodes, {split}",
            "solver", "landmarks", "asked for", "used", "agreement, worst node", "eigenvalues / central", "MB a node", "seconds",
        )  # fmt: skip
        for solver, kind, count in track(cells(a.counts), f"{n_nodes} nodes, {split}", console=console, transient=True):
            decisive = count == (FEATURES if kind == "random-features" else AT)
            runs = [p.measure(solver, kind, count) for p in (problems if decisive else problems[:1])]
            worst = runs[0] | {"agreement": np.min([r["agreement"] for r in runs], axis=0)}
            found[n_nodes, split, solver, kind, count] = worst
            if decisive and (solver, kind) in FLOORS:
                first, later = FLOORS[solver, kind]
                holds = worst["agreement"][:2].min() >= first and worst["agreement"][2:].min() >= later
                what = f"{n_nodes} nodes, {split}, {solver}, {count} {kind}: {numbers(worst['agreement'], 5)}"
                floors.require(holds, f"{what}, floors {first} and {later}")
            shown.add_row(
                solver, kind, str(count), str(worst["rows"]), numbers(worst["agreement"]), numbers(worst["eigenvalues"], 3),
                f"{worst['bytes'] / 1e6:.2f}", f"{worst['seconds']:.2f}",
            )  # fmt: skip
        console.print(shown)
    if a.figure:
        draw(found, a.nodes, a.figure)
    floors.finish()


def draw(found: dict, nodes: list[int], path: Path) -> None:
    import matplotlib.pyplot as plt

    columns = list(product(nodes, SPLITS))
    figure, axes = plt.subplots(
        3, len(columns), figsize=(4 * len(columns), 9), sharex=True, sharey="row", squeeze=False
    )
    colors = {"clusters": "tab:blue", "points": "tab:green", "random-features": "tab:red"}
    for (n_nodes, split), column in zip(columns, axes.T, strict=True):
        for solver, kind in KINDS:
            counts = sorted(key[4] for key in found if key[:4] == (n_nodes, split, solver, kind))
            cells = [found[n_nodes, split, solver, kind, c] for c in counts]
            curves = (
                [1 - c["agreement"][:2].min() for c in cells],
                [c["bytes"] / 1e6 for c in cells],
                [c["seconds"] for c in cells],
            )
            style = {
                "color": colors[kind],
                "linestyle": "-" if solver == "projection" else "--",
                "marker": "o",
                "markersize": 3,
            }
            for ax, curve in zip(column, curves, strict=True):
                ax.loglog(counts, curve, label=f"{solver}, {kind}", **style)
        column[0].set_title(f"{n_nodes} nodes, {split}")
        column[2].set_xlabel("landmarks or features")
    for ax, label in zip(
        axes[:, 0],
        ("1 - agreement (1, 2; worst node)", "MB sent a node", "seconds, whole network"),
        strict=True,
    ):
        ax.set_ylabel(label)
    for ax in axes.ravel():
        ax.grid(alpha=0.3)
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="lower center", ncols=4, frameon=False)
    figure.tight_layout(rect=(0, 0.06, 1, 1))
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main()
