"""Denoising by default, beside scikit-learn's KernelPCA with the settings of its own example (plot_digits_denoising).

    python benchmarks/denoising.py

As in that example 1,000 digits are learned from and 100 others denoised, pixels are 0 to 1 and the noise has a deviation of 0.25; the digits are
those that scikit-learn holds (8 x 8), since USPS must be downloaded. Five nodes, `inverse_transform` without arguments. Printed are mean squared
errors against the clean digits.
"""

from __future__ import annotations

import warnings

import numpy as np
from sklearn.datasets import load_digits
from sklearn.decomposition import KernelPCA
from sklearn.model_selection import train_test_split

from common import Floors, console, table
from dekpca import DecentralizedKernelPCA

NOISE = 0.25
ALPHA = 5e-3  # of the example
SETTINGS = [(400, 1e-3), (32, 1e-3), (400, 1e-2), (32, 1e-2)]  # the first is the example's


def main() -> None:
    X, y = load_digits(return_X_y=True)
    learned, clean = train_test_split(X / X.max(), stratify=y, random_state=0, train_size=1000, test_size=100)
    rng = np.random.RandomState(0)
    noisy = clean + rng.normal(scale=NOISE, size=clean.shape)
    made = table(
        f"mean squared errors; of the noisy digits {((noisy - clean) ** 2).mean():.4f}",
        "components, gamma, learned from",
        f"scikit-learn, alpha={ALPHA:g}",
        "scikit-learn, alpha=1",
        "dekpca",
        "dekpca, alpha=0.1",
    )
    floors = Floors()
    for deviation in (NOISE, 0.0):
        rows = learned + rng.normal(scale=deviation, size=learned.shape)
        for k, gamma in SETTINGS:
            what = f"{k}, {gamma:g}, {'noisy' if deviation else 'clean'} digits"
            theirs = [
                KernelPCA(k, kernel="rbf", gamma=gamma, fit_inverse_transform=True, alpha=alpha).fit(rows)
                for alpha in (ALPHA, 1.0)
            ]
            with warnings.catch_warnings():  # of components that rows of 64 columns hardly have
                warnings.simplefilter("ignore")
                ours = DecentralizedKernelPCA(k, gamma=gamma, network=5, random_state=0).fit(rows)
            back = [model.inverse_transform(model.transform(noisy)) for model in (*theirs, ours)]
            back.append(ours.inverse_transform(ours.transform(noisy), alpha=0.1))
            errors = [float(((images - clean) ** 2).mean()) for images in back]
            made.add_row(what, *(f"{error:.4f}" for error in errors))
            if deviation:
                floors.require(errors[2] <= min(errors[:2]), f"{what}: {errors[2]:.4f} against {min(errors[:2]):.4f}")
    console.print(made)
    floors.finish()


if __name__ == "__main__":
    main()
