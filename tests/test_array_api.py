"""The same code on other array libraries: array-api-strict, which implements the standard and nothing more, and PyTorch where installed."""

from __future__ import annotations

from dataclasses import replace

import array_api_strict as xps
import numpy as np
import pytest

from conftest import clusters, make_options
from dekpca import PAPER, DecentralizedKernelPCA, Network, Projection
from dekpca.arrays import to_numpy
from dekpca.draws import row_keys, uniform_by_key
from dekpca.engines import local
from dekpca.kernels import make_kernel
from dekpca.plan import Plan
from dekpca.settings import LandmarkSource
from dekpca.testing import by_node

FEW = Projection(n_landmarks=20, max_iter=10, tol=0)
PAPERS = replace(PAPER, max_iter=10, tol=0)


@pytest.fixture(params=["array_api_strict", "torch"])
def asarray(request):
    return pytest.importorskip(request.param).asarray


def test_draws_are_the_same_bits_in_every_library(asarray):
    """Other libraries have no unsigned integers: a shift that keeps the sign, or a product that does not wrap, would give other numbers."""
    names, sizes = ["oslo", "rome", "bonn"], np.array([400, 0, 1700])
    keys, theirs = row_keys(3, names, sizes), row_keys(3, names, sizes, asarray(np.zeros((0, 2))))
    np.testing.assert_array_equal(to_numpy(theirs), keys)
    assert (keys < 0).any()
    assert (keys > 0).any()
    np.testing.assert_array_equal(to_numpy(uniform_by_key(theirs, "judges")), uniform_by_key(keys, "judges"))


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_frequencies_are_the_same_numbers_in_every_library(asarray, kind):
    X, kernel = np.random.default_rng(0).normal(size=(50, 3)).astype(kind), make_kernel("rbf", gamma=0.2)
    mine, theirs = (kernel.random_map(3, 40, 2, seed=7)(x) for x in (X, asarray(X)))
    np.testing.assert_allclose(
        to_numpy(theirs), mine, atol=50 * np.finfo(kind).eps
    )  # of a tangent that is rarely large


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"share_rows": False},
        pytest.param({"n_landmarks": 25}, marks=pytest.mark.slow),
        {"kernel": make_kernel("poly", gamma=0.1, degree=2), "n_landmarks": 20},
        {"gamma_by_variance": True, "n_landmarks": 20},
        {"landmarks": LandmarkSource("random-features"), "n_landmarks": 40},
        {"projection": FEW},
        {"projection": replace(FEW, centering="local", init="random", diagnostics=True)},
        {"projection": FEW, "standardize": True},
        pytest.param({"projection": replace(FEW, exchange_noise="20dB")}, marks=pytest.mark.slow),
        {"projection": PAPERS},
        pytest.param({"projection": replace(PAPERS, exchange_noise=0.01)}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_other_arrays_give_numpys_answer(changes, ragged, asarray):
    parts, network = ragged
    options = make_options(parts, network, **{"n_components": 2} | changes)
    usual = by_node(local.run(Plan.of(parts, network, options)))
    others = by_node(local.run(Plan.of([asarray(p) for p in parts], network, options)))
    for name, (answer, functions) in usual.items():
        other, theirs = others[name]
        for expansion, terms in functions.items():
            found = theirs[expansion]
            for w, v in zip((terms.shared, *terms.coefficients), (found.shared, *found.coefficients), strict=True):
                assert type(v) is type(asarray(parts[0]))
                np.testing.assert_allclose(to_numpy(v), w, atol=1e-9 * np.abs(w).max(initial=0.0))
        np.testing.assert_allclose(to_numpy(other.eigenvalues), answer.eigenvalues, rtol=1e-9)
        assert (other.accuracy is None) == (answer.accuracy is None)
        if answer.accuracy is not None:
            np.testing.assert_allclose(other.accuracy.components, answer.accuracy.components, rtol=1e-3)


@pytest.mark.parametrize("solver", ["auto", Projection()], ids=["auto", "projection"])
@pytest.mark.parametrize("kernel", ["rbf", "linear", "poly", "laplacian", "cosine"])
def test_the_estimator_answers_in_kind(kernel, solver, asarray):
    X = np.concatenate(clusters([40] * 4))
    settings = {"kernel": kernel, "solver": solver, "gamma": 0.05, "network": Network.ring(4), "random_state": 0}
    usual, other = (
        DecentralizedKernelPCA(2, **settings).fit(X),
        DecentralizedKernelPCA(2, **settings).fit(asarray(X)),
    )
    values = other.transform(asarray(X[:9]))
    assert type(values) is type(asarray(X))
    np.testing.assert_allclose(to_numpy(values), usual.transform(X[:9]), atol=1e-7)
    np.testing.assert_allclose(to_numpy(other.eigenvalues_), usual.eigenvalues_, rtol=1e-9)
    np.testing.assert_allclose(
        to_numpy(other.transform(X[:9])), usual.transform(X[:9]), atol=1e-7
    )  # lists and NumPy are welcome too
    back = other.inverse_transform(values)
    assert type(back) is type(asarray(X))
    np.testing.assert_allclose(to_numpy(back), usual.inverse_transform(usual.transform(X[:9])), atol=1e-5)


def test_float32_and_integers():
    X = np.concatenate(clusters([40] * 4))
    single = DecentralizedKernelPCA(2, gamma=0.05, network=4, random_state=0).fit(xps.asarray(X, dtype=xps.float32))
    assert single.eigenvalues_.dtype == xps.float32
    whole = DecentralizedKernelPCA(2, gamma=0.05, network=4, random_state=0).fit(
        xps.asarray(np.round(X).astype(np.int64))
    )
    assert whole.eigenvalues_.dtype == xps.float64


def test_bad_arrays():
    X = np.concatenate(clusters([40] * 2))
    with pytest.raises(ValueError, match="row 3"):
        DecentralizedKernelPCA(network=2).fit(xps.asarray(np.where(np.arange(len(X))[:, None] == 3, np.nan, X)))
    with pytest.raises(ValueError, match="not numeric"):
        DecentralizedKernelPCA(network=2).fit(xps.asarray(X + 1j))
    with pytest.raises(
        ValueError, match=r"node 1: \w+ of .*, but node 0 has \w+ of .*; use one library, device and dtype"
    ):
        DecentralizedKernelPCA().fit_parts([X, xps.asarray(X)])
    with pytest.raises(ValueError, match="use one library"):
        DecentralizedKernelPCA(gamma=0.05, network=2).fit(X).transform(xps.asarray(X))
