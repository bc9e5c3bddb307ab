"""What the array API standard lacks, for NumPy, PyTorch, CuPy and others; and small linear algebra."""

from __future__ import annotations

import math
from typing import Any

import array_api_compat as aac
import numpy as np
from scipy.linalg.blas import dsyrk, dtrmm, strmm
from scipy.linalg.lapack import dtrtri, strtri

Array = Any

CUTOFF = 1e-8  # relative; below it an inverse amplifies rounding
NEGATIVE = 1e-6  # relative; an eigenvalue below minus this cannot be rounding: the kernel is not positive semi-definite


def transposed(x: Array) -> Array:
    return aac.array_namespace(x).matrix_transpose(x)


def eps(x: Array) -> float:
    return float(aac.array_namespace(x).finfo(x.dtype).eps)


def to_numpy(x: Array) -> np.ndarray:
    """A copy on the host."""
    if aac.is_torch_array(x):
        return x.detach().cpu().numpy()
    if aac.is_cupy_array(x):
        return x.get()
    return np.asarray(x)


def on_host(x: Array) -> np.ndarray:
    """As float64 in NumPy."""
    return to_numpy(x).astype(np.float64, copy=False)


def all_on_host(arrays: dict[str, Array]) -> dict[str, np.ndarray]:
    """Arrays of one device as float64 in NumPy: one copy, hence one synchronization, for all of them."""
    theirs = {name: x for name, x in arrays.items() if not isinstance(x, np.ndarray)}
    if not theirs:
        return arrays
    xp = aac.array_namespace(*theirs.values())
    flat = on_host(xp.concat([xp.reshape(xp.astype(x, xp.float64), (-1,)) for x in theirs.values()]))
    parts = np.split(flat, np.cumsum([math.prod(x.shape) for x in theirs.values()])[:-1])
    return arrays | {name: part.reshape(theirs[name].shape) for name, part in zip(theirs, parts, strict=True)}


def like(x: Array, values: Any) -> Array:
    """Host numbers in the library, on the device and in the dtype of x."""
    if isinstance(values, np.ndarray) and not aac.is_numpy_array(x):
        bits = aac.array_namespace(x).finfo(x.dtype).bits
        values = values.astype(f"f{bits // 8}", order="C")  # PyTorch would wake all its threads for that
    return _placed(x, values, x.dtype)


def is_on_host(x: Array) -> bool:
    """Whether x is in the memory of the host, whatever its library."""
    return aac.is_numpy_array(x) or "cpu" in str(aac.device(x)).lower()


def integers(x: Array, values: Any) -> Array:
    """Numbers as int64, in the library and on the device of x."""
    if isinstance(values, np.ndarray) and not aac.is_numpy_array(x):
        values = values.astype(np.int64, order="C")
    return _placed(x, values, aac.array_namespace(x).int64)


def _placed(x: Array, values: Any, dtype: Any) -> Array:
    if aac.is_torch_array(x) and x.is_cuda and isinstance(values, np.ndarray):
        from torch import from_numpy

        # CUDA takes ordinary memory at once: the copy does not wait until the device has done all that it was asked before.
        return from_numpy(values).to(device=x.device, dtype=dtype, non_blocking=True)
    return aac.array_namespace(x).asarray(values, dtype=dtype, device=aac.device(x))


def numbers(x: Array, count: int) -> Array:
    """0, 1, ... (count,) as int64, in the library and on the device of x."""
    xp = aac.array_namespace(x)
    return xp.arange(count, dtype=xp.int64, device=aac.device(x))


def squares_of_rows(x: Array) -> Array:
    """(n,) the squared length of each row of x (n, m)."""
    if not aac.is_torch_array(x):
        return aac.array_namespace(x).vecdot(x, x)
    from torch.linalg import vector_norm

    # reads x once; PyTorch's vecdot is a product of matrices, and five times as slow
    return vector_norm(x, dim=1) ** 2


def take(x: Array, index: Array, axis: int = 0) -> Array:
    """x[index] along an axis, `index` being numbers of the host or of x's device."""
    return aac.array_namespace(x).take(x, integers(x, index), axis=axis)


def inverse(order: Array) -> Array:
    """The inverse of a permutation (n,)."""
    if not aac.is_numpy_array(order):
        return aac.array_namespace(order).argsort(order)
    found = np.empty_like(order)
    found[order] = np.arange(len(order))
    return found


def where(mask: Array) -> Array:
    """The places (n,) at which a mask is true."""
    return aac.array_namespace(mask).nonzero(mask)[0]


def flip_signs(basis: Array) -> Array:
    """Columns with signs such that the entry of largest magnitude is positive, whatever the eigensolver.

    Of entries of equal magnitude (all, at a node of two samples) the first decides: later ones are weighted slightly less.
    """
    xp = aac.array_namespace(basis)
    later = xp.arange(basis.shape[-2], dtype=basis.dtype, device=aac.device(basis))
    weighed = basis / (1.0 + 1e-6 * later)[:, None]
    return xp.where(-xp.min(weighed, axis=-2, keepdims=True) > xp.max(weighed, axis=-2, keepdims=True), -basis, basis)


def cholesky(matrix: Array) -> Array | None:
    """The lower Cholesky factor; None if it does not exist."""
    xp = aac.array_namespace(matrix)
    if aac.is_torch_array(matrix):
        factor, wrong = xp.linalg.cholesky_ex(matrix)
        return None if bool(wrong.any()) else factor
    try:
        factor = xp.linalg.cholesky(matrix)
    except np.linalg.LinAlgError:
        return None
    return factor if bool(xp.all(xp.isfinite(factor))) else None  # CuPy does not raise


def inverse_triangle(lower: Array) -> Array:
    """The inverse of a lower triangular matrix."""
    if aac.is_numpy_array(lower):
        inverse = dtrtri if lower.dtype == np.float64 else strtri
        return inverse(lower.T)[0].T  # LAPACK is column-major, NumPy row-major
    xp = aac.array_namespace(lower)
    eye = xp.eye(lower.shape[-1], dtype=lower.dtype, device=aac.device(lower))
    if aac.is_torch_array(lower):
        return xp.linalg.solve_triangular(lower, eye, upper=False)
    return xp.linalg.solve(lower, eye)


def rounded(x: np.ndarray) -> np.ndarray:
    """The rows of x (n, r) in float64, rounded to so few bits that float64 adds up products of two such rows without rounding, in whatever order.

    So a product with the transpose of such a matrix has the same bits for a row wherever the row stands, whichever rows are beside it, and whatever
    the BLAS. (n, 784) keeps 21 bits of the largest entry of each row.

    Examples
    --------
    >>> x = rounded(np.random.default_rng(0).normal(size=(100, 784)))
    >>> bool((x @ x.T == (x[:, ::-1] @ x[:, ::-1].T)).all())
    True
    """
    x = np.ascontiguousarray(x, dtype=np.float64)
    bits = (np.finfo(np.float64).nmant + 1 - int(x.shape[1] - 1).bit_length()) // 2
    largest = np.frexp(np.abs(x).max(axis=1, initial=2.0**-400, keepdims=True))[1]  # below it products would underflow
    unit = np.ldexp(1.0, largest - bits)
    return np.rint(x / unit) * unit


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


def upper_triangle(x: Array) -> Array:
    """The upper triangles (., q (q + 1) / 2) of matrices (., q, q), row by row."""
    *more, q, _ = x.shape
    rows, columns = np.triu_indices(q)
    xp = aac.array_namespace(x)
    return xp.take(xp.reshape(x, (*more, q * q)), integers(x, q * rows + columns), axis=-1)


def symmetric(upper: np.ndarray) -> np.ndarray:
    """The symmetric matrix with this upper triangle."""
    return np.triu(upper) + np.triu(upper, 1).T


def double_centered(x: np.ndarray) -> np.ndarray:
    """A matrix minus the means of its columns and of its rows."""
    x = x - x.mean(axis=0)
    return x - x.mean(axis=1, keepdims=True)
