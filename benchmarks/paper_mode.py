"""The paper's own settings: how well they do, where they diverge, where they fail.

    python benchmarks/paper_mode.py --data mnist-0358.npz

Ring with 4 neighbors, 100 images a node, first component. Similarity to the central component (mean over nodes) after
20 iterations (median over seeds, and spread), and the same where the local starts have random signs; then up to 200
iterations of the paper's update beside the proximal one on the same local kernels, and one class a node.
"""

from __future__ import annotations

import warnings
from dataclasses import replace
from unittest import mock

import numpy as np
from rich.progress import track

from common import GAMMA, Floors, arguments, console, load, table
from dekpca import PAPER, DecentralizedKernelPCA, Network, Projection, baselines, metrics
from dekpca.experiments import splits

CHECKPOINTS = (20, 50, 100, 200)


def similarity(parts, network, central, iterations, seed, **settings):
    solver = replace(PAPER, max_iter=iterations, tol=0.0, **settings)
    model = DecentralizedKernelPCA(1, gamma=GAMMA, normalize=True, network=network, solver=solver, random_state=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # tol=0 never converges
        model.fit_parts(parts)
    return metrics.similarity(model, central).mean()


def with_random_signs(parts, network, central, iterations, seed):
    """The signs of eigenvectors are arbitrary. `PAPER` makes the largest entry of each node's start positive; here a coin decides."""
    rng = np.random.default_rng(seed)
    with mock.patch("dekpca.solvers.projection.node.flip_signs", lambda basis: basis * rng.choice([-1.0, 1.0])):
        return similarity(parts, network, central, iterations, seed)


def main() -> None:
    parser = arguments(__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    a = parser.parse_args()
    X, y = load(a.data)
    floors = Floors()
    short = table(
        f"PAPER after 20 iterations, {a.seeds} seeds", "J", "median", "lowest", "highest", "local kernel PCA (median)"
    )
    signs = table(f"the same, local starts with random signs, {a.seeds} seeds", "J", "median", "lowest", "highest")
    long = table("mean similarity by iteration, seed 0", "J", "update", *(str(t) for t in CHECKPOINTS))
    apart = table("one class a node, seed 0, similarity", "J", "local", "PAPER, 20 iterations", "projection solver")
    for J in track((10, 20, 40, 60, 80), console=console, transient=True, disable=not console.is_terminal):
        network = Network.ring(J, 4)
        found, local, tossed = [], [], []
        for seed in range(a.seeds):
            parts = [X[r] for r in splits.evenly(y, np.full(J, 100), seed)]
            central = baselines.central(parts, 1, gamma=GAMMA)
            found.append(similarity(parts, network, central, 20, seed))
            tossed.append(with_random_signs(parts, network, central, 20, seed))
            local.append(metrics.similarity(baselines.local(parts, 1, gamma=GAMMA), central).mean())
            if seed == 0:
                ours = {"update": "proximal", "rho": "auto", "init": "random", "n_oversamples": 4}
                for name, settings in (("paper", {}), ("proximal", ours)):
                    trace = [similarity(parts, network, central, t, seed, **settings) for t in CHECKPOINTS]
                    long.add_row(str(J), name, *(f"{v:.4f}" for v in trace))
                    if name == "proximal":
                        floors.require(
                            trace[-1] >= trace[1] - 1e-3,
                            f"J = {J}: the proximal update loses between 50 and 200 iterations",
                        )
                    elif J == 80:
                        floors.require(
                            trace[-1] < trace[0] - 0.1,
                            f"J = {J}: the paper's update no longer diverges by 200 iterations",
                        )
        median = np.median(found)
        floors.require(median >= 0.94, f"J = {J}: median similarity {median:.4f}, floor 0.94")
        short.add_row(str(J), f"{median:.4f}", f"{min(found):.4f}", f"{max(found):.4f}", f"{np.median(local):.4f}")
        if J <= 20:
            floors.require(min(tossed) < min(found) - 0.05, f"J = {J}: random signs at the start do no harm")
        signs.add_row(str(J), f"{np.median(tossed):.4f}", f"{min(tossed):.4f}", f"{max(tossed):.4f}")
        if J in (20, 80):
            parts = [X[r] for r in splits.one_class_a_node(y, np.full(J, 100), 0)]
            central = baselines.central(parts, 1, gamma=GAMMA)
            ours = DecentralizedKernelPCA(1, gamma=GAMMA, network=network, solver=Projection(), random_state=0)
            ours.fit_parts(parts)
            alone = metrics.similarity(baselines.local(parts, 1, gamma=GAMMA), central).mean()
            theirs, mine = similarity(parts, network, central, 20, 0), metrics.similarity(ours, central).mean()
            floors.require(
                theirs < 0.5 < 0.9 < mine,
                f"J = {J}, one class a node: paper {theirs:.4f}, projection solver {mine:.4f}",
            )
            apart.add_row(str(J), f"{alone:.4f}", f"{theirs:.4f}", f"{mine:.4f}")
    for shown in (short, signs, long, apart):
        console.print(shown)
    floors.finish()


if __name__ == "__main__":
    main()
