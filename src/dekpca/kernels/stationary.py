"""Kernels of the difference x - y. They are the characteristic functions of distributions of frequencies (Rahimi, Recht 2007)."""

from __future__ import annotations

import array_api_compat as aac
import numpy as np
from scipy.spatial.distance import cdist

from ..arrays import like, squares_of_rows, transposed
from ..draws import normal, normal_like, uniform
from .base import Array, Kernel, RandomMap

WIDE = 0.25  # of the random features of a laplacian kernel, which are drawn from wider distributions
WIDER = 4.0 ** np.arange(1, 9)  # so many times wider


class Stationary(Kernel):
    """A subclass has `matrix` and `frequencies`; without these, has_sketch = has_frequencies = False."""

    has_gamma = is_normal = is_stationary = is_definite = has_sketch = has_frequencies = True

    def matrix_diagonal(self, A: Array) -> Array:
        return aac.array_namespace(A).ones(A.shape[0], dtype=A.dtype, device=aac.device(A))

    def random_map(self, n_features: int, count: int, groups: int, seed: int) -> RandomMap:
        drawn: dict[str, Array] = {}  # by dtype

        def features(X: Array) -> Array:
            kind = str(X.dtype)
            if kind not in drawn:
                drawn[kind] = self.frequencies_like(X, groups * count, seed)
            return self.features(X, drawn[kind], groups)

        return features

    def frequencies_like(self, X: Array, count: int, seed: int) -> Array:
        """The frequencies in the library, on the device and in the dtype of X (., n_features)."""
        return like(X, self.frequencies(X.shape[1], count, seed))


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

    def frequencies_like(self, X: Array, count: int, seed: int) -> Array:
        return (2.0 * self.gamma) ** 0.5 * normal_like(X, (count, X.shape[1]), seed)


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

    def random_map(self, n_features: int, count: int, groups: int, seed: int) -> RandomMap:
        """Where the kernel is wide, nearly all frequencies are too low to tell rows apart, and what landmarks miss of it is made of the
        few high ones. So some have a column from a wider distribution, and each counts as much less as it is now more likely."""
        uniforms, wide = uniform((groups * count, n_features), seed), uniform((groups * count, 3), seed + 1)
        frequencies = np.tan(np.pi * (uniforms - 0.5))
        chosen = np.flatnonzero(wide[:, 0] < WIDE)
        column, width = ((wide[chosen, i] * n).astype(np.int64) for i, n in ((1, n_features), (2, len(WIDER))))
        frequencies[chosen, column] *= WIDER[width]
        squares = frequencies**2
        ratio = sum((w * (1.0 + squares) / (w * w + squares)).mean(axis=1) for w in WIDER) / len(WIDER)  # of densities
        weights = (1.0 - WIDE + WIDE * ratio).reshape(groups, 1, count) ** -0.5
        both = self.gamma * frequencies, np.tile(weights, (1, 2, 1)).ravel()  # of cosines and of sines
        drawn: dict[str, tuple[Array, Array]] = {}  # by dtype

        def features(X: Array) -> Array:
            kind = str(X.dtype)
            if kind not in drawn:
                drawn[kind] = like(X, both[0]), like(X, both[1])
            return self.features(X, drawn[kind][0], groups) * drawn[kind][1]

        return features
