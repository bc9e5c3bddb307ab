"""Groups of rows that are near each other, whose means take part in k-means in the place of the rows: microaggregation.

Where others see sums, or totals of them, and rows may not leave their node, a sum over few rows must not be told, and neither must two sums whose
difference is one: clusters move from step to step, and the root, which opens the totals, may tell any centres. So a node divides its rows once
into groups of at least `least`, and all that k-means ever sums are means of such groups. Whatever is subtracted from whatever, no row is left.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.sparse import csr_matrix

from ...arrays import integers, like, on_host, take, to_numpy, where
from ...site import uniform_by_key

if TYPE_CHECKING:
    from .rows import SiteRows

Array = Any

AXES = 16  # along so many of the leading axes rows are compared


@dataclass(frozen=True, eq=False)
class Groups:
    """The number (n,) of the group of each row, and the mean (groups, columns) of all rows of each group."""

    number: Array
    means: Array

    @classmethod
    def of(cls, X: Array, along: Array, least: int) -> Groups:
        """Of rows X (n, columns) with coordinates `along` (n, p). Groups have at least `least` rows, if there are so many."""
        number = divided(on_host(along[:, :AXES]), least)
        count = np.bincount(number)
        member = csr_matrix((1.0 / count[number], (number, np.arange(len(number)))), shape=(len(count), len(number)))
        return cls(integers(X, number), like(X, member @ to_numpy(X)))

    def at(self, places: Array) -> Groups:
        return replace(self, number=take(self.number, places))

    def drawn(self, purpose: str, share: float) -> Array:
        """The places of the rows of groups of which each is drawn with this chance."""
        return where(uniform_by_key(self.number, purpose) < share)


def divided(Y: np.ndarray, least: int) -> np.ndarray:
    """(n,) the group of each row of Y (n, p): all rows are halved along the axis in which they differ most, and so on, while halves have `least`.

    >>> np.bincount(divided(np.random.default_rng(0).normal(size=(43, 3)), 5)).tolist()
    [5, 5, 5, 6, 5, 6, 5, 6]
    """
    number = np.zeros(len(Y), dtype=np.int64)
    while (large := (count := np.bincount(number)) >= 2 * least).any():
        order = np.argsort(number, kind="stable")
        start = np.cumsum(count) - count
        mean = np.add.reduceat(Y[order], start) / count[:, None]
        spread = np.add.reduceat((Y[order] - mean[number[order]]) ** 2, start)
        along = np.take_along_axis(Y, spread.argmax(axis=1)[number][:, None], axis=1)[:, 0]
        order = np.lexsort((along, number))
        rank = np.arange(len(Y)) - start[number[order]]
        upper = large[number[order]] & (rank >= (count // 2)[number[order]])
        number[order] = (np.cumsum(1 + large) - 1 - large)[number[order]] + upper
    return number


def summarized(rows: SiteRows) -> SiteRows:
    """With the mean of its group in the place of each row, where there are groups."""
    return rows if rows.groups is None else replace(rows, X=take(rows.groups.means, rows.groups.number))
