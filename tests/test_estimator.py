"""The scikit-learn contract and the public contract."""

from __future__ import annotations

import os
import pickle
import re
import signal
import warnings
from dataclasses import replace

import joblib
import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import parametrize_with_checks

import dekpca
from conftest import clusters
from dekpca import PAPER, DecentralizedKernelPCA, Network, Projection, baselines, metrics
from dekpca.estimator import NarrowKernelWarning
from dekpca.messages import Iteration

X = np.concatenate(clusters([40] * 6))


def iterated(parts, solver, n_components=2, **settings):
    """Fitted by the projection solver, whose iteration has converged; how good the answer then is is another question."""
    model = DecentralizedKernelPCA(n_components, solver=solver, random_state=0, **settings)
    with warnings.catch_warnings():
        warnings.simplefilter("error", ConvergenceWarning)
        warnings.filterwarnings("ignore", "the components may be less accurate", ConvergenceWarning)
        model.fit_parts(parts)
    allowed = solver.tol**0.5
    assert max(model.history_["residual"][-1], model.history_["since_check"][-1]) <= allowed
    return model


@parametrize_with_checks([DecentralizedKernelPCA(), DecentralizedKernelPCA(network=3)])
def test_scikit_learn_checks(estimator, check):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        check(estimator)


def test_public_contract():
    net = dekpca.Network.ring(6, neighbors=4)
    model = dekpca.DecentralizedKernelPCA(n_components=4, kernel="rbf", gamma=0.05, network=net, random_state=0)
    parts = clusters([40] * 6)
    assert model.fit(X) is model
    assert model.fit(X, nodes=np.repeat(np.arange(6), 40)) is model
    assert model.fit_parts(parts) is model
    assert model.transform(X[:7]).shape == (7, 4)
    assert model.node_models_[3].transform(X[:7]).shape == (7, 4)
    assert len(model.node_models_) == 6
    assert [n.name for n in model.node_models_[2:4]] == ["2", "3"]
    with pytest.raises(IndexError, match=r"node_models_\[99\]: there are \d+ nodes here"):
        model.node_models_[99]
    with pytest.raises(KeyError, match="node_models_\\['rome'\\]: no node here has that name; there are 0, 1"):
        model.node_models_["rome"]
    assert model.network_ is net
    assert model.eigenvalues_.shape == (4,)
    assert (np.diff(model.eigenvalues_) <= 0).all()
    assert 0 < model.explained_variance_ratio_.sum() < 1
    assert model.accuracy_.shape == (4,)
    assert 0.999 < model.span_accuracy_ <= 1
    assert ((model.accuracy_ > 0.999) & (model.accuracy_ <= 1)).all()
    assert model.n_iter_ == 0
    assert [len(model.history_[name]) for name in ("residual", "change", "objective")] == [0, 0, 0]
    assert set(model.history_["bytes"]) == set(model.history_["messages"])
    assert "lagrangian" not in model.history_
    central = dekpca.baselines.central(parts, 4, gamma=0.05)
    for metric in (dekpca.metrics.similarity, dekpca.metrics.oracle, dekpca.metrics.angles):
        assert metric(model, central).shape == (6, 4)
    assert dekpca.metrics.agreement(model, central, X).shape == (6, 4)
    assert (
        len(dekpca.baselines.local(parts, 4, gamma=0.05))
        == len(dekpca.baselines.neighborhood(parts, net, 4, gamma=0.05))
        == 6
    )
    model.set_params(solver=Projection()).fit_parts(parts)
    assert (
        model.n_iter_
        == len(model.history_["residual"])
        == len(model.history_["change"])
        == len(model.history_["objective"])
    )
    assert set(model.history_["bytes"]) == set(model.history_["messages"])
    assert "lagrangian" not in model.history_
    model.set_params(solver=dekpca.PAPER, normalize=True)
    assert clone(model).solver == dekpca.PAPER


@pytest.fixture(scope="module")
def digits():
    """Digits sorted by class, so that each of the 12 nodes sees one or two; and the central answer."""
    data = load_digits()
    parts = np.array_split(data.data[np.argsort(data.target, kind="stable")], 12)
    central = baselines.central(parts, 3, gamma=1e-3)
    local = metrics.agreement(baselines.local(parts, 3, gamma=1e-3), central, data.data)
    assert local.min() < 0.5  # the problem is not trivial
    return parts, data.data, central


def check_eigenvalues(model, central, X, tolerance):
    np.testing.assert_allclose(model.eigenvalues_, central.eigenvalues_, rtol=tolerance)
    trace = (central.kernel.diagonal(X)).sum() - central.kernel.gram(X, X).mean() * len(X)
    np.testing.assert_allclose(model.eigenvalues_ / model.explained_variance_ratio_, trace, rtol=tolerance)


@pytest.mark.parametrize("share_rows", [True, False])
def test_default_matches_central_on_digits_split_by_class(digits, share_rows):
    parts, X, central = digits
    model = DecentralizedKernelPCA(
        3, gamma=1e-3, network=Network.ring(12, 4), share_rows=share_rows, random_state=1
    ).fit_parts(parts)
    assert model.converged_
    assert model.n_iter_ == 0
    agreement = metrics.agreement(model, central, X)
    values, truth = (np.linalg.qr(v - v.mean(axis=0))[0] for v in (model.transform(X), central.transform(X)))
    assert np.linalg.svd(values.T @ truth, compute_uv=False).min() > 0.9995  # tol, as a cosine
    assert agreement.min() > 0.9995
    assert np.ptp(agreement, axis=0).max() < 1e-12  # all nodes have the same functions
    errors, estimates = 1 - agreement[0] ** 2, 1 - model.accuracy_**2
    assert (errors < 3 * estimates).all()  # the turn is random, and its mean square is estimated
    assert (estimates < 1e-3).all()
    assert not any(held.samples for held in model.node_models_[0].contents)  # the means of clusters are enough
    check_eigenvalues(model, central, X, 0.002)


def test_projection_matches_central_on_digits_split_by_class(digits):
    parts, X, central = digits
    model = iterated(parts, Projection(), 3, gamma=1e-3, network=Network.ring(12, 4))
    assert model.n_iter_ <= 10
    assert metrics.agreement(model, central, X).min() > 0.9995
    check_eigenvalues(model, central, X, 0.002)


def test_the_tolerance_decides_how_many_landmarks_there_are(digits):
    parts, X, central = digits
    errors, sizes = [], []
    for tol in (1e-1, 1e-3, 1e-4):  # the first stage, of 100 landmarks, meets 1e-3
        model = DecentralizedKernelPCA(3, gamma=1e-3, tol=tol, random_state=0).fit_parts(parts)
        values, truth = (np.linalg.qr(v - v.mean(axis=0))[0] for v in (model.transform(X), central.transform(X)))
        errors.append(1 - np.linalg.svd(values.T @ truth, compute_uv=False).min() ** 2)
        sizes.append(model.n_landmarks_)
        assert errors[-1] <= tol
        assert 1 - model.span_accuracy_**2 <= tol
        assert model.converged_
        assert model.history_["landmarks"][-1] == model.n_landmarks_
        assert (np.diff(model.history_["landmarks"]) > 0).all()
        np.testing.assert_allclose(model.history_["error"][-1], 1 - model.span_accuracy_**2, atol=1e-9)
    assert sizes[0] < sizes[2]


def test_an_answer_that_is_not_good_enough_says_so(digits):
    parts, X, _ = digits
    for settings, says in (
        ({"landmarks": 20}, "with 20 landmarks; use landmarks='auto', or more of them"),
        ({"max_landmarks": 100}, "with 100 landmarks, the limit that max_landmarks=100 sets; raise it, or tol"),
        ({"share_rows": False}, "where the rest is, no clusters of enough rows are left; raise tol, or use share_rows=True"),
        ({"solver": Projection(n_landmarks=20, max_iter=5)}, r"with \d+ landmarks; use solver='auto', or more landmarks"),
    ):  # fmt: skip
        model = DecentralizedKernelPCA(3, gamma=1e-3, tol=1e-6, random_state=0, **settings)
        with pytest.warns(ConvergenceWarning, match=f"less accurate than tol=1e-06 asks for: .*{says}"):
            model.fit_parts(parts)
        assert not model.converged_
        assert np.isfinite(model.transform(X)).all()
        assert 0 <= model.span_accuracy_ < 1


def test_eigenvalue_is_the_sum_of_squared_values_over_the_nodes_own_samples():
    parts = clusters([40, 20, 35, 9])
    iterate = iterated(parts, Projection(n_landmarks=20), 3, gamma=0.05)
    one_shot = DecentralizedKernelPCA(3, gamma=0.05, random_state=0).fit_parts(parts)
    for model, expansion in ((iterate, "node"), (one_shot, "landmarks")):
        values = np.concatenate(
            [node.transform(part, expansion) for node, part in zip(model.node_models_, parts, strict=True)]
        )
        np.testing.assert_allclose((values**2).sum(axis=0), model.eigenvalues_, rtol=1e-8)


def test_fit_deals_all_rows_and_is_seeded():
    one, two, other = (DecentralizedKernelPCA(2, gamma=0.05, network=5, random_state=s).fit(X) for s in (0, 0, 1))
    np.testing.assert_array_equal(one.transform(X), two.transform(X))
    assert not np.allclose(one.transform(X), other.transform(X), atol=1e-12)
    assert sorted(one.node_sizes_) == [48] * 5
    solver = Projection(n_landmarks=100)
    again = DecentralizedKernelPCA(2, gamma=0.05, network=5, random_state=0, solver=solver).fit(X)
    held = np.concatenate([node.function("node").points[-1] for node in again.node_models_])
    np.testing.assert_array_equal(held[np.lexsort(held.T)], X[np.lexsort(X.T)])
    np.testing.assert_array_equal(again.nodes_, one.nodes_)
    for j, node in enumerate(again.node_models_):
        np.testing.assert_array_equal(
            np.sort(node.function("node").points[-1], axis=0), np.sort(X[one.nodes_ == j], axis=0)
        )


def test_default_network():
    sizes = {300: 2, 900: 4, 1500: 8}  # about 200 rows a node
    for rows, nodes in sizes.items():
        model = DecentralizedKernelPCA(1, gamma=0.05, random_state=0).fit(
            np.random.default_rng(0).normal(size=(rows, 3))
        )
        assert len(model.network_) == nodes
        assert set(model.network_.degrees) == {4 if nodes > 5 else nodes - 1}


def test_node_labels_name_the_nodes():
    owner = np.array(["oslo", "rome", "bonn"])[np.arange(len(X)) % 3]
    for settings in ({}, {"solver": Projection(n_landmarks=60)}):
        model = DecentralizedKernelPCA(2, gamma=0.05, random_state=0, **settings).fit(X, nodes=owner)
        assert model.network_.names == ("bonn", "oslo", "rome")
        np.testing.assert_array_equal(np.array(model.network_.names)[model.nodes_], owner)
    np.testing.assert_array_equal(model.node_models_[2].function("node").points[-1], X[owner == "rome"])


def test_the_best_informed_node_answers():
    parts = clusters([10, 50, 10, 20, 10])
    model = DecentralizedKernelPCA(2, gamma=0.05, network=Network.path(5), random_state=0).fit_parts(parts)
    assert model.answering_node_ == 2  # 50 + 10 + 20 samples around
    np.testing.assert_array_equal(model.transform(X), model.node_models_[2].transform(X))


def test_pipeline_clone_grid_search_pandas_joblib(tmp_path):
    data = load_digits()
    rows, y = data.data[:400], data.target[:400]
    pipeline = make_pipeline(
        DecentralizedKernelPCA(8, gamma=1e-3, network=4, random_state=0), LogisticRegression(max_iter=2000)
    )
    search = GridSearchCV(pipeline, {"decentralizedkernelpca__gamma": [1e-4, 1e-3]}, cv=2)
    assert search.fit(rows, y).best_score_ > 0.7
    model = clone(search.best_estimator_[0]).set_output(transform="pandas").fit(rows)
    frame = model.transform(rows)
    assert (
        list(frame.columns) == list(model.get_feature_names_out()) == [f"decentralizedkernelpca{i}" for i in range(8)]
    )
    joblib.dump(model, tmp_path / "model.joblib")
    again = joblib.load(tmp_path / "model.joblib")
    np.testing.assert_array_equal(again.transform(rows), frame)
    np.testing.assert_array_equal(again.node_models_[1].transform(rows), model.node_models_[1].transform(rows))


def test_float32_stays_and_agrees():
    single = DecentralizedKernelPCA(2, gamma=0.05, network=5, random_state=0).fit(X.astype(np.float32))
    double = DecentralizedKernelPCA(2, gamma=0.05, network=5, random_state=0).fit(X)
    forced = DecentralizedKernelPCA(2, gamma=0.05, network=5, random_state=0, dtype="float32").fit(X)
    for model in (single, forced):
        assert model.eigenvalues_.dtype == np.float32
        assert model.transform(X[:3].astype(np.float32)).dtype == np.float32
        np.testing.assert_allclose(model.eigenvalues_, double.eigenvalues_, rtol=1e-3)
        for one, two in zip(model.transform(X).T, double.transform(X).T, strict=True):
            assert abs(np.corrcoef(one, two)[0, 1]) > 0.9999


@pytest.mark.parametrize("factor", [1e6, 1e-6])
@pytest.mark.parametrize("kernel", ["rbf", "linear"])
def test_scaled_columns_give_the_same_answer(factor, kernel):
    parts = clusters([30] * 4)
    usual = DecentralizedKernelPCA(2, kernel=kernel, gamma=0.05, network=4, random_state=0, normalize=False).fit_parts(
        parts
    )
    scaled = DecentralizedKernelPCA(2, kernel=kernel, gamma=0.05 / factor**2, network=4, random_state=0).fit_parts(
        [p * factor for p in parts]
    )
    unit = factor if kernel == "linear" else 1.0
    np.testing.assert_allclose(scaled.eigenvalues_, usual.eigenvalues_ * unit**2, rtol=1e-6)
    np.testing.assert_allclose(
        scaled.transform(X * factor), usual.transform(X) * unit, atol=1e-5 * unit * np.abs(usual.transform(X)).max()
    )


AWKWARD = {
    "a node with one sample": lambda: clusters([30, 1, 25, 12]),
    "two nodes": lambda: clusters([30, 20]),
    "duplicate samples": lambda: [np.repeat(p, 3, axis=0) for p in clusters([10, 8, 12])],
    "the same sample everywhere but once": lambda: [
        np.vstack([np.zeros((9, 6)), np.ones((1, 6))]),
        np.zeros((10, 6)),
        np.zeros((5, 6)),
    ],
    "a constant column": lambda: [np.column_stack([p, np.full(len(p), 7.0)]) for p in clusters([20, 20, 20])],
    "a rank-deficient node": lambda: [np.outer(np.arange(12.0), np.ones(6)) / 12, *clusters([20, 20])],
    "more columns than samples": lambda: [p / 4 for p in clusters([4, 5, 6], columns=50)],
}


@pytest.mark.parametrize("name", AWKWARD)
@pytest.mark.parametrize("kernel", ["rbf", "linear"])
def test_awkward_data_works(name, kernel):
    parts = AWKWARD[name]()
    together = np.concatenate(parts)
    model = DecentralizedKernelPCA(1, kernel=kernel, gamma=0.05, random_state=0).fit_parts(parts)
    central = baselines.central(parts, 1, kernel=kernel, gamma=0.05)
    assert np.isfinite(model.transform(together)).all()
    assert model.converged_
    assert metrics.agreement(model, central, together).min() > 0.9999
    np.testing.assert_allclose(model.eigenvalues_, central.eigenvalues_, rtol=1e-6)


@pytest.mark.parametrize("name", AWKWARD)
@pytest.mark.parametrize("kernel", ["rbf", "linear"])
def test_the_iteration_works_with_awkward_data(name, kernel):
    parts = AWKWARD[name]()
    together = np.concatenate(parts)
    n_landmarks = max(2, len(together) // (1 if name.startswith("the same sample") else 4))
    model = iterated(parts, Projection(n_landmarks=n_landmarks), 1, kernel=kernel, gamma=0.05)
    central = baselines.central(parts, 1, kernel=kernel, gamma=0.05)
    assert np.isfinite(model.transform(together)).all()
    assert metrics.agreement(model, central, together).min() > 0.99


@pytest.mark.parametrize("solver", ["auto", Projection()], ids=str)
def test_constant_data_has_no_components(solver):
    model = DecentralizedKernelPCA(2, gamma=0.1, network=3, random_state=0, solver=solver)
    with pytest.warns(
        ConvergenceWarning, match="all components are zero, so that transform gives zeros: all rows are alike"
    ):
        model.fit(np.ones((30, 4)))
    assert not model.converged_
    assert (model.accuracy_ == 0).all()
    np.testing.assert_allclose(model.eigenvalues_, 0, atol=1e-10)
    np.testing.assert_allclose(model.transform(np.ones((2, 4))), 0, atol=1e-6)
    assert (model.explained_variance_ratio_ <= 1).all()


@pytest.mark.parametrize(
    "settings",
    [
        {"landmarks": 60},
        {},
        *({"solver": Projection(n_landmarks=60, centering=centering)} for centering in ("global", None)),
        {"solver": Projection(n_landmarks=60, centering="local", init="random")},
    ],
    ids=str,
)
def test_solvers_and_centerings(settings):
    parts = clusters([40] * 5, n_clusters=1)  # alike nodes: local means are good too
    together = np.concatenate(parts)
    model = DecentralizedKernelPCA(2, gamma=0.05, random_state=0, **settings).fit_parts(parts)
    centering = settings["solver"].centering if "solver" in settings else "global"
    assert model.converged_
    assert (model.n_iter_ == 0) == ("solver" not in settings)
    central = baselines.central(parts, 2, gamma=0.05)
    eigenvalues = central.eigenvalues_
    if centering is None:
        eigenvalues, vectors = np.linalg.eigh(central.kernel.gram(together, together))
        eigenvalues, vectors = eigenvalues[::-1][:2], vectors[:, ::-1][:, :2]
        values = np.array([node.transform(together) for node in model.node_models_])
        cosines = np.abs((values * vectors).sum(axis=1)) / np.linalg.norm(values, axis=1)
    else:
        cosines = metrics.agreement(model, central, together)
    assert cosines.min() > (0.98 if centering == "local" else 0.999)
    if centering != "local":
        np.testing.assert_allclose(model.eigenvalues_, eigenvalues, rtol=0.01)


RHO = {
    "auto": "auto",
    "bound": "paper-bound",
    "number": 200.0,
    "table": [(0, 300.0, 100.0), (3, 200.0, 200.0)],
    "function": lambda t, own: 250.0 if own else 200.0,
}
TO_THE_END = {"tol": 1e-7, "max_iter": 2000, "n_landmarks": 30}
RING = {"gamma": 0.05, "network": Network.ring(5)}


@pytest.fixture(scope="module")
def usual():
    return iterated(clusters([30] * 5), Projection(**TO_THE_END), **RING)


@pytest.mark.parametrize(
    ("rho", "init"),
    [
        pytest.param(
            rho, init, marks=[] if rho == "auto" or (rho, init) == ("function", "random") else pytest.mark.slow
        )
        for init in ("landmarks", "random", "local")
        for rho in RHO
    ],
)
def test_penalties_and_starts_agree_in_the_end(rho, init, usual):
    model = iterated(clusters([30] * 5), Projection(rho=RHO[rho], init=init, **TO_THE_END), **RING)
    np.testing.assert_allclose(model.eigenvalues_, usual.eigenvalues_, rtol=1e-3)
    for one, two in zip(model.transform(X).T, usual.transform(X).T, strict=True):
        assert abs(np.corrcoef(one, two)[0, 1]) > 0.9999


def test_penalties_are_not_asked_for_beyond_the_last_iteration():
    table = [200.0] * 7  # for iterations 0 to max_iter, as is checked before the fit
    solver = Projection(rho=lambda t, own: table[t], max_iter=6, tol=0)
    model = DecentralizedKernelPCA(2, gamma=0.05, solver=solver, random_state=0)
    with pytest.warns(ConvergenceWarning, match="not converged after 6 iterations"):
        model.fit_parts(clusters([30] * 5))
    assert model.n_iter_ == 6


def test_gamma_scale_is_scikit_learns():
    parts = clusters([30, 12, 40])
    model = DecentralizedKernelPCA(2, gamma="scale", random_state=0).fit_parts(parts)
    together = np.concatenate(parts)
    np.testing.assert_allclose(model.node_models_[0].kernel.gamma, 1 / (6 * together.var()), rtol=1e-12)


@pytest.mark.parametrize("noise", [0.05, "30dB", "30 db"])
def test_exchange_noise_touches_what_leaves_and_nothing_else(noise):
    parts = clusters([40, 30, 35])
    central = baselines.central(parts, 2, gamma=0.05)
    clean = {row.tobytes() for p in parts for row in p}
    solver = Projection(exchange_noise=noise)
    model = DecentralizedKernelPCA(2, gamma=0.05, solver=solver, random_state=0).fit_parts(parts)
    sent = {}
    for j, node in enumerate(model.node_models_):
        marks, *sets = node.function("neighborhood").points
        for q, points in zip([j, *(q for q in range(3) if q != j)], sets, strict=True):
            wanted = 0.05 if noise == 0.05 else np.sqrt((parts[q] ** 2).mean() * 10**-3)
            assert 0.8 * wanted < (points - parts[q]).std() < 1.2 * wanted
            np.testing.assert_array_equal(sent.setdefault(q, points), points)  # everybody got the same
        assert not any(row.tobytes() in clean for row in marks)
    assert model.converged_
    assert metrics.agreement(model, central, np.concatenate(parts)).min() > 0.999
    np.testing.assert_allclose(model.eigenvalues_, central.eigenvalues_, rtol=0.02)


def test_no_row_without_noise_becomes_a_landmark():
    """Where clusters are too small for as many landmarks as were asked for, rows are landmarks, but not with noise."""
    parts = clusters([40, 30, 35])
    clean = {row.tobytes() for p in parts for row in p}
    for noise in (0.0, 0.05):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            solver = Projection(n_landmarks=60, init="random", exchange_noise=noise)
            model = DecentralizedKernelPCA(2, gamma=0.05, solver=solver, random_state=0).fit_parts(parts)
        marks = model.node_models_[0].function("landmarks").points[0]
        assert any(row.tobytes() in clean for row in marks) == (not noise)


def test_paper_mode_with_deflation():
    parts = clusters([60] * 5, n_clusters=1, columns=3)
    solver = replace(PAPER, max_iter=30, tol=0)
    model = DecentralizedKernelPCA(
        3, gamma=0.1, network=Network.ring(5, 4), random_state=0, solver=solver, normalize=True
    )
    with pytest.warns(
        ConvergenceWarning, match="component 1: not converged after 30 iterations.*use update='proximal'"
    ):
        model.fit_parts(parts)
    central = baselines.central(parts, 3, gamma=0.1)
    assert model.n_iter_ == 3 * 30
    similar = metrics.similarity(model, central).mean(axis=0)
    assert (similar > metrics.similarity(baselines.local(parts, 3, gamma=0.1), central).mean(axis=0)).all()
    assert similar.min() > 0.9
    own = [node.own_function() for node in model.node_models_]
    gram = [f.coefficients[0].T @ central.kernel.gram(f.points[0], f.points[0]) @ f.coefficients[0] for f in own]
    for square in gram:  # deflation: each node's components are orthogonal
        scale = np.sqrt(np.diag(square))
        np.testing.assert_allclose(square / scale / scale[:, None], np.eye(3), atol=1e-6)


def test_not_converged_says_what_to_try():
    solver = Projection(max_iter=3, tol=1e-8)
    with pytest.warns(
        ConvergenceWarning, match=r"after 3 iterations: relative residual .* \(node \d\).*raise max_iter or tol"
    ):
        model = DecentralizedKernelPCA(2, gamma=0.05, solver=solver, network=6, random_state=0).fit(X)
    assert not model.converged_
    assert model.n_iter_ == 3


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("asked", [Projection(rho=2.9), replace(PAPER, rho=2.9)], ids=["proximal", "paper"])
def test_divergence_is_noticed_and_the_last_good_iterate_kept(asked, dtype):
    """Penalties hardly above the least allowed: the iteration overflows. It must not pass for converged, nor end in an eigensolver's error."""
    solver = replace(asked, max_iter=5000, tol=0)
    model = DecentralizedKernelPCA(1, gamma=0.05, network=6, solver=solver, dtype=dtype, random_state=0)
    with pytest.warns(ConvergenceWarning, match="diverged before iteration"):
        model.fit(X)
    assert not model.converged_
    assert np.isfinite(model.eigenvalues_).all()
    assert np.isfinite(model.transform(X)).all()


@pytest.mark.parametrize("asked", [Projection(rho=0.1), PAPER], ids=["proximal", "paper"])
def test_penalties_without_a_maximum_are_refused(asked):
    """The step of w maximizes only if its penalties sum to more than twice the largest eigenvalue, which grows with the rows of a node."""
    parts = [np.random.default_rng(j).normal(size=(600, 2)) for j in range(3)]
    model = DecentralizedKernelPCA(1, gamma=0.5, normalize=True, network=3, solver=asked)
    with pytest.raises(
        ValueError, match=r"node 0: the penalties rho .* above \d+.* twice the largest .* use rho='auto'"
    ):
        model.fit_parts(parts)


@pytest.mark.parametrize("iterations", [4, 20])
@pytest.mark.parametrize("network", [Network.path(2), Network.ring(8, 2)], ids=repr)
def test_the_papers_nodes_end_with_one_sign_and_an_eigenvalue(network, iterations):
    """Local starts differ in sign, and so do the nodes at the end: terms of pairs of nodes cancelled, up to an eigenvalue of 0 (at 221e5e9)."""
    rng = np.random.default_rng(3)
    parts = [rng.normal(size=(20, 3)) * [3, 1, 0.5] for _ in range(len(network))]
    solver = replace(PAPER, max_iter=iterations, tol=0)
    model = DecentralizedKernelPCA(1, gamma=0.05, normalize=True, network=network, solver=solver, random_state=0)
    with pytest.warns(ConvergenceWarning, match="not converged"):
        model.fit_parts(parts)
    X, central = np.concatenate(parts), baselines.central(parts, 1, gamma=0.05)
    along = [node.transform(X)[:, 0] @ central.transform(X)[:, 0] for node in model.node_models_]
    assert (np.array(along) > 0).all() or (np.array(along) < 0).all()
    assert metrics.similarity(model, central).min() > 0.5
    np.testing.assert_allclose(model.eigenvalues_, central.eigenvalues_, rtol=0.25)  # of other means: each node its own


def test_a_narrow_kernel_is_named_in_the_warning():
    X = np.random.default_rng(0).normal(size=(300, 5))
    settings = {"network": 6, "random_state": 0}
    for more in (
        {},
        {"solver": Projection()},
        {"share_rows": False},
        {"network": 1},
        {"kernel": "laplacian"},
    ):  # converged or not; silent at c6f9cc8
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            with pytest.warns(NarrowKernelWarning, match=r"explains 0\..*% .* gamma=50 .* use gamma='scale'"):
                DecentralizedKernelPCA(2, gamma=50.0, **{**settings, **more}).fit(X)
    with warnings.catch_warnings():
        warnings.simplefilter("error", NarrowKernelWarning)
        DecentralizedKernelPCA(2, **settings).fit(1000 * X)
        DecentralizedKernelPCA(2, **settings).fit(np.ones((30, 2)))


# float32 itself cannot hold the data beside a larger offset
@pytest.mark.parametrize(
    ("shift", "dtype"), [(300.0, np.float32), (300.0, np.float64), (1e4, np.float64), (1e7, np.float64)]
)
@pytest.mark.parametrize("nodes", [1, 6])
def test_an_offset_changes_nothing(shift, dtype, nodes):
    owner = np.sort(np.arange(len(X)) ** 2 % nodes)  # ragged
    usual = DecentralizedKernelPCA(2, gamma=0.05, random_state=0).fit(X, nodes=owner)
    shifted = DecentralizedKernelPCA(2, gamma=0.05, random_state=0).fit((X + shift).astype(dtype), nodes=owner)
    for one, two in zip(shifted.transform((X + shift).astype(dtype)).T, usual.transform(X).T, strict=True):
        assert abs(np.corrcoef(one, two)[0, 1]) > 0.9999


@pytest.mark.parametrize("gamma", [1e-6, 1e6])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_nearly_constant_or_nearly_diagonal_kernel_is_not_taken_for_a_bad_one(gamma, dtype):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = DecentralizedKernelPCA(2, gamma=gamma, network=6, random_state=0).fit(X.astype(dtype))
    assert np.isfinite(model.transform(X.astype(dtype))).all()
    assert baselines.central(X, 3, gamma=gamma).transform(X).shape == (len(X), 3)


@pytest.mark.parametrize("factor", [1e6, 1e-6])
def test_one_scaled_column(factor):
    """A column that dwarfs the others, or vanishes beside them, is what central kernel PCA sees too."""
    scale = np.ones(6)
    scale[2] = factor
    parts = [p * scale for p in clusters([30] * 4)]
    model = DecentralizedKernelPCA(1, kernel="linear", network=4, random_state=0).fit_parts(parts)
    assert metrics.agreement(model, baselines.central(parts, 1, kernel="linear"), np.concatenate(parts)).min() > 0.9999


def test_more_components_than_landmarks_can_see():
    parts = [p * np.geomspace(2, 0.3, 6) for p in clusters([10, 10])]
    model = DecentralizedKernelPCA(15, gamma=0.05, network=2, share_rows=False, random_state=0)
    says = r"components [345] to 15 are zero: there are [234] landmarks, which see [234] dimensions of the rows; .* share_rows=True"
    with pytest.warns(ConvergenceWarning, match=says):
        model.fit_parts(parts)
    assert not model.converged_
    assert (model.accuracy_[4:] == 0).all()
    assert (model.transform(parts[0])[:, 4:] == 0).all()


@pytest.mark.parametrize("solver", ["auto", Projection(n_landmarks=20, max_iter=500)], ids=str)
def test_as_many_components_as_the_data_has(solver):
    parts = [p * np.geomspace(2, 0.3, 6) for p in clusters([10, 10])]
    if solver == "auto":
        model = DecentralizedKernelPCA(15, gamma=0.05, network=2, random_state=0).fit_parts(parts)
        assert model.converged_
    else:
        model = iterated(parts, solver, 15, gamma=0.05, network=2)
    central = baselines.central(parts, 15, gamma=0.05)
    least = 0.9999 if solver == "auto" else 0.999
    assert metrics.agreement(model, central, np.concatenate(parts))[:, :12].min() > least
    np.testing.assert_allclose(model.eigenvalues_, central.eigenvalues_, rtol=0.002 if solver == "auto" else 0.02)


def test_deflation_past_the_rank_gives_nothing_not_noise():
    rng = np.random.default_rng(0)
    parts = [rng.normal(size=(40, 3)) * [3, 1, 0.3] for _ in range(4)]
    solver = replace(PAPER, max_iter=60, rho="auto")
    model = DecentralizedKernelPCA(5, kernel="linear", network=4, random_state=0, solver=solver)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit_parts(parts)
    central = baselines.central(parts, 3, kernel="linear")
    assert metrics.agreement(model, central, np.concatenate(parts)).min() > 0.9
    np.testing.assert_allclose(model.eigenvalues_[3:], 0, atol=1e-6 * model.eigenvalues_[0])
    assert model.explained_variance_ratio_.sum() < 1.01


@pytest.mark.parametrize("solver", ["auto", Projection(n_landmarks=30, max_iter=5)], ids=["auto", "projection"])
def test_a_model_does_not_change_with_the_callers_array(solver):
    X = np.concatenate(clusters([30] * 4))
    model = DecentralizedKernelPCA(2, gamma=0.05, solver=solver, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(X, nodes=np.repeat(range(4), 30))
    new, before = X[:9].copy(), model.transform(X[:9])
    X[:] = 7
    np.testing.assert_array_equal(model.transform(new), before)


def test_parts_by_name_go_to_their_nodes():
    named = dict(zip(["paris", "rome", "oslo"], clusters([20, 30, 25]), strict=True))
    network = Network.from_edges([("paris", "rome"), ("rome", "oslo")])
    for n in (network, None, 3):
        model = iterated(named, Projection(n_landmarks=30), gamma=0.05, network=n)
        default = DecentralizedKernelPCA(2, gamma=0.05, network=n, random_state=0).fit_parts(named)
        for name, part in named.items():
            assert default.node_models_[name].name == name
            assert default.node_sizes_[default.network_.number[name]] == len(part)
            np.testing.assert_array_equal(model.node_models_[name].function("node").points[-1], part)


def test_labels_may_be_numbers_of_named_nodes():
    network = Network({"a": ["b"], "b": ["a", "c"], "c": ["b"]})
    by_number, by_name = np.arange(len(X)) % 3, np.array(["a", "b", "c"])[np.arange(len(X)) % 3]
    one, two = (
        DecentralizedKernelPCA(2, gamma=0.05, network=network, random_state=0).fit(X, nodes=n)
        for n in (by_number, by_name)
    )
    np.testing.assert_array_equal(one.transform(X), two.transform(X))


def test_history_without_iterations_is_empty_not_missing():
    for settings in ({"network": 1}, {"network": 3, "landmarks": 30}):
        model = DecentralizedKernelPCA(2, gamma=0.05, random_state=0, **settings).fit(X)
        history = model.history_
        assert model.n_iter_ == 0
        assert [len(history[name]) for name in ("residual", "change", "objective")] == [0, 0, 0]


@pytest.fixture
def ctrl_c():
    """Ctrl-C works, even where the tests run in the background of a shell, which ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_keeps_the_last_iterate():
    def kernel(A, B):
        return A @ B.T

    from dekpca.engines import local

    iterations = []
    run = local.run

    def interrupted(plan, watch=None):
        def press(about):
            assert isinstance(about, Iteration)
            iterations.append(about.number)
            if iterations[-1] == 12:
                os.kill(os.getpid(), signal.SIGINT)

        return run(plan, press)

    local.run = interrupted
    try:
        solver = Projection(max_iter=10_000, tol=0)
        with pytest.warns(ConvergenceWarning, match="interrupted after 15 iterations; the last iterate is kept"):
            model = DecentralizedKernelPCA(2, kernel=kernel, solver=solver, network=5, random_state=0).fit(X)
    finally:
        local.run = run
    assert model.n_iter_ == 15  # the next check
    assert not model.converged_
    assert np.isfinite(model.transform(X)).all()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.usefixtures("ctrl_c")
@pytest.mark.parametrize("solver", ["auto", Projection()], ids=str)
def test_ctrl_c_before_the_first_iteration_interrupts(solver):
    def kernel(A, B):
        os.kill(os.getpid(), signal.SIGINT)
        return A @ B.T

    with pytest.raises(KeyboardInterrupt):
        DecentralizedKernelPCA(2, kernel=kernel, network=5, solver=solver, random_state=0).fit(X)


@pytest.mark.parametrize(
    ("solver", "says"),
    [
        ("auto", r"dekpca: stage 1: \d+ landmarks, error of the span [0-9.e-]+, at most [0-9.e-]+"),
        (Projection(tol=1e-8), r"dekpca: iteration 5 of at most 100, residual [0-9.e-]+"),
    ],
    ids=str,
)
def test_verbose_says_how_far_the_fit_is(solver, says, capsys):
    """On standard error, also where it is no terminal; once, however often a model is fitted."""
    for verbose in (True, True, False):
        model = DecentralizedKernelPCA(2, gamma=0.05, network=5, random_state=0, solver=solver, verbose=verbose)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            model.fit(X)
        out, err = capsys.readouterr()
        assert out == ""
        assert len(re.findall(says, err)) == verbose
    assert err == ""


# ---------------------------------------------------------------------- what a fitted estimator holds
def test_a_model_of_one_node_does_not_change_with_the_callers_rows():
    X, new = np.random.default_rng(0).normal(size=(60, 3)), np.random.default_rng(1).normal(size=(5, 3))
    model = DecentralizedKernelPCA(2, gamma=0.1, random_state=0).fit(X)
    before = DecentralizedKernelPCA(2, gamma=0.1, random_state=0).fit(X.copy()).transform(new)
    X *= 2.0
    np.testing.assert_array_equal(model.transform(new), before)


def test_a_fitted_estimator_holds_no_rows_but_landmarks():
    X = np.random.default_rng(0).normal(size=(20_000, 20)) * np.geomspace(3, 0.1, 20)
    model = DecentralizedKernelPCA(2, gamma=0.01, share_rows=False, random_state=0).fit(X)
    held = pickle.dumps(model)
    assert len(held) < X.nbytes / 2  # node numbers of the rows, landmarks, and what the nodes were told
    assert not any(row.tobytes() in held for row in X[::500])


def test_a_callable_kernel_may_keep_the_array_that_it_returns():
    X = np.random.default_rng(0).normal(size=(400, 3))
    kept = {}

    def kernel(A, B):
        key = A.tobytes(), B.tobytes()
        if key not in kept:
            kept[key] = np.exp(-0.1 * ((A[:, None] - B[None]) ** 2).sum(axis=2))
        return kept[key]

    DecentralizedKernelPCA(2, kernel=kernel, network=4, random_state=0).fit(X)
    assert kept
    for (a, b), held in kept.items():
        A, B = (np.frombuffer(x).reshape(-1, 3) for x in (a, b))
        np.testing.assert_array_equal(held, np.exp(-0.1 * ((A[:, None] - B[None]) ** 2).sum(axis=2)))


def test_an_iteration_does_not_converge_by_the_change_of_one_step():
    """The stop rule is about the change of five iterations: a last check after fewer has not seen it."""
    X = np.random.default_rng(0).normal(size=(200, 4))

    def fitted(max_iter):
        solver = Projection(n_landmarks=0, centering="local", init="local", max_iter=max_iter, tol=0.05)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return DecentralizedKernelPCA(2, gamma=0.1, network=Network.ring(5), solver=solver, random_state=0).fit(X)

    stop = next(t for t in range(5, 200, 5) if fitted(t).converged_)
    assert not any(fitted(t).converged_ for t in range(stop - 4, stop))
