"""Scores as an outlier detector: area under the ROC curve (AUC) beside other detectors.

    python benchmarks/scores.py

Each detector learns from half of the inliers and ranks the other half and the outliers; columns are standardized by the rows learned from. Printed
are means over five splits. dekpca has five nodes and 10 components, also without sharing rows; "exact" is the reconstruction error in feature space
of scikit-learn's KernelPCA, all rows in one place, with the same kernel (gamma="scale") and number of components. IsolationForest and OneClassSVM
have their defaults. Nothing was tuned.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial

import numpy as np
from sklearn.datasets import load_breast_cancer, load_digits, load_wine, make_blobs, make_moons
from sklearn.decomposition import KernelPCA
from sklearn.ensemble import IsolationForest
from sklearn.metrics import roc_auc_score
from sklearn.metrics.pairwise import rbf_kernel
from sklearn.preprocessing import StandardScaler
from sklearn.svm import OneClassSVM

from common import Floors, console, table
from dekpca import DecentralizedKernelPCA

K, SPLITS, NODES = 10, 5, 5
CLOSE = 0.01  # of AUC, to the exact reconstruction error
Sets = dict[str, tuple[np.ndarray, np.ndarray]]  # inliers and outliers


def data_sets() -> Sets:
    rng, found = np.random.default_rng(0), {}
    X, y = load_breast_cancer(return_X_y=True)
    found["breast cancer: benign, malignant"] = X[y == 1], X[y == 0]
    X, y = load_wine(return_X_y=True)
    found["wine: kind 1, the others"] = X[y == 1], X[y != 1]
    X, y = load_digits(return_X_y=True)
    X = X + rng.uniform(0, 1e-3, X.shape)  # pixels that are always white have no variance
    found["digits: 8, the others"] = X[y == 8], X[y != 8]
    found["digits: all but 4, 4"] = X[y != 4], X[y == 4]
    X, _ = make_moons(1000, noise=0.05, random_state=0)
    found["two moons, uniform"] = X, rng.uniform(X.min(axis=0), X.max(axis=0), (500, 2))
    X, _ = make_blobs(1000, 5, centers=4, random_state=0)
    found["four blobs, uniform"] = X, rng.uniform(X.min(axis=0), X.max(axis=0), (500, 5))
    plane = rng.normal(size=(1000, 3)) @ rng.normal(size=(3, 20)) + 0.1 * rng.normal(size=(1000, 20))
    found["3 of 20 dimensions, Gaussian"] = plane, plane.std() * rng.normal(size=(500, 20))
    tails = rng.standard_t(2, size=(1000, 10))
    found["heavy tails, shifted"] = tails, rng.standard_t(2, size=(500, 10)) + 2.0
    return found


def exact_error(train: np.ndarray, test: np.ndarray) -> np.ndarray:
    gamma = 1.0 / (train.shape[1] * train.var())
    model = KernelPCA(K, kernel="rbf", gamma=gamma).fit(train)
    across = rbf_kernel(test, train, gamma=gamma).mean(axis=1)
    return 1.0 - 2.0 * across + rbf_kernel(train, gamma=gamma).mean() - (model.transform(test) ** 2).sum(axis=1)


def ours(train: np.ndarray, test: np.ndarray, share_rows: bool = True) -> np.ndarray:
    with warnings.catch_warnings():  # where few rows may not leave, fits say that they are not accurate
        warnings.simplefilter("ignore")
        model = DecentralizedKernelPCA(K, network=NODES, share_rows=share_rows, random_state=0).fit(train)
    return model.reconstruction_error(test)


DETECTORS: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "dekpca": ours,
    "share_rows=False": partial(ours, share_rows=False),
    "exact": exact_error,
    "IsolationForest": lambda train, test: -IsolationForest(random_state=0).fit(train).score_samples(test),
    "OneClassSVM": lambda train, test: -OneClassSVM().fit(train).score_samples(test),
}


def main() -> None:
    made, floors = (
        table("AUC, mean of five splits", "inliers, outliers", "rows", *DETECTORS, "where dekpca is worse than"),
        Floors(),
    )
    for name, (inliers, outliers) in data_sets().items():
        found = []
        for split in range(SPLITS):
            order = np.random.default_rng(split).permutation(len(inliers))
            half = len(order) // 2
            scaler = StandardScaler().fit(inliers[order[:half]])
            test = scaler.transform(np.concatenate([inliers[order[half:]], outliers]))
            truth = np.repeat([0, 1], [len(order) - half, len(outliers)])
            train = scaler.transform(inliers[order[:half]])
            found.append([roc_auc_score(truth, detector(train, test)) for detector in DETECTORS.values()])
        mine, none_shared, exact, *others = np.mean(found, axis=0)
        best = list(DETECTORS)[2 + int(np.argmax([exact, *others]))]
        verdict = "-" if mine >= max(exact, *others) - 5e-4 else f"{best}, {max(exact, *others) - mine:.3f}"
        made.add_row(name, f"{half}", *(f"{value:.3f}" for value in (mine, none_shared, exact, *others)), verdict)
        floors.require(mine >= exact - CLOSE, f"{name}: {mine:.3f} against {exact:.3f} of the exact error")
    console.print(made)
    floors.finish()


if __name__ == "__main__":
    main()
