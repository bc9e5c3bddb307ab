"""Kernels of the difference x - y. They are the characteristic functions of distributions of frequencies (Rahimi, Recht 2007)."""

from __future__ import annotations

import math

import array_api_compat as aac
import numpy as np
from scipy.spatial.distance import cdist

from ..arrays import like, numbers, squares_of_rows, transposed
from ..draws import normal, normal_like, uniform
from .base import Array, Kernel, RandomMap

WIDER = 2.0  # over the number of columns: how much wider; from 1 to 4 the noise of judgements is about the same (benchmarks/frequencies.py)
MOST_LOG = 80.0  # of a ratio of densities in float32; one that is larger has no weight
UNEVEN = 0.25  # of the frequencies of a laplacian kernel that judge: one of their columns is drawn wider
WIDTHS = 4.0 ** np.arange(1, 15)  # by so much, for kernels up to some 1e8 times as wide as the rows


class Stationary(Kernel):
    """A subclass has `matrix` and `frequencies`; without these, has_sketch = has_frequencies = False."""

    has_gamma = is_normal = is_stationary = is_definite = has_sketch = has_frequencies = True

    def matrix_diagonal(self, A: Array) -> Array:
        return aac.array_namespace(A).ones(A.shape[0], dtype=A.dtype, device=aac.device(A))

    def random_map(self, n_features: int, count: int, groups: int, seed: int) -> RandomMap:
        drawn: dict[str, tuple[Array, Array | float]] = {}  # by dtype

        def features(X: Array) -> Array:
            kind = str(X.dtype)
            if kind not in drawn:
                drawn[kind] = self.weighted_frequencies(X, count, groups, seed)
            frequencies, weights = drawn[kind]
            return self.features(X, frequencies, groups, weights)

        return features

    def weighted_frequencies(self, X: Array, count: int, groups: int, seed: int) -> tuple[Array, Array | float]:
        """Frequencies (groups * count, n_features) and their weights, in the library, on the device and in the dtype of X (., n_features)."""
        return like(X, self.frequencies(X.shape[1], groups * count, seed)), 1.0


class Rbf(Stationary):
    """exp(-gamma |x - y|^2)."""

    name = "rbf"

    def squares(self, X: Array) -> Array:
        return squares_of_rows(X)

    def matrix(self, A: Array, B: Array, squares: Array | None = None) -> Array:
        size_a, size_b = self.squares(A), self.squares(B) if squares is None else squares
        if self.far(size_a) or self.far(size_b):
            among = B[:1, :]  # any sample will do
            A, B = A - among, B - among
            size_a, size_b = self.squares(A), self.squares(B)
        return self.of_products(A @ transposed(B), size_a[:, None], size_b)

    def of_products(self, products: Array, squares_a: Array, squares_b: Array) -> Array:
        products *= 2.0 * self.gamma
        products -= self.gamma * squares_a
        products -= self.gamma * squares_b
        if aac.is_numpy_array(products):
            np.minimum(products, 0.0, out=products)  # rounding may leave a tiny negative distance
            return np.exp(products, out=products)
        xp = aac.array_namespace(products)
        return xp.exp(xp.clip(products, max=0.0))

    def frequencies(self, n_features: int, count: int, seed: int) -> np.ndarray:
        return np.sqrt(2.0 * self.gamma) * normal((count, n_features), seed)

    def weighted_frequencies(self, X: Array, count: int, groups: int, seed: int) -> tuple[Array, Array | float]:
        """Half of each group is drawn from a wider distribution, and all are weighted by what the kernel's has more of them (importance sampling):
        what landmarks miss has high frequencies, which are rare where columns are few. In many columns all frequencies are about as high."""
        xp, columns = aac.array_namespace(X), X.shape[1]
        wider, narrow = 1.0 + WIDER / columns, (count + 1) // 2
        wide = xp.astype(numbers(X, groups * count) % count >= narrow, X.dtype)
        drawn = normal_like(X, (groups * count, columns), seed) * (1.0 + (wider - 1.0) * wide)[:, None]
        log_ratio = 0.5 * (1.0 - wider**-2) * squares_of_rows(drawn) - columns * math.log(wider)
        ratio = xp.exp(xp.clip(log_ratio, max=MOST_LOG))  # of the wider density to the kernel's
        return (2.0 * self.gamma) ** 0.5 * drawn, count / (narrow + (count - narrow) * ratio)


class Laplacian(Stationary):
    """exp(-gamma sum_i |x_i - y_i|)."""

    name = "laplacian"

    def matrix(self, A: Array, B: Array, squares: Array | None = None) -> Array:
        xp = aac.array_namespace(A)
        if aac.is_numpy_array(A):
            out = cdist(A, B, "cityblock").astype(A.dtype, copy=False)
        else:
            out = xp.zeros((A.shape[0], B.shape[0]), dtype=A.dtype, device=aac.device(A))
            for i in range(A.shape[1]):  # one column at a time: never an array of n x n x features
                out = out + xp.abs(A[:, None, i] - B[None, :, i])
        return xp.exp(-self.gamma * out)

    def scaled(self, n_features: int, variance: float) -> float:
        return super().scaled(n_features, variance**0.5)  # distances, where other kernels have squares and products

    def frequencies(self, n_features: int, count: int, seed: int) -> np.ndarray:
        return self.gamma * np.tan(np.pi * (uniform((count, n_features), seed) - 0.5))

    def weighted_frequencies(self, X: Array, count: int, groups: int, seed: int) -> tuple[Array, Array | float]:
        """Where the kernel is wide, nearly all frequencies are too low to tell rows apart, and what landmarks miss of it is made of few high ones. So
        some have a column from a wider distribution (importance sampling)."""
        drawn = self.frequencies(X.shape[1], groups * count, seed) / self.gamma
        wide = uniform((groups * count, 3), seed + 1)
        chosen = np.flatnonzero(wide[:, 0] < UNEVEN)
        column, width = ((wide[chosen, i] * n).astype(np.int64) for i, n in ((1, X.shape[1]), (2, len(WIDTHS))))
        drawn[chosen, column] *= WIDTHS[width]
        squares = drawn**2
        ratios = [(w * (1.0 + squares) / (w * w + squares)).mean(axis=1) for w in WIDTHS]  # of densities
        ratio = np.mean(ratios, axis=0)
        return like(X, self.gamma * drawn), like(X, 1.0 / (1.0 - UNEVEN + UNEVEN * ratio))
