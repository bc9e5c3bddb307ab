"""What a kernel is: the base class of all kernels, and `KERNELS`, in which each class is found by its name."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import array_api_compat as aac
import numpy as np

from ..arrays import transposed
from ..chunks import row_tiles

Array = Any
RandomMap = Callable[[Array], Array]

# One tile of a Gram matrix: large enough for GEMM speed, small enough for the cache. It also avoids a crash of the
# OpenBLAS in NumPy 2.4 on one product of 16,000 x 784 with its own transpose.
TILE_ROWS = 4096
TILE_BYTES = 64 * 2**20
DEVICE_TILE_BYTES = 2**30
DIAGONAL_ROWS = 64  # k(x, x) by way of whole matrices: small ones waste little

# |x|^2 + |y|^2 - 2 x'y in units of 1 / gamma: beyond it cancellation loses digits that the kernel needs, and samples are shifted first
FAR_FROM_ORIGIN = 100.0

KERNELS: dict[str, type[Kernel]] = {}


@dataclass(frozen=True)
class Kernel(ABC):
    """A kernel with its parameters. A subclass that sets `name` is known by that name everywhere.

    A subclass must have `matrix`. `matrix_diagonal` saves work. `random_map` lets the accuracy be judged by sums instead of shared rows; random
    frequencies (`Stationary`) also allow landmarks="random-features". `bound` allows differential privacy where rows are clipped.

    Parameters
    ----------
    gamma, degree, coef0 : float
        As in `sklearn.metrics.pairwise`; a kernel uses those that it needs.
    normalize : bool
        Divide by sqrt(k(x, x) k(y, y)), so that k(x, x) = 1.

    These four are all that `make_kernel` sets and that files of models hold: a model whose kernel has another parameter,
    not at its default, is not saved (docs/explanation/architecture.md, "Where to add").

    Examples
    --------
    >>> import numpy as np
    >>> from dekpca.kernels import Rbf
    >>> Rbf(gamma=0.5).gram(np.array([[0.0], [2.0]]), np.array([[0.0]])).round(4)
    array([[1.    ],
           [0.1353]])
    """

    name: str = field(default="", init=False)  # what users write
    gamma: float = 1.0
    degree: float = 3
    coef0: float = 1.0
    normalize: bool = False

    has_gamma: ClassVar[bool] = False  # whether it uses gamma
    is_normal: ClassVar[bool] = False  # whether k(x, x) = 1 without normalization (cosine: except at the origin)
    is_stationary: ClassVar[bool] = False  # whether it depends on x - y alone, so that gamma is the inverse of a width
    is_definite: ClassVar[bool | None] = None  # whether it is positive semi-definite on any data; None: not known
    has_sketch: ClassVar[bool] = False  # whether it has `random_map`
    has_frequencies: ClassVar[bool] = False  # whether it has `frequencies`, for random Fourier features

    def __init_subclass__(cls, **arguments: Any):
        super().__init_subclass__(**arguments)
        if "name" in vars(cls):
            if cls.name in KERNELS:
                raise ValueError(f"{cls.__qualname__}: {KERNELS[cls.name].__qualname__} is named {cls.name!r} already")
            KERNELS[cls.name] = cls

    # ------------------------------------------------------------------ what a subclass has
    def __post_init__(self) -> None:  # noqa: B027
        """Refuse parameters with which it is no kernel."""

    @abstractmethod
    def matrix(self, A: Array, B: Array, squares: Array | None = None) -> Array:
        """k of all rows of A (a, M) with all rows of B (b, M), without normalization; `squares` are those of B, if they are known."""

    def of_products(self, products: Array, squares_a: Array, squares_b: Array) -> Array | None:
        """k from the products x'y (a, b) and the squares `|x|^2` (a, 1) and `|y|^2` (b,), entry by entry, without normalization; may overwrite the
        products. None: k is no function of these."""
        return None

    def matrix_diagonal(self, A: Array) -> Array:
        """k(x, x) for each row of A (a, M), without normalization."""
        xp, tiles = aac.array_namespace(A), [A[i, :] for i in row_tiles(A.shape[0], DIAGONAL_ROWS)]
        if not A.shape[0]:  # a kernel that a user gives need not know what to do with no rows
            return A[:, 0]
        return xp.concat([xp.linalg.diagonal(self.matrix(x, x)) for x in tiles])

    def scaled(self, n_features: int, variance: float) -> float:
        """gamma="scale", for data of this variance: the kernel does not depend on the units of the data. 1 if the variance is 0."""
        return 1.0 / (n_features * variance) if variance > 0 else 1.0

    def squares(self, X: Array) -> Array | None:
        """Squared norms of the rows, which `gram` would otherwise compute again; None for kernels that do not need them. A kernel that takes
        distances from them has to shift samples that are `far`, as `Rbf.matrix` does: else a fit far from the origin may end with BadTerm."""
        return None

    def bound(self, norm: float) -> float:
        """A bound on k(x, x), without normalization, for samples of at most this norm; infinity where none is known."""
        return math.inf

    def random_map(self, n_features: int, count: int, groups: int, seed: int) -> RandomMap:
        """A function from samples (n, n_features) to random features (n, groups * 2 count), the same on every machine. The 2 count features of each
        group have E z(x)'z(y) = k(x, y): their inner products estimate the kernel without bias."""
        raise NotImplementedError(f"kernel {self.label} has no random features")

    def frequencies(self, n_features: int, count: int, seed: int) -> np.ndarray:
        """(count, n_features) random frequencies, the same on every machine."""
        raise NotImplementedError(f"kernel {self.label} has no random frequencies")

    # ------------------------------------------------------------------ what all have
    @property
    def label(self) -> str:
        """Its name in texts."""
        return self.name

    def gram(self, A: Array, B: Array, squares: Array | None = None) -> Array:
        """k of all rows of A (a, M) with all rows of B (b, M): (a, b), computed in tiles. `squares` of B save some work."""
        rows, columns, host = A.shape[0], B.shape[0], aac.is_numpy_array(A)
        most = TILE_BYTES if host else DEVICE_TILE_BYTES  # on a device fewer, larger launches
        if 0 < rows * columns * 8 <= most and (not host or max(rows, columns) <= TILE_ROWS):
            return self._tile(A, B, squares)
        out = aac.array_namespace(A).empty((rows, columns), dtype=A.dtype, device=aac.device(A))
        for i in row_tiles(rows, TILE_ROWS) if rows and columns else ():
            for j in row_tiles(columns, TILE_ROWS):
                out[i, j] = self._tile(A[i, :], B[j, :])
        return out

    def _tile(self, A: Array, B: Array, squares: Array | None = None) -> Array:
        gram = self.matrix(A, B, squares)
        if self.normalize and not self.is_normal:
            gram = gram * inverse_root(self.matrix_diagonal(A))[:, None]
            gram = gram * inverse_root(self.matrix_diagonal(B))[None, :]
        return gram

    def diagonal(self, A: Array) -> Array:
        """k(x, x) for each row of A (a, M): (a,)."""
        found, divided = self.matrix_diagonal(A), self.normalize and not self.is_normal
        return aac.array_namespace(A).astype(found > 0, A.dtype) if divided else found

    def largest(self, norm: float) -> float:
        """A bound on k(x, x) for samples of at most this norm; infinity where none is known."""
        return 1.0 if self.is_normal or self.normalize else self.bound(norm)

    def far(self, squares: Array | None) -> bool:
        """Whether samples with these `squares` are so far from the origin that distances need a shift of the origin for each pair of sets."""
        if squares is None or 0 in squares.shape:
            return False
        return self.gamma * float(aac.array_namespace(squares).max(squares)) > FAR_FROM_ORIGIN

    def features(self, X: Array, frequencies: Array, groups: int = 1, weights: Array | float = 1.0) -> Array:
        """Random Fourier features (n, 2 count), whose inner products estimate k without bias. Those of several groups of frequencies
        follow each other. `weights` (groups * count,): of the squares, for frequencies that were drawn from another distribution; without them
        k(x, x) is exact."""
        xp = aac.array_namespace(X)
        count = frequencies.shape[0] // groups
        half = xp.tan(X @ transposed(0.5 * frequencies))
        # One tangent instead of a sine and a cosine, which take NumPy ten times as long: cos = 2 / (1 + t^2) - 1, sin = 2 t / (1 + t^2).
        scale = (weights / count) ** 0.5
        double = (2.0 * scale) / (1.0 + half * half)
        half *= double
        double -= scale
        shape = (X.shape[0], groups, count)
        both = xp.stack([xp.reshape(double, shape), xp.reshape(half, shape)], axis=2)
        return xp.reshape(both, (X.shape[0], 2 * groups * count))


# ---------------------------------------------------------------------- arithmetic of kernels
def inverse_root(squares: Array) -> Array:
    """1 / sqrt(k(x, x)), and 0 where k(x, x) = 0: such a sample is the origin of the feature space."""
    xp = aac.array_namespace(squares)
    positive = squares > 0
    return xp.where(positive, 1.0 / xp.sqrt(xp.where(positive, squares, xp.ones_like(squares))), xp.zeros_like(squares))
