"""Landmarks that are no samples: centres of clusters, points that everybody has, random features; and what landmarks miss."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import cauchy, norm
from sklearn.datasets import load_digits
from sklearn.exceptions import ConvergenceWarning

from conftest import clusters, make_options
from dekpca import DecentralizedKernelPCA, Network, NodeModel, Projection, baselines, draws, metrics
from dekpca.draws import bits, code_of
from dekpca.engines import local
from dekpca.kernels import make_kernel
from dekpca.landmarks import digest
from dekpca.program import program
from dekpca.settings import LandmarkSource
from dekpca.site import apart
from dekpca.solvers import features

PARTS = clusters([60, 45, 3, 50, 30])
NETWORK = Network.ring(5)
PUBLIC = np.concatenate([p[:12] for p in PARTS]) + np.random.default_rng(1).normal(scale=0.3, size=(51, 6))  # synthetic
MEANS = "landmarks (means of at least 5 rows of the network)"


@pytest.mark.parametrize(
    "settings",
    [
        {"landmarks": PUBLIC}, {"landmarks": 30}, {"landmarks": PUBLIC, "solver": Projection(tol=5e-3)},
        {"solver": Projection(n_landmarks=30, tol=5e-3)},
    ],
    ids=["points", "a number", "projection, points", "projection, a number"],
)  # fmt: skip
def test_good_answers(settings):
    model = DecentralizedKernelPCA(2, gamma=0.05, network=NETWORK, random_state=0, tol=5e-3, **settings)
    model.fit_parts(PARTS)
    central = baselines.central(PARTS, 2, gamma=0.05)
    assert model.converged_
    assert metrics.agreement(model, central, np.concatenate(PARTS)).min() > 0.995


def test_points_that_differ_are_noticed():
    options = make_options(PARTS, NETWORK, landmarks=LandmarkSource("points", PUBLIC))
    sites = apart(PARTS, NETWORK)
    other = replace(options, landmarks=LandmarkSource("points", PUBLIC + 1e-12))

    def one_differs(site, options):
        return program(site, other if 3 in site.nodes else options)

    with pytest.raises(ValueError, match="node 3: its landmarks differ from those of node 0"):
        local.drive(sites, options, local.Delivery(sites), script=one_differs)


def test_digest_tells_arrays_apart_and_fits_float32():
    a = np.arange(6.0).reshape(2, 3)
    assert (digest(a) == digest(a.copy(order="F"))).all()
    assert (digest(a) != digest(a.reshape(3, 2))).any()
    assert (digest(a).astype(np.float32) == digest(a)).all()


@pytest.mark.parametrize("name", ["rbf", "laplacian"])
def test_random_features_estimate_the_kernel(name):
    X = np.concatenate(clusters([20, 20]))
    kernel = make_kernel(name, gamma=0.1)
    exact = kernel.gram(X, X)
    errors = []
    for count in (500, 50_000):
        Z = kernel.features(X, kernel.frequencies(X.shape[1], count, seed=1))
        errors.append(np.abs(Z @ Z.T - exact).max())
        np.testing.assert_allclose((Z**2).sum(axis=1), 1.0)
    assert errors[1] < 0.02  # four standard deviations of the mean of 50,000 cosines
    assert errors[1] < errors[0] / 3


def splitmix64(seed: int, number: int) -> int:
    """In whole numbers, as its authors wrote it (Steele, Lea and Flood 2014)."""
    z = (seed + number * 0x9E3779B97F4A7C15) % 2**64
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
    return z ^ (z >> 31)


def test_draws_are_those_of_splitmix64():
    known = [6457827717110365317, 3203168211198807973, 9817491932198370423]  # published, of the seed 1234567
    assert [splitmix64(1234567, i) for i in (1, 2, 3)] == known
    found = bits(40_000, seed=7)  # several chunks
    assert [int(found[i]) % 2**64 for i in (0, 1, 39_999)] == [splitmix64(code_of("7"), i) for i in (0, 1, 39_999)]


def test_no_uniform_number_is_0_or_1(monkeypatch):
    """Quantiles of these are infinite, and so would be a frequency."""
    monkeypatch.setattr(draws, "bits", lambda count, seed, beside: np.array([0, -1, 2**63 - 1, -(2**63)])[:count])
    found = draws.uniform((4,), seed=0)
    assert 0 < found.min() < found.max() < 1
    assert np.isfinite(norm.ppf(found)).all()


def test_frequencies_are_the_same_everywhere():
    """From the bits of SplitMix64 through quantiles: nothing that versions or machines do differently."""
    drawn = np.array([(splitmix64(code_of("5"), i) >> 12) + 0.5 for i in range(2)]) * 2.0**-52
    np.testing.assert_allclose(make_kernel("rbf", gamma=0.5).frequencies(2, 1, seed=5), [norm.ppf(drawn)], rtol=1e-12)
    np.testing.assert_allclose(
        make_kernel("laplacian", gamma=2.0).frequencies(2, 1, seed=5), [2 * cauchy.ppf(drawn)], rtol=1e-12
    )


@pytest.mark.parametrize("kernel", ["rbf", "laplacian"])
def test_power_iterations_find_the_components_of_the_features(kernel, monkeypatch):
    monkeypatch.setattr(features, "MAX_ITER", 400)
    model = DecentralizedKernelPCA(
        3, kernel=kernel, gamma=0.05, network=NETWORK, landmarks="random-features", max_landmarks=120, tol=1e-12, random_state=0
    ).fit_parts(PARTS)  # fmt: skip
    frequencies = model.node_models_[0].function().points[0]
    assert frequencies.shape == (60, 6)
    psi = [make_kernel(kernel, gamma=0.05).features(p, frequencies) for p in PARTS]
    mean = np.concatenate(psi).mean(axis=0)
    _, sigma, directions = np.linalg.svd(np.concatenate(psi) - mean, full_matrices=False)
    np.testing.assert_allclose(model.eigenvalues_, sigma[:3] ** 2, rtol=1e-9)
    np.testing.assert_allclose(model.explained_variance_ratio_, sigma[:3] ** 2 / (sigma**2).sum(), rtol=1e-9)
    for j, node in enumerate(model.node_models_):
        values = (psi[j] - mean) @ directions[:3].T
        found = node.transform(PARTS[j])
        np.testing.assert_allclose(found, values * np.sign((found * values).sum(axis=0)), atol=1e-5)
    residual = model.history_["residual"]
    assert model.converged_
    assert len(residual) == model.n_iter_
    assert residual[-1] <= 1e-6 < residual[-2]


def test_random_features_may_be_odd_many_and_stop_early(monkeypatch):
    settings = {"gamma": 0.05, "network": NETWORK, "landmarks": "random-features", "random_state": 0}
    model = DecentralizedKernelPCA(2, max_landmarks=31, **settings).fit_parts(PARTS)
    assert model.node_models_[0].function().coefficients[0].shape == (32, 2)
    with monkeypatch.context() as patch:
        patch.setattr(features, "MAX_ITER", 2)
        says = "not converged after 2 iterations: relative residual [0-9.e-]+, where tol"
        with pytest.warns(ConvergenceWarning, match=says):
            stopped = DecentralizedKernelPCA(2, max_landmarks=500, **settings).fit_parts(PARTS)
    assert (stopped.n_iter_, stopped.converged_) == (2, False)
    constant = DecentralizedKernelPCA(2, max_landmarks=30, **settings)
    with pytest.warns(
        ConvergenceWarning, match="all components are zero, so that transform gives zeros: all rows are alike"
    ):
        constant.fit_parts([np.ones((5, 6))] * 5)
    assert (constant.eigenvalues_ == 0).all()
    assert (constant.explained_variance_ratio_ == 0).all()
    assert not constant.converged_


def test_clusters_are_of_the_rows_of_all_nodes():
    """No node has the five rows of a cluster; together they have many."""
    parts = np.array_split(np.concatenate(clusters([60] * 5)), 100)
    model = DecentralizedKernelPCA(2, gamma=0.05, network=100, share_rows=False, random_state=0).fit_parts(parts)
    (held,) = model.node_models_[0].contents
    assert str(held) == f"{held.rows} {MEANS}"
    assert held.rows >= 30
    central = baselines.central(parts, 2, gamma=0.05)
    assert metrics.agreement(model, central, np.concatenate(parts)).min() > 0.999


@pytest.mark.parametrize("settings", [{}, {"share_rows": False}, {"landmarks": 20}], ids=str)
def test_components_that_the_data_does_not_have_are_zero(settings):
    """Three places in all, which have two components."""
    parts = [np.full((20, 2), float(j)) for j in range(3)]
    model = DecentralizedKernelPCA(4, gamma=0.3, network=3, random_state=0, **settings)
    with pytest.warns(
        ConvergenceWarning, match="components 3 to 4 are zero: .* the rows span 2 dimensions; lower n_comp"
    ):
        model.fit_parts(parts)
    central = baselines.central(parts, 2, gamma=0.3)
    assert not model.converged_
    assert model.n_landmarks_ == 3
    np.testing.assert_allclose(model.accuracy_, [1, 1, 0, 0], atol=1e-9)
    np.testing.assert_allclose(model.eigenvalues_, [*central.eigenvalues_, 0, 0], rtol=1e-9, atol=1e-9)
    values = model.transform(np.concatenate(parts))
    np.testing.assert_allclose(values[:, 2:], 0, atol=1e-9)
    expected = central.transform(np.concatenate(parts))
    np.testing.assert_allclose(np.abs(values[:, :2]), np.abs(expected), atol=1e-7)


def test_random_features_in_float32():
    """Small components are kept, and data of a lower rank than asked for is named."""
    X = load_digits().data[:400]
    settings = {"n_components": 20, "gamma": 1e-4, "network": 4, "landmarks": "random-features", "random_state": 0}
    single, double = (DecentralizedKernelPCA(**settings, dtype=dtype).fit(X) for dtype in ("float32", "float64"))
    np.testing.assert_allclose(single.eigenvalues_, double.eigenvalues_, rtol=1e-2)
    few = np.repeat(clusters([3])[0], 20, axis=0).astype(np.float32)
    poor = DecentralizedKernelPCA(5, gamma=0.05, network=3, landmarks="random-features", random_state=0)
    with pytest.warns(ConvergenceWarning, match="to 5 are zero: .*; lower n_components"):
        poor.fit(few)
    assert (poor.eigenvalues_[2:] < 1e-4 * poor.eigenvalues_[0]).all()


@pytest.mark.parametrize(
    "kernel",
    [
        make_kernel("rbf", gamma=0.1), make_kernel("laplacian", gamma=0.1), make_kernel("linear"), make_kernel("cosine"),
        make_kernel("poly", gamma=0.1, degree=3), make_kernel("poly", gamma=0.1, degree=2, normalize=True),
    ],
    ids=str,
)  # fmt: skip
def test_the_features_of_the_judge_estimate_the_kernel_without_bias(kernel):
    """In the mean of many groups, which are independent of each other; also where the two halves of a group are not equal."""
    X = np.concatenate(clusters([12, 8]))
    exact = kernel.gram(X, X)
    count, groups = 33, 400
    Z = kernel.random_map(X.shape[1], count, groups, seed=1)(X).reshape(len(X), groups, 2 * count)
    found = np.einsum("igf,jgf->gij", Z, Z)
    spread = found.std(axis=0)
    assert (np.abs(found.mean(axis=0) - exact) < 5 * spread / np.sqrt(groups) + 1e-9).all()
    assert spread.max() < exact.max()
    one = kernel.random_map(X.shape[1], count, groups, seed=1)(X[:3])
    np.testing.assert_allclose(one, Z[:3].reshape(3, -1), rtol=1e-9, atol=1e-12)  # the same at every node


@pytest.mark.parametrize(
    ("settings", "holds"),
    [
        ({"landmarks": PUBLIC, "solver": Projection(expansion="landmarks", tol=0.02)}, ["51 landmarks (points given to all nodes)"]),
        ({"solver": Projection(n_landmarks=30, expansion="landmarks", tol=0.02)}, [MEANS]),
        ({"share_rows": False}, [MEANS]),
        ({"share_rows": False, "landmarks": 5}, [MEANS]),
        ({"landmarks": "random-features", "max_landmarks": 40}, ["20 frequencies (drawn from a seed)"]),
    ],
    ids=["points", "means", "auto", "few", "random features"],
)  # fmt: skip
def test_models_without_samples_can_be_handed_out(settings, holds, tmp_path):
    model = DecentralizedKernelPCA(2, gamma=0.05, network=NETWORK, random_state=0, tol=0.02, **settings).fit_parts(
        PARTS
    )
    for node in model.node_models_:
        assert not any(held.samples for held in node.contents)
        assert len(node.contents) == len(holds)
        assert all(str(held).endswith(what) for held, what in zip(node.contents, holds, strict=True))
        node.save(tmp_path / "node.npz")
        file = (tmp_path / "node.npz").read_bytes()  # not compressed: a row would be found
        assert node.function().points[0][0].tobytes() in file
        assert not any(row.tobytes() in file for part in PARTS for row in part)
        again = NodeModel.load(tmp_path / "node.npz")
        assert again.contents == node.contents
        np.testing.assert_allclose(again.transform(PARTS[0]), node.transform(PARTS[0]), rtol=1e-12, atol=1e-12)


def test_models_say_whose_samples_they_hold():
    settings = {"gamma": 0.05, "network": NETWORK, "random_state": 0}
    noisy = DecentralizedKernelPCA(2, solver=Projection(n_landmarks=20, exchange_noise=0.1), **settings)
    means, *samples = noisy.fit_parts(PARTS).node_models_[0].contents
    assert str(means) == f"{means.rows} {MEANS}"
    assert not means.samples
    assert [str(held) for held in samples] == [
        "60 samples of node 0 with noise",
        "45 samples of node 1 with noise",
        "30 samples of node 4 with noise",
    ]
    assert all(held.samples for held in samples)
    model = DecentralizedKernelPCA(2, landmarks=120, **settings).fit_parts(PARTS)
    means, rows = model.node_models_[0].contents
    assert means.rows + rows.rows == model.n_landmarks_ <= 120
    assert str(means) == f"{means.rows} {MEANS}"
    assert str(rows) == f"{rows.rows} landmarks (rows of the nodes)"
    assert not means.samples
    assert rows.samples
    model = DecentralizedKernelPCA(2, landmarks=120, share_rows=False, **settings).fit_parts(PARTS)
    (means,) = model.node_models_[0].contents
    assert means.rows == model.n_landmarks_ < 40
    assert not means.samples
