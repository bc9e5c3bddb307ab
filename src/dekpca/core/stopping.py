"""How far a node is from being done: residuals in the norm of the functions, on the leading columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import array_api_compat as aac

from .consensus import OwnSpace
from .spectrum import transposed

Array = Any

TINY = 1e-300  # keeps 0 / 0 of a node that expresses nothing at 0


@dataclass(frozen=True, eq=False)
class Progress:
    """One number for each node of the block, (B,)."""

    residual: Array  # |w_j - P_j z_q| / |w_j|, root mean square over the neighborhood, of the worst leading column
    change: Array  # the same for the change of w_j since the last iteration
    since_check: Array  # and since the last check
    objective: Array  # |values of w_j on X_j|^2, summed over the leading columns
    lagrangian: Array | None = None


def measure(
    own: OwnSpace, w: Array, seen: Array, views: Array, before: Array, at_check: Array, rotation: Array, dual: Array | None, rho: Array
) -> Progress:
    """Compare the new w with what the neighbors think of it and with earlier ones; `rotation` (k, kept) selects the leading columns.

    Only with diagnostics is `dual` (before this iteration's dual step) given; then the node's part of the augmented Lagrangian is computed.
    """
    xp = aac.array_namespace(w)
    gw = own.dual_vector(w)
    length = _lengths(w, gw, rotation)
    gap, g_gap = w[:, None, ...] - seen, gw[:, None, ...] - views
    between = transposed(gap) @ g_gap  # (B, d, k, k)
    residual = xp.max(_column_norms(xp.mean(between, axis=1), rotation) / length, axis=1)
    values = own.values(w) @ rotation
    lagrangian = None
    if dual is not None:
        everything = own.values(w)
        penalty = 0.5 * rho[..., 0, 0] * xp.linalg.trace(between)
        pull = xp.sum(dual * g_gap, axis=(-2, -1))
        lagrangian = xp.sum(penalty + pull, axis=1) - xp.sum(everything * everything, axis=(1, 2))
    return Progress(
        residual=residual,
        change=_relative_change(own, w, before, rotation, length),
        since_check=_relative_change(own, w, at_check, rotation, length),
        objective=xp.sum(values * values, axis=(1, 2)),
        lagrangian=lagrangian,
    )


def unfinished(progress: Progress, tol: float) -> Array:
    """(B,) bool: nodes that disagree with their neighbors, or still move, by more than tol.

    Squares are compared: functions that differ by e, relative to their size, correlate to 1 - e^2 / 2, so tol speaks of digits of correlations.
    """
    return (progress.residual**2 > tol) | (progress.since_check**2 > tol)


def _relative_change(own: OwnSpace, w: Array, before: Array, rotation: Array, length: Array) -> Array:
    xp = aac.array_namespace(w)
    step = w - before
    return xp.max(_lengths(step, own.dual_vector(step), rotation) / length, axis=1)


def _lengths(w: Array, gw: Array, rotation: Array) -> Array:
    """Norms of the leading columns, (B, kept)."""
    xp = aac.array_namespace(w)
    return xp.clip(_column_norms(transposed(w) @ gw, rotation), min=TINY if w.dtype == xp.float64 else 1e-30)


def _column_norms(square: Array, rotation: Array) -> Array:
    """sqrt of the diagonal of R' square R."""
    xp = aac.array_namespace(square)
    return xp.sqrt(xp.clip(xp.sum(rotation * (square @ rotation), axis=-2), min=0.0))
