"""What all nodes learn about the columns: their means and variances, hence missing values, scales and gamma. Three rounds at most."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import array_api_compat as aac
import numpy as np

from ...arrays import like, on_host
from ...chunks import row_bytes, summed
from ...data.blocks import Blocks
from ...kernels import Kernel
from ...rounds import Arrays, BadConclusion, Magnitudes, Round, Shapes, Solver
from ...scaling import BadColumn, Scales, filled
from .options import SumsOptions
from .rows import SiteRows

Array = Any

ROUNDED = 1e-3  # relative: more than the rounding of sums in float32
FINEST = 2.0**-40  # of the bound of a sum under masks: more than the rounding of fixed point


@dataclass(frozen=True, eq=False)
class ColumnMeans(Round):
    """The mean of each column over the values that are there."""

    rows: SiteRows
    impute: bool
    kind = "columns"

    def term(self) -> Arrays:
        if isinstance(self.rows.X, Blocks):  # from the first pass over the file
            count, mean, _ = self.rows.X.moments
            _refuse_overflow(mean, self.rows.X, "its sum overflows")
            return {"value": mean * count, "count": count}

        def some(X: Array) -> Array:
            xp = aac.array_namespace(X)
            if not self.impute:
                total = xp.sum(X, axis=0)
                return xp.stack([total, xp.full_like(total, float(X.shape[0]))])
            missing = xp.isnan(X)
            values = xp.where(missing, xp.zeros_like(X), X)
            return xp.stack([xp.sum(values, axis=0), xp.sum(xp.astype(~missing, X.dtype), axis=0)])

        value, count = on_host(_over_rows(self.rows.X, some))
        _refuse_overflow(value, self.rows.X, "its sum overflows")
        return {"value": value, "count": count}

    def bounds(self) -> dict[str, Any]:
        return {"value": self.rows.total * self.rows.largest, "count": self.rows.total}

    def told(self) -> Shapes:
        return {"mean": (self.rows.columns,)}

    def conclude(self, total: Arrays) -> Arrays:
        empty = np.flatnonzero(total["count"] < 0.5)
        if len(empty):
            raise BadColumn(int(empty[0]), "has no value at any node, so missing='mean' has none to put; drop it")
        return {"mean": total["value"] / total["count"]}

    def check(self, told: Arrays) -> None:
        _refuse_overflow(told["mean"], self.rows.X, "its sum overflows")


@dataclass(frozen=True, eq=False)
class Variances(Round):
    """The variance of each column: the mean of squared differences from its mean."""

    rows: SiteRows
    mean: np.ndarray
    kind = "columns"

    @cached_property
    def squares(self) -> np.ndarray:
        """The sum of squared differences over the rows of this process."""
        X = self.rows.X
        if isinstance(X, Blocks):
            count, own, squares = X.moments
            squares = squares + count * (own - self.mean) ** 2
        else:
            mean, xp = like(X, self.mean), aac.array_namespace(X)
            squares = on_host(_over_rows(X, lambda some: xp.sum((some - mean) ** 2, axis=0)))
        _refuse_overflow(squares, X, "its squares overflow")
        return squares

    def term(self) -> Arrays:
        return {"squares": self.squares}

    def bounds(self) -> dict[str, Any]:
        return {"squares": 4.0 * self.rows.total * self.rows.largest**2}

    def told(self) -> Shapes:
        return {"variance": (self.rows.columns,)}

    def conclude(self, total: Arrays) -> Arrays:
        return {"variance": total["squares"] / self.rows.total}

    def check(self, told: Arrays) -> None:
        """Refuse a variance smaller than the rows of this process alone make it. With it a root that lies would choose gamma so large that every row
        is far from all others, and alone in sums."""
        _refuse_overflow(told["variance"], self.rows.X, "its squares overflow")
        finest = FINEST * self.bounds()["squares"] if np.isfinite(self.rows.largest) else 0.0
        if (told["variance"] * self.rows.total < (1.0 - ROUNDED) * self.squares - finest).any():
            raise BadConclusion(
                "the root tells a variance that is smaller than the rows of this node alone allow; start all anew"
            )


@dataclass(frozen=True, eq=False)
class PreparedRows:
    """Rows without missing values and, if asked, with standardized columns; what that took, and gamma."""

    rows: SiteRows
    mean: np.ndarray | None  # of the prepared rows, if it was needed
    fill: Array | None
    scales: Scales | None
    kernel: Kernel


def prepare_rows(rows: SiteRows, options: SumsOptions) -> Solver:
    """The rounds that come first; returns `PreparedRows`."""
    if options.sealed:
        largest = (yield Magnitudes({"entries": on_host(rows.X)}, rows.nodes))["entries"]
        rows = replace(rows, largest=float(largest[0]))
    kernel, mean, fill, scales = options.kernel, None, None, None
    if options.impute or options.standardize or options.gamma_by_variance:
        mean = (yield ColumnMeans(rows, options.impute))["mean"]
    if options.impute:
        fill = like(rows.like, mean)
        rows = replace(rows, X=_mapped(rows.X, lambda X: filled(X, fill)))
    if mean is not None and (options.standardize or options.gamma_by_variance):
        variance = (yield Variances(rows, mean))["variance"]
        if options.standardize:
            scales = Scales.of(like(rows.like, mean), like(rows.like, variance))
            largest = float(rows.total) ** 0.5  # whatever the rows are
            rows = replace(rows, X=_mapped(rows.X, scales.standardized), largest=largest)
            mean, variance = np.zeros_like(mean), variance / on_host(scales.scale) ** 2
        if options.gamma_by_variance:
            kernel = replace(kernel, gamma=kernel.scaled(rows.columns, float(variance.mean() + mean.var())))
    return PreparedRows(rows, mean, fill, scales, kernel)


def _mapped(X: Array, f: Callable[[Array], Array]) -> Array:
    return X.mapped(f) if isinstance(X, Blocks) else f(X)


def _over_rows(X: Array, f: Callable[[Array], Array]) -> Array:
    """The sum of f(some rows) over all rows."""
    return summed(lambda rows: (f(X[rows, :]),), X.shape[0], X, bytes_a_row=row_bytes(X))[0]


def _refuse_overflow(numbers: np.ndarray, X: Array, why: str) -> None:
    bad = np.flatnonzero(~np.isfinite(numbers))
    if len(bad):
        wider = "" if str(X.dtype).endswith("float64") else ", or use dtype='float64'"
        raise BadColumn(int(bad[0]), f"is too large: {why} {X.dtype}; scale it down{wider}")
