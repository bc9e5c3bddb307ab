"""Kernels as Gram blocks: k(A, B) for stacks of sample blocks, on any array library.

Everything here is a pure function of its arrays. No centring (core/centering.py) and no landmarks (core/landmarks.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from typing import Any

import array_api_compat as aac
import numpy as np
from scipy.spatial.distance import cdist
from scipy.special import ndtri

Array = Any

# One tile of a Gram matrix: large enough for GEMM speed, small enough for the cache. It also avoids a crash of the
# OpenBLAS in NumPy 2.4 on one product of 16,000 x 784 with its own transpose.
TILE_ROWS = 4096
TILE_BYTES = 64 * 2**20
DEVICE_TILE_BYTES = 2**30


def _linear(kernel: Kernel, A: Array, B: Array) -> Array:
    return A @ _transposed(B)


def _poly(kernel: Kernel, A: Array, B: Array) -> Array:
    return (kernel.gamma * (A @ _transposed(B)) + kernel.coef0) ** kernel.degree


def _sigmoid(kernel: Kernel, A: Array, B: Array) -> Array:
    xp = aac.array_namespace(A)
    return xp.tanh(kernel.gamma * (A @ _transposed(B)) + kernel.coef0)


# |x|^2 + |y|^2 - 2 x'y in units of 1 / gamma: beyond it cancellation loses digits that the kernel needs, and samples are shifted first
FAR_FROM_ORIGIN = 100.0


def _rbf(kernel: Kernel, A: Array, B: Array, squares: tuple[Array, Array] | None = None) -> Array:
    xp = aac.array_namespace(A)
    size_a, size_b = squares or (xp.vecdot(A, A), xp.vecdot(B, B))
    if kernel.gamma * max(float(xp.max(size_a)), float(xp.max(size_b))) > FAR_FROM_ORIGIN:
        among = B[..., :1, :]  # any sample will do, and the first is never padding
        A, B = A - among, B - among
        size_a, size_b = xp.vecdot(A, A), xp.vecdot(B, B)
    out = A @ _transposed(B)
    out *= 2.0 * kernel.gamma
    out -= kernel.gamma * size_a[..., :, None]
    out -= kernel.gamma * size_b[..., None, :]
    if aac.is_numpy_array(out):
        np.minimum(out, 0.0, out=out)  # rounding may leave a tiny negative distance
        return np.exp(out, out=out)
    return xp.exp(xp.clip(out, max=0.0))


def _laplacian(kernel: Kernel, A: Array, B: Array) -> Array:
    xp = aac.array_namespace(A)
    if aac.is_numpy_array(A):
        stacked = np.broadcast_shapes(A.shape[:-2], B.shape[:-2])
        A, B = (np.broadcast_to(x, stacked + x.shape[-2:]) for x in (A, B))
        out = np.empty((*A.shape[:-1], B.shape[-2]), dtype=A.dtype)
        for at in np.ndindex(*stacked):
            out[at] = cdist(A[at], B[at], "cityblock")
    else:
        out = xp.zeros((*A.shape[:-1], B.shape[-2]), dtype=A.dtype, device=aac.device(A))
        for i in range(A.shape[-1]):  # one column at a time: never an array of n x n x features
            out = out + xp.abs(A[..., :, None, i] - B[..., None, :, i])
    return xp.exp(-kernel.gamma * out)


def _cosine(kernel: Kernel, A: Array, B: Array) -> Array:
    return _unit_rows(A) @ _transposed(_unit_rows(B))


KERNELS: Mapping[str, Callable[[Kernel, Array, Array], Array]] = {
    "linear": _linear,
    "poly": _poly,
    "rbf": _rbf,
    "laplacian": _laplacian,
    "sigmoid": _sigmoid,
    "cosine": _cosine,
}


@lru_cache(maxsize=8)
def normal(shape: tuple[int, int], seed: int) -> np.ndarray:
    """Normal numbers from `uniform` ones; cached, since fits with the same seed draw the same."""
    found = ndtri(uniform(shape, seed))
    found.setflags(write=False)
    return found


def uniform(shape: tuple[int, int], seed: int) -> np.ndarray:
    """Numbers between 0 and 1, both excluded, from raw bits. NumPy keeps that stream stable, so all nodes draw the same numbers."""
    words = np.random.PCG64(seed).random_raw(shape[0] * shape[1]) >> np.uint64(11)
    return ((words.astype(np.float64) + 0.5) * 2.0**-53).reshape(shape)


# Kernels of the difference x - y are the characteristic functions of these distributions: quantiles from uniform numbers (Rahimi, Recht 2007).
FREQUENCIES: Mapping[str, Callable[[tuple[int, int], int, float], np.ndarray]] = {
    "rbf": lambda shape, seed, gamma: np.sqrt(2.0 * gamma) * normal(shape, seed),
    "laplacian": lambda shape, seed, gamma: gamma * np.tan(np.pi * (uniform(shape, seed) - 0.5)),
}


@dataclass(frozen=True)
class Kernel:
    """A kernel with all its parameters.

    Parameters
    ----------
    name : str or callable
        One of `KERNELS`, or a function of two sample matrices (a, M) and (b, M) that returns the (a, b) matrix of k.
    gamma, degree, coef0 : float
        As in `sklearn.metrics.pairwise`.
    params : mapping
        Keyword arguments for a callable.
    normalize : bool
        Divide by sqrt(k(x, x) k(y, y)), so that k(x, x) = 1.

    Examples
    --------
    >>> import numpy as np
    >>> from dekpca.kernels import Kernel
    >>> Kernel("rbf", gamma=0.5).gram(np.array([[0.0], [2.0]]), np.array([[0.0]])).round(4)
    array([[1.    ],
           [0.1353]])
    """

    name: str | Callable[..., Any]
    gamma: float = 1.0
    degree: float = 3
    coef0: float = 1.0
    params: Mapping[str, Any] = field(default_factory=dict)
    normalize: bool = False

    @property
    def is_normal(self) -> bool:
        """Whether k(x, x) = 1 without normalization (cosine: except at the origin)."""
        return self.name in ("rbf", "laplacian", "cosine")

    @property
    def is_definite(self) -> bool:
        """Whether it is known to be positive semi-definite on any data."""
        return self.name in ("linear", "rbf", "laplacian", "cosine") or (self.name == "poly" and self.coef0 >= 0)

    @property
    def has_gamma(self) -> bool:
        """Whether it uses gamma."""
        return self.name in ("rbf", "laplacian", "poly", "sigmoid")

    def scaled(self, n_features: int, variance: float) -> float:
        """gamma="scale", for data of this variance: the kernel does not depend on the units of the data. 1 if the variance is 0."""
        spread = (
            variance**0.5 if self.name == "laplacian" else variance
        )  # it uses distances; the others use squares and products
        return 1.0 / (n_features * spread) if spread > 0 else 1.0

    @property
    def label(self) -> str:
        return self.name if isinstance(self.name, str) else getattr(self.name, "__name__", repr(self.name))

    def squares(self, X: Array) -> Array | None:
        """Squared norms that `gram` would otherwise recompute for each pair of sample sets; None for kernels that do not need them."""
        return aac.array_namespace(X).vecdot(X, X) if self.name == "rbf" else None

    def gram(self, A: Array, B: Array, squares: tuple[Array | None, Array | None] = (None, None)) -> Array:
        """k of all rows of A (..., a, M) with all rows of B (..., b, M): (..., a, b), computed in tiles. `squares` of both save some work."""
        rows, columns = A.shape[-2], B.shape[-2]
        if not rows or not columns:
            return aac.array_namespace(A).empty((*A.shape[:-1], columns), dtype=A.dtype, device=aac.device(A))
        batch = int(np.prod(A.shape[:-2]))
        if not aac.is_numpy_array(A) and batch * rows * columns * 8 <= DEVICE_TILE_BYTES:
            return self._tile(A, B, squares)  # fewer, larger launches
        if rows <= TILE_ROWS and columns <= TILE_ROWS and batch * rows * columns * 8 <= TILE_BYTES:
            return self._tile(A, B, squares)
        xp = aac.array_namespace(A)
        if batch > 1 and len(A.shape) == 3 and len(B.shape) == 3:
            out = xp.empty((batch, rows, columns), dtype=A.dtype, device=aac.device(A))
            step = max(1, TILE_BYTES // (8 * max(1, rows * columns)))
            for i in row_tiles(batch, step):
                out[i, ...] = (self.gram if step == 1 else self._tile)(A[i, ...], B[i, ...])
            return out
        out = xp.empty((*A.shape[:-1], columns), dtype=A.dtype, device=aac.device(A))
        for i in row_tiles(rows):
            for j in row_tiles(columns):
                out[..., i, j] = self._tile(A[..., i, :], B[..., j, :])
        return out

    def far(self, squares: Array | None) -> bool:
        """Whether samples with these `squares` are so far from the origin that distances need a shift of the origin for each pair of sets."""
        if squares is None or 0 in squares.shape:
            return False
        return self.gamma * float(aac.array_namespace(squares).max(squares)) > FAR_FROM_ORIGIN

    def diagonal(self, A: Array) -> Array:
        """k(x, x) for each row of A (..., a, M): (..., a)."""
        xp = aac.array_namespace(A)
        if self.normalize or self.name in ("rbf", "laplacian"):
            ones = xp.ones(A.shape[:-1], dtype=A.dtype, device=aac.device(A))
            return (
                ones
                if self.name in ("rbf", "laplacian")
                else xp.where(self._raw_diagonal(A) > 0, ones, xp.zeros_like(ones))
            )
        return self._raw_diagonal(A)

    def largest(self, norm: float) -> float:
        """A bound on k(x, x) for samples of at most this norm; infinity where none is known."""
        if self.is_normal or self.normalize:
            return 1.0
        if self.name == "linear":
            return norm**2
        if self.name == "poly":
            return max(abs(self.coef0), abs(self.gamma * norm**2 + self.coef0)) ** self.degree
        return math.inf

    @property
    def has_sketch(self) -> bool:
        """Whether there are random features whose inner products estimate the kernel without bias (`random_map`)."""
        return (
            self.has_features
            or self.name in ("linear", "cosine")
            or (self.name == "poly" and self.coef0 >= 0 and self.degree == int(self.degree))
        )

    def random_map(self, n_features: int, count: int, groups: int, seed: int) -> Callable[[Array], Array]:
        """A function from samples (n, n_features) to random features (n, groups * 2 count), the same on every machine. The 2 count features of each
        group have E z(x)'z(y) = k(x, y).

        Fourier features of kernels of the difference; for the others products of projections on random signs (Kar and Karnick 2012).
        """
        if self.has_features:
            drawn = self.frequencies(n_features, groups * count, seed)
            return lambda X: self.features(X, _like(X, drawn), groups)
        degree = int(self.degree) if self.name == "poly" else 1
        words = np.random.PCG64(seed).random_raw(degree * (n_features + 1) * groups * 2 * count)
        signs = np.where(words >> np.uint64(63), 1.0, -1.0).reshape(degree, n_features + 1, groups * 2 * count)

        def features(X: Array) -> Array:
            xp = aac.array_namespace(X)
            rows = _unit_rows(X) if self.name == "cosine" else X * self.gamma**0.5 if self.name == "poly" else X
            found = xp.full((X.shape[0], groups * 2 * count), (2 * count) ** -0.5, dtype=X.dtype, device=aac.device(X))
            for some in signs:
                offset = self.coef0**0.5 * _like(X, some[-1]) if self.name == "poly" else 0.0
                found = found * (rows @ _like(X, some[:-1]) + offset)
            return (
                found * _inverse_root(self._raw_diagonal(X))[:, None]
                if self.normalize and not self.is_normal
                else found
            )

        return features

    @property
    def has_features(self) -> bool:
        """Whether the kernel has random Fourier features: it depends on the difference of two samples only."""
        return self.name in FREQUENCIES

    def frequencies(self, n_features: int, count: int, seed: int) -> np.ndarray:
        """(count, n_features) random frequencies, the same on every machine."""
        return FREQUENCIES[self.name]((count, n_features), seed, self.gamma)  # type: ignore[index]

    def features(self, X: Array, frequencies: Array, groups: int = 1) -> Array:
        """Random Fourier features (n, 2 count), whose inner products estimate k without bias; k(x, x) is exact. Those of several groups of
        frequencies follow each other."""
        xp = aac.array_namespace(X)
        count = frequencies.shape[0] // groups
        half = xp.tan(X @ _transposed(0.5 * frequencies))
        # One tangent instead of a sine and a cosine, which take NumPy ten times as long: cos = 2 / (1 + t^2) - 1, sin = 2 t / (1 + t^2).
        scale = count**-0.5
        double = (2.0 * scale) / (1.0 + half * half)
        if groups == 1:
            return xp.concat([double - scale, half * double], axis=-1)
        shape = (*X.shape[:-1], groups, count)
        both = xp.stack([xp.reshape(double - scale, shape), xp.reshape(half * double, shape)], axis=-2)
        return xp.reshape(both, (*X.shape[:-1], 2 * groups * count))

    def _tile(self, A: Array, B: Array, squares: tuple[Array | None, Array | None] = (None, None)) -> Array:
        gram = self._raw(A, B) if squares[0] is None or squares[1] is None else _rbf(self, A, B, squares)
        if self.normalize and not self.is_normal:
            gram = gram * _inverse_root(self._raw_diagonal(A))[..., :, None]
            gram = gram * _inverse_root(self._raw_diagonal(B))[..., None, :]
        return gram

    def _raw(self, A: Array, B: Array) -> Array:
        if isinstance(self.name, str):
            return KERNELS[self.name](self, A, B)
        if len(A.shape) == 2 and len(B.shape) == 2:
            return self._call(A, B)
        xp = aac.array_namespace(A)
        stacked = np.broadcast_shapes(A.shape[:-2], B.shape[:-2])
        A = xp.reshape(xp.broadcast_to(A, stacked + A.shape[-2:]), (-1, *A.shape[-2:]))
        B = xp.reshape(xp.broadcast_to(B, stacked + B.shape[-2:]), (-1, *B.shape[-2:]))
        blocks = [self._call(A[i, ...], B[i, ...]) for i in range(A.shape[0])]
        return xp.reshape(xp.stack(blocks), (*stacked, A.shape[-2], B.shape[-2]))

    def _call(self, A: Array, B: Array) -> Array:
        xp = aac.array_namespace(A)
        label = self.label
        expected = (A.shape[0], B.shape[0])
        try:
            gram = self.name(A, B, **self.params)  # type: ignore[operator]
        except Exception as error:
            self._refuse_vectors(A, B, error)
            raise
        if getattr(gram, "shape", None) != expected:
            self._refuse_vectors(A, B)
            raise ValueError(
                f"kernel {label}: returned shape {getattr(gram, 'shape', type(gram).__name__)} for {A.shape[0]} and {B.shape[0]} "
                f"samples, expected {expected}; a callable kernel maps two sample matrices to the matrix of k(a, b)"
            )
        gram = xp.asarray(gram, dtype=A.dtype)
        if not bool(xp.all(xp.isfinite(gram))):
            raise ValueError(f"kernel {label}: returned NaN or infinity for finite samples")
        return gram

    def _refuse_vectors(self, A: Array, B: Array, cause: Exception | None = None) -> None:
        """Detect a callable for two vectors (scikit-learn's convention), for a better error message."""
        try:
            value = self.name(A[0, :], B[0, :], **self.params)  # type: ignore[operator]
            math.isfinite(float(value))
        except Exception:
            return
        raise ValueError(
            f"kernel {self.label}: takes two vectors and gives a number; here a kernel takes two matrices and gives the matrix of k(a, b), which is "
            "faster: write it so, or wrap it: lambda A, B: numpy.array([[f(a, b) for b in B] for a in A])"
        ) from cause

    def _raw_diagonal(self, A: Array) -> Array:
        xp = aac.array_namespace(A)
        squares = xp.sum(A * A, axis=-1)
        if self.name == "linear":
            return squares
        if self.name == "poly":
            return (self.gamma * squares + self.coef0) ** self.degree
        if self.name == "sigmoid":
            return xp.tanh(self.gamma * squares + self.coef0)
        if self.name == "cosine":
            return xp.astype(squares > 0, A.dtype)
        if isinstance(self.name, str):
            return xp.ones(A.shape[:-1], dtype=A.dtype, device=aac.device(A))
        flat = xp.reshape(A, (-1, A.shape[-1]))
        # a callable returns only whole matrices: small ones waste little
        pieces = [xp.linalg.diagonal(self._call(flat[i, :], flat[i, :])) for i in row_tiles(flat.shape[0], 64)]
        return xp.reshape(xp.concat(pieces), A.shape[:-1])


def make_kernel(
    kernel: str | Callable[..., Any],
    gamma: float | str | None,
    degree: float,
    coef0: float,
    kernel_params: Mapping[str, Any] | None,
    normalize: bool,
    n_features: int,
) -> Kernel:
    """A kernel from the parameters a user gives; gamma="scale" is 1 / n_features here, and replaced by the caller."""
    if isinstance(kernel, str) and kernel not in KERNELS:
        raise ValueError(f"kernel={kernel!r} is unknown; known are {', '.join(sorted(KERNELS))}, or a callable")
    if isinstance(kernel, str) and kernel_params:
        raise ValueError(f"kernel_params is for a callable kernel, but kernel={kernel!r}; use gamma, degree and coef0")
    if kernel == "poly" and degree != int(degree):
        raise ValueError(f"degree={degree} with kernel='poly': only whole degrees are positive semi-definite; use one")
    number = 1.0 / n_features if gamma is None or gamma == "scale" else float(gamma)
    return Kernel(kernel, number, int(degree), float(coef0), dict(kernel_params or {}), bool(normalize))


def _like(x: Array, values: np.ndarray) -> Array:
    return aac.array_namespace(x).asarray(values, dtype=x.dtype, device=aac.device(x))


def row_tiles(rows: int, size: int = TILE_ROWS) -> Iterator[slice]:
    """Slices that cover `rows` rows in nearly equal tiles of at most `size`."""
    tiles = max(1, -(-rows // size))
    bounds = [rows * i // tiles for i in range(tiles + 1)]
    return (slice(a, b) for a, b in pairwise(bounds))


def _transposed(X: Array) -> Array:
    return aac.array_namespace(X).matrix_transpose(X)


def _inverse_root(squares: Array) -> Array:
    """1 / sqrt(k(x, x)), and 0 where k(x, x) = 0: such a sample is the origin of the feature space."""
    xp = aac.array_namespace(squares)
    positive = squares > 0
    return xp.where(positive, 1.0 / xp.sqrt(xp.where(positive, squares, xp.ones_like(squares))), xp.zeros_like(squares))


def _unit_rows(A: Array) -> Array:
    xp = aac.array_namespace(A)
    return A * _inverse_root(xp.sum(A * A, axis=-1))[..., None]
