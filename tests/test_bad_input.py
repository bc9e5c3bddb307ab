"""Every bad input has its own error, before the first iteration, that says who, what, the limit and the remedy."""

from __future__ import annotations

import numpy as np
import pytest

from conftest import clusters
from dekpca import DecentralizedKernelPCA, Network
from dekpca.plan import Traffic
from dekpca.samples import first_bad_row


@pytest.fixture(autouse=True)
def no_iteration(monkeypatch):
    """Whatever computes an iteration, its messages are counted."""
    add = Traffic.add

    def refuse(traffic, kind, edges, sizes):
        assert kind not in ("share", "view", "power"), "an iteration was begun"
        add(traffic, kind, edges, sizes)

    monkeypatch.setattr(Traffic, "add", refuse)


@pytest.mark.parametrize("iterating", [{"solver": "projection"}, {"landmarks": "random-features"}], ids=str)
def test_an_iteration_would_be_noticed(iterating):
    with pytest.raises(AssertionError, match="an iteration was begun"):
        fit(PARTS, **iterating)


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
        (lambda: fit(broken(1, 7, np.nan)), "node 1: NaN or infinity in row 7"),
        (lambda: fit(broken(2, 3, np.inf)), "node 2: NaN or infinity in row 3"),
        (
            lambda: DecentralizedKernelPCA(network=3).fit(np.concatenate(broken(1, 7, np.nan))),
            "NaN or infinity in row 27, which belongs to node",
        ),
        (lambda: fit([*PARTS[:2], PARTS[2][:, :4]]), "node 2: 4 features, but node 0 has 6"),
        (lambda: fit([*PARTS[:2], PARTS[2][:0]]), "node 2: no samples"),
        (lambda: fit([p[:, :0] for p in PARTS]), "node 0: no columns"),
        (lambda: fit([*PARTS[:2], PARTS[2].astype(np.float32)]), "node 2: dtype float32"),
        (lambda: fit([*PARTS[:2], np.array([["a", "b"]])]), "node 2: .*(numeric|convert)"),
        (lambda: fit([*PARTS[:2], np.ones(5)]), "node 2: "),
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
        (lambda: DecentralizedKernelPCA(2, n_oversamples=80).fit_parts(PARTS), "82 columns, but .* allow at most 59"),
        (
            lambda: DecentralizedKernelPCA(9, solver="landmarks", landmarks=8).fit_parts(PARTS),
            "8 landmarks allow at most 8",
        ),
        (lambda: fit(PARTS, kernel="gauss"), "'kernel' parameter .*'rbf'"),
        (lambda: fit(PARTS, update="admm"), "'update' parameter .*'paper', 'proximal'|'proximal', 'paper'"),
        (lambda: fit(PARTS, centering="mean"), "'centering' parameter .*'global'"),
        (lambda: fit(PARTS, solver="magic"), "'solver' parameter .*'landmarks'"),
        (lambda: fit(PARTS, init="zero"), "'init' parameter"),
        (lambda: fit(PARTS, expansion="all"), "'expansion' parameter"),
        (lambda: fit(PARTS, engine="cloud"), "engine='cloud' is unknown; known are local"),
        (lambda: fit(PARTS, dtype="int8"), "dtype='int8'"),
        (lambda: fit(PARTS, gamma=-1.0), "'gamma' parameter"),
        (lambda: fit(PARTS, kernel="linear", kernel_params={"a": 1}), "kernel_params is for a callable"),
        (lambda: fit(PARTS, landmarks=0), "centering='global' with landmarks=0"),
        (lambda: fit(PARTS, landmarks=0, centering="local"), "init='landmarks' with landmarks=0"),
        (
            lambda: fit(PARTS, landmarks=0, solver="landmarks", centering=None),
            "landmarks=0: the default solver has nothing to work with; give landmarks='auto' or a number above 0",
        ),
        (lambda: fit(PARTS, solver="landmarks", update="paper"), "has no z to update"),
        (lambda: fit(PARTS, update="paper"), "the paper's iteration knows none; set landmarks=0"),
        (
            lambda: fit(PARTS, update="paper", landmarks=0, init="local", centering="local", n_oversamples=3),
            "n_oversamples=3 with update='paper'",
        ),
        (
            lambda: fit(PARTS, landmarks=0, init="local", centering="local", expansion="landmarks"),
            "expansion='landmarks' with landmarks=0",
        ),
        (lambda: fit(PARTS, rho=0), "above 0"),
        (lambda: fit(PARTS, rho=-3.0), "above 0"),
        (lambda: fit(PARTS, rho="big"), "'auto', 'paper-bound'"),
        (lambda: fit(PARTS, rho=[(0, 1.0)]), "a schedule is a list"),
        (lambda: fit(PARTS, rho=[(5, 1.0, 1.0)]), "starts at iteration 0"),
        (lambda: fit(PARTS, rho=[(0, 1.0, -1.0)]), "above 0"),
        (lambda: fit(PARTS, rho=lambda t, own: -1.0), "-1.0 in iteration 0"),
        (lambda: fit(PARTS, exchange_noise=-1.0), "'exchange_noise' parameter"),
        (lambda: fit(PARTS, exchange_noise="loud"), "such as '20dB'"),
        (
            lambda: fit(PARTS, kernel=indefinite),
            "kernel indefinite is not positive semi-definite: smallest eigenvalue -",
        ),
        (lambda: fit(PARTS, kernel="sigmoid", gamma=1.0, coef0=-1.0), "not positive semi-definite"),
        (
            lambda: fit(PARTS, kernel=indefinite, landmarks=0, centering="local", init="local"),
            "node 0: kernel indefinite",
        ),
        (lambda: fit(PARTS, kernel=lambda A, B: np.ones((2, 2))), "returned shape"),
        (lambda: fit(PARTS, rho=lambda t, own: 10.0 if t < 3 else 0.0), "0.0 in iteration 3"),
        (lambda: fit(PARTS, rho=[1, 2]), "a schedule is a list"),
        (lambda: fit(PARTS, landmarks="centres"), "'landmarks' parameter"),
        (
            lambda: fit(PARTS, landmarks="random-features", solver="projection"),
            "solver='projection': random features need solver='landmarks'",
        ),
        (
            lambda: fit(PARTS, solver="projection", share_rows=False),
            "share_rows=False: its nodes exchange rows; use solver='landmarks'",
        ),
        (lambda: fit(PARTS, landmarks="kmeans"), "'landmarks' parameter .*'random-features'"),
        (
            lambda: fit(PARTS, exchange_noise=0.1),
            "the default solver tells sums only; use solver='projection', or privacy=",
        ),
        (lambda: fit(PARTS, secure_sums=64.0), "'secure_sums' parameter"),
        (lambda: fit(PARTS, centering="local", solver="landmarks"), "centering='local', which is the paper's"),
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
            lambda: fit(PARTS, landmarks="random-features", solver="landmarks", kernel="poly"),
            "kernel='poly', which has none; kernels that have them: laplacian, rbf",
        ),
        (
            lambda: fit(PARTS, landmarks="random-features", solver="landmarks", kernel=indefinite),
            "which has none; kernels that have them: laplacian, rbf",
        ),
        (
            lambda: fit([1e200 * p for p in PARTS], standardize=True),
            "column 0 is too large: its squares overflow float64",
        ),
        (lambda: fit(PARTS, landmarks=np.eye(4)), "landmarks: 4 columns, but the samples have 6"),
        (lambda: fit(PARTS, landmarks=np.ones((3, 6))), "row 0 comes 3 times"),
        (lambda: fit(PARTS, landmarks=np.full((2, 6), np.nan)), "landmarks contains NaN"),
        (lambda: fit(PARTS, rho=np.array([[0, 1.0, -1.0]])), "above 0"),
        (lambda: fit(PARTS, rho=[(0, 1.0, 1.0), (np.nan, 1.0, 1.0)]), "iterations rise"),
        (lambda: fit(PARTS, dtype="bogus"), "dtype='bogus'"),
        (lambda: fit(PARTS, kernel="poly", degree=2.5), "only whole degrees"),
        (lambda: fit(PARTS, kernel="poly", degree=300, gamma=1e3), "gives NaN or infinity; scale the data"),
        (lambda: fit(np.ones((9, 2))), r"use fit\(X\)"),
        (lambda: DecentralizedKernelPCA().fit(PARTS), "use fit_parts"),
        (lambda: DecentralizedKernelPCA().fit([["a", "b"]] * 9), "X: .*encode text columns"),
        (
            lambda: DecentralizedKernelPCA(expansion="landmarks").fit(np.ones((9, 2))),
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
    assert first_bad_row(X, False) is None
    for bad in (np.nan, np.inf, -np.inf):
        X[1, 2] = bad
        assert first_bad_row(X, False) == 1
