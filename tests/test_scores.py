"""Scores of rows: against plain formulas with the whole kernel matrix, the same at every node, thresholds of the whole network."""

from __future__ import annotations

import csv
import json
from itertools import pairwise

import array_api_strict as strict
import numpy as np
import pytest
from sklearn.decomposition import PCA
from typer.testing import CliRunner

import dekpca
from conftest import clusters
from dekpca import DecentralizedKernelPCA, NodeModel
from dekpca.cli import app
from dekpca.scores import EACH, Histogram

PARTS = clusters([150, 90, 120, 60, 80])
X = np.concatenate(PARTS)
NEW = np.concatenate([clusters([30], seed=9)[0], 4.0 * np.random.default_rng(1).normal(size=(10, X.shape[1]))])
BIN = 2.0 ** (1 / EACH)


def fitted(**params):
    settings = {"gamma": 0.05, "random_state": 0} | params
    return DecentralizedKernelPCA(3, **settings).fit_parts(PARTS)


def plain(kernel, X, new, k):
    """Q and T2 of new rows by kernel PCA of X, from the whole kernel matrix, in the words of the formulas."""
    n = len(X)
    K, across = kernel(X, X), kernel(new, X)
    centred = K - K.mean(axis=0) - K.mean(axis=1)[:, None] + K.mean()
    values, vectors = np.linalg.eigh(centred)
    values, vectors = values[::-1][:k], vectors[:, ::-1][:, :k]
    c = (across - across.mean(axis=1)[:, None] - K.mean(axis=0) + K.mean()) @ vectors / np.sqrt(values)
    distance = np.array([kernel(x[None], x[None])[0, 0] for x in new]) - 2 * across.mean(axis=1) + K.mean()
    return distance - (c**2).sum(axis=1), n * (c**2 / values).sum(axis=1)


def rbf(A, B):
    return np.exp(-0.05 * ((A[:, None] - B[None]) ** 2).sum(axis=2))


def poly(A, B):
    return (0.05 * A @ B.T + 1) ** 2


@pytest.mark.parametrize(("kernel", "params"), [(rbf, {}), (poly, {"kernel": "poly", "degree": 2})])
def test_one_node_has_the_scores_of_the_formulas(kernel, params):
    one = DecentralizedKernelPCA(3, gamma=0.05, network=1, **params).fit(X)
    Q, T2 = plain(kernel, X, NEW, 3)
    size = np.abs(Q).max()
    np.testing.assert_allclose(one.reconstruction_error(NEW), Q, rtol=0, atol=1e-10 * size)
    np.testing.assert_allclose(one.hotelling_t2(NEW), T2, rtol=1e-8)
    np.testing.assert_array_equal(one.score_samples(NEW), -one.reconstruction_error(NEW))
    central = dekpca.baselines.central(X, 3, gamma=0.05, **params)
    np.testing.assert_allclose(central.reconstruction_error(NEW), Q, rtol=0, atol=1e-10 * size)
    np.testing.assert_allclose(central.hotelling_t2(NEW), T2, rtol=1e-8)


def test_all_rows_as_landmarks_give_the_scores_of_the_formulas():
    """Rows of the fit are in the span of the landmarks; the mean is too."""
    network = fitted(landmarks=X)
    Q, T2 = plain(rbf, X, X, 3)
    # landmarks that add less than 1e-7 of k(x, x) to the others are left out
    np.testing.assert_allclose(network.reconstruction_error(X), Q, rtol=0, atol=1e-6)
    np.testing.assert_allclose(network.hotelling_t2(X), T2, rtol=1e-3)


def test_a_network_is_as_close_to_the_formulas_as_its_error_says():
    """Component values differ by about the angle between the spans, sqrt of the error; errors of rows by twice that."""
    network = fitted(tol=1e-5)
    Q, _ = plain(rbf, X, X, 3)
    assert np.abs(network.reconstruction_error(X) - Q).max() < 4 * np.sqrt(1e-5)


@pytest.mark.parametrize(
    "params",
    [{}, {"share_rows": False}, {"privacy": "secure-sums"}, {"kernel": "laplacian"}, {"kernel": "linear", "standardize": True},
     {"landmarks": "random-features", "max_landmarks": 100}],
    ids=str,
)  # fmt: skip
def test_thresholds_are_quantiles_of_the_whole_network(params, tmp_path):
    """Within a bin, the same at all nodes, and in files; no more rows are beyond than asked for."""
    model = fitted(contamination=0.04, **params)
    error = model.reconstruction_error(X)
    exact = np.sort(error)[int(np.ceil(0.96 * len(X))) - 1]
    assert exact * (1 - 1e-9) <= -model.offset_ <= exact * BIN * (1 + 1e-9)
    assert (model.score_samples(X) < model.offset_).mean() <= 0.04
    for node in model.node_models_:
        assert node.offset_ == model.offset_
        np.testing.assert_allclose(node.reconstruction_error(NEW), model.reconstruction_error(NEW), rtol=0, atol=1e-12)
    node.save(tmp_path / "node.npz")
    again = NodeModel.load(tmp_path / "node.npz")
    assert again.offset_ == model.offset_
    for mine, other in zip(again.scores(NEW), node.scores(NEW), strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-12, atol=1e-14)
    assert model.history_["messages"]["scores"].sum() == 2 * (len(PARTS) - 1)


def test_a_histogram_has_every_error_in_its_bin():
    rng = np.random.default_rng(0)
    errors = np.concatenate([np.exp(rng.normal(size=500)), [0.0, 1e-30, 1e30, 0.7]])
    found = Histogram.of(errors, 0.7)
    assert found.counts.sum() == len(errors)
    limits = np.concatenate([[-np.inf], found.edges[1:-1], [np.inf]])
    inside = [((errors > low) & (errors <= high)).sum() for low, high in pairwise(limits)]
    np.testing.assert_array_equal(found.counts, inside)
    assert (inside[0], inside[-1]) == (2, 1)
    for share in (0.1, 0.5, 0.9, 0.99):
        exact = np.sort(errors)[int(np.ceil(share * len(errors))) - 1]
        assert exact <= found.quantile(share) <= BIN * exact
    assert Histogram.of(np.zeros(7), 1.0).quantile(0.9) > 0


def test_scores_of_a_linear_kernel_are_those_of_pca():
    pca = PCA(3).fit(X)
    away = NEW - pca.inverse_transform(pca.transform(NEW))
    model = DecentralizedKernelPCA(3, kernel="linear", network=5, random_state=0).fit(X)
    scale = (X**2).sum(axis=1).max()
    np.testing.assert_allclose(model.reconstruction_error(NEW), (away**2).sum(axis=1), rtol=0, atol=1e-9 * scale)
    t2 = (pca.transform(NEW) ** 2 / pca.explained_variance_).sum(axis=1) * len(X) / (len(X) - 1)
    np.testing.assert_allclose(model.hotelling_t2(NEW), t2, rtol=1e-6)


def test_scores_do_not_depend_on_units_order_or_signs():
    order = np.random.default_rng(0).permutation(len(X))
    first = DecentralizedKernelPCA(3, network=1, standardize=True).fit(X)
    other = DecentralizedKernelPCA(3, network=1, standardize=True).fit((-3.0 * X + 7.0)[order])
    for name in ("reconstruction_error", "hotelling_t2"):
        np.testing.assert_allclose(
            getattr(other, name)(7.0 - 3.0 * NEW), getattr(first, name)(NEW), rtol=1e-6, atol=1e-9
        )


def test_rows_far_away_have_the_largest_errors():
    """phi of a row far from all others is orthogonal to them: its error is k(x, x) + |mean|^2, more than any row of the fit can have."""
    model = fitted(contamination=0.02)
    far = model.score_samples(1e3 * np.ones((1, X.shape[1])))
    assert far[0] < model.score_samples(X).min()
    assert far[0] < model.offset_
    assert (
        model.hotelling_t2(1e3 * np.ones((1, X.shape[1])))[0] < model.hotelling_t2(X).max()
    )  # T2 alone does not see it


def test_privacy_has_scores_of_its_noisy_model_but_no_histogram():
    privacy = dekpca.Privacy(epsilon=8, delta=1e-4, rank=10)
    settings = {"gamma": 0.05, "landmarks": X[::17] + 0.1, "privacy": privacy, "random_state": 0, "network": 5}
    with pytest.warns(Warning, match="less accurate"):
        node = DecentralizedKernelPCA(3, **settings).fit(X).node_models_[0]
    assert (node.reconstruction_error(NEW) >= 0).all()
    assert node.n_rows != len(X)  # the true number is nobody's to know
    with pytest.raises(ValueError, match="histogram of all rows would be told without noise"):
        DecentralizedKernelPCA(3, contamination=0.1, **settings).fit(X)


def test_projection_has_scores_where_its_nodes_share_a_mean():
    shared = fitted(solver=dekpca.Projection())
    assert np.abs(shared.node_models_[1].reconstruction_error(X) - plain(rbf, X, X, 3)[0]).max() < 0.02
    apart = fitted(solver=dekpca.Projection(centering="local", init="random"))
    with pytest.raises(ValueError, match="not of all rows; use solver='auto'"):
        apart.score_samples(X)
    with pytest.raises(ValueError, match="components of their own"):
        fitted(solver=dekpca.Projection(), contamination=0.1)


def test_without_contamination_there_is_no_threshold():
    model = fitted(contamination=0.1)
    assert hasattr(model, "offset_")
    model.set_params(contamination=None).fit_parts(PARTS)
    assert not hasattr(model, "offset_")
    assert "scores" not in model.history_["bytes"]
    with pytest.raises(AttributeError, match="fit with contamination="):
        _ = model.node_models_[0].offset_


def test_answers_are_of_the_library_of_the_rows():
    rows = strict.asarray(X[:200])
    model = DecentralizedKernelPCA(2, gamma=0.05, network=3, contamination=0.05, random_state=0).fit(rows)
    host = DecentralizedKernelPCA(2, gamma=0.05, network=3, contamination=0.05, random_state=0).fit(X[:200])
    assert model.offset_ == pytest.approx(host.offset_, rel=1e-9)
    for name in ("score_samples", "hotelling_t2"):
        found = getattr(model, name)(rows)
        assert found.__array_namespace__() is strict
        np.testing.assert_allclose(np.asarray(found), getattr(host, name)(X[:200]), rtol=1e-8, atol=1e-10)


def test_rows_that_lack_a_value_have_no_score():
    holes = X.copy()
    holes[3, 1] = np.nan
    model = DecentralizedKernelPCA(2, gamma=0.05, network=5, missing="drop", random_state=0, contamination=0.1).fit(
        holes
    )
    assert np.flatnonzero(np.isnan(model.score_samples(holes))).tolist() == [3]


def test_on_the_command_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.savez("rows.npz", X=X)
    words = "fit rows.npz --nodes 5 -k 3 --gamma 0.05 --contamination 0.1 --out models --json"
    told = json.loads(CliRunner().invoke(app, words.split()).stdout)
    done = CliRunner().invoke(app, ["transform", "models", "rows.npz", "--scores", "--out", "scores.csv", "--json"])
    assert done.exit_code == 0, done.output
    with open("scores.csv", encoding="utf-8") as file:
        table = list(csv.DictReader(file))
    assert list(table[0])[3:] == ["reconstruction error", "hotelling t2", "outlier"]
    beyond = np.array([float(row["outlier"]) for row in table])
    errors = np.array([float(row["reconstruction error"]) for row in table])
    assert np.array_equal(beyond == 1, -errors < told["offset"])
    assert 0 < json.loads(done.stdout)["outliers"] == beyond.sum() <= 0.1 * len(X)


def test_a_row_whose_error_overflows_does_not_stop_its_node():
    """Else a root that lies would tell components with which a certain row overflows, and see by whether its node stops whether it is there."""
    counts = Histogram.of(np.array([0.0, 1.0, np.nan, np.inf]), 1.0).counts
    assert counts[0] == 1
    assert counts[-1] == 2
    assert counts.sum() == 4
