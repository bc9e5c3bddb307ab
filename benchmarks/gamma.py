"""Which default for gamma: 1 / columns, as scikit-learn's KernelPCA has it, or "scale", 1 / (columns x variance), as its SVC has it.

    python benchmarks/gamma.py [--data mnist-0358.npz]

For each data set, as it comes and standardized: what the first component of central kernel PCA explains, and how far a network of six nodes
agrees with it (worst node, worst of two components). A kernel that is too narrow explains next to nothing.
"""

from __future__ import annotations

import argparse
import warnings

import numpy as np
from sklearn.datasets import (
    load_breast_cancer,
    load_diabetes,
    load_digits,
    load_iris,
    load_wine,
    make_moons,
    make_swiss_roll,
)
from sklearn.preprocessing import StandardScaler

from dekpca import DecentralizedKernelPCA, baselines, metrics


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", help="MNIST digits 0, 3, 5, 8: X in an npz")
    given = parser.parse_args()
    rng = np.random.default_rng(0)
    people = np.column_stack(
        [rng.normal(45, 15, 600), rng.lognormal(10.5, 0.5, 600), rng.normal(172, 9, 600), rng.normal(26, 4, 600)]
    )
    sets = {
        "wine": load_wine().data,
        "iris": load_iris().data,
        "breast cancer": load_breast_cancer().data,
        "diabetes": load_diabetes().data,
        "digits": load_digits().data,
        "moons": make_moons(500, noise=0.1, random_state=0)[0],
        "swiss roll": make_swiss_roll(800, random_state=0)[0],
        "age, salary, height, bmi": people,
    }
    if given.data:
        sets["MNIST"] = np.load(given.data)["X"][::12].astype(float)
    print("| data | first component explains, 1 / columns | scale | agreement, 1 / columns | scale |")
    print("|---|---|---|---|---|")
    for name, raw in sets.items():
        for kind, X in ((name, raw), (f"{name}, standardized", StandardScaler().fit_transform(raw))):
            share, agreement = [], []
            for gamma in (None, "scale"):
                central = baselines.central(X, 2, gamma=gamma)
                gram = central.kernel.gram(X, X)
                share.append(central.eigenvalues_[0] / (len(X) - gram.mean() * len(X)))
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    model = DecentralizedKernelPCA(2, gamma=gamma, network=6, random_state=0).fit(X)
                agreement.append(metrics.agreement(model, central, X).min())
            print(f"| {kind} | {share[0]:.2%} | {share[1]:.2%} | {agreement[0]:.4f} | {agreement[1]:.4f} |", flush=True)


if __name__ == "__main__":
    main()
