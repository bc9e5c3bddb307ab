"""Metrics against direct computation, and what they must satisfy."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

from conftest import clusters
from dekpca import DecentralizedKernelPCA, Network, Projection, baselines, metrics

PARTS = clusters([30, 22, 25, 18])
NETWORK = Network.ring(4)
X = np.concatenate(PARTS)
CENTRAL = baselines.central(PARTS, 3, gamma=0.05)


@pytest.fixture(scope="module")
def model():
    solver = Projection(init="random", n_landmarks=10)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = DecentralizedKernelPCA(3, solver=solver, gamma=0.05, network=NETWORK, random_state=0).fit_parts(PARTS)
    assert set(model.node_models_[0].functions) == {"neighborhood", "node", "landmarks"}
    return model


def test_similarity_by_hand(model):
    K = CENTRAL.kernel.gram
    alpha = CENTRAL.function().coefficients[0]
    for j, node in enumerate(model.node_models_):
        f = node.own_function()
        points, c = np.concatenate(f.points), np.concatenate(f.coefficients)
        inner = (c * (K(points, X) @ alpha)).sum(axis=0)
        norms = np.sqrt((c * (K(points, points) @ c)).sum(axis=0) * (alpha * (K(X, X) @ alpha)).sum(axis=0))
        np.testing.assert_allclose(metrics.similarity(model, CENTRAL)[j], np.abs(inner) / norms, rtol=1e-8)


def test_agreement_by_hand(model):
    for expansion in ("neighborhood", "node", "landmarks"):
        found = metrics.agreement(model, CENTRAL, X, expansion)
        for j, node in enumerate(model.node_models_):
            values, truth = node.transform(X, expansion), CENTRAL.transform(X)
            expected = [abs(np.corrcoef(values[:, i], truth[:, i])[0, 1]) for i in range(3)]
            np.testing.assert_allclose(found[j], expected, rtol=1e-8)


@pytest.mark.parametrize(
    "settings", [{}, {"share_rows": False}, {"landmarks": 10}, {"landmarks": "random-features"}], ids=str
)
def test_agreement_of_models_without_samples(settings):
    """Landmarks or random features instead of samples."""
    one_shot = DecentralizedKernelPCA(3, gamma=0.05, network=NETWORK, random_state=0, **settings)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        one_shot.fit_parts(PARTS)
    found = metrics.agreement(one_shot, CENTRAL, X)
    values, truth = one_shot.transform(X), CENTRAL.transform(X)
    expected = [abs(np.corrcoef(values[:, i], truth[:, i])[0, 1]) for i in range(3)]
    np.testing.assert_allclose(found, np.broadcast_to(expected, (4, 3)), rtol=1e-8)


def test_nobody_beats_the_oracle(model):
    for others in (model, baselines.local(PARTS, 3, gamma=0.05), baselines.neighborhood(PARTS, NETWORK, 3, gamma=0.05)):
        assert (metrics.similarity(others, CENTRAL) <= metrics.oracle(others, CENTRAL) + 1e-9).all()
    assert (metrics.oracle(model, CENTRAL) <= 1 + 1e-9).all()


def test_central_is_perfect():
    np.testing.assert_allclose(metrics.similarity(CENTRAL, CENTRAL), 1, rtol=1e-9)
    np.testing.assert_allclose(metrics.oracle(CENTRAL, CENTRAL), 1, rtol=1e-6)
    np.testing.assert_allclose(metrics.agreement(CENTRAL, CENTRAL, X), 1, rtol=1e-9)
    np.testing.assert_allclose(metrics.angles(CENTRAL, CENTRAL), 0, atol=1e-5)


def test_angles_do_not_care_about_rotations(model):
    from scipy.linalg import subspace_angles

    K = CENTRAL.kernel.gram
    f = model.node_models_[1].own_function()
    points = np.concatenate([*f.points, X])
    lam, V = np.linalg.eigh(K(points, points))
    root = V * np.sqrt(np.maximum(lam, 0))  # rows are coordinates of the points
    w = root[: -len(X)].T @ np.concatenate(f.coefficients)
    u = root[-len(X) :].T @ CENTRAL.function().coefficients[0]
    np.testing.assert_allclose(np.sort(metrics.angles(model, CENTRAL)[1]), np.sort(subspace_angles(w, u)), atol=1e-6)


def test_neighborhood_is_between_local_and_central():
    values = [
        metrics.similarity(m, CENTRAL)[:, 0].mean()
        for m in (baselines.local(PARTS, 1, gamma=0.05), baselines.neighborhood(PARTS, NETWORK, 1, gamma=0.05))
    ]
    assert values[0] < values[1] < 1
    everybody = baselines.neighborhood(
        [p[:] for p in clusters([40] * 3, n_clusters=1)], Network.complete(3), 1, gamma=0.05
    )
    assert len(everybody) == 3


def test_neighborhood_is_the_best_function_over_own_samples():
    parts = clusters([12, 15])
    node = baselines.neighborhood(parts, Network.path(2), 2, gamma=0.05)[0]
    H = [np.eye(len(p)) - 1 / len(p) for p in parts]
    own = H[0] @ node.kernel.gram(parts[0], parts[0]) @ H[0]
    cross = np.concatenate([own, H[0] @ node.kernel.gram(parts[0], parts[1]) @ H[1]], axis=1)
    a = node.function().coefficients[0]
    np.testing.assert_allclose(a.T @ own @ a, np.eye(2), atol=1e-6)
    best = ((cross.T @ a[:, 0]) ** 2).sum()
    np.testing.assert_allclose(best, node.eigenvalues_[0], rtol=1e-6)
    rng = np.random.default_rng(0)
    for _ in range(50):
        b = a[:, 0] + 0.1 * rng.normal(size=12)
        b /= np.sqrt(b @ own @ b)
        assert ((cross.T @ b) ** 2).sum() <= best + 1e-9


def test_components_that_a_node_lacks_count_as_zero():
    parts = [PARTS[0], PARTS[1][:2]]
    local = baselines.local(parts, 3, gamma=0.05)
    assert local[1].transform(X).shape == (len(X), 3)
    assert metrics.similarity(local, CENTRAL)[1, 2] == 0
    assert metrics.agreement(local, CENTRAL, X)[1, 2] == 0


def test_errors():
    with pytest.raises(ValueError, match="no node models"):
        metrics.similarity([], CENTRAL)
    with pytest.raises(ValueError, match="use the same for both"):
        metrics.similarity(baselines.local(PARTS, 3, gamma=0.1), CENTRAL)
    with pytest.raises(ValueError, match="3 parts for a network of 4"):
        baselines.neighborhood(PARTS[:3], NETWORK)
    for wrong in (0, 0.9, "2"):
        with pytest.raises(ValueError, match=f"n_components={wrong!r}: a reference has a whole number of components"):
            baselines.central(PARTS, wrong)
