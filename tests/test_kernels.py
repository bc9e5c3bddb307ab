from __future__ import annotations

from copy import copy
from dataclasses import dataclass

import numpy as np
import pytest
from scipy.spatial.distance import cdist
from sklearn.gaussian_process.kernels import Matern as TheirMatern
from sklearn.metrics import pairwise

from dekpca import DecentralizedKernelPCA, NodeModel, baselines, kernels, metrics
from dekpca.chunks import row_tiles
from dekpca.draws import normal
from dekpca.kernels import KERNELS, Kernel, Stationary, make_kernel

RNG = np.random.default_rng(0)
A, B = RNG.normal(size=(7, 5)), RNG.normal(size=(4, 5))
SETTINGS = {"gamma": 0.3, "degree": 3, "coef0": 0.7}


def theirs(name, A, B):
    used = {
        "poly": SETTINGS,
        "rbf": {"gamma": 0.3},
        "laplacian": {"gamma": 0.3},
        "sigmoid": {"gamma": 0.3, "coef0": 0.7},
    }
    return getattr(
        pairwise, {"poly": "polynomial"}.get(name, name) + ("_kernel" if name != "cosine" else "_similarity")
    )(A, B, **used.get(name, {}))


@pytest.mark.parametrize("name", sorted(KERNELS))
def test_equal_scikit_learn(name):
    kernel = make_kernel(name, **SETTINGS)
    np.testing.assert_allclose(kernel.gram(A, B), theirs(name, A, B), rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(kernel.diagonal(A), np.diag(theirs(name, A, A)), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", sorted(KERNELS))
@pytest.mark.parametrize("normalize", [False, True])
def test_no_rows_and_rows_one_by_one(name, normalize):
    kernel = make_kernel(name, **SETTINGS, normalize=normalize)
    rows = [kernel.gram(a[None], B, kernel.squares(B)) for a in A]
    np.testing.assert_allclose(kernel.gram(A, B), np.concatenate(rows), rtol=1e-12, atol=1e-14)
    assert kernel.gram(A[:0], B).shape == (0, 4)
    assert kernel.gram(A, B[:0]).shape == (7, 0)


@pytest.mark.parametrize("name", sorted(KERNELS))
def test_normalized_has_unit_diagonal(name):
    kernel = make_kernel(name, **{**SETTINGS, "coef0": 2.0}, normalize=True)
    np.testing.assert_allclose(np.diag(kernel.gram(A, A)), 1, rtol=1e-10)
    np.testing.assert_allclose(kernel.diagonal(A), 1)


def test_normalizing_the_origin_gives_zero():
    zero = np.zeros((1, 5))
    assert make_kernel("linear", normalize=True).gram(zero, A).tolist() == [[0.0] * 7]
    assert make_kernel("cosine").gram(zero, zero).tolist() == [[0.0]]


@pytest.mark.parametrize("name", ["rbf", "laplacian", "linear"])
def test_tiles_change_nothing(name, monkeypatch):
    kernel = make_kernel(name, **SETTINGS)
    X, Y = RNG.normal(size=(50, 3)), RNG.normal(size=(31, 3))
    whole = kernel.gram(X, Y)
    monkeypatch.setattr(kernels.base, "TILE_ROWS", 8)
    monkeypatch.setattr(kernels.base, "TILE_BYTES", 8 * 9 * 9)
    np.testing.assert_allclose(kernel.gram(X, Y), whole, rtol=1e-12)


def test_row_tiles_cover():
    for rows in (0, 1, 7, 8, 9, 100):
        covered = np.concatenate([np.arange(rows)[s] for s in row_tiles(rows, 8)])
        assert covered.tolist() == list(range(rows))
        assert max((s.stop - s.start for s in row_tiles(rows, 8)), default=0) <= 8


def test_callable_with_parameters():
    def power(A, B, p):
        return (A @ B.T) ** p

    kernel = make_kernel(power, None, 3, 1.0, {"p": 2}, False, 5)
    np.testing.assert_allclose(kernel.gram(A, B), (A @ B.T) ** 2)

    np.testing.assert_allclose(kernel.diagonal(A), (A * A).sum(1) ** 2)
    np.testing.assert_allclose(make_kernel(power, kernel_params={"p": 2}, normalize=True).diagonal(A), 1)


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (lambda A, B: np.ones((1, 1)), r"returned shape \(1, 1\)"),
        (lambda A, B: 3.0, "takes two vectors"),
        (lambda A, B: np.full((len(A), len(B)), np.nan), "NaN"),
    ],
)
def test_bad_callables(function, says):
    with pytest.raises(ValueError, match=says):
        make_kernel(function).gram(A, B)


def test_float32_stays():
    for name in KERNELS:
        assert make_kernel(name, **SETTINGS).gram(A.astype(np.float32), B.astype(np.float32)).dtype == np.float32


def test_unknown_kernel_lists_the_known():
    with pytest.raises(ValueError, match="cosine, laplacian, linear, poly, rbf, sigmoid"):
        make_kernel("gauss", None, 3, 1.0, None, False, 5)


@pytest.fixture
def matern():
    """A new kernel: one class, known by its name from then on."""

    class Matern(Stationary):
        """(1 + d) exp(-d) with d = gamma |x - y|: Matern's kernel with nu = 3 / 2."""

        name = "matern"

        def matrix(self, A, B, squares=None):
            d = self.gamma * cdist(A, B)
            return (1 + d) * np.exp(-d)

        def scaled(self, n_features, variance):
            return (3 / (n_features * variance)) ** 0.5

        def frequencies(
            self, n_features, count, seed
        ):  # Student's t with 3 degrees of freedom, in n_features dimensions
            chi_square = (normal((count, 3), seed + 1) ** 2).sum(axis=1, keepdims=True)
            return self.gamma * normal((count, n_features), seed) / chi_square**0.5

    yield Matern
    del KERNELS["matern"]


@pytest.mark.parametrize(
    "settings", [{}, {"landmarks": "random-features", "gamma": 0.3, "max_landmarks": 800}], ids=str
)
def test_a_new_kernel_is_one_class(matern, settings, tmp_path):
    """Fit, judge, save, load, and compare, as with any other kernel."""
    rng = np.random.default_rng(1)
    X = rng.normal(size=(600, 4)) * [3, 2, 1, 1]
    np.testing.assert_allclose(make_kernel("matern", gamma=3**0.5).gram(X, X), TheirMatern(nu=1.5)(X), atol=1e-12)
    model = DecentralizedKernelPCA(2, kernel="matern", network=5, random_state=0, **settings).fit(X)
    central = baselines.central(X, 2, kernel="matern", gamma=model.gamma_)
    assert metrics.agreement(model, central, X).min() > (0.99 if settings else 0.9995)
    if not settings:
        assert model.span_accuracy_ > 0.9995
    node = model.node_models_[0]
    node.save(tmp_path / "node.npz")
    loaded = NodeModel.load(tmp_path / "node.npz")
    assert loaded.kernel == node.kernel
    np.testing.assert_array_equal(loaded.transform(X[:9]), node.transform(X[:9]))


def test_a_kernel_needs_only_its_matrix():
    """The diagonal follows; landmarks and rows are judged by rows that are shared."""

    class Quadratic(Kernel):
        name = "rational quadratic"

        def matrix(self, A, B, squares=None):
            return 1 / (1 + self.gamma * cdist(A, B, "sqeuclidean"))

    try:
        np.testing.assert_array_equal(make_kernel("rational quadratic").diagonal(np.tile(A, (20, 1))), np.ones(140))
        X = np.random.default_rng(2).normal(size=(300, 4))
        model = DecentralizedKernelPCA(2, kernel="rational quadratic", gamma=0.1, network=3, random_state=0).fit(X)
        central = baselines.central(X, 2, kernel="rational quadratic", gamma=0.1)
        assert metrics.agreement(model, central, X).min() > 0.999
    finally:
        del KERNELS["rational quadratic"]


def test_a_model_is_not_saved_without_a_parameter_of_its_kernel(tmp_path):
    """A file would hold gamma alone, and the loaded model would have the default of the other."""

    @dataclass(frozen=True)
    class Quadratic(Kernel):
        name = "rational quadratic"
        alpha: float = 1.0

        def matrix(self, A, B, squares=None):
            return (1 + self.gamma * cdist(A, B, "sqeuclidean")) ** -self.alpha

    try:
        X = np.random.default_rng(2).normal(size=(300, 4))
        model = DecentralizedKernelPCA(2, kernel="rational quadratic", gamma=0.1, network=3, random_state=0).fit(X)
        model.node_models_[0].save(tmp_path / "default.npz")
        other = copy(model.node_models_[0])
        other.kernel = Quadratic(gamma=0.1, alpha=2.0)
        says = r"rational quadratic: a model file holds gamma, .* give its class these values as defaults"
        with pytest.raises(ValueError, match=says):
            other.save(tmp_path / "other.npz")
        assert not (tmp_path / "other.npz").exists()
    finally:
        del KERNELS["rational quadratic"]


def test_two_kernels_of_one_name():
    with pytest.raises(ValueError, match="Other: Rbf is named 'rbf' already"):
        type("Other", (Kernel,), {"name": "rbf", "__qualname__": "Other"})
