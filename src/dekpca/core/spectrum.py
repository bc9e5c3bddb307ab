"""Spectra of small symmetric matrices in stacks: factors, pseudo-inverses, what counts as zero.

The one module of core that may dispatch to a library for what the array API standard lacks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import array_api_compat as aac
import numpy as np

Array = Any

CUTOFF = 1e-8  # relative; below it an inverse amplifies rounding
NEGATIVE = 1e-6  # relative; an eigenvalue below minus this is no rounding: the kernel is not positive semi-definite


def transposed(x: Array) -> Array:
    return aac.array_namespace(x).matrix_transpose(x)


def eps(x: Array) -> float:
    return float(aac.array_namespace(x).finfo(x.dtype).eps)


def sane(x: Array) -> Array:
    """Elementwise: a number whose square is one too. An iteration that diverged soon has others."""
    xp = aac.array_namespace(x)
    return xp.abs(x) < float(xp.finfo(x.dtype).max) ** 0.5


@dataclass(frozen=True)
class Factor:
    """V diag(values) V' of a stack of positive semi-definite matrices; `inverse` is 1 / values, 0 for what was dropped."""

    basis: Array
    values: Array
    inverse: Array
    lowest: Array  # the smallest eigenvalue as it came, to judge whether the matrix was positive semi-definite

    @property
    def top(self) -> Array:
        """The largest eigenvalue of each."""
        return self.values[..., -1]

    def solve(self, x: Array) -> Array:
        """The pseudo-inverse times x."""
        return self.basis @ (self.inverse[..., None] * (transposed(self.basis) @ x))

    def solve_shifted(self, r: Array, x: Array) -> Array:
        """(r - 2 A)^-1 x, `r` one number for each matrix."""
        return self.basis @ ((transposed(self.basis) @ x) / (r[..., None] - 2.0 * self.values)[..., None])


def factor(gram: Array, sizes: Array, scale: Array) -> Factor:
    """Eigendecompose a stack of Gram matrices (B, n, n).

    `sizes` (B,) are the real rows of each (the others are zero padding), `scale` (B,) the largest k(x, x), uncentred:
    what is below 10 n eps of it is rounding even where the centred matrix is tiny.
    """
    xp = aac.array_namespace(gram)
    values, basis = xp.linalg.eigh(gram)
    return Factor(basis, xp.clip(values, min=0.0), _inverse(values, sizes, scale), values[..., 0])


def _inverse(values: Array, sizes: Array, scale: Array) -> Array:
    xp = aac.array_namespace(values)
    floor = xp.maximum(CUTOFF * values[..., -1], 10.0 * eps(values) * sizes * scale)[..., None]
    keep = values > floor
    return xp.where(keep, 1.0 / xp.where(keep, values, xp.ones_like(values)), xp.zeros_like(values))


def inverse_root(whole: Factor) -> Array:
    """The symmetric A^-1/2, tiny eigenvalues dropped."""
    xp = aac.array_namespace(whole.basis)
    return (whole.basis * xp.sqrt(whole.inverse)[..., None, :]) @ transposed(whole.basis)


def negatives(whole: Factor, sizes: np.ndarray, scale: Array) -> list[tuple[int, float, float]]:
    """Matrices of a stack with an eigenvalue that no rounding explains: place, that eigenvalue, the largest."""
    low, high, scales = to_numpy(whole.lowest), to_numpy(whole.top), to_numpy(scale)
    found = np.flatnonzero(low < -(NEGATIVE * np.abs(high) + 10 * sizes * eps(whole.lowest) * scales))
    return [(int(i), float(low[i]), float(high[i])) for i in found]


def flip_signs(basis: Array) -> Array:
    """Columns with the entry of largest size positive, so that the sign does not depend on the eigensolver.

    Of entries of equal size (a node of two samples has only such) the first decides: later ones count a little less.
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
