"""The whole network in one process against scikit-learn's central KernelPCA on the same rows, in one run.

    python benchmarks/against_central.py --data mnist-0358.npz

J = 80 nodes of 100 rows on a ring with 4 neighbors, default settings, both methods timed in turn; the floors of
quality.py for this network must hold in the same run.
"""

from __future__ import annotations

import time

import numpy as np
from sklearn.decomposition import KernelPCA

from common import GAMMA, Floors, arguments, console, load, numbers, table
from dekpca import DecentralizedKernelPCA, Network, baselines, metrics
from dekpca.experiments import splits

K = 4


def main() -> None:
    parser = arguments(__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=80)
    parser.add_argument("--repeats", type=int, default=3)
    a = parser.parse_args()
    X, y = load(a.data)
    floors = Floors()
    network = Network.ring(a.nodes, 4)
    shown = table(
        f"J = {a.nodes}, n = 100: {a.nodes * 100} rows, {K} components, best of {a.repeats}",
        "split", "network, s", "central, s", "network / central", "agreement, worst node", "iterations",
    )  # fmt: skip
    for split, label in ((splits.evenly, "i.i.d."), (splits.one_class_a_node, "one class a node")):
        parts = [X[r] for r in split(y, np.full(a.nodes, 100))]
        together = np.concatenate(parts)
        ours, theirs = [], []
        for _ in range(a.repeats):  # in turn, so that a slow spell of the machine hits both
            start = time.perf_counter()
            model = DecentralizedKernelPCA(K, gamma=GAMMA, network=network, random_state=0).fit_parts(parts)
            ours.append(time.perf_counter() - start)
            start = time.perf_counter()
            KernelPCA(K, kernel="rbf", gamma=GAMMA, eigen_solver="arpack", random_state=0).fit(together)
            theirs.append(time.perf_counter() - start)
        agree = metrics.agreement(model, baselines.central(parts, K, gamma=GAMMA), together).min(axis=0)
        ratio = min(ours) / min(theirs)
        floors.require(agree[:2].min() >= 0.998 and agree[2:].min() >= 0.99, f"{label}: agreement {numbers(agree)}")
        floors.require(model.converged_ and model.n_iter_ <= 30, f"{label}: {model.n_iter_} iterations")
        floors.require(ratio <= 1.0, f"{label}: takes {ratio:.2f} times as long as central")
        shown.add_row(
            label, f"{min(ours):.2f}", f"{min(theirs):.2f}", f"{ratio:.2f}", numbers(agree, 5), str(model.n_iter_)
        )
    console.print(shown)
    floors.finish()


if __name__ == "__main__":
    main()
