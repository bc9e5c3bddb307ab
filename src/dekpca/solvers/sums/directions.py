"""The linear principal components of all rows, as axes for k-means: distances along 50 of them are as good as in all columns, and cheaper."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import array_api_compat as aac
import numpy as np

from ...arrays import like, on_host, transposed
from ...chunks import by_rows, row_bytes, summed
from ...draws import normal, shared_seed
from ...rounds import Arrays, Round, Shapes, Solver
from .columns import ColumnMeans
from .rows import SiteRows, noise

Array = Any

MOST = 50
AXES = "axes"  # the purpose of the random numbers that choose these rows
SAMPLE = 2048  # rows
EXTRA = 10  # columns of the power iteration beyond MOST


@dataclass(frozen=True, eq=False)
class Axes:
    """The mean (M,) of the rows, orthonormal axes (M, p) and the spread (p,) of the rows along each."""

    mean: np.ndarray
    axes: np.ndarray
    spread: np.ndarray

    def along(self, X: Array) -> Array:
        """Coordinates (n, p) of rows."""
        mean, axes = like(X, self.mean), like(X, self.axes)
        return by_rows(lambda rows: (X[rows, :] - mean) @ axes, X.shape[0], row_bytes(X), X)


@dataclass(frozen=True, eq=False)
class Image(Round):
    """The covariance of the rows times a basis (M, p): a step of block power iteration, or with a square basis all of the covariance."""

    rows: SiteRows
    mean: np.ndarray
    basis: np.ndarray
    kind = "axes"

    def term(self) -> Arrays:
        X, apart = self.rows.X, self.rows.least > 1
        xp = aac.array_namespace(X)

        def part(rows: slice) -> tuple[Array, ...]:
            some = xp.astype(X[rows, :], xp.float64, copy=False) if apart else X[rows, :]
            centred, basis = some - like(some, self.mean), like(some, self.basis)
            along = centred @ basis
            if apart:
                along = along + noise(along, some, self.mean, self.basis)
            return (xp.astype(transposed(centred) @ along, xp.float64, copy=False),)

        return {"image": on_host(summed(part, X.shape[0], X)[0])}

    def bounds(self) -> dict[str, Any]:
        # |x - mean|^2 <= columns (2 largest)^2, and a column of the basis has unit length
        return {"image": 4.0 * self.rows.columns * self.rows.total * self.rows.largest**2}

    def told(self) -> Shapes:
        return {"axes": self.basis.shape, "spread": (self.basis.shape[1],)}

    def conclude(self, total: Arrays) -> Arrays:
        axes, values, _ = np.linalg.svd(total["image"] / self.rows.total, full_matrices=False)
        return {"axes": axes, "spread": np.sqrt(values)}


def find_axes(rows: SiteRows, mean: np.ndarray | None, seed: int) -> Solver:
    """The leading axes of a random sample of the rows, and their mean unless it is known; returns `Axes`."""
    some = rows.sampled(SAMPLE, AXES)
    if mean is None:
        mean = (yield ColumnMeans(some, False))["mean"]
    width = rows.columns
    if width <= MOST + EXTRA:
        told = yield Image(some, mean, np.eye(width))
    else:
        start = np.linalg.qr(normal((width, MOST + EXTRA), shared_seed(seed, "axes")))[0]
        told = yield Image(some, mean, start)
        told = yield Image(some, mean, told["axes"])
    return Axes(mean, told["axes"][:, :MOST], told["spread"][:MOST])
