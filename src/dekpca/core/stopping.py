"""How far a node is from being done: residuals in the norm of the functions, on the leading columns."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import array_api_compat as aac

from .consensus import OwnSpace
from .spectrum import transposed

Array = Any

VERDICTS = ("", "converged", "interrupted", "diverged")  # of a check; a run that ends without one came to max_iter
GO_ON, CONVERGED, INTERRUPTED, DIVERGED = range(4)

NOTHING = {
    64: 1e-12,
    32: 1e-6,
}  # by bits of the dtype: functions are of about unit size; what is smaller than this is no function, and done


@dataclass(frozen=True, eq=False)
class Progress:
    """One number for each node of the block, (B,)."""

    residual: Array  # |w_j - P_j z_q| / |w_j|, root mean square over the neighborhood, of the worst leading column
    change: Array  # the same for the change of w_j since the last iteration
    since_check: Array  # and since the last check
    objective: Array  # |values of w_j on X_j|^2, summed over the leading columns
    lagrangian: Array | None = None

    def numbers(self) -> tuple[Array, ...]:
        """Those that were measured, in order."""
        return tuple(x for x in (getattr(self, f.name) for f in fields(self)) if x is not None)


@dataclass(frozen=True, eq=False)
class Measured:
    """A w with the metric applied and its values on the own samples: what comparing functions needs."""

    w: Array
    gw: Array
    values: Array  # None of an earlier w, if nobody will ask (fused.py)

    @classmethod
    def of(cls, own: OwnSpace, w: Array) -> Measured:
        gw = own.dual_vector(w)
        values = own.psi @ gw[:, : own.m, :] + gw[:, own.m :, :] if own.reach is None else own.values(w)
        return cls(w, gw, values)

    def __getitem__(self, nodes: slice) -> Measured:
        """That of some nodes."""
        return Measured(self.w[nodes, ...], self.gw[nodes, ...], self.values[nodes, ...])


def measure(
    new: Measured, between: Array, before: Measured, at_check: Measured, rotation: Array, pull: Array | None
) -> Progress:
    """Compare the new w with what the neighbors think of it and with earlier ones.

    `between` (B, k, k) are the inner products of the columns of w - P_j z_q, averaged over the neighborhood. `rotation` (k, kept) selects
    the leading columns. `pull` (B,), with diagnostics only, is what the multipliers add to the node's part of the augmented Lagrangian.
    """
    xp = aac.array_namespace(between)
    length = xp.clip(_norms(new.w, new.gw, rotation), min=NOTHING[xp.finfo(new.w.dtype).bits])
    leading = new.values @ rotation
    return Progress(
        residual=xp.max(_column_norms(between, rotation) / length, axis=1),
        change=xp.max(_norms(new.w - before.w, new.gw - before.gw, rotation) / length, axis=1),
        since_check=xp.max(_norms(new.w - at_check.w, new.gw - at_check.gw, rotation) / length, axis=1),
        objective=xp.sum(leading * leading, axis=(1, 2)),
        lagrangian=None if pull is None else pull - xp.sum(new.values * new.values, axis=(1, 2)),
    )


def unfinished(progress: Progress, tol: float) -> Array:
    """(B,) bool: nodes that disagree with their neighbors, or still move, by more than tol.

    Squares are compared: functions that differ by e, relative to their size, correlate to 1 - e^2 / 2, so tol speaks of
    digits of correlations.
    """
    return ~((progress.residual**2 <= tol) & (progress.since_check**2 <= tol))  # NaN is not finished


def _norms(w: Array, gw: Array, rotation: Array) -> Array:
    """Norms of the leading columns, (B, kept)."""
    return _column_norms(transposed(w) @ gw, rotation)


def _column_norms(square: Array, rotation: Array) -> Array:
    """sqrt of the diagonal of R' square R."""
    xp = aac.array_namespace(square)
    return xp.sqrt(xp.clip(xp.sum(rotation * (square @ rotation), axis=-2), min=0.0))
