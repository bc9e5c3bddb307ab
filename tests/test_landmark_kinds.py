"""Landmarks that are no samples: centres of clusters, points that everybody has, random features; and what landmarks miss."""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import cauchy, norm
from sklearn.datasets import load_digits
from sklearn.exceptions import ConvergenceWarning

from conftest import clusters, make_options
from dekpca import DecentralizedKernelPCA, Network, NodeModel, baselines, metrics
from dekpca.block import make_blocks
from dekpca.choices import LandmarkSource
from dekpca.core.clusters import GROUP, LEAST_CLUSTER, cluster_means, grouped
from dekpca.core.landmarks import Landmarks, digest
from dekpca.core.sketch import FEW_COLUMNS, Sketch
from dekpca.engines import local
from dekpca.kernels import Kernel
from dekpca.program import program

PARTS = clusters([60, 45, 3, 50, 30])
NETWORK = Network.ring(5)
PUBLIC = np.concatenate([p[:12] for p in PARTS]) + np.random.default_rng(1).normal(scale=0.3, size=(51, 6))  # synthetic
MEANS = " landmarks (means of at least 5 rows of one node)"


def test_means_are_of_enough_rows_and_of_other_rows_each():
    """Every row has a column of its own, so that a mean says of which rows it is."""
    X = np.concatenate(clusters([60, 7]))
    rows = np.concatenate([X, 1e-3 * np.eye(67)], axis=1)
    rows = rows[np.random.default_rng(0).permutation(67)]
    for count in (1, 4, 13, 60):
        means, found = cluster_means(np.stack([rows, rows[::-1]]), np.array([67, 67]), np.array([count, 2]))
        assert 1 <= found[0] <= min(count, len(X) // LEAST_CLUSTER)
        assert 1 <= found[1] <= 2
        behind = means[:, 6:] > 0
        assert behind.sum(axis=1).min() >= LEAST_CLUSTER
        assert behind[: found[0]].sum(axis=0).max() == behind[found[0] :].sum(axis=0).max() == 1
        np.testing.assert_allclose(means, [X_of(rows, some).mean(axis=0) for some in behind], rtol=1e-12, atol=1e-15)
    assert len(cluster_means(X[None, :4], np.array([4]), np.array([3]))[0]) == 0
    assert cluster_means(X[None].astype(np.float32), np.array([67]), np.array([4]))[0].dtype == np.float32
    lonely = np.concatenate([np.zeros((20, 2)) + np.arange(20)[:, None] * 1e-3, [[100.0, 0.0]]])
    for seed in range(20):  # an outlier is no cluster
        mixed = lonely[np.random.default_rng(seed).permutation(21)]
        assert np.abs(cluster_means(mixed[None], np.array([21]), np.array([4]))[0]).max(initial=0.0) < 50


def X_of(rows, which):
    """The rows whose own columns are `which`."""
    return rows[(rows[:, 6:] > 0)[:, which].any(axis=1)]


def test_rows_beyond_the_size_of_a_group_do_not_count():
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(1, 40, 3))
    rows[:, 30:] = 1e6
    means, found = cluster_means(rows, np.array([30]), np.array([3]))
    assert len(means) == found[0] > 0
    assert np.abs(means).max() < 5


@given(st.lists(st.tuples(st.integers(0, 100), st.integers(0, 500)), min_size=1, max_size=6))
def test_groups_share_the_clusters_and_rows_of_their_node(nodes):
    counts, taken = np.array(nodes).T
    taken = np.where(counts > 0, taken, 0)
    node, clusters_of, rows_of = grouped(counts, taken)
    assert clusters_of.max(initial=0) <= GROUP
    np.testing.assert_array_equal(np.bincount(node, clusters_of, len(counts)), counts)
    np.testing.assert_array_equal(np.bincount(node, rows_of, len(counts)), taken)
    assert (np.diff(node) >= 0).all()


@pytest.mark.parametrize("solver", ["projection", "landmarks"])
@pytest.mark.parametrize("kind", ["kmeans", "points", "samples", "gaussian"])
def test_good_answers(solver, kind):
    settings = {"landmarks": PUBLIC} if kind == "points" else {"landmarks": kind, "n_landmarks": 30}
    model = DecentralizedKernelPCA(  # of clusters of five rows there are ten only, and their true error is 2.5e-3
        2, gamma=0.05, network=NETWORK, solver=solver, random_state=0, tol=5e-3, **settings
    ).fit_parts(PARTS)
    central = baselines.central(PARTS, 2, gamma=0.05)
    assert model.converged_
    assert metrics.agreement(model, central, np.concatenate(PARTS)).min() > 0.995


def test_points_that_differ_are_noticed():
    options = make_options(PARTS, NETWORK, "auto", landmarks=PUBLIC)
    blocks = make_blocks(PARTS, NETWORK, apart=True)
    other = replace(options, landmarks=LandmarkSource.of(PUBLIC + 1e-12))

    def one_differs(block, options, resume=None):
        return program(block, other if 3 in block.nodes else options, resume)

    with pytest.raises(ValueError, match="node 3: its landmarks differ from those of node 0"):
        local.drive(blocks, options, script=one_differs)


def test_digest_tells_arrays_apart_and_fits_float32():
    a = np.arange(6.0).reshape(2, 3)
    assert (digest(a) == digest(a.copy(order="F"))).all()
    assert (digest(a) != digest(a.reshape(3, 2))).any()
    assert (digest(a).astype(np.float32) == digest(a)).all()


@pytest.mark.parametrize("name", ["rbf", "laplacian"])
def test_random_features_estimate_the_kernel(name):
    X = np.concatenate(clusters([20, 20]))
    kernel = Kernel(name, gamma=0.1)
    exact = kernel.gram(X, X)
    errors = []
    for count in (500, 50_000):
        Z = kernel.features(X, kernel.frequencies(X.shape[1], count, seed=1))
        errors.append(np.abs(Z @ Z.T - exact).max())
        np.testing.assert_allclose((Z**2).sum(axis=1), 1.0)
    assert errors[1] < 0.02  # four standard deviations of the mean of 50,000 cosines
    assert errors[1] < errors[0] / 3


def test_frequencies_are_the_same_everywhere():
    """From raw bits of PCG64, whose stream NumPy promises to keep, through quantiles: nothing that versions or machines do differently."""
    raw = np.random.PCG64(5).random_raw(2) >> np.uint64(11)
    drawn = (raw.astype(np.float64) + 0.5) * 2.0**-53
    np.testing.assert_allclose(Kernel("rbf", gamma=0.5).frequencies(2, 1, seed=5), [norm.ppf(drawn)], rtol=1e-12)
    np.testing.assert_allclose(
        Kernel("laplacian", gamma=2.0).frequencies(2, 1, seed=5), [2 * cauchy.ppf(drawn)], rtol=1e-12
    )


@pytest.mark.parametrize("centering", ["global", "local", None])
@pytest.mark.parametrize("kernel", ["rbf", "laplacian"])
def test_power_iterations_find_the_components_of_the_features(kernel, centering):
    model = DecentralizedKernelPCA(
        3, kernel=kernel, gamma=0.05, network=NETWORK, solver="landmarks", landmarks="random-features", n_landmarks=120,
        centering=centering, tol=1e-12, max_iter=400, random_state=0,
    ).fit_parts(PARTS)  # fmt: skip
    frequencies = model.node_models_[0].function().points[0]
    assert frequencies.shape == (60, 6)
    psi = [Kernel(kernel, gamma=0.05).features(p, frequencies) for p in PARTS]
    if centering == "local":
        psi = [p - p.mean(axis=0) for p in psi]
    Z = np.concatenate(psi)
    if centering == "global":
        Z = Z - Z.mean(axis=0)
    _, sigma, directions = np.linalg.svd(Z, full_matrices=False)
    np.testing.assert_allclose(model.eigenvalues_, sigma[:3] ** 2, rtol=1e-9)
    np.testing.assert_allclose(model.explained_variance_ratio_, sigma[:3] ** 2 / (sigma**2).sum(), rtol=1e-9)
    for j, node in enumerate(model.node_models_):
        values = (
            psi[j] @ directions[:3].T
            if centering != "global"
            else (psi[j] - np.concatenate(psi).mean(axis=0)) @ directions[:3].T
        )
        found = node.transform(PARTS[j])
        np.testing.assert_allclose(found, values * np.sign((found * values).sum(axis=0)), atol=1e-5)
    residual = model.history_["residual"]
    assert model.converged_
    assert len(residual) == model.n_iter_
    assert residual[-1] <= 1e-6 < residual[-2]


def test_random_features_may_be_odd_many_and_stop_early():
    settings = {
        "gamma": 0.05,
        "network": NETWORK,
        "solver": "landmarks",
        "landmarks": "random-features",
        "random_state": 0,
    }
    model = DecentralizedKernelPCA(2, n_landmarks=31, **settings).fit_parts(PARTS)
    assert model.node_models_[0].function().coefficients[0].shape == (32, 2)
    with pytest.warns(
        ConvergenceWarning, match="not converged after 1 iterations: relative residual [0-9.e-]+, where tol"
    ):
        DecentralizedKernelPCA(2, n_landmarks=500, max_iter=1, **settings).fit_parts(PARTS)
    constant = DecentralizedKernelPCA(2, n_landmarks=30, **settings).fit_parts([np.ones((5, 6))] * 5)
    assert (constant.eigenvalues_ == 0).all()
    assert (constant.explained_variance_ratio_ == 0).all()
    assert constant.converged_


def test_small_nodes_leave_the_clusters_to_those_that_have_rows_for_them():
    parts = clusters([3] * 20 + [30])
    for seed in range(3):
        model = DecentralizedKernelPCA(
            2, gamma=0.05, network=21, solver="landmarks", landmarks="kmeans", random_state=seed
        )
        with pytest.warns(ConvergenceWarning, match="landmarks='kmeans' has no more .* use landmarks='auto'"):
            model.fit_parts(parts)
        (held,) = model.node_models_[0].contents
        assert str(held) == f"{held.rows} landmarks (means of at least 5 rows of one node)"
        assert 2 <= held.rows <= 6
    with pytest.raises(ValueError, match="no node has the 5 rows that a cluster needs, the largest has 4"):
        DecentralizedKernelPCA(2, solver="landmarks", landmarks="kmeans").fit_parts(clusters([4, 3, 4]))


@pytest.mark.parametrize("kind", ["auto", "kmeans", "samples"])
def test_components_that_the_data_does_not_have_are_zero(kind):
    """Three places in all, which have two components."""
    parts = [np.full((20, 2), float(j)) for j in range(3)]
    model = DecentralizedKernelPCA(4, gamma=0.3, network=3, landmarks=kind, random_state=0).fit_parts(parts)
    central = baselines.central(parts, 2, gamma=0.3)
    assert model.converged_
    assert model.n_landmarks_ == 3
    np.testing.assert_allclose(model.eigenvalues_, [*central.eigenvalues_, 0, 0], rtol=1e-9, atol=1e-9)
    values = model.transform(np.concatenate(parts))
    np.testing.assert_allclose(values[:, 2:], 0, atol=1e-9)
    expected = central.transform(np.concatenate(parts))
    np.testing.assert_allclose(np.abs(values[:, :2]), np.abs(expected), atol=1e-7)


def test_random_features_in_float32():
    """Small components are kept, and data of a lower rank than asked for converges."""
    X = load_digits().data[:400]
    settings = {
        "n_components": 20,
        "gamma": 1e-4,
        "network": 4,
        "solver": "landmarks",
        "landmarks": "random-features",
        "random_state": 0,
    }
    single, double = (DecentralizedKernelPCA(**settings, dtype=dtype).fit(X) for dtype in ("float32", "float64"))
    np.testing.assert_allclose(single.eigenvalues_, double.eigenvalues_, rtol=1e-2)
    few = np.repeat(clusters([3])[0], 20, axis=0).astype(np.float32)
    poor = DecentralizedKernelPCA(
        5, gamma=0.05, network=3, solver="landmarks", landmarks="random-features", random_state=0
    ).fit(few)
    assert poor.converged_
    assert (poor.eigenvalues_[2:] < 1e-4 * poor.eigenvalues_[0]).all()


@pytest.mark.parametrize("kernel", ["rbf", "laplacian"])
@pytest.mark.parametrize("columns", [2, 12])
def test_what_landmarks_miss_is_estimated_without_bias(kernel, columns):
    """T'T, with T = r'G summed over the nodes, against G' rest G with all samples in one place: off by what the number of frequencies explains,
    and in the mean of many sketches by less."""
    parts = clusters([60, 45, 3, 50, 30], columns=columns)
    kernel = Kernel(kernel, gamma=1.0 / columns)
    X = np.concatenate(parts)
    marks = Landmarks.of(X[Landmarks.none(X).offered(X[::17], kernel).independent(1e-7) * 17], kernel)
    psi = marks.coordinates(kernel, X)
    rest = kernel.gram(X, X) - psi @ psi.T
    G = np.linalg.eigh(psi @ psi.T)[1][:, -4:]
    exact = G.T @ rest @ G
    size = np.sqrt(np.outer(np.diag(exact), np.diag(exact)))
    ends = np.cumsum([0] + [len(p) for p in parts])

    def estimate(count, seed):
        sketch = Sketch.drawn(kernel, X, count, seed, "test")
        assert (sketch.weights is not None) == (kernel.name == "rbf" and columns <= FEW_COLUMNS)
        T = np.zeros((sketch.size, 4))
        for j, part in enumerate(parts):
            r = sketch.features(part) - marks.coordinates(kernel, part) @ sketch.on_landmarks(marks)
            T += r.T @ G[ends[j] : ends[j + 1]]
        return T.T @ T

    drawn = np.array([(estimate(256, seed) - exact) / size for seed in range(60)])
    spread = drawn.std(axis=0).max()
    assert spread < 3 / np.sqrt(256)  # of one sketch
    assert np.abs(drawn.mean(axis=0)).max() < 4 * spread / np.sqrt(60)


def test_coefficients_of_weighted_features_are_those_of_plain_ones():
    X = np.concatenate(clusters([20], columns=3))
    kernel = Kernel("rbf", gamma=0.3)
    sketch = Sketch.drawn(kernel, X, 50, 0, "test")
    c = np.random.default_rng(0).normal(size=(100, 2))
    plain = kernel.features(X, sketch.frequencies) @ sketch.weighted(c)
    np.testing.assert_allclose(plain, sketch.features(X) @ c, rtol=1e-12, atol=1e-12)


def test_the_one_shot_solver_gains_by_it(monkeypatch):
    parts = clusters([60] * 6, seed=3)
    central = baselines.central(parts, 3, gamma=0.05)

    def errors():
        off = []
        for seed in range(4):
            model = DecentralizedKernelPCA(
                3, gamma=0.05, network=6, solver="landmarks", landmarks="samples", n_landmarks=12, random_state=seed
            )
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ConvergenceWarning)
                off.append(np.abs(model.fit_parts(parts).eigenvalues_ / central.eigenvalues_ - 1))
        return np.mean(off, axis=0)

    with_estimate = errors()
    monkeypatch.setattr(Kernel, "has_features", False)
    assert (with_estimate < 0.5 * errors()).all()


@pytest.mark.parametrize(
    ("settings", "holds"),
    [
        ({"landmarks": PUBLIC, "expansion": "landmarks", "solver": "projection"}, ["51 landmarks (points given to all nodes)"]),
        ({"landmarks": "kmeans", "n_landmarks": 30, "expansion": "landmarks", "solver": "projection"}, [MEANS]),
        ({"landmarks": "kmeans", "n_landmarks": 30, "solver": "landmarks"}, [MEANS]),
        ({"share_rows": False}, [MEANS, "landmarks (drawn from a Gaussian, nobody's rows)"]),
        ({"share_rows": False, "n_landmarks": 5}, [MEANS]),
        ({"landmarks": "random-features", "n_landmarks": 40, "solver": "landmarks"}, ["20 frequencies (drawn from a seed)"]),
    ],
    ids=["points", "kmeans", "kmeans, one shot", "auto", "corrected", "random features"],
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
    settings = {"gamma": 0.05, "network": NETWORK, "random_state": 0, "exchange_noise": 0.1}
    model = DecentralizedKernelPCA(2, solver="projection", n_landmarks=20, **settings).fit_parts(PARTS)
    assert [str(held) for held in model.node_models_[0].contents] == [
        "20 landmarks (samples drawn from all nodes) with noise",
        "60 samples of node 0 with noise",
        "45 samples of node 1 with noise",
        "30 samples of node 4 with noise",
    ]
    assert all(held.samples for held in model.node_models_[0].contents)
    model = DecentralizedKernelPCA(2, n_landmarks=40, **settings).fit_parts(PARTS)
    means, rows = model.node_models_[0].contents
    assert means.rows + rows.rows == model.n_landmarks_
    assert str(means) == f"{means.rows} landmarks (means of at least 5 rows of one node)"
    assert str(rows) == f"{rows.rows} landmarks (samples drawn from all nodes) with noise"
    assert not means.samples
    assert rows.samples
    model = DecentralizedKernelPCA(2, n_landmarks=40, share_rows=False, **settings).fit_parts(PARTS)
    means, drawn = model.node_models_[0].contents
    assert str(drawn) == f"{drawn.rows} landmarks (drawn from a Gaussian, nobody's rows)"
    assert not means.samples
    assert not drawn.samples
