"""What all nodes learn about the columns: their means and variances, hence missing values, scales and gamma. Three rounds at most."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import array_api_compat as aac
import numpy as np

from ...arrays import like, on_host, to_numpy
from ...chunks import chunks_of, row_bytes, summed
from ...kernels import Kernel
from ...rounds import Arrays, Round, Shapes, Sizes, Solver
from ...scaling import BadColumn, Columns, filled
from .rows import Rows

Array = Any


@dataclass(frozen=True, eq=False)
class Means(Round):
    """The mean of each column over the values that are there."""

    rows: Rows
    impute: bool
    kind = "columns"

    def term(self) -> Arrays:
        def some(X: Array) -> Array:
            xp = aac.array_namespace(X)
            if not self.impute:
                total = xp.sum(X, axis=0)
                return xp.stack([total, xp.full_like(total, float(X.shape[0]))])
            missing = xp.isnan(X)
            values = xp.where(missing, xp.zeros_like(X), X)
            return xp.stack([xp.sum(values, axis=0), xp.sum(xp.astype(~missing, X.dtype), axis=0)])

        value, count = on_host(_over_rows(self.rows.X, some))
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

    rows: Rows
    mean: np.ndarray
    kind = "columns"

    def term(self) -> Arrays:
        mean = like(self.rows.X, self.mean)
        return {
            "squares": on_host(_over_rows(self.rows.X, lambda X: aac.array_namespace(X).sum((X - mean) ** 2, axis=0)))
        }

    def bounds(self) -> dict[str, Any]:
        return {"squares": 4.0 * self.rows.total * self.rows.largest**2}

    def told(self) -> Shapes:
        return {"variance": (self.rows.columns,)}

    def conclude(self, total: Arrays) -> Arrays:
        return {"variance": total["squares"] / self.rows.total}

    def check(self, told: Arrays) -> None:
        _refuse_overflow(told["variance"], self.rows.X, "its squares overflow")


@dataclass(frozen=True, eq=False)
class Prepared:
    """Rows without missing values and, if asked, with standardized columns; what that took, and gamma."""

    rows: Rows
    mean: np.ndarray | None  # of the prepared rows, if it was needed
    fill: Array | None
    columns: Columns | None
    kernel: Kernel
    size: float = 1.0  # k(x, x), at most, if sums are under masks; infinity where no useful bound is known


def prepared(
    rows: Rows, kernel: Kernel, impute: bool, standardize: bool, gamma_by_variance: bool, sealed: bool
) -> Solver:
    """The rounds that come first; returns `Prepared`."""
    if sealed:
        largest = (yield Sizes({"entries": on_host(rows.X)}, rows.nodes))["entries"]
        rows = replace(rows, largest=float(largest[0]))
    mean, fill, columns = None, None, None
    if impute or standardize or gamma_by_variance:
        mean = (yield Means(rows, impute))["mean"]
    if impute and mean is not None:
        fill = like(rows.X, mean)
        rows = replace(rows, X=filled(rows.X, fill))
    if mean is not None and (standardize or gamma_by_variance):
        variance = (yield Variances(rows, mean))["variance"]
        if standardize:
            columns = Columns.of(like(rows.X, mean), like(rows.X, variance))
            scale = to_numpy(columns.scale).astype(np.float64)
            rows = replace(
                rows, X=columns.standardized(rows.X), largest=float(rows.total) ** 0.5
            )  # at most, whatever the rows are
            mean, variance = np.zeros_like(mean), variance / scale**2
        if gamma_by_variance:
            kernel = replace(kernel, gamma=kernel.scaled(rows.columns, float(variance.mean() + mean.var())))
    # what rows of a bounded size could reach is far above what they do: sums would lose their digits
    size = 1.0 if not sealed or kernel.is_normal or kernel.normalize else np.inf
    return Prepared(rows, mean, fill, columns, kernel, size)


def _over_rows(X: Array, f: Callable[[Array], Array]) -> Array:
    """The sum of f(some rows) over all rows, in chunks."""

    def part(rows: slice) -> tuple[Array]:
        total = None
        for chunk in chunks_of(rows.stop - rows.start, 4 * row_bytes(X), X):
            found = f(X[rows.start + chunk.start : rows.start + chunk.stop, :])
            total = found if total is None else total + found
        return (total,)

    return summed(part, X.shape[0], X)[0]


def _refuse_overflow(numbers: np.ndarray, X: Array, why: str) -> None:
    bad = np.flatnonzero(~np.isfinite(numbers))
    if len(bad):
        raise BadColumn(int(bad[0]), f"is too large: {why} {X.dtype}; scale it down, or use dtype='float64'")
