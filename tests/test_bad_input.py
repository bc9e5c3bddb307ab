"""Every bad input has its own error, before the first iteration, that says who, what, the limit and the remedy."""

from __future__ import annotations

import numpy as np
import pytest

from conftest import clusters
from dekpca import PAPER, DecentralizedKernelPCA, Network, Projection
from dekpca.data.checks import first_bad
from dekpca.plan import Traffic


@pytest.fixture(autouse=True)
def no_iteration(monkeypatch):
    """Whatever computes an iteration, its messages are counted."""
    add = Traffic._add

    def refuse(traffic, kind, edges, sizes):
        assert kind not in ("share", "view", "power"), "an iteration was begun"
        add(traffic, kind, edges, sizes)

    monkeypatch.setattr(Traffic, "_add", refuse)


@pytest.mark.parametrize("iterating", [{"solver": Projection()}, {"landmarks": "random-features"}], ids=str)
def test_an_iteration_would_be_noticed(iterating):
    with pytest.raises(AssertionError, match="an iteration was begun"):
        fit(PARTS, **iterating)


BARE = {"n_landmarks": 0, "centering": "local", "init": "local"}


def iterate(**asked):
    return fit(PARTS, solver=Projection(**asked))


def test_a_function_of_the_iteration_is_called_for_iterations_alone():
    table = [10.0, 20.0, 30.0]
    assert Projection(max_iter=3, rho=lambda t, own: table[t]).max_iter == len(table)


def broken(j, row, value):
    parts = clusters([20, 20, 20])
    parts[j][row, 2] = value
    return parts


def fit(parts, **params):
    return DecentralizedKernelPCA(2, **{"gamma": 0.05, "random_state": 0, **params}).fit_parts(parts)


PARTS = clusters([20, 20, 20])


def indefinite(A, B):
    return np.abs(A[:, :1] - B[:, :1].T)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (
            lambda: fit(broken(1, 7, np.nan)),
            r"node 1: column 2 has no value \(NaN\) in row 7; rows with missing values: 1 of 20; .*missing=\'drop\'",
        ),
        (lambda: fit(broken(2, 3, np.inf)), "node 2: column 2 is infinite in row 3; correct or remove the row$"),
        (
            lambda: DecentralizedKernelPCA(network=3).fit(np.concatenate(broken(1, 7, np.nan))),
            r"X: column 2 has no value \(NaN\) in row 27, which belongs to node \d;",
        ),
        (lambda: fit([*PARTS[:2], PARTS[2][:, :4]]), "node 2: 4 columns, but node 0 has 6"),
        (lambda: fit({1: PARTS[0], "1": PARTS[1], 2: PARTS[2]}), "must be unique as text; given twice: 1"),
        (
            lambda: fit([*PARTS[:2], PARTS[2][:0]]),
            r"node 2: no sample\(s\), but at least 1 needed; give at least 1, or leave the node out",
        ),
        (lambda: fit([p[:, :0] for p in PARTS]), "node 0: no columns"),
        (
            lambda: fit([*PARTS[:2], PARTS[2].astype(np.float32)]),
            "node 2: ndarray of float32 on cpu, but node 0 has ndarray of float64",
        ),
        (lambda: fit([*PARTS[:2], np.array([["a", "b"]])]), "node 2: .*(numeric|convert)"),
        (lambda: fit([*PARTS[:2], np.ones(5)]), "node 2: "),
        (
            lambda: fit([*PARTS[:2], np.ma.masked_greater(PARTS[2], PARTS[2].max() - 1e-9)]),
            r"node 2: an array with 1 masked values?, .*use X.filled\(numpy.nan\), and missing='drop' or 'mean'",
        ),
        (lambda: fit([]), "at least one part"),
        (lambda: fit(PARTS, network=4), "3 parts for a network of 4 nodes"),
        (lambda: DecentralizedKernelPCA(network=20).fit(np.ones((12, 2))), "12 rows for 20 nodes"),
        (lambda: DecentralizedKernelPCA(network=3).fit(np.ones((9, 2)), nodes=[0, 1] * 4), "8 labels for 9 rows"),
        (
            lambda: DecentralizedKernelPCA(network=Network.path(3)).fit(np.ones((9, 2)), nodes=[0, 1, 7] * 3),
            "7 not in the network.* 0, 1, 2",
        ),
        (
            lambda: DecentralizedKernelPCA(network=Network.path(3)).fit(np.ones((9, 2)), nodes=[0, 1, 1] * 3),
            "no row for node 2",
        ),
        (
            lambda: DecentralizedKernelPCA(network=2).fit(np.ones((9, 2)), nodes=[0, 1, 2] * 3),
            "network=2, but the data names 3 nodes",
        ),
        (
            lambda: DecentralizedKernelPCA(67).fit_parts(PARTS),
            "n_components=67, but 60 samples in all allow at most 59",
        ),
        (lambda: iterate(n_oversamples=80), "82 columns, but .* allow at most 59"),
        (lambda: DecentralizedKernelPCA(9, landmarks=8).fit_parts(PARTS), "8 landmarks allow at most 8"),
        (lambda: fit(PARTS, kernel="gauss"), "'kernel' parameter .*'rbf'"),
        (lambda: fit(PARTS, solver="magic"), "'solver' parameter .*'auto'.*Projection"),
        (lambda: iterate(update="admm"), "Projection: update='admm'; known are 'proximal', 'paper'"),
        (lambda: iterate(centering="mean"), "Projection: centering='mean'; known are 'global', 'local', None"),
        (lambda: iterate(init="zero"), "Projection: init='zero'; known are"),
        (lambda: iterate(expansion="all"), "Projection: expansion='all'; known are"),
        (lambda: iterate(max_iter=0), "Projection: max_iter=0; it must be a whole number of at least 1"),
        (lambda: iterate(max_iter="auto"), "Projection: max_iter='auto'; it must be a whole number"),
        (lambda: iterate(n_landmarks=2.5), "Projection: n_landmarks=2.5; it must be a whole number of at least 0"),
        (lambda: iterate(n_landmarks=PARTS[0]), r"Projection: n_landmarks=array\((.|\n)*; it must be a whole number"),
        (lambda: iterate(n_oversamples=True), "Projection: n_oversamples=True; it must be a whole number"),
        (lambda: iterate(tol=-1), "Projection: tol=-1; it must be a number of at least 0"),
        (lambda: iterate(tol=np.nan), "Projection: tol=nan; it must be a number of at least 0"),
        (lambda: iterate(diagnostics="yes"), "Projection: diagnostics='yes'; known are True, False"),
        (lambda: fit(PARTS, engine="cloud"), "engine='cloud' is unknown; known are dask, local"),
        (lambda: fit(PARTS, dtype="int8"), "dtype='int8'"),
        (lambda: fit(PARTS, gamma=-1.0), "'gamma' parameter"),
        (lambda: fit(PARTS, kernel="linear", kernel_params={"a": 1}), "kernel_params is for a callable"),
        (lambda: fit(PARTS, landmarks=0), "'landmarks' parameter"),
        (lambda: iterate(n_landmarks=0), "centering='global' with n_landmarks=0"),
        (lambda: iterate(n_landmarks=0, centering="local"), "init='landmarks' with n_landmarks=0"),
        (lambda: iterate(centering="local"), "init='landmarks' with centering='local'"),
        (lambda: iterate(update="paper"), "the paper's iteration knows none; set n_landmarks=0"),
        (lambda: iterate(**BARE, update="paper", n_oversamples=3), "n_oversamples=3 with update='paper'"),
        (lambda: iterate(**BARE, expansion="landmarks"), "expansion='landmarks' with n_landmarks=0"),
        (
            lambda: fit([p[:1] for p in PARTS], solver=PAPER),
            "node 0 and its neighbors have one row each, .* larger nodes, or use centering='global'",
        ),
        (
            lambda: fit([p[:1] for p in PARTS], solver=Projection(**BARE)),
            "node 0 and its neighbors have one row each, .* larger nodes, or use centering='global'",
        ),
        (
            lambda: fit([p[:2] for p in PARTS], solver=PAPER),
            "the 1 dimensions of the largest node around node 0 allow at most 1; lower n_components, or give larger nodes$",
        ),
        (lambda: iterate(rho=0), "above 0"),
        (lambda: iterate(rho=-3.0), "above 0"),
        (lambda: iterate(rho="big"), "'auto', 'paper-bound'"),
        (lambda: iterate(rho=[(0, 1.0)]), "a schedule is a list"),
        (lambda: iterate(rho=[(5, 1.0, 1.0)]), "starts at iteration 0"),
        (lambda: iterate(rho=[(0, 1.0, -1.0)]), "above 0"),
        (lambda: iterate(rho=lambda t, own: -1.0), "-1.0 in iteration 0"),
        (lambda: iterate(exchange_noise=-1.0), "exchange_noise=-1.0: a standard deviation is a number of at least 0"),
        (lambda: iterate(exchange_noise="loud"), "such as '20dB'"),
        (
            lambda: fit(PARTS, solver=Projection(), landmarks=20),
            r"landmarks=20 with solver=Projection\(...\): give Projection\(n_landmarks=20\)",
        ),
        (
            lambda: fit(PARTS, solver=Projection(**BARE), landmarks=PARTS[0][:5]),
            r"landmarks were given, but Projection\(n_landmarks=0\) takes none",
        ),
        (lambda: fit(PARTS, solver=Projection(), max_landmarks=40), "max_landmarks=40 .* which does not add landmarks"),
        (lambda: fit(PARTS, solver=Projection(), privacy="secure-sums"), "its nodes exchange rows; use solver='auto'"),
        (
            lambda: fit(PARTS, kernel=indefinite),
            "kernel indefinite is not positive semi-definite: smallest eigenvalue -",
        ),
        (lambda: fit(PARTS, kernel="sigmoid", gamma=1.0, coef0=-1.0), "not positive semi-definite"),
        (
            lambda: fit(PARTS, kernel=indefinite, solver=Projection(**BARE)),
            "node 0: kernel indefinite",
        ),
        (lambda: fit(PARTS, kernel=lambda A, B: np.ones((2, 2))), "returned shape"),
        (lambda: iterate(rho=lambda t, own: 10.0 if t < 3 else 0.0), "0.0 in iteration 3"),
        (lambda: iterate(rho=[1, 2]), "a schedule is a list"),
        (lambda: fit(PARTS, landmarks="centres"), "'landmarks' parameter"),
        (
            lambda: fit(PARTS, landmarks="random-features", solver=Projection()),
            r"landmarks='random-features' with solver=Projection\(...\): leave it at 'auto'",
        ),
        (
            lambda: fit(PARTS, solver=Projection(), share_rows=False),
            "share_rows=False: its nodes exchange rows; use solver='auto'",
        ),
        (lambda: fit(PARTS, landmarks="kmeans"), "'landmarks' parameter .*'random-features'"),
        (lambda: fit(PARTS, privacy=64.0), "'privacy' parameter"),
        (lambda: fit(PARTS, privacy="secret"), "'privacy' parameter .*'secure-sums'"),
        (
            lambda: fit([p[:2] for p in PARTS[:2]], share_rows=False),
            "no landmarks came out: .* fewer than 5 rows and share_rows=False; .* share_rows=True if rows may leave",
        ),
        (lambda: fit(PARTS, max_landmarks=0), "'max_landmarks' parameter"),
        (lambda: fit(PARTS, share_rows="no"), "'share_rows' parameter"),
        (
            lambda: fit(PARTS, max_landmarks=1),
            "max_landmarks=1 allows at most 1; lower n_components or raise max_landmarks",
        ),
        (
            lambda: fit(PARTS, landmarks="random-features", kernel="poly"),
            "kernel='poly', which has none; kernels that have them: laplacian, rbf",
        ),
        (
            lambda: fit(PARTS, landmarks="random-features", kernel=indefinite),
            "which has none; kernels that have them: laplacian, rbf",
        ),
        (
            lambda: fit([1e200 * p for p in PARTS], standardize=True),
            "column 0 is too large: its squares overflow float64; scale it down$",
        ),
        (lambda: fit(PARTS, landmarks=np.eye(4)), "landmarks: 4 columns, but the samples have 6"),
        (lambda: fit(PARTS, landmarks=np.ones((3, 6))), "row 0 comes 3 times"),
        (lambda: fit(PARTS, landmarks=np.full((2, 6), np.nan)), "landmarks contains NaN"),
        (lambda: iterate(rho=np.array([[0, 1.0, -1.0]])), "above 0"),
        (lambda: iterate(rho=[(0, 1.0, 1.0), (np.nan, 1.0, 1.0)]), "iterations rise"),
        (
            lambda: iterate(rho=[(0, 1.0, 1.0), (np.inf, 1.0, 1.0)]),
            r"rho=\[.*finite numbers of its iterations rise; got 0, inf",
        ),
        (lambda: iterate(rho=[(0, 1.0, 1.0), ("5", 1.0, 1.0)]), r"rho=\[.*iterations rise; got 0, '5'"),
        (lambda: iterate(rho=np.array(0.5)), r"rho=array\(0.5\): .* penalties must be numbers"),
        (lambda: iterate(rho=[np.array(0.5)]), "a schedule is a list"),
        (lambda: fit(PARTS, dtype="bogus"), "dtype='bogus'"),
        (lambda: fit(PARTS, kernel="poly", degree=2.5), "only whole degrees"),
        (lambda: fit(PARTS, kernel="poly", degree=300, gamma=1e3), "gives NaN or infinity; scale the data"),
        (lambda: fit(np.ones((9, 2))), r"use fit\(X\)"),
        (lambda: DecentralizedKernelPCA().fit(PARTS), "use fit_parts"),
        (lambda: DecentralizedKernelPCA().fit([["a", "b"]] * 9), "X: .*encode text columns"),
        (
            lambda: DecentralizedKernelPCA(solver=Projection(expansion="landmarks")).fit(np.ones((9, 2))),
            "on a network of one node: there are no landmarks",
        ),
        (lambda: DecentralizedKernelPCA().fit(np.ones((3, 2)), nodes=["a", None, "b"]), "no label in row 1"),
        (lambda: DecentralizedKernelPCA().fit(np.ones((3, 2)), nodes=[0.0, np.nan, 1.0]), "no label in row 1"),
        (lambda: fit({"a": PARTS[0], "b": PARTS[1]}, network=Network.path(2)), "a, b not in the network"),
    ],
)
def test_says_what_is_wrong(call, says):
    with pytest.raises((ValueError, TypeError), match=says):
        call()


def test_transform_checks_its_input():
    model = DecentralizedKernelPCA(2, gamma=0.05, network=1).fit(PARTS[0])
    with pytest.raises(ValueError, match="4 features"):
        model.transform(np.ones((2, 4)))
    with pytest.raises(ValueError, match="expected rows of 6 columns"):
        model.node_models_[0].transform(np.ones((2, 4)))
    with pytest.raises(ValueError, match="NaN"):
        model.transform(np.full((2, 6), np.nan))


def test_numbers_whose_sum_overflows_are_finite():
    X = np.full((3, 4), np.finfo(np.float64).max)
    assert first_bad(X, False) is None
    for bad in (np.nan, np.inf, -np.inf):
        X[1, 2] = bad
        assert first_bad(X, False) == (1, 2)


def test_a_number_that_names_another_node_is_refused():
    models = fit({name: PARTS[0] + int(name) for name in ("1", "2", "3", "10")}).node_models_
    for number in (1, 2, 10, np.int64(1)):
        with pytest.raises(ValueError, match=rf"use node_models_\['{number}'\] or list\(node_models_\)\[{number}\]"):
            models[number]
    assert (models["1"].name, models[0].name, models[-1].name) == ("1", "1", "10")
    assert [m.name for m in models] == [m.name for m in models[:]] == ["1", "2", "3", "10"]
    assert next(reversed(models)).name == "10"
    assert models.index(models["3"]) == 2
    assert [m.name for m in fit(PARTS).node_models_[1:]] == ["1", "2"]
    assert fit(PARTS).node_models_[2].name == "2"


def test_errors_name_what_users_know():
    with pytest.raises(TypeError, match=r"DecentralizedKernelPCA.__init__.*n_comps"):
        DecentralizedKernelPCA(n_comps=3)
    with pytest.raises(ValueError, match="'tol' parameter"):
        fit(PARTS, tol=1.5)
    model = fit(PARTS)
    with pytest.raises(AttributeError, match="offset_: no threshold; fit with contamination="):
        model.offset_  # noqa: B018
    with pytest.raises(ValueError, match=r"no sample.* give at least 1$"):
        model.transform(PARTS[0][:0])
