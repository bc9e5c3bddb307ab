"""Rows that come in parts, and rows that are forgotten: the answers are those of fits."""

from __future__ import annotations

import copy
import pickle
import warnings

import joblib
import numpy as np
import pandas as pd
import pytest
from sklearn.exceptions import ConvergenceWarning, NotFittedError

from dekpca import DecentralizedKernelPCA, Network, Privacy, Projection
from dekpca.solvers.sums.stream import BLOCK, FORGETTABLE

K = 3
MANY = 60_000  # so many that rows are dropped from those that may judge


def made(count, seed=0, columns=5):
    rng = np.random.default_rng(seed)
    centres = 2 * np.random.default_rng(9).normal(size=(8, columns))
    return centres[rng.integers(8, size=count)] + rng.normal(size=(count, columns)) * np.geomspace(1, 0.2, columns)


POINTS = made(40, seed=1)
X = made(MANY)
OWNER = np.random.default_rng(2).choice(["oslo", "rome"], MANY)


def model_of(**settings):
    return DecentralizedKernelPCA(
        **{"n_components": K, "gamma": 0.05, "landmarks": POINTS, "random_state": 0} | settings
    )


def assert_same(one, other, within, X=X[:500]):
    """Two answers up to rounding."""
    np.testing.assert_allclose(one.eigenvalues_, other.eigenvalues_, rtol=within)
    values = other.transform(X)
    np.testing.assert_allclose(one.transform(X), values, atol=within * np.abs(values).max())
    np.testing.assert_allclose(one.accuracy_, other.accuracy_, rtol=within)
    np.testing.assert_allclose(one.span_accuracy_bound_, other.span_accuracy_bound_, rtol=within)
    np.testing.assert_allclose(one.explained_variance_ratio_, other.explained_variance_ratio_, rtol=within)


def streamed(model, ends, X=X, nodes=None):
    for first, last in zip([0, *ends], ends, strict=False):
        model.partial_fit(X[first:last], nodes=None if nodes is None else nodes[first:last])
    return model


def test_any_cut_gives_the_answer_of_fit():
    """Judged by few rows and, where a tolerance is just missed, once again by more."""
    ends = [*range(1, 30), *np.sort(np.random.default_rng(0).choice(np.arange(30, MANY), 40, replace=False)), MANY]
    tol, sent = 1.0, []
    for _ in range(2):
        fit = model_of(tol=tol).fit(X, nodes=OWNER)
        network = Network.from_edges([("oslo", "rome")])
        few, one = (streamed(model_of(tol=tol, network=network), cut, nodes=OWNER) for cut in (ends, [MANY]))
        assert few.n_samples_seen_ == one.n_samples_seen_ == MANY
        assert few.node_sizes_.tolist() == fit.node_sizes_.tolist()
        assert_same(few, fit, 1e-10)
        assert (few.eigenvalues_ == one.eigenvalues_).all()  # not even the rounding depends on the cut
        assert (few.transform(X[:9]) == one.transform(X[:9])).all()
        sent.append(fit.history_["bytes"]["judge"].sum())
        tol = 0.9 * (1 - fit.span_accuracy_bound_**2)
    assert sent[1] > 1.5 * sent[0]


def quadratic(A, B):
    return (1 + A @ B.T / 5) ** 2


@pytest.mark.parametrize("share_rows", [True, False])
def test_a_kernel_without_features(share_rows):
    """Judged by rows that all nodes are told, or by the trace alone."""
    rows, settings = X[:15_000], {"kernel": quadratic, "share_rows": share_rows, "tol": 1.0, "landmarks": POINTS[:15]}
    fit = model_of(**settings).fit_parts([rows])
    assert_same(streamed(model_of(**settings), [5, 9_000, 15_000], rows), fit, 1e-10, rows[:500])


def test_the_first_rows_choose_landmarks_and_the_rows_are_dealt_in_turn():
    rows = X[:12_000]
    model = streamed(DecentralizedKernelPCA(K, network=4, random_state=0), [3_000, 3_001, 9_000, 12_000], rows)
    points = model._stream.basis.marks.points
    first = DecentralizedKernelPCA(K, network=4, random_state=0).fit(rows[:3_000], nodes=np.arange(3_000) % 4)
    assert (model.gamma_, model.n_landmarks_) == (first.gamma_, first.n_landmarks_)
    same = model_of(gamma=model.gamma_, landmarks=points).fit(rows, nodes=np.arange(12_000) % 4)
    assert_same(model, same, 1e-10)


def test_the_number_of_components_by_a_share_of_the_variance():
    rows, settings = X[:9_000], {"n_components": 0.5, "tol": 1.0}
    fit = model_of(**settings).fit_parts([rows])
    model = streamed(model_of(**settings), [4_000, 9_000], rows)
    assert model.n_components_ == fit.n_components_ > 1
    assert_same(model, fit, 1e-10, rows[:500])


def test_scales_and_means_are_those_of_the_first_rows():
    rows = X[:3_000] * [1, 5, 0.1, 3, 1] + 2
    rows[np.random.default_rng(0).random(rows.shape) < 0.02] = np.nan
    model = streamed(model_of(standardize=True, missing="mean", landmarks=30), [1_000, 3_000], rows)
    mean = np.nanmean(rows[:1_000], axis=0)
    full = np.where(np.isnan(rows), mean, rows)
    scale = full[:1_000].std(axis=0)
    same = model_of(landmarks=model._stream.basis.marks.points).fit_parts([(full - mean) / scale])
    np.testing.assert_allclose(model.eigenvalues_, same.eigenvalues_, rtol=1e-10)
    np.testing.assert_allclose(model.transform(rows[:99]), same.transform((full[:99] - mean) / scale), atol=1e-9)


# ---------------------------------------------------------------------- forgetting
def test_what_is_left_after_forgetting_is_a_fit_of_the_other_rows():
    """Half of the rows, in random order, among them equal rows; more than half would be too many."""
    rows = np.round(X, 1)
    model = streamed(model_of(), [20_000, MANY], rows, OWNER)
    model.eigenvalues_  # noqa: B018  (an answer in between changes nothing)
    gone = np.random.default_rng(0).permutation(np.flatnonzero(OWNER == "rome"))
    for some in (gone[:1], gone[1:9_000], gone[9_000:]):
        model.forget(rows[some], nodes=OWNER[some])
    assert model.node_sizes_.tolist() == [np.sum(OWNER == "oslo"), 0]
    fit = model_of().fit_parts({"oslo": rows[OWNER == "oslo"]})
    assert_same(model, fit, 1e-9)
    model.partial_fit(rows[gone], nodes=OWNER[gone])
    assert model.n_samples_seen_ == MANY


def test_hardly_any_row_is_left():
    """Fewer rows judge than a fit would draw: the estimate is less certain, but right."""
    model = streamed(model_of(), [MANY])
    model.forget(X[6_000:])
    fit = model_of().fit_parts([X[:6_000]])
    count, _ = model._stream.summed.most
    assert count / FORGETTABLE > 6_000
    np.testing.assert_allclose(model.eigenvalues_, fit.eigenvalues_, rtol=2e-3)  # the noise of either judge
    np.testing.assert_allclose(model._stream.summed.total["count"], 6_000)
    ratio = model.explained_variance_ratio_ / model.eigenvalues_ * fit.eigenvalues_ / fit.explained_variance_ratio_
    np.testing.assert_allclose(ratio, 1, rtol=1e-9)  # the trace is a sum over all rows
    assert 0.2 < (1 - model.span_accuracy_**2) / (1 - fit.span_accuracy_**2) < 5


def test_rows_that_were_never_added_are_refused_before_anything_changes():
    model = streamed(model_of(), [5_000], X, OWNER)
    before = model.eigenvalues_
    twice = np.concatenate([X[:3], X[2:3]])
    for rows, nodes, match in (
        (X[5_000:5_002], None, r"row 0 of X was never added.*\(2 of 2 rows\)"),
        (twice, None, r"row 3 .* forgotten already \(1 of 4 rows\)"),
        (X[:1], ["rome" if OWNER[0] == "oslo" else "oslo"], "row 0 of X was never added at node"),
    ):
        with pytest.raises(ValueError, match=match):
            model.forget(rows, nodes=nodes)
    with pytest.raises(ValueError, match="no row would be left"):
        model.forget(X[:5_000])
    assert (model.eigenvalues_ == before).all()
    assert model.n_samples_seen_ == 5_000
    model.forget(X[:3])
    with pytest.raises(ValueError, match="forgotten already"):
        model.forget(X[:1])


def test_a_forgotten_row_is_not_in_the_estimator_unless_it_is_a_landmark():
    model = model_of().partial_fit(X[:3_000])
    model.forget(X[100:102])
    assert X[100].tobytes() not in pickle.dumps(model)
    assert X[99].tobytes() in pickle.dumps(model)
    model = model_of(landmarks=X[:40]).partial_fit(X[:3_000])
    with pytest.warns(UserWarning, match="2 of the rows are landmarks, and stay"):
        model.forget(X[38:42])


# ---------------------------------------------------------------------- drift
def test_a_drifting_stream_says_that_its_landmarks_are_stale():
    model = DecentralizedKernelPCA(K, gamma=0.05, random_state=0)
    away = np.array([6.0, 0, 0, 0, 0])
    model.partial_fit(X[:3_000])
    assert model.converged_
    calm = 1 - model.span_accuracy_bound_**2
    drifted = X[3_000:6_000] * 1.5 + away
    with pytest.warns(ConvergenceWarning, match=r"landmarks that partial_fit keeps; refresh\(X\)"):
        assert not model.partial_fit(drifted).converged_
    assert 1 - model.span_accuracy_bound_**2 > model.tol > calm
    old, kinds = model._stream.basis.marks.points, model._stream.basis.marks.kinds
    with warnings.catch_warnings():
        warnings.simplefilter("error", ConvergenceWarning)
        assert model.refresh(drifted).converged_
    new = model._stream.basis.marks.points
    assert model.n_samples_seen_ == 3_000
    assert len(new) > len(old)
    assert (new[: len(old)] == old).all()
    assert model._stream.basis.marks.kinds[: len(kinds)] == kinds
    assert_same(model, model_of(landmarks=new).fit_parts([drifted]), 1e-10, drifted)
    model.partial_fit(X[6_000:7_000] * 1.5 + away)
    assert model.n_samples_seen_ == 4_000


@pytest.mark.parametrize("seed", range(6))
def test_landmarks_satisfy_the_judgement_of_the_stream(seed):
    """They grow until the judgement that a stream repeats is content, not another one: else refresh could leave a warning that it cannot cure."""
    rows = np.random.default_rng(seed).normal(size=(500, 5))
    model = DecentralizedKernelPCA(2, gamma=0.05, random_state=seed).partial_fit(rows)
    assert model.converged_
    assert model.refresh(3 * rows).converged_


# ---------------------------------------------------------------------- what an estimator holds, and what it refuses
def test_memory_is_bounded_and_a_pickle_goes_on():
    model = streamed(model_of(), [*range(7_000, MANY, 7_000), MANY])
    model.partial_fit(made(40_000, seed=6))
    held = sum(len(some.rows) for some in model._stream.summed.kept) + model._stream.waits
    assert BLOCK < held < 45_000
    assert not {"eigenvalues_", "node_models_"} & set(vars(model))  # no answer was asked for
    other = pickle.loads(pickle.dumps(model))
    rows = made(500, seed=5)
    assert (other.partial_fit(rows).transform(rows) == model.partial_fit(rows).transform(rows)).all()
    assert X[17].tobytes() in pickle.dumps(model)
    assert X[17].tobytes() not in pickle.dumps(model.fit(X[:5_000]))
    with pytest.raises(NotFittedError, match="call partial_fit first"):
        model.forget(X[:1])
    assert not hasattr(model, "n_samples_seen_")


def test_refresh_with_no_more_rows_than_landmarks_adds_landmarks():
    """All rows of the first call are landmarks; those of the second, which lie elsewhere, become landmarks beside them."""
    rng = np.random.default_rng(0)
    before, now = rng.normal(size=(300, 6)), rng.normal(size=(300, 6)) + 8
    model = DecentralizedKernelPCA(3, gamma=0.5, network=3, random_state=0).partial_fit(before)
    assert model.n_landmarks_ == 300
    assert model.refresh(now).n_landmarks_ > 400
    assert model.span_accuracy_bound_ > 0.999


def test_a_buffer_that_the_caller_uses_again_and_a_frame_with_owners():
    frame = pd.DataFrame(X[:900], columns=list("abcde")).assign(owner=OWNER[:900])
    named = model_of(landmarks=pd.DataFrame(POINTS, columns=list("abcde")))
    for first in range(0, 900, 300):
        named.partial_fit(frame[first : first + 300], nodes="owner")
    assert named.transform(frame).shape == (900, K)
    # the column was named before: it stays no feature
    again = copy.copy(named).partial_fit(frame[:5].drop(columns="owner"))
    np.testing.assert_array_equal(again.transform(frame), again.transform(frame.drop(columns="owner")))
    assert again.node_models_["rome"].transform(frame).shape == (900, K)
    with pytest.raises(ValueError, match="nodes: bonn not in the network, whose nodes are oslo, rome"):
        named.partial_fit(frame.assign(owner="bonn"), nodes="owner")
    buffer, model = np.empty((300, 5)), model_of()
    for first in range(0, 900, 300):
        buffer[:] = X[first : first + 300]
        model.partial_fit(buffer, nodes=OWNER[first : first + 300])
        buffer[:] = np.nan
    np.testing.assert_allclose(model.eigenvalues_, named.eigenvalues_, rtol=1e-12)


def test_what_cannot_be_summed_is_refused():
    for settings, match in (
        ({"solver": Projection(), "landmarks": "auto"}, "solver='auto'"),
        ({"landmarks": "random-features"}, "use 'auto'"),
        ({"privacy": Privacy(epsilon=1, delta=1e-6)}, "leave privacy at None"),
        ({"privacy": "secure-sums"}, "leave privacy at None"),
        ({"contamination": 0.1}, "the histogram needs all rows again"),
    ):
        with pytest.raises(ValueError, match=match):
            model_of(**settings).partial_fit(X[:100])
    with pytest.raises(ValueError, match=r"3 samples in all .* give the first call of partial_fit more rows"):
        model_of(landmarks="auto").partial_fit(X[:3])
    model = model_of(kernel="poly", degree=3).partial_fit(X[:1]).partial_fit(X[1:300])
    before = model.eigenvalues_
    with pytest.raises(ValueError, match="row 1 of X: kernel poly gives NaN or infinity"):
        model.partial_fit(np.array([X[0], X[0] * 1e200]))
    with pytest.raises(ValueError, match="expecting 5 features"):
        model.partial_fit(X[:2, :4])
    assert (model.eigenvalues_ == before).all()


def test_what_is_not_finite_never_enters_the_sums():
    model = model_of(dtype=None).partial_fit(X[:300].astype(np.float32))
    before = model.eigenvalues_
    with pytest.raises(ValueError, match="row 1 of X: NaN or infinity as float32"):
        model.partial_fit(np.array([X[0], X[0] + 1e39]))
    assert (model.partial_fit(X[300:301]).forget(X[300:301].astype(np.float32)).eigenvalues_ == before).all()


def test_first_rows_that_all_lack_a_value_are_refused():
    with pytest.raises(ValueError, match="X: every row lacks a value"):
        model_of(missing="drop").partial_fit(np.full((3, 5), np.nan))


def test_parameters_may_not_change_during_a_stream():
    model = model_of().partial_fit(X[:300])
    fit = model_of().fit_parts([X[:300]])
    model.set_params(n_components=2, engine="dask")
    assert model.eigenvalues_.shape == (K,)
    np.testing.assert_allclose(model.eigenvalues_, fit.eigenvalues_, rtol=1e-10)
    for work in (model.partial_fit, model.refresh, model.forget):
        with pytest.raises(ValueError, match=r"engine, n_components: changed since the first call"):
            work(X[:9])
    model.set_params(engine="local")
    with pytest.raises(ValueError, match="n_components: changed since the first call of partial_fit; set it back"):
        model.partial_fit(X[:9])
    assert model.set_params(n_components=K).partial_fit(X[300:309]).n_samples_seen_ == 309


def test_a_copy_goes_on_with_its_own_rows():
    model = model_of().partial_fit(X[:5_000])
    other = copy.copy(model).partial_fit(X[5_000:9_000])
    other.forget(X[:10])
    assert (model.n_samples_seen_, other.n_samples_seen_) == (5_000, 8_990)
    assert (model.eigenvalues_ == model_of().partial_fit(X[:5_000]).eigenvalues_).all()
    model.forget(X[:10])  # they are still here


def test_a_copy_by_pickle_goes_on_with_landmarks_that_were_given(tmp_path):
    """Its array of landmarks is another one with the same numbers."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(300, 4))
    model = DecentralizedKernelPCA(2, gamma=0.1, landmarks=rows[:60] / 2, random_state=0).partial_fit(rows[:200])
    joblib.dump(model, tmp_path / "model.joblib")
    other = joblib.load(tmp_path / "model.joblib").partial_fit(rows[200:])
    np.testing.assert_allclose(other.eigenvalues_, model.partial_fit(rows[200:]).eigenvalues_, rtol=1e-12)
    other.landmarks = rows[:60]
    with pytest.raises(ValueError, match="landmarks: changed since the first call"):
        other.partial_fit(rows[:5])
