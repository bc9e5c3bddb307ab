"""standardize=True: as if every node had scaled its columns by the mean and deviation of all the data."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.preprocessing import StandardScaler

from conftest import clusters
from dekpca import DecentralizedKernelPCA, Network, NodeModel, Projection, baselines, metrics

UNITS = np.array([1.0, 1e6, 1e-4, 10.0, 1.0, 3.0])
PARTS = [p * UNITS + 5 * UNITS for p in clusters([40, 25, 1, 30, 20])]
SCALER = StandardScaler().fit(np.concatenate(PARTS))
SETTINGS = {"gamma": 0.1, "network": Network.ring(5), "random_state": 0}


@pytest.mark.parametrize(
    "changes",
    [
        {}, {"share_rows": False}, {"gamma": "scale"},
        {"landmarks": "random-features", "max_landmarks": 50},
        {"solver": Projection(n_landmarks=40)}, {"solver": Projection(n_landmarks=40), "gamma": "scale"},
        {"solver": Projection(n_landmarks=40, exchange_noise=0.05)},
    ],
    ids=str,
)  # fmt: skip
def test_it_is_scikit_learns_scaler_before_the_fit(changes):
    ours = DecentralizedKernelPCA(2, **SETTINGS | changes, standardize=True).fit_parts(PARTS)
    by_hand = DecentralizedKernelPCA(2, **SETTINGS | changes).fit_parts([SCALER.transform(p) for p in PARTS])
    new = clusters([9], seed=7)[0] * UNITS
    np.testing.assert_allclose(ours.eigenvalues_, by_hand.eigenvalues_, rtol=1e-8)
    for a, b in zip(ours.node_models_, by_hand.node_models_, strict=True):
        np.testing.assert_allclose(a.transform(new), b.transform(SCALER.transform(new)), atol=1e-7)


@pytest.mark.parametrize("solver", ["auto", Projection()], ids=["auto", "projection"])
def test_landmarks_that_are_given_are_scaled_and_pre_images_are_not(tmp_path, solver):
    public = np.concatenate([p[:10] for p in PARTS]) + UNITS / 10
    settings = {**SETTINGS, "solver": solver}
    ours = DecentralizedKernelPCA(2, **settings, standardize=True, landmarks=public).fit_parts(PARTS)
    by_hand = DecentralizedKernelPCA(2, **settings, landmarks=SCALER.transform(public)).fit_parts(
        [SCALER.transform(p) for p in PARTS]
    )
    Z = ours.transform(PARTS[0])
    np.testing.assert_allclose(
        ours.inverse_transform(Z), SCALER.inverse_transform(by_hand.inverse_transform(Z)), rtol=1e-5
    )
    ours.node_models_[2].save(tmp_path / "node.npz")
    again = NodeModel.load(tmp_path / "node.npz")
    np.testing.assert_allclose(again.transform(PARTS[1]), ours.node_models_[2].transform(PARTS[1]), atol=1e-12)
    np.testing.assert_allclose(again.inverse_transform(Z), ours.node_models_[2].inverse_transform(Z), rtol=1e-9)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_constant_columns_and_far_ones(dtype):
    """A column that never varies is only shifted; one far from zero keeps its digits."""
    far = [
        np.c_[np.full(len(p), 0.1), clusters([len(p)], seed=j)[0][:, 0] + 1000, p[:, 0]].astype(dtype)
        for j, p in enumerate(PARTS)
    ]
    model = DecentralizedKernelPCA(2, **SETTINGS, standardize=True).fit_parts(far)
    scales, X = model.node_models_[0].scales, np.concatenate(far).astype(np.float64)
    assert scales.scale[0] == 1
    np.testing.assert_allclose(scales.scale[1:], X[:, 1:].std(axis=0), rtol=1e-3 if dtype == np.float32 else 1e-12)
    assert np.isfinite(model.transform(far[0])).all()


def test_many_rows_in_float32():
    rng = np.random.default_rng(0)
    X = (300 + 2 * rng.normal(size=(40_000, 2))).astype(np.float32)  # temperatures in Kelvin
    model = DecentralizedKernelPCA(1, network=20, share_rows=False, tol=0.1, standardize=True, random_state=0)
    np.testing.assert_allclose(model.fit(X).node_models_[0].scales.scale, X.astype(float).std(axis=0), rtol=1e-3)


def test_metrics_compare_like_with_like():
    ours = DecentralizedKernelPCA(2, **SETTINGS, standardize=True).fit_parts(PARTS)
    central = baselines.central(PARTS, 2, gamma=0.1, standardize=True)
    X = np.concatenate(PARTS)
    assert metrics.agreement(ours, central, X).min() > 0.9995
    assert metrics.similarity(ours, central).max() <= 1 + 1e-9
    assert (metrics.agreement(baselines.local(PARTS, 2, gamma=0.1, standardize=True), central, X) <= 1 + 1e-9).all()
    with pytest.raises(ValueError, match="the nodes standardize columns, the central answer not"):
        metrics.agreement(ours, baselines.central(PARTS, 2, gamma=0.1), X)
    features = DecentralizedKernelPCA(2, **SETTINGS, standardize=True, landmarks="random-features").fit_parts(PARTS)
    assert metrics.agreement(features, central, X)[:, 0].min() > 0.9
    with pytest.raises(ValueError, match="use agreement"):
        metrics.similarity(features, central)
