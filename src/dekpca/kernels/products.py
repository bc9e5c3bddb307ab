"""Kernels of the product x'y. Products of projections on random signs estimate them without bias (Kar and Karnick 2012)."""

from __future__ import annotations

import array_api_compat as aac

from ..arrays import like, transposed
from ..draws import signs
from .base import Array, Kernel, RandomMap, inverse_root


class PowerOfProduct(Kernel):
    """A kernel that is a power of x'y: `of_products`. A subclass may have other rows than X, with a constant entry beside them."""

    def matrix(self, A: Array, B: Array, squares: Array | None = None) -> Array:
        return self.of_products(A @ transposed(B), None, None)

    def matrix_diagonal(self, A: Array) -> Array:
        return self.of_products(_squares(A), None, None)

    def factors(self, X: Array) -> tuple[Array, float]:
        return X, 0.0

    def random_map(self, n_features: int, count: int, groups: int, seed: int, power: int = 1) -> RandomMap:
        width = groups * 2 * count
        drawn = signs((power, n_features + 1, width), seed)

        def features(X: Array) -> Array:
            xp, (rows, constant) = aac.array_namespace(X), self.factors(X)
            found = xp.full((X.shape[0], width), (2 * count) ** -0.5, dtype=X.dtype, device=aac.device(X))
            for some in drawn:
                found = found * (rows @ like(X, some[:-1]) + constant * like(X, some[-1]))
            if self.is_normal or not self.normalize:
                return found
            return found * inverse_root(self.matrix_diagonal(X))[:, None]

        return features


class Linear(PowerOfProduct):
    """x'y."""

    name = "linear"
    is_definite = has_sketch = True

    def of_products(self, products: Array, squares_a: Array, squares_b: Array) -> Array:
        return products

    def bound(self, norm: float) -> float:
        return norm**2


class Cosine(PowerOfProduct):
    """x'y / (|x| |y|), and 0 at the origin."""

    name = "cosine"
    is_definite = has_sketch = is_normal = True

    def factors(self, X: Array) -> tuple[Array, float]:
        return X * inverse_root(_squares(X))[:, None], 0.0

    def matrix(self, A: Array, B: Array, squares: Array | None = None) -> Array:
        return self.factors(A)[0] @ transposed(self.factors(B)[0])

    def of_products(self, products: Array, squares_a: Array, squares_b: Array) -> Array:
        return products * inverse_root(squares_a) * inverse_root(squares_b)

    def matrix_diagonal(self, A: Array) -> Array:
        return aac.array_namespace(A).astype(_squares(A) > 0, A.dtype)


class Poly(PowerOfProduct):
    """(gamma x'y + coef0)^degree."""

    name = "poly"
    has_gamma = True
    is_definite = has_sketch = property(lambda self: self.coef0 >= 0)

    def __post_init__(self) -> None:
        if self.degree != int(self.degree):
            raise ValueError(f"kernel='poly', degree={self.degree}: only whole degrees are positive semi-definite")

    def of_products(self, products: Array, squares_a: Array, squares_b: Array) -> Array:
        return (self.gamma * products + self.coef0) ** self.degree

    def bound(self, norm: float) -> float:
        return max(abs(self.coef0), abs(self.gamma * norm**2 + self.coef0)) ** self.degree

    def factors(self, X: Array) -> tuple[Array, float]:
        return X * self.gamma**0.5, self.coef0**0.5

    def random_map(self, n_features: int, count: int, groups: int, seed: int, power: int = 1) -> RandomMap:
        return super().random_map(n_features, count, groups, seed, int(self.degree))


class Sigmoid(Kernel):
    """tanh(gamma x'y + coef0)."""

    name = "sigmoid"
    has_gamma = True
    is_definite = False

    def matrix(self, A: Array, B: Array, squares: Array | None = None) -> Array:
        return aac.array_namespace(A).tanh(self.gamma * (A @ transposed(B)) + self.coef0)

    def matrix_diagonal(self, A: Array) -> Array:
        return aac.array_namespace(A).tanh(self.gamma * _squares(A) + self.coef0)


def _squares(X: Array) -> Array:
    return aac.array_namespace(X).sum(X * X, axis=-1)
