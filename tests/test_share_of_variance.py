"""n_components as a share of the variance: the number that central kernel PCA needs, found by the network."""

from __future__ import annotations

import json
import warnings

import dask.array as da
import distributed
import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.estimator_checks import parametrize_with_checks
from typer.testing import CliRunner

import dekpca
from conftest import clusters
from dekpca import DecentralizedKernelPCA
from dekpca.cli import app

PARTS = clusters([150, 90, 120, 60, 80])
X = np.concatenate(PARTS)


@pytest.fixture(scope="module")
def shares():
    """The share of the variance that the first components explain, from the whole kernel matrix."""
    K = np.exp(-0.05 * ((X[:, None] - X[None]) ** 2).sum(axis=2))
    K = K - K.mean(axis=0) - K.mean(axis=1)[:, None] + K.mean()
    return np.cumsum(np.linalg.eigvalsh(K)[::-1]) / np.trace(K)


def between(shares, number):
    """A share that needs just so many components, whatever the rounding."""
    return float((shares[number - 2] + shares[number - 1]) / 2)


@pytest.mark.parametrize(
    "params",
    [{}, {"network": 1}, {"privacy": "secure-sums"}, {"share_rows": False, "tol": 1e-2}],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("number", [2, 5, 12])
def test_as_many_components_as_central_kernel_pca_needs(shares, number, params):
    share = between(shares, number)
    model = DecentralizedKernelPCA(share, gamma=0.05, random_state=0, **{"network": 5} | params).fit(X)
    assert model.n_components_ == number
    assert share <= model.explained_variance_ratio_.sum() == pytest.approx(shares[number - 1], abs=1e-3)
    assert model.transform(X).shape == (len(X), number)
    assert len(model.get_feature_names_out()) == len(model.accuracy_) == number
    assert model.converged_
    named = DecentralizedKernelPCA(number, gamma=0.05, random_state=0, **{"network": 5} | params).fit(X)
    bases = [np.linalg.qr(m.transform(X))[0] for m in (model, named)]
    cosine = np.linalg.svd(bases[0].T @ bases[1], compute_uv=False)[-1]
    assert 1 - cosine**2 < 4 * model.tol  # each is within tol of the central span


def test_as_many_as_pca_with_a_linear_kernel():
    digits = load_digits().data
    for share in (0.3, 0.85):
        expected = PCA(share, svd_solver="full").fit(digits).n_components_
        assert (
            DecentralizedKernelPCA(share, kernel="linear", network=6, random_state=0).fit(digits).n_components_
            == expected
        )


def test_a_share_that_the_landmarks_do_not_see_is_not_claimed(shares):
    """Ten landmarks span ten dimensions: what they miss counts as not explained."""
    with pytest.warns(ConvergenceWarning, match=r"n_components=0.999: .* explain .* the 10 landmarks see no more"):
        model = DecentralizedKernelPCA(0.999, gamma=0.05, network=5, landmarks=10, random_state=0).fit(X)
    assert model.n_components_ <= 10
    assert model.explained_variance_ratio_.sum() <= shares[model.n_components_ - 1] + 1e-9
    assert not model.converged_


def test_a_share_just_below_one_is_all_components():
    """Rounding may keep the sum of all eigenvalues below it."""
    for seed in range(8):
        X = np.random.default_rng(seed).normal(size=(60, 4))
        model = DecentralizedKernelPCA(np.nextafter(1.0, 0.0), gamma=0.3, network=1, random_state=0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert model.fit(X).explained_variance_ratio_.sum() > 0.999


def test_rows_that_are_all_alike():
    with pytest.warns(ConvergenceWarning, match="all components are zero"):
        model = DecentralizedKernelPCA(0.9, gamma=0.05, network=3, random_state=0).fit(np.ones((60, 3)))
    assert model.n_components_ == 1


@pytest.mark.parametrize(
    ("params", "says"),
    [
        ({"solver": dekpca.Projection()}, "0.9 with solver=Projection"),
        ({"privacy": dekpca.Privacy(epsilon=1, delta=1e-6, norm=3.0), "gamma": 0.1}, "0.9 with privacy=Privacy"),
        ({"landmarks": "random-features"}, "0.9 with landmarks='random-features'"),
    ],
)
def test_refused_where_the_number_must_be_known(params, says):
    with pytest.raises(ValueError, match=rf"{says}.*give a whole number"):
        DecentralizedKernelPCA(0.9, **params).fit(X)


@pytest.mark.parametrize("share", [0.0, 1.0, 1.5, -0.1])
def test_no_share(share):
    with pytest.raises(ValueError, match="n_components"):
        DecentralizedKernelPCA(share).fit(X)


def test_on_dask_workers(shares):
    share = between(shares, 4)
    with distributed.Client(processes=False, n_workers=1, dashboard_address=None):
        model = DecentralizedKernelPCA(share, gamma=0.05, random_state=0).fit(da.from_array(X, chunks=(100, 6)))
        assert model.n_components_ == model.transform(da.from_array(X, chunks=(100, 6))).compute().shape[1] == 4


def test_on_the_command_line(shares, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("rows.npy", X)
    share = between(shares, 3)
    done = CliRunner().invoke(app, ["fit", "rows.npy", "--nodes", "5", "-k", f"{share}", "--gamma", "0.05", "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["components"] == 3
    done = CliRunner().invoke(app, ["fit", "rows.npy", "-k", "1.5"])
    assert done.exit_code == 2
    assert "a share of the variance below 1" in done.output


@parametrize_with_checks([DecentralizedKernelPCA(0.9, network=1)])
def test_scikit_learn_checks(estimator, check):
    check(estimator)
