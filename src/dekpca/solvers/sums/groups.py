"""Groups of rows that are near each other, whose means take part in k-means in the place of the rows: microaggregation.

Where others see sums, or totals of them, and rows may not leave their node, a sum over few rows must not be told, and neither must two sums whose
difference is one: clusters move from step to step, and the root, which opens the totals, may tell any centres and any landmarks. So a node divides
its rows into groups of at least `least`, by nothing but these rows: the same rows make the same groups in every run, whatever is told. What k-means
sums depends on the sizes and the means of groups alone. Whatever is subtracted from whatever, no row is left.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.sparse import csr_matrix

from ...arrays import integers, like, on_host, take, to_numpy, where
from ...kernels import normal
from ...site import uniform_by_key

if TYPE_CHECKING:
    from .rows import SiteRows

Array = Any

AXES = 16  # along so many of the node's own leading axes rows are compared
BLOCK = 8192  # rows


@dataclass(frozen=True, eq=False)
class Groups:
    """The number (n,) of the group of each row; and a key (groups,) and the mean (groups, columns) of all rows of each group."""

    number: Array
    keys: Array
    means: Array

    @classmethod
    def of(cls, rows: SiteRows, scaled: bool) -> Groups:
        """`scaled`: columns were standardized, by numbers that were told; here every column gets the same spread at this node. Groups have at least
        `rows.least` rows, if there are so many."""
        number = divided(own_axes(rows.X, scaled), rows.least)
        count, first = np.bincount(number), np.unique(number, return_index=True)[1]
        member = csr_matrix((1.0 / count[number], (number, np.arange(len(number)))), shape=(len(count), len(number)))
        return cls(integers(rows.X, number), take(rows.keys, first), like(rows.X, member @ to_numpy(rows.X)))

    def at(self, places: Array) -> Groups:
        return replace(self, number=take(self.number, places))

    def drawn(self, purpose: str, share: float) -> Array:
        """The places of the rows of groups of which each is drawn with this chance."""
        return where(take(uniform_by_key(self.keys, purpose), self.number) < share)


def own_axes(X: Array, scaled: bool) -> np.ndarray:
    """(n, p) coordinates of rows along their leading axes, nearly: a step of block power iteration."""
    X, p = to_numpy(X), min(AXES, X.shape[1])
    mean = X.mean(axis=0, dtype=np.float64)
    spread = X.std(axis=0, dtype=np.float64) if scaled else np.ones(X.shape[1])
    scale = np.where(spread > 0, 1.0 / np.where(spread > 0, spread, 1.0), 0.0)
    start, image = normal((X.shape[1], p), 0), np.zeros((X.shape[1], p))

    def blocks() -> Any:
        return ((on_host(X[i : i + BLOCK]) - mean) * scale for i in range(0, len(X), BLOCK))

    for Z in blocks():
        image += Z.T @ (Z @ start)
    axes = np.linalg.qr(image)[0]
    return np.concatenate([np.zeros((0, p)), *(Z @ axes for Z in blocks())])


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
    """The means of groups in the place of rows, each standing for as many rows as its group has (`stand_for`), where there are groups."""
    if rows.groups is None:
        return rows
    number, count = np.unique(to_numpy(rows.groups.number), return_counts=True)
    X, keys = take(rows.groups.means, number), take(rows.groups.keys, number)
    stands = like(rows.alike, count.astype(np.float64))
    return replace(rows, X=X, keys=keys, node=take(rows.node, 0 * number), groups=None, stand_for=stands)
