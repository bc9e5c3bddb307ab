"""Groups of rows that are near each other, whose means take part in k-means in the place of the rows: microaggregation.

Where others see sums, or totals of them, and rows may not leave their node, a sum over few rows must not be told, and neither must two sums whose
difference is one: clusters move from step to step, and the root, which opens the totals, may tell any centres and any landmarks. So a node divides
its rows into groups of at least `least`, by nothing but these rows, before anything is told: the same rows make the same groups in every run with the
same columns (and the same `scaled`). What k-means sums depends on the sizes and the means of groups alone; what is told changes these means and no
rows. Whatever is subtracted from whatever, no row is left. Runs on other columns have other groups, of which two may differ by a row.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.sparse import csr_matrix

from ...arrays import integers, like, on_host, take, to_numpy, where
from ...draws import normal, uniform_by_key
from ...scaling import Scales

if TYPE_CHECKING:
    from .rows import SiteRows

Array = Any

AXES = 16  # along so many of the node's own leading axes rows are compared
BLOCK = 8192  # rows


@dataclass(frozen=True, eq=False)
class Groups:
    """The number (n,) of the group of each row; and a key (groups,) and the mean (groups, columns) of all rows of each group.

    `lacking` (groups, columns): the share of values that are missing; None: there are none.
    """

    number: Array
    keys: Array
    means: Array
    lacking: np.ndarray | None = None

    @classmethod
    def of(cls, rows: SiteRows, number: np.ndarray) -> Groups:
        """Of rows as they were given, with NaN where a value is missing, and these numbers of groups (`grouped`). Means are of the values that are
        there, 0 if there are none."""
        count, first = np.bincount(number), np.unique(number, return_index=True)[1]
        member = csr_matrix((np.ones(len(number)), (number, np.arange(len(number)))), shape=(len(count), len(number)))
        X, lacking = to_numpy(rows.X), None
        absent, known = np.isnan(X), count[:, None]
        if absent.any():
            known = count[:, None] - member @ absent.astype(np.float64)
            few = known < np.minimum(rows.least, count)[:, None]
            known = np.where(few, 0.0, known)  # else a mean tells of few values
            X, lacking = np.where(absent, 0.0, X), 1.0 - known / count[:, None]
        means = np.where(known > 0, member @ X, 0.0) / np.maximum(known, 1.0)
        return cls(integers(rows.X, number), take(rows.keys, first), means, lacking)

    def prepared(self, fill: Array | None, scales: Scales | None, beside: Array) -> Groups:
        """The means as those of rows without missing values, in standardized columns, in the library of `beside`. What all were told of the columns
        is applied to means of groups, never to rows: else a root that lies could tell numbers so large that each row is rounded on its own."""
        means = self.means
        if fill is not None and self.lacking is not None:
            means = means * (1.0 - self.lacking) + self.lacking * on_host(fill)
        means = like(beside, means)
        return replace(self, means=means if scales is None else scales.standardized(means), lacking=None)

    def at(self, places: Array) -> Groups:
        return replace(self, number=take(self.number, places))

    def drawn(self, purpose: str, share: float) -> Array:
        """The places of the rows of groups of which each is drawn with this chance."""
        return where(take(uniform_by_key(self.keys, purpose), self.number) < share)


def grouped(rows: SiteRows, scaled: bool) -> np.ndarray:
    """(n,) the number of the group of each row: groups of at least `rows.least` rows, if there are so many. The rows are as they were given, before
    anything is told: with NaN, and in their own units; `scaled`: every column gets the same spread at this node."""
    X, p = to_numpy(rows.X), min(AXES, rows.columns)
    if not len(X):
        return np.zeros(0, dtype=np.int64)
    known = np.maximum((~np.isnan(X)).sum(axis=0), 1)
    mean = np.nansum(X, axis=0, dtype=np.float64) / known
    start, image, squares = normal((X.shape[1], p), 0), np.zeros((X.shape[1], p)), np.zeros(X.shape[1])

    def blocks() -> Any:
        return (np.nan_to_num(on_host(X[i : i + BLOCK]) - mean) for i in range(0, len(X), BLOCK))

    for Z in blocks() if scaled else ():
        squares += (Z * Z).sum(axis=0)
    scale = (
        np.where(squares > 0, (known / np.where(squares > 0, squares, 1.0)) ** 0.5, 0.0)
        if scaled
        else np.ones(X.shape[1])
    )
    for Z in blocks():
        image += scale[:, None] * (Z.T @ (Z @ (scale[:, None] * start)))
    axes = scale[:, None] * np.linalg.qr(image)[0]
    return divided(np.concatenate([Z @ axes for Z in blocks()]), rows.least)


def divided(Y: np.ndarray, least: int) -> np.ndarray:
    """(n,) the group of each row of Y (n, p): all rows are halved along the axis in which they differ most, and so on, while halves have `least`;
    the first half has a multiple of it, so that few groups have more.

    >>> np.bincount(divided(np.random.default_rng(0).normal(size=(43, 3)), 5)).tolist()
    [5, 5, 5, 5, 5, 5, 5, 8]
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
        upper = large[number[order]] & (rank >= (count // least // 2 * least)[number[order]])
        number[order] = (np.cumsum(1 + large) - 1 - large)[number[order]] + upper
    return number


def summarized(rows: SiteRows) -> SiteRows:
    """The means of groups in the place of rows, each standing for as many rows as its group has (`stand_for`), where there are groups."""
    if rows.groups is None:
        return rows
    number, count = np.unique(to_numpy(rows.groups.number), return_counts=True)
    X, keys = take(rows.groups.means, number), take(rows.groups.keys, number)
    stands = like(rows.equal_weights, count.astype(np.float64))
    return replace(rows, X=X, keys=keys, node=take(rows.node, 0 * number), groups=None, stand_for=stands)
