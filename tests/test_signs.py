"""Signs of components: the same whatever random_state, network and engine are, and those of the central answer."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from sklearn import datasets
from sklearn.preprocessing import StandardScaler

from dekpca import DecentralizedKernelPCA, baselines

SEEDS = range(10)
K = 3


def tables():
    rng = np.random.default_rng(0)
    return {
        "iris": datasets.load_iris().data,
        "wine": StandardScaler().fit_transform(datasets.load_wine().data),
        "digits": datasets.load_digits().data,
        "blobs": datasets.make_blobs(1000, n_features=8, centers=5, random_state=0)[0],
        "circles": datasets.make_circles(600, factor=0.4, noise=0.05, random_state=0)[0] * [1.5, 1],
        "many rows": rng.normal(size=(10_000, 4)) * [4, 3, 2, 1] + 3 * (rng.uniform(size=(10_000, 1)) < 0.3),
    }


TABLES = tables()


def wide(A, B):
    """A kernel without random features."""
    return np.exp(-0.02 * ((A[:, None] - B) ** 2).sum(axis=2))


def values(X, seed, **settings):
    with warnings.catch_warnings():  # of the accuracy where little is asked for
        warnings.simplefilter("ignore")
        model = DecentralizedKernelPCA(K, random_state=seed, **{"network": 4} | settings).fit(X)
    return model.node_models_[0].transform(X), model.gamma_


def cosines(a, b):
    return (a * b).sum(axis=0) / np.linalg.norm(a, axis=0) / np.linalg.norm(b, axis=0)


def check(X, seeds, central_settings, **settings):
    central = None
    for seed in seeds:
        found, gamma = values(X, seed, **settings)
        if central is None:
            central = baselines.central(X[:: max(1, len(X) // 2000)], K, gamma=gamma, **central_settings).transform(X)
        assert (cosines(found, central) > 0.9).all(), f"seed {seed}: {cosines(found, central)}"


@pytest.mark.parametrize("name", [*list(TABLES)[:-1], pytest.param("many rows", marks=pytest.mark.slow)])
def test_signs_are_those_of_the_central_answer_for_every_seed(name):
    check(TABLES[name], SEEDS, {})


@pytest.mark.slow
@pytest.mark.parametrize("name", ["iris", "wine", "digits", "blobs"])
def test_signs_under_masks_for_every_seed(name):
    check(TABLES[name], SEEDS, {}, privacy="secure-sums")


@pytest.mark.parametrize(
    "settings",
    [
        {"privacy": "secure-sums"}, {"network": 1}, {"network": 12}, {"kernel": "linear"}, {"kernel": "poly", "degree": 2},
        {"kernel": wide},
        {"landmarks": "random-features", "tol": 1e-2, "max_landmarks": 10_000}, {"landmarks": 60}, {"share_rows": False},
        {"kernel": wide, "share_rows": False},
    ],
    ids=lambda settings: str({name: getattr(value, "__name__", value) for name, value in settings.items()}),
)  # fmt: skip
@pytest.mark.parametrize("name", ["iris", "blobs"])
def test_signs_of_other_settings(name, settings):
    named = {key: settings[key] for key in ("kernel", "degree") if key in settings}
    check(TABLES[name], (0, 1, 2), named, **settings)
