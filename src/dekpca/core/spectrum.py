"""Spectra of stacks of small symmetric matrices: factors, pseudo-inverses, thresholds for zero.

The only module of core that may use functions outside the array API standard.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import array_api_compat as aac
import numpy as np
from scipy.linalg.blas import dsyrk, dtrmm, strmm
from scipy.linalg.lapack import dtrtri, strtri

from . import native
from .chunks import by_nodes, chunks_of, row_bytes, run_chunks

Array = Any

CUTOFF = 1e-8  # relative; below it an inverse amplifies rounding
POWER_COLUMNS, POWER_STEPS = 8, 5
NEGATIVE = 1e-6  # relative; an eigenvalue below minus this cannot be rounding: the kernel is not positive semi-definite


def transposed(x: Array) -> Array:
    return aac.array_namespace(x).matrix_transpose(x)


def eps(x: Array) -> float:
    return float(aac.array_namespace(x).finfo(x.dtype).eps)


def sane(x: Array) -> Array:
    """Elementwise: whether the square of a number is finite. A diverging iteration soon has others."""
    xp = aac.array_namespace(x)
    return xp.abs(x) < float(xp.finfo(x.dtype).max) ** 0.5


@dataclass(frozen=True, eq=False)
class Eigen:
    """V diag(values) V' of a stack of positive semi-definite matrices; `inverse` is 1 / values, 0 for dropped ones."""

    values: Array
    basis: Array
    inverse: Array
    lowest: Array  # the smallest computed eigenvalue, to check that the matrix is positive semi-definite


@dataclass(frozen=True, eq=False)
class Factor:
    """A stack of Gram matrices (B, n, n), with lazily computed factors and inverses.

    `sizes` (B,) are the real rows of each (the others are zero padding), `scale` (B,) the largest k(x, x),
    uncentred: eigenvalues below 10 n eps of it are rounding even if the centred matrix is tiny. Inverses are
    computed once and kept as matrices, for one batched product per iteration. Eigendecompositions are computed only
    for eigenvectors.
    """

    matrix: Array
    sizes: Array
    scale: Array

    @property
    def rounding(self) -> Array:
        """(B,) threshold below which a value is rounding."""
        return 10.0 * eps(self.matrix) * self.sizes * self.scale

    @cached_property
    def eigen(self) -> Eigen:
        xp = aac.array_namespace(self.matrix)
        values, basis = xp.linalg.eigh(self.matrix)
        floor = xp.maximum(CUTOFF * values[..., -1], self.rounding)[..., None]
        keep = values > floor
        inverse = xp.where(keep, 1.0 / xp.where(keep, values, xp.ones_like(values)), xp.zeros_like(values))
        return Eigen(xp.clip(values, min=0.0), basis, inverse, values[..., 0])

    @cached_property
    def top(self) -> Array:
        """(B,) the largest eigenvalue of each."""
        if "eigen" in self.__dict__:
            return self.eigen.values[..., -1]
        return self._by_nodes(lambda some: largest(some.matrix))

    @cached_property
    def inverse(self) -> Array:
        """(B, n, n): the pseudo-inverse. If a Cholesky factor, or the norm of the inverse, shows that only zero rows
        must be dropped (padding, and samples in the span of the landmarks), it is the inverse of the other rows."""
        return self._by_nodes(lambda some: some._compiled() if _native(some.matrix) else some._inverse())

    def _compiled(self) -> Array:
        """`_inverse`, for matrices that clearly need no eigenvalues dropped."""
        matrices = np.ascontiguousarray(self.matrix)
        out, done = np.empty_like(matrices), np.zeros(len(matrices), dtype=np.uint8)
        native.steps.pseudo_inverses(matrices, self.rounding, CUTOFF, out, done)
        for b in np.flatnonzero(done == 0):
            out[b : b + 1] = self[b : b + 1]._inverse()
        return out

    def _inverse(self) -> Array:
        xp = aac.array_namespace(self.matrix)
        count, n = self.matrix.shape[:2]
        size = _size(self.matrix)
        floor = xp.maximum(CUTOFF * size, self.rounding)
        present = xp.linalg.diagonal(self.matrix) > floor[:, None]
        filled, both = self.matrix, None
        if not bool(xp.all(present)):
            there = xp.astype(present, self.matrix.dtype)
            both = there[:, :, None] * there[:, None, :]
            eye = xp.eye(n, dtype=self.matrix.dtype, device=aac.device(self.matrix))
            filled = self.matrix * both + ((1.0 - there) * (size + 1.0)[:, None])[..., None] * eye
        if definite(filled, -floor):
            return invert(filled) if both is None else invert(filled) * both
        if count > 1:
            return xp.concat([self[half]._inverse() for half in (slice(0, count // 2), slice(count // 2, count))])
        eigen = self.eigen
        return (eigen.basis * eigen.inverse[..., None, :]) @ transposed(eigen.basis)

    def response(self, r: Array, in_place: bool = False) -> Array:
        """(B, n, n): (r - 2 A)^-1, with one number `r` for each matrix; not finite if that does not exist, which the next check detects.

        `in_place` overwrites the matrices; nothing else can be computed from them afterwards.
        """
        matrix = self.matrix
        xp = aac.array_namespace(matrix)
        out = matrix if in_place else xp.empty_like(matrix)

        def inverse(nodes: slice) -> None:
            try:
                out[nodes, ...] = invert(matrix[nodes, ...], -2.0, r[nodes])
            except np.linalg.LinAlgError:
                values, basis = xp.linalg.eigh(matrix[nodes, ...])
                out[nodes, ...] = (basis / (r[nodes][:, None] - 2.0 * values)[:, None, :]) @ transposed(basis)

        run_chunks(inverse, chunks_of(matrix.shape[0], row_bytes(matrix), matrix), matrix)
        if in_place:
            object.__setattr__(self, "matrix", None)
        return out

    def __getitem__(self, nodes: slice) -> Factor:
        return Factor(self.matrix[nodes, ...], self.sizes[nodes], self.scale[nodes])

    def _by_nodes(self, f: Callable[[Factor], Array]) -> Array:
        return by_nodes(lambda nodes: (f(self[nodes]),), self.matrix.shape[0], row_bytes(self.matrix), self.matrix)[0]


def shifted(matrix: Array, by: Array) -> Array:
    """Each matrix of a stack, with its number (B,) added to the diagonal."""
    xp = aac.array_namespace(matrix)
    eye = xp.eye(matrix.shape[-1], dtype=matrix.dtype, device=aac.device(matrix))
    return matrix + by[..., None, None] * eye


def _native(x: Array) -> bool:
    return native.steps is not None and aac.is_numpy_array(x)


def invert(matrices: Array, times: float = 1.0, by: Array | None = None) -> Array:
    """The inverse of `times` A plus `by` (B,) on the diagonal, for each A of a stack of symmetric matrices; LinAlgError if there is none."""
    xp = aac.array_namespace(matrices)
    by = xp.zeros(matrices.shape[:1], dtype=matrices.dtype, device=aac.device(matrices)) if by is None else by
    if _native(matrices):
        out = np.empty(matrices.shape, dtype=matrices.dtype)
        if native.steps.inverses(np.ascontiguousarray(matrices), times, np.ascontiguousarray(by), out):
            return out
    matrices = shifted(times * matrices, by)
    if not aac.is_torch_array(matrices):
        return xp.linalg.inv(matrices)
    factor, info = xp.linalg.cholesky_ex(matrices)  # on a GPU this takes half the time
    if bool(info.any()):
        inverse, info = xp.linalg.inv_ex(matrices)
        if bool(info.any()):
            raise np.linalg.LinAlgError("singular matrix")
        return inverse
    root = inverse_triangle(factor)
    return transposed(root) @ root


def definite(matrices: Array, by: Array) -> bool:
    """Whether all matrices of a stack, each with its number (B,) added to the diagonal, have a Cholesky factor."""
    if _native(matrices):
        return bool(native.steps.definite(np.ascontiguousarray(matrices), np.ascontiguousarray(by)))
    return cholesky(shifted(matrices, by)) is not None


def cholesky(matrices: Array) -> Array | None:
    """The lower Cholesky factors of a matrix, or of each of a stack; None if one does not exist."""
    xp = aac.array_namespace(matrices)
    if aac.is_torch_array(matrices):
        factors, wrong = xp.linalg.cholesky_ex(matrices)
        return None if bool(wrong.any()) else factors
    try:
        factors = xp.linalg.cholesky(matrices)
    except np.linalg.LinAlgError:
        return None
    return factors if bool(xp.all(xp.isfinite(factors))) else None  # CuPy does not raise


def largest(gram: Array) -> Array:
    """The largest eigenvalue of each of a stack of positive semi-definite matrices, by block power iterations.

    The error shrinks by (lam_9 / lam_1)^4 each time, so that it is far below rounding after POWER_STEPS for any
    decaying spectrum. In a flat spectrum every vector gives the largest eigenvalue. If the spectrum decays steeply,
    two products at a time make columns nearly parallel, and fewer columns are enough.
    """
    xp = aac.array_namespace(gram)
    n = gram.shape[-1]
    columns = min(n, POWER_COLUMNS)
    at = np.arange(n)[:, None] * np.arange(1, columns + 1)
    start = xp.asarray(
        np.cos(2.4 * at), dtype=gram.dtype, device=aac.device(gram)
    )  # any directions, but the same in every run
    # scale by the largest diagonal entry, the bound of all entries: products of products would leave the range of float32
    unit = xp.max(xp.linalg.diagonal(gram), axis=-1)
    unit = xp.where(unit > 0, unit, xp.ones_like(unit))
    gram = gram / unit[:, None, None]
    if _native(gram):
        found = np.empty(gram.shape[0], dtype=gram.dtype)
        native.steps.tops(gram, start, POWER_STEPS, _least(gram, columns), found)
        return unit * found
    image = gram @ start
    for _ in range(POWER_STEPS):
        image = gram @ (gram @ _orthonormal(image))
    basis = _orthonormal(image)
    inner = transposed(basis) @ (gram @ basis)
    return unit * xp.clip(xp.linalg.eigvalsh(0.5 * (inner + transposed(inner)))[..., -1], min=0.0)


def _least(x: Array, columns: int) -> float:
    """Eigenvalue threshold of the products of unit columns, below which a direction is rounding."""
    return 10 * eps(x) * columns


def _orthonormal(x: Array) -> Array:
    """Orthonormal columns with the span of x (B, n, c), from their c x c products; zero for missing directions."""
    xp = aac.array_namespace(x)
    size = xp.sqrt(xp.sum(x * x, axis=-2, keepdims=True))
    x = x / xp.where(size > 0, size, xp.ones_like(size))
    values, basis = xp.linalg.eigh(transposed(x) @ x)
    keep = values > _least(x, x.shape[-1])
    root = xp.where(keep, 1.0 / xp.sqrt(xp.where(keep, values, xp.ones_like(values))), xp.zeros_like(values))
    return x @ (basis * root[..., None, :])


def inverse_triangle(lower: Array) -> Array:
    """The inverse of each of a stack of lower triangular matrices."""
    if aac.is_numpy_array(lower):
        inverse = dtrtri if lower.dtype == np.float64 else strtri
        return np.stack([inverse(x.T)[0].T for x in lower])  # LAPACK is column-major, NumPy row-major
    xp = aac.array_namespace(lower)
    eye = xp.eye(lower.shape[-1], dtype=lower.dtype, device=aac.device(lower))
    if aac.is_torch_array(lower):
        return xp.linalg.solve_triangular(lower, xp.broadcast_to(eye, lower.shape), upper=False)
    return xp.linalg.solve(lower, xp.broadcast_to(eye, lower.shape))


def _size(matrices: Array) -> Array:
    """The norm of each of a stack of matrices, an upper bound on the largest eigenvalue."""
    return aac.array_namespace(matrices).linalg.vector_norm(matrices, axis=(-2, -1))


def negatives(whole: Factor, sizes: np.ndarray, scale: Array) -> list[tuple[int, float, float]]:
    """Matrices of a stack with an eigenvalue below rounding: index, that eigenvalue, the largest."""
    allowed = NEGATIVE * whole.top + whole.rounding
    doubtful = []

    def look(nodes: slice) -> None:
        if not definite(whole.matrix[nodes, ...], allowed[nodes]):
            doubtful.append(nodes)

    run_chunks(look, chunks_of(whole.matrix.shape[0], row_bytes(whole.matrix), whole.matrix), whole.matrix)
    if not doubtful:
        return []
    low, high, scales = to_numpy(whole.eigen.lowest), to_numpy(whole.eigen.values[..., -1]), to_numpy(scale)
    found = np.flatnonzero(low < -(NEGATIVE * np.abs(high) + 10 * sizes * eps(whole.matrix) * scales))
    return [(int(i), float(low[i]), float(high[i])) for i in found]


def flip_signs(basis: Array) -> Array:
    """Columns with signs such that the entry of largest magnitude is positive, whatever the eigensolver.

    Of entries of equal magnitude (all, at a node of two samples) the first decides: later ones are weighted slightly less.
    """
    xp = aac.array_namespace(basis)
    later = xp.arange(basis.shape[-2], dtype=basis.dtype, device=aac.device(basis))
    weighed = basis / (1.0 + 1e-6 * later)[:, None]
    return xp.where(-xp.min(weighed, axis=-2, keepdims=True) > xp.max(weighed, axis=-2, keepdims=True), -basis, basis)


def to_numpy(x: Array) -> np.ndarray:
    """A copy on the host."""
    if aac.is_torch_array(x):
        return x.detach().cpu().numpy()
    if aac.is_cupy_array(x):
        return x.get()
    return np.asarray(x)


def add_products(total: Array | None, x: Array) -> Array:
    """total + x'x for x (n, m), in float64 for any x; None: zeros. Only the upper triangle is valid (`symmetric`).
    In NumPy `total` is overwritten."""
    xp = aac.array_namespace(x)
    x = xp.astype(x, xp.float64, copy=False)
    if aac.is_numpy_array(x):
        m = x.shape[1]
        return dsyrk(1.0, x.T, 1.0, np.zeros((m, m), order="F") if total is None else total, overwrite_c=1)
    return transposed(x) @ x if total is None else total + transposed(x) @ x


def times_triangle(x: Array, upper: Array) -> Array:
    """x (n, m) times an upper triangular matrix (m, m): half of a product. In NumPy x is overwritten if possible."""
    if not aac.is_numpy_array(x):
        return x @ upper
    multiply = dtrmm if x.dtype == np.float64 else strmm
    # (x u)' = u'x'; the transpose of a C-ordered array is Fortran-ordered
    return multiply(1.0, upper.T, x.T, lower=1, overwrite_b=1).T


def symmetric(upper: np.ndarray) -> np.ndarray:
    """The symmetric matrix with this upper triangle."""
    return np.triu(upper) + np.triu(upper, 1).T
