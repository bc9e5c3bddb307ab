"""Rayleigh-Ritz: separating and ordering the columns, and how large the eigenvalues are."""

from __future__ import annotations

from typing import Any

import array_api_compat as aac

from .spectrum import flip_signs

Array = Any


def rotation(moments: Array) -> Array:
    """The orthogonal R (k, k) that turns the columns into components, largest first.

    `moments` (k, k) is the sum over all nodes of g_j' g_j, g_j the values of w_j on X_j.
    """
    xp = aac.array_namespace(moments)
    _, basis = xp.linalg.eigh(0.5 * (moments + xp.matrix_transpose(moments)))
    return flip_signs(xp.flip(basis, axis=-1))


def eigenvalues(size: Array, shared: Array, own: Array, near: Array, near_pairs: float, far_pairs: float) -> Array:
    """Rayleigh quotients g'Kg / g'g over all the data, of which each node saw a part.

    With g the component's values on all samples, K = psi psi' + rest: the landmark part |sum_j psi_j' g_j|^2 is known exactly, and so is
    the rest within nodes (`own`) and between neighbors (`near`, from `near_pairs` pairs of samples). The rest between nodes that do
    not talk (`far_pairs`) is taken to be, a pair, what it is between those that do. All sums are (k,), `shared` (m, k).

    The quotient is of second order in the error of g, and does not depend on its scale: the Ritz values g'g alone are too large by
    what lies between the neighborhoods, and the landmarks' own eigenvalues too small by what they cannot express.
    """
    xp = aac.array_namespace(size)
    far = near * (far_pairs / near_pairs) if near_pairs else xp.zeros_like(near)
    quotient = xp.sum(shared * shared, axis=0) + own + near + far
    safe = xp.where(size > 0, size, xp.ones_like(size))
    return xp.clip(xp.where(size > 0, quotient / safe, xp.zeros_like(size)), min=0.0)
