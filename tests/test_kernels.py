from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import pairwise

from dekpca import kernels
from dekpca.kernels import KERNELS, Kernel, make_kernel, row_tiles

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
    kernel = Kernel(name, **SETTINGS)
    np.testing.assert_allclose(kernel.gram(A, B), theirs(name, A, B), rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(kernel.diagonal(A), np.diag(theirs(name, A, A)), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", sorted(KERNELS))
@pytest.mark.parametrize("normalize", [False, True])
def test_stacks_equal_single_blocks(name, normalize):
    kernel = Kernel(name, **SETTINGS, normalize=normalize)
    As, Bs = RNG.normal(size=(3, 7, 5)), RNG.normal(size=(3, 4, 5))
    stacked = kernel.gram(As, Bs)
    for i in range(3):
        np.testing.assert_allclose(stacked[i], kernel.gram(As[i], Bs[i]), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", sorted(KERNELS))
def test_normalized_has_unit_diagonal(name):
    kernel = Kernel(name, **{**SETTINGS, "coef0": 2.0}, normalize=True)
    np.testing.assert_allclose(np.diag(kernel.gram(A, A)), 1, rtol=1e-10)
    np.testing.assert_allclose(kernel.diagonal(A), 1)


def test_normalizing_the_origin_gives_zero():
    zero = np.zeros((1, 5))
    assert Kernel("linear", normalize=True).gram(zero, A).tolist() == [[0.0] * 7]
    assert Kernel("cosine").gram(zero, zero).tolist() == [[0.0]]


@pytest.mark.parametrize("name", ["rbf", "laplacian", "linear"])
def test_tiles_change_nothing(name, monkeypatch):
    kernel = Kernel(name, **SETTINGS)
    X, Y = RNG.normal(size=(50, 3)), RNG.normal(size=(31, 3))
    stack = RNG.normal(size=(5, 9, 3))
    whole, whole_stack = kernel.gram(X, Y), kernel.gram(stack, stack)
    monkeypatch.setattr(kernels, "TILE_ROWS", 8)
    monkeypatch.setattr(kernels, "TILE_BYTES", 8 * 9 * 9)
    np.testing.assert_allclose(kernel.gram(X, Y), whole, rtol=1e-12)
    np.testing.assert_allclose(kernel.gram(stack, stack), whole_stack, rtol=1e-12)


def test_row_tiles_cover():
    for rows in (0, 1, 7, 8, 9, 100):
        covered = np.concatenate([np.arange(rows)[s] for s in row_tiles(rows, 8)])
        assert covered.tolist() == list(range(rows))
        assert max((s.stop - s.start for s in row_tiles(rows, 8)), default=0) <= 8


def test_callable_with_parameters_and_in_stacks():
    def power(A, B, p):
        return (A @ B.T) ** p

    kernel = make_kernel(power, None, 3, 1.0, {"p": 2}, False, 5)
    np.testing.assert_allclose(kernel.gram(A, B), (A @ B.T) ** 2)
    stack = RNG.normal(size=(2, 3, 5))
    np.testing.assert_allclose(kernel.gram(stack, stack)[1], (stack[1] @ stack[1].T) ** 2)
    np.testing.assert_allclose(kernel.diagonal(A), (A * A).sum(1) ** 2)
    np.testing.assert_allclose(Kernel(power, params={"p": 2}, normalize=True).diagonal(A), 1)


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
        Kernel(function).gram(A, B)


def test_float32_stays():
    for name in KERNELS:
        assert Kernel(name, **SETTINGS).gram(A.astype(np.float32), B.astype(np.float32)).dtype == np.float32


def test_unknown_kernel_lists_the_known():
    with pytest.raises(ValueError, match="cosine, laplacian, linear, poly, rbf, sigmoid"):
        make_kernel("gauss", None, 3, 1.0, None, False, 5)
