"""Distance of a node from convergence: residuals in the norm of the functions, on the leading columns."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import array_api_compat as aac

from .consensus import Functions

Array = Any

VERDICTS = ("", "converged", "interrupted", "diverged")  # of a check; a run that ends with "" reached max_iter
GO_ON, CONVERGED, INTERRUPTED, DIVERGED = range(4)

# By bits of the dtype. Functions have about unit norm; norms below this count as zero and converged.
NEGLIGIBLE = {64: 1e-12, 32: 1e-6}


@dataclass(frozen=True, eq=False)
class Progress:
    """One number for each node of the block, (B,)."""

    residual: Array  # |w_j - P_j z_q| / |w_j|, root mean square over the neighborhood, of the worst leading column
    change: Array  # the same for the change of w_j since the last iteration
    since_check: Array  # and since the last check
    objective: Array  # |values of w_j on X_j|^2, summed over the leading columns
    lagrangian: Array | None = None

    def numbers(self) -> tuple[Array, ...]:
        """The measured numbers, in order."""
        return tuple(x for x in (getattr(self, f.name) for f in fields(self)) if x is not None)


def measure(
    new: Functions,
    values: Array,
    gaps: Array,
    before: Functions,
    at_check: Functions,
    leading: Array,
    constraints: Array | None = None,
) -> Progress:
    """Compare the new w with its neighbors' z and with earlier w.

    `values` (B, n, k) are those of w on the own samples. `gaps` (B, k, k) are the inner products of the columns of w - P_j z_q, averaged
    over the neighborhood. `leading` (k, kept) maps columns to the leading components. `constraints` (B,), with
    diagnostics only, is the term of the multipliers in the node's part of the augmented Lagrangian.
    """
    xp = aac.array_namespace(gaps)
    length = xp.clip(_norms(new.squares(), leading), min=NEGLIGIBLE[xp.finfo(new.w.dtype).bits])
    components = values @ leading
    return Progress(
        residual=xp.max(_norms(gaps, leading) / length, axis=1),
        change=xp.max(_norms((new - before).squares(), leading) / length, axis=1),
        since_check=xp.max(_norms((new - at_check).squares(), leading) / length, axis=1),
        objective=xp.sum(components * components, axis=(1, 2)),
        lagrangian=None if constraints is None else constraints - xp.sum(values * values, axis=(1, 2)),
    )


def unfinished(progress: Progress, tol: float) -> Array:
    """(B,) bool: nodes that disagree with their neighbors, or still change, by more than tol.

    Squares are compared: functions with a relative difference e have correlation 1 - e^2 / 2, so tol is the error of a correlation.
    """
    return ~((progress.residual**2 <= tol) & (progress.since_check**2 <= tol))  # NaN is not finished


def _norms(squares: Array, leading: Array) -> Array:
    """(B, kept): norms of the leading components, from the inner products (B, k, k) of the columns."""
    xp = aac.array_namespace(squares)
    return xp.sqrt(xp.clip(xp.sum(leading * (squares @ leading), axis=-2), min=0.0))
