"""Landmarks: a small set of points that all nodes know, and the coordinates they give to every sample.

psi(x) = R' k(L, x), with R R' = K_LL^-1, are the coordinates of phi(x) in the span of the landmarks, the same map at
every node. The rest of the kernel, rest(x, y) = k(x, y) - psi(x)'psi(y), is positive semi-definite.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from typing import Any

import array_api_compat as aac
import numpy as np
from scipy.linalg.lapack import dpstrf

from ..kernels import Kernel
from . import native, spectrum
from .chunks import by_nodes, row_bytes
from .spectrum import transposed

Array = Any

REDUNDANT = 1e-7  # of k(x, x): a landmark whose part outside the span of the others is smaller is dropped


def node_random(seed: int, name: str, purpose: str) -> np.random.Generator:
    """A node's own random numbers: they depend on its name, not on its number or its process."""
    digest = blake2b(f"{seed}\0{purpose}\0{name}".encode(), digest_size=16).digest()
    return np.random.default_rng(int.from_bytes(digest, "little"))


def shared_seed(seed: int, purpose: str) -> int:
    """A seed for numbers that all nodes draw alike."""
    return int.from_bytes(blake2b(f"{seed}\0{purpose}".encode(), digest_size=16).digest(), "little")


def digest(points: np.ndarray) -> np.ndarray:
    """A fingerprint of an array, as numbers that are exact in any float dtype."""
    shape = ",".join(map(str, points.shape))
    code = blake2b(shape.encode() + np.ascontiguousarray(points, dtype=np.float64).tobytes(), digest_size=32).digest()
    return np.frombuffer(code, dtype=np.uint16).astype(np.float64)


@dataclass(frozen=True, eq=False)
class Landmarks:
    """The points (m, M) and an upper triangular root R (m, m) of K_LL^-1: psi(x) = R'k(L, x). More points add coordinates and change none.

    The root is computed in float64 for data of any dtype, since it is an inverse.
    """

    points: Array
    root: Array

    @property
    def size(self) -> int:
        return int(self.points.shape[0])

    @classmethod
    def of(cls, points: Array, kernel: Kernel) -> Landmarks:
        """From points without redundant ones."""
        return cls.none(points).grown(points, kernel)[0]

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
        gram = RowKernel(kernel, exact)(exact)
        check_finite(gram[None, ...], ["the landmarks"], kernel)
        across = kernel.gram(exact, old) @ root
        left = gram - across @ transposed(across) if self.size else gram
        return Offered(kernel, gram, across, left, spectrum.cholesky(left))

    def grown(self, points: Array, kernel: Kernel, offered: Offered | None = None) -> tuple[Landmarks, Growth]:
        """With more points, without redundant ones; and the `Growth` for new coordinates of samples. `offered` are
        these points, if computed already."""
        xp = aac.array_namespace(points)
        offered = offered or self.offered(points, kernel)
        if offered.factor is None:
            raise np.linalg.LinAlgError("the landmarks' kernel matrix has no Cholesky factor")
        root, across = xp.astype(self.root, xp.float64), offered.across
        inverse = transposed(spectrum.inverse_triangle(offered.factor[None, ...])[0, ...])  # upper triangular
        beside = -(root @ transposed(across)) @ inverse
        below = xp.zeros(across.shape, dtype=across.dtype, device=aac.device(across))
        whole = xp.concat([xp.concat([root, beside], axis=1), xp.concat([below, inverse], axis=1)], axis=0)
        kind = points.dtype
        growth = Growth(RowKernel(kernel, points), xp.astype(across, kind), xp.astype(inverse, kind))
        return Landmarks(xp.concat([self.points, points]), xp.astype(whole, kind)), growth

    def coordinates(self, kernel: Kernel, samples: Array) -> Array:
        """psi of each sample, not centred: (..., n, m)."""
        return self.with_squares(kernel, samples)[0]

    def with_squares(self, kernel: Kernel, samples: Array) -> tuple[Array, Array | None]:
        """psi of each sample, and Kernel.squares of the samples, a by-product."""
        xp = aac.array_namespace(samples)
        flat = xp.reshape(samples, (-1, samples.shape[-1]))
        rows_kernel = RowKernel(kernel, self.points)

        def some(rows: slice) -> tuple[Array, ...]:
            gram, squares = rows_kernel.with_squares(flat[rows, :])
            psi = spectrum.times_triangle(gram, self.root)
            return (psi,) if squares is None else (psi, squares)

        work = max(row_bytes(self.root), row_bytes(flat) // 4)  # rows enough for a product at full speed
        psi, *squares = by_nodes(some, flat.shape[0], work, flat)
        psi = xp.reshape(psi, (*samples.shape[:-1], self.root.shape[0]))
        return psi, xp.reshape(squares[0], samples.shape[:-1]) if squares else None


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
            lowest = float(np.linalg.eigvalsh(spectrum.to_numpy(self.gram))[0])
            if lowest < -(spectrum.NEGATIVE + 10 * n * np.finfo(np.float64).eps) * n * max(size, 1e-300):
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
        _, order, rank, _ = dpstrf(spectrum.to_numpy(self.left) * np.outer(later, later), tol=enough, lower=1)
        return order[: min(rank, most)] - 1


class RowKernel:
    """The kernel of many rows with the same points (m, M), chunk by chunk.

    For the rbf kernel on the host it uses compiled code, if there is some: the points are packed once, each tile of
    the result stays in registers, and columns that are zero for a few consecutive rows are skipped.
    """

    def __init__(self, kernel: Kernel, points: Array):
        self.kernel, self.points = kernel, points
        self.of_points = kernel.squares(points)
        usable = (
            native.steps is not None and native.steps.BLOCKS and kernel.name == "rbf" and aac.is_numpy_array(points)
        )
        compiled = usable and len(points) > 0 and not kernel.far(self.of_points)
        self.packed = native.steps.packed_points(np.ascontiguousarray(points)) if compiled else None

    def __call__(self, rows: Array) -> Array:
        """(n, m)."""
        return self.with_squares(rows)[0]

    def with_squares(self, rows: Array) -> tuple[Array, Array | None]:
        """The kernel (n, m) and Kernel.squares (n,) of the rows."""
        if self.packed is not None:
            out, squares = (np.empty(shape, dtype=rows.dtype) for shape in ((len(rows), len(self.points)), len(rows)))
            native.steps.kernel_rows(np.ascontiguousarray(rows), self.packed, self.kernel.gamma, out, squares)
            if not self.kernel.far(squares):
                return out, squares
        of_rows = self.kernel.squares(rows)
        return self.kernel.gram(rows, self.points, (of_rows, self.of_points)), of_rows


@dataclass(frozen=True, eq=False)
class Growth:
    """New landmarks: the kernel with them, and the matrices `across` (new, old) and `inverse` (new, new) for the new coordinates of a sample."""

    kernel: RowKernel
    across: Array
    inverse: Array

    def coordinates(self, samples: Array, psi: Array) -> Array:
        """The new coordinates (n, new) of samples whose old ones are psi (n, old)."""
        found = self.kernel(samples)
        if self.across.shape[1]:
            found = found - psi @ transposed(self.across)
        return spectrum.times_triangle(found, self.inverse)


@dataclass(frozen=True, eq=False)
class RandomFeatures:
    """Frequencies (m / 2, M) that all nodes draw alike; psi are the random Fourier features, and the rest is zero."""

    frequencies: Array

    @property
    def size(self) -> int:
        return 2 * int(self.frequencies.shape[0])

    def coordinates(self, kernel: Kernel, samples: Array) -> Array:
        """psi of each sample, not centred: (..., n, m)."""
        return kernel.features(samples, self.frequencies)


def principal_directions(triangle: Array, m: int, n_columns: int, scale: Array) -> tuple[Array, Array]:
    """The leading eigenvalues and eigenvectors of the covariance in landmark coordinates, given its upper triangle.

    Directions without data (caused by redundant landmarks) are returned as zeros: eigenvalues tiny compared with the
    first, or with `scale`, the number of samples times the largest k(x, x).
    """
    xp = aac.array_namespace(triangle)
    values, basis = xp.linalg.eigh(unpack_triangle(triangle, m))
    values, basis = xp.flip(values)[:n_columns], spectrum.flip_signs(xp.flip(basis, axis=1)[:, :n_columns])
    return drop_empty(values, basis, 10.0 * m * spectrum.eps(triangle), scale)


def drop_empty(values: Array, basis: Array, rounding: float, scale: Any) -> tuple[Array, Array]:
    """Eigenvalues, largest first, and eigenvectors, with zeros for those that are `rounding`, relative to the first and to `scale`."""
    xp = aac.array_namespace(values)
    floor = xp.maximum(max(spectrum.CUTOFF, rounding) * values[:1], rounding * scale * xp.ones_like(values[:1]))
    real = values > floor
    return xp.where(real, values, xp.zeros_like(values)), xp.where(real, basis, xp.zeros_like(basis))


def pack_triangle(matrices: Array) -> Array:
    """Upper triangles of symmetric matrices (B, m, m) as vectors (B, m (m + 1) / 2)."""
    xp = aac.array_namespace(matrices)
    m = matrices.shape[-1]
    flat = xp.reshape(matrices, (matrices.shape[0], m * m))
    return xp.take(flat, xp.asarray(_triangle(m), device=aac.device(matrices)), axis=1)


@cache
def _triangle(m: int) -> np.ndarray:
    """Indices of the upper triangle of an (m, m) matrix."""
    rows, columns = np.triu_indices(m)
    return rows * m + columns


def unpack_triangle(triangle: Array, m: int) -> Array:
    """The symmetric matrix (m, m) of an upper triangle."""
    xp = aac.array_namespace(triangle)
    rows, columns = np.triu_indices(m)
    place = np.empty((m, m), dtype=np.int64)
    place[rows, columns] = place[columns, rows] = np.arange(len(rows))
    return xp.reshape(xp.take(triangle, xp.asarray(place.ravel(), device=aac.device(triangle)), axis=0), (m, m))


def check_kernel(
    samples: Array, whole: spectrum.Factor, sizes: np.ndarray, owners: list[str], kernel: Kernel, alone: bool = False
) -> None:
    """Refuse a kernel that is not positive semi-definite on the samples (B, n, M) of some owner; `alone`, warn.

    `whole` is the factor of K_j, which is computed by subtraction. If it has a negative eigenvalue the kernel matrix
    itself is checked, so that rounding does not count as a bad kernel.
    """
    xp = aac.array_namespace(samples)
    scale = xp.max(xp.abs(kernel.diagonal(samples)), axis=1)
    for place, _, _ in spectrum.negatives(whole, sizes, scale):
        n = int(sizes[place])
        own = samples[place, :n, :]
        size = xp.full((1,), float(n), dtype=own.dtype, device=aac.device(own))
        raw = spectrum.Factor(kernel.gram(own, own)[None, ...], size, scale[place : place + 1])
        for _, low, high in spectrum.negatives(raw, sizes[place : place + 1], scale[place : place + 1]):
            found = f"kernel {kernel.label} is not positive semi-definite: smallest eigenvalue {low:.3g} of a Gram matrix whose largest is {high:.3g}"
            if alone:  # as scikit-learn does
                warnings.warn(f"{found}; negative eigenvalues are left out", UserWarning, stacklevel=2)
                return
            raise ValueError(
                f"{owners[place]}: {found}; allowed, beyond rounding, is {-spectrum.NEGATIVE:g} times the largest; "
                "change the kernel or its parameters, or fit on one node (network=1), which leaves negative eigenvalues out"
            )


def check_finite(gram: Array, owners: list[str], kernel: Kernel) -> None:
    """Refuse Gram matrices (B, n, n) with entries that are not finite."""
    xp = aac.array_namespace(gram)
    good = xp.all(xp.isfinite(gram), axis=(1, 2))
    if not bool(xp.all(good)):
        place = int(np.flatnonzero(~spectrum.to_numpy(good))[0])
        raise ValueError(
            f"{owners[place]}: kernel {kernel.label} gives NaN or infinity; scale the data down, lower gamma or degree, "
            "or use dtype='float64'"
        )
