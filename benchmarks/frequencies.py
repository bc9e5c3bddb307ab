"""Which frequencies judge best: half of them drawn wider, by how much, for tables of few and of many columns.

Each fit has given landmarks (one set for a table), so that only the random features of its judgement vary with the seed. They turn the components:
the table has sin^2 of the largest angle to the span of central kernel PCA, in the middle and in the worst of 20 fits, and how many of the stated
bounds are at least the true error.

    python benchmarks/frequencies.py
"""

from __future__ import annotations

import warnings

import numpy as np
from rich.progress import track
from sklearn.cluster import MiniBatchKMeans
from sklearn.datasets import load_breast_cancer, load_digits, make_blobs, make_swiss_roll

from common import Floors, console, table
from dekpca import DecentralizedKernelPCA, baselines
from dekpca.kernels import stationary

WIDER = (0.0, 1.0, 2.0, 3.0, 4.0)  # over the number of columns; 0: the kernel's own distribution
SEEDS, K, FEW = 20, 5, 8
TAILS = np.random.default_rng(0)
TABLES = {
    "swiss roll": make_swiss_roll(2000, random_state=0)[0],
    "heavy tails, 2": TAILS.standard_t(3, size=(2000, 2)),
    "heavy tails, 5": TAILS.standard_t(5, size=(2000, 5)),
    "clusters": make_blobs(2000, 8, centers=6, random_state=0)[0],
    "breast cancer": load_breast_cancer().data,
    "digits": load_digits().data,
}


def errors(X: np.ndarray, landmarks: np.ndarray, central: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The true error and the stated bound, by seed."""
    found = []
    for seed in range(SEEDS):
        gamma = 1.0 / X.shape[1]
        model = DecentralizedKernelPCA(
            K, gamma=gamma, landmarks=landmarks, share_rows=False, network=4, random_state=seed
        ).fit(X)
        span = np.linalg.qr(model.transform(X))[0]
        found.append((1 - np.linalg.svd(span.T @ central)[1].min() ** 2, model.history_["bound"][-1]))
    return np.array(found).T


def main() -> None:
    floors, gains = Floors(), list[float]()
    shown = table("median, worst error, and bounds that hold", "table", "columns", *(f"{w:g} / columns" for w in WIDER))
    warnings.simplefilter("ignore")
    for name, X in track(TABLES.items(), console=console, transient=True):
        X = (X - X.mean(axis=0)) / np.maximum(X.std(axis=0), 1e-12)
        landmarks = MiniBatchKMeans(110, random_state=0, n_init=1).fit(X).cluster_centers_
        values = baselines.central(X, K, gamma=1.0 / X.shape[1]).transform(X)
        central = np.linalg.qr(values - values.mean(axis=0))[0]
        worst, cells, used = {}, [], stationary.WIDER
        for wider in WIDER:
            stationary.WIDER = wider
            error, bound = errors(X, landmarks, central)
            worst[wider] = error.max()
            cells.append(f"{np.median(error):.1e} {error.max():.1e} {(bound >= error).sum()}/{SEEDS}")
        shown.add_row(name, str(X.shape[1]), *cells)
        stationary.WIDER = used
        ratio, most = worst[used] / worst[0.0], 1.0 if X.shape[1] <= FEW else 1.25
        gains.append(ratio)
        floors.require(ratio <= most, f"{name}: worst error {ratio:.2f} of that of the kernel's own frequencies")
    console.print(shown)
    floors.require(min(gains) < 0.1, f"the largest gain is {1 / min(gains):.3g} times")
    floors.finish()


if __name__ == "__main__":
    main()
