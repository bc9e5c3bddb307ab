"""Landmarks: a small set of points that all nodes know, and the coordinates they give to every sample.

psi(x) = R' k(L, x), with R R' = K_LL^-1, are the coordinates of phi(x) in the span of the landmarks, the same map at
every node. The rest of the kernel, rest(x, y) = k(x, y) - psi(x)'psi(y), is positive semi-definite.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import array_api_compat as aac
import numpy as np
from scipy.linalg.lapack import dpstrf

from .arrays import NEGATIVE, cholesky, inverse_triangle, like, times_triangle, to_numpy, transposed
from .chunks import by_rows, row_bytes
from .kernels import Kernel

Array = Any

REDUNDANT = 1e-7  # of k(x, x): a landmark whose part outside the span of the others is smaller is dropped


def digest(points: np.ndarray) -> np.ndarray:
    """A fingerprint of an array, as numbers that are exact in any float dtype."""
    shape = ",".join(map(str, points.shape))
    code = blake2b(shape.encode() + np.ascontiguousarray(points, dtype=np.float64).tobytes(), digest_size=32).digest()
    return np.frombuffer(code, dtype=np.uint16).astype(np.float64)


@dataclass(frozen=True, eq=False)
class Landmarks:
    """The points (m, M) and an upper triangular root R (m, m) of K_LL^-1: psi(x) = R'k(L, x). More points add coordinates and change none.

    The root is computed in float64 for data of any dtype, since it is an inverse. `kinds`: what the points are (`LANDMARK_KINDS` in node_model.py),
    in order, and how many of each.
    """

    points: Array
    root: Array
    kinds: tuple[tuple[str, int], ...] = ()

    @property
    def size(self) -> int:
        return int(self.points.shape[0])

    @classmethod
    def none(cls, like: Array) -> Landmarks:
        """No landmarks, in the library and dtype of `like` (n, M)."""
        xp = aac.array_namespace(like)
        return cls(like[:0, :], xp.zeros((0, 0), dtype=like.dtype, device=aac.device(like)))

    def offered(self, points: Array, kernel: Kernel) -> Offered:
        """Candidates for landmarks, in addition to these."""
        xp = aac.array_namespace(points)
        exact = xp.astype(points, xp.float64)
        old, root = xp.astype(self.points, xp.float64), xp.astype(self.root, xp.float64)
        gram = kernel.gram(exact, exact)
        check_finite(gram, "the landmarks", kernel)
        across = kernel.gram(exact, old) @ root
        left = gram - across @ transposed(across) if self.size else gram
        return Offered(kernel, gram, across, left, cholesky(left))

    def plus(self, more: np.ndarray, kind: str, kernel: Kernel) -> Landmarks:
        """With more points of the host, none of them redundant."""
        if not len(more):
            return self
        points = like(self.points, more)
        xp, offered = aac.array_namespace(points), self.offered(points, kernel)
        if offered.factor is None:
            raise np.linalg.LinAlgError("the landmarks' kernel matrix has no Cholesky factor")
        root, across = xp.astype(self.root, xp.float64), offered.across
        inverse = transposed(inverse_triangle(offered.factor))  # upper triangular
        beside = -(root @ transposed(across)) @ inverse
        below = xp.zeros(across.shape, dtype=across.dtype, device=aac.device(across))
        whole = xp.concat([xp.concat([root, beside], axis=1), xp.concat([below, inverse], axis=1)], axis=0)
        return Landmarks(
            xp.concat([self.points, points]), xp.astype(whole, points.dtype), (*self.kinds, (kind, len(more)))
        )

    def coordinates(self, kernel: Kernel, samples: Array) -> Array:
        """psi of each sample, not centred: (n, m)."""
        with_points = row_kernel(kernel, self.points)
        work = max(row_bytes(self.root), row_bytes(samples) // 4)  # rows enough for a product at full speed

        def some(rows: slice) -> Array:
            return times_triangle(with_points(samples[rows, :]), self.root)

        return by_rows(some, samples.shape[0], work, samples)


def row_kernel(kernel: Kernel, points: Array) -> Callable[[Array], Array]:
    """The kernel of rows with the same points (m, M), chunk by chunk: a function from rows (n, M) to (n, m)."""
    squares = kernel.squares(points)
    return lambda rows: kernel.gram(rows, points, squares)


@dataclass(frozen=True, eq=False)
class Offered:
    """Candidates for landmarks, in float64: their kernel matrix; `across` (new, old), their landmark coordinates;
    `left`, the kernel matrix minus the landmarks' part; and its Cholesky factor, if it has one."""

    kernel: Kernel
    gram: Array
    across: Array
    left: Array
    factor: Array | None

    def independent(self, least: float, most: int) -> np.ndarray:
        """Indices of the points without redundant ones, at most `most`, by pivoted Cholesky: the largest pivot first."""
        n = int(self.gram.shape[0])
        xp = aac.array_namespace(self.gram)
        size = max(float(xp.max(xp.linalg.diagonal(self.gram))), 0.0) if n else 0.0
        if not self.kernel.is_definite and n:
            lowest = float(np.linalg.eigvalsh(to_numpy(self.gram))[0])
            if lowest < -(NEGATIVE + 10 * n * np.finfo(np.float64).eps) * n * max(size, 1e-300):
                raise ValueError(
                    f"kernel {self.kernel.label} is not positive semi-definite: smallest eigenvalue {lowest:.3g} of the landmarks' kernel matrix, "
                    f"whose entries are up to {size:.3g}; change the kernel or its parameters, or fit on one node (network=1), which leaves "
                    "negative eigenvalues out"
                )
        enough = max(least * size, 1e-300)
        if not n or float(xp.max(xp.linalg.diagonal(self.left))) <= enough:  # LAPACK does not test the first pivot
            return np.zeros(0, dtype=np.int64)
        if n <= most and self.factor is not None and float(xp.min(xp.linalg.diagonal(self.factor))) ** 2 > enough:
            return np.arange(n)  # none is redundant: no pivoting is needed, which is far faster
        later = 1.0 / (1.0 + 1e-6 * np.arange(n))  # of equal pivots the first, whatever the rounding
        _, order, rank, _ = dpstrf(to_numpy(self.left) * np.outer(later, later), tol=enough, lower=1)
        return order[: min(rank, most)] - 1


@dataclass(frozen=True, eq=False)
class RandomFeatures:
    """Frequencies (m / 2, M) that all nodes draw alike; psi are the random Fourier features, and the rest is zero."""

    frequencies: Array

    @property
    def size(self) -> int:
        return 2 * int(self.frequencies.shape[0])

    def coordinates(self, kernel: Kernel, samples: Array) -> Array:
        """psi of each sample, not centred: (n, m)."""
        return kernel.features(samples, self.frequencies)


def check_finite(gram: Array, owner: str, kernel: Kernel) -> None:
    """Refuse a Gram matrix with entries that are not finite."""
    xp = aac.array_namespace(gram)
    if not bool(xp.all(xp.isfinite(gram))):
        remedy = "scale the data down, lower gamma or degree, or use dtype='float64'"
        raise ValueError(f"{owner}: kernel {kernel.label} gives NaN or infinity; {remedy}")
