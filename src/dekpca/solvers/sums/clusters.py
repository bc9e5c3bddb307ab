"""k-means of the rows of the whole network, by sums: its centres are the landmarks.

Clusters are cut by random hyperplanes through their centres, the heaviest into the most pieces; the means of the pieces are the new centres; steps of
Lloyd's algorithm move them. Each step is a sum over the rows: for each cluster how many there are, their weight, and their weighted sum. A centre has
at least LEAST_CLUSTER rows, whoever owns them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import array_api_compat as aac
import numpy as np
from scipy.sparse import csr_matrix

from ... import landmarks
from ...arrays import eps, integers, like, numbers, on_host, take, transposed
from ...chunks import by_rows, row_bytes
from ...draws import normal, shared_seed, uniform
from ...kernels import Kernel
from ...landmarks import Landmarks
from ...rounds import Arrays, BadConclusion, Round, Shapes, Solver
from .directions import Axes
from .groups import summarized
from .options import LEAST_CLUSTER, SumsOptions
from .rows import SiteRows

Array = Any
Labels = Callable[[], Array]  # of the cluster of each row of this process; -1: of none
Weights = Callable[[], Array]  # of each row, in float64

ROWS_A_CENTRE = 16  # so many rows, drawn at random, are enough to find a centre
FIRST = "first landmarks"  # the purpose of the random numbers that choose these rows
STEPS = 2  # of Lloyd's algorithm after each split
STAGES = (8, 2, 1)  # the first centres are split until there are an eighth, half, and all of them
MOST_CUTS = 8
ROUNDING = 1e-6  # of a number of rows


@dataclass(frozen=True, eq=False)
class Weigh(Round):
    """The rows and the weight of each cluster; all are told into how many pieces each is cut: 2^cuts."""

    rows: SiteRows
    label: Labels
    weights: Weights
    clusters: int
    wanted: int  # new centres
    heaviest: float  # a row, at most
    seed: int
    kind = "clusters"

    def term(self) -> Arrays:
        weights = self.weights()
        found = sums_by_label(self.label(), self.clusters, weights[:, None][:, :0], weights, self.rows.stand_for)
        return {name: found[name] for name in ("count", "weight")}

    def bounds(self) -> dict[str, Any]:
        return {"count": self.rows.total, "weight": self.rows.total * self.heaviest}

    def told(self) -> Shapes:
        return {"cuts": (self.clusters,)}

    def conclude(self, total: Arrays) -> Arrays:
        return {"cuts": cuts_of(np.rint(total["count"]), total["weight"], self.wanted, self.seed)}

    def check(self, told: Arrays) -> None:
        super().check(told)
        check_cuts(told["cuts"], self.wanted)


@dataclass(frozen=True, eq=False)
class Centres(Weigh):
    """As `Weigh`, and the weighted mean of the coordinates of each cluster; clusters of too few rows have none. `cuts` are for the next split."""

    coordinates: Array
    even: bool  # no few rows may outweigh the others of their cluster: the mean would be like them

    def term(self) -> Arrays:
        return sums_by_label(self.label(), self.clusters, self.coordinates, self.weights(), self.rows.stand_for)

    def bounds(self) -> dict[str, Any]:
        farthest, found = 2.0 * self.rows.columns**0.5 * self.rows.largest, super().bounds()
        return found | {"squares": found["weight"] * self.heaviest, "sum": found["weight"] * farthest}

    def told(self) -> Shapes:
        many = self.clusters
        return {"there": (many,), "centre": (many, self.coordinates.shape[1]), "cuts": (many,)}

    def conclude(self, total: Arrays) -> Arrays:
        there, centre = means(total, self.even)
        count = np.where(there, np.rint(total["count"]), 0)
        return {"there": there, "centre": centre, "cuts": cuts_of(count, total["weight"], self.wanted, self.seed)}


@dataclass(frozen=True, eq=False)
class NewLandmarks(Round):
    """Points that become landmarks, without those that add nothing to the others: the weighted means of clusters, in all columns."""

    rows: SiteRows
    label: Labels
    weights: Weights
    clusters: int
    most: int  # landmarks
    heaviest: float
    even: bool
    mean: np.ndarray  # of all rows
    marks: Landmarks
    kernel: Kernel
    kind = "landmarks"

    def term(self) -> Arrays:
        X, mean = self.rows.X, like(self.rows.X, self.mean)
        centred = by_rows(lambda rows: X[rows, :] - mean, X.shape[0], row_bytes(X), X)
        return sums_by_label(self.label(), self.clusters, centred, self.weights(), self.rows.stand_for)

    def bounds(self) -> dict[str, Any]:
        weight = self.rows.total * self.heaviest
        sums = 2.0 * weight * self.rows.largest
        return {"count": self.rows.total, "weight": weight, "squares": weight * self.heaviest, "sum": sums}

    def told(self) -> Shapes:
        return {"count": (1,), "points": (self.clusters, self.rows.columns)}

    def conclude(self, total: Arrays) -> Arrays:
        there, centre = means(total, self.even)
        return independent(self.mean + centre[there], self.clusters, self.most, self.marks, self.kernel)

    def check(self, told: Arrays) -> None:
        super().check(told)
        check_count(told["count"], min(self.clusters, self.most))


@dataclass(frozen=True, eq=False)
class GivenLandmarks(Round):
    """Points that all nodes have; the root tells which of them add something to the others."""

    points: np.ndarray
    marks: Landmarks
    kernel: Kernel
    kind = "landmarks"

    def term(self) -> Arrays:
        return {}

    def told(self) -> Shapes:
        return {"count": (1,), "points": self.points.shape}

    def conclude(self, total: Arrays) -> Arrays:
        return independent(self.points, len(self.points), len(self.points), self.marks, self.kernel)

    def check(self, told: Arrays) -> None:
        super().check(told)
        check_count(told["count"], len(self.points))
        given = {point.tobytes() for point in on_host(like(self.marks.points, self.points))}
        if not all(point.tobytes() in given for point in told["points"][: int(told["count"][0])]):
            raise BadConclusion("the root tells other landmarks than those that all nodes were given; start all anew")


def nearest(Y: Array, centres: np.ndarray) -> Array:
    """The number of the nearest centre of each row; distances are compared in the dtype of Y."""
    xp = aac.array_namespace(Y)
    far, across = like(Y, (centres * centres).sum(axis=1)), transposed(like(Y, -2.0 * centres))

    def some(rows: slice) -> Array:
        return xp.argmin(Y[rows, :] @ across + far, axis=1)

    return by_rows(some, Y.shape[0], 8 * len(centres), Y)


def sums_by_label(label: Array, clusters: int, Y: Array, weights: Array, stand_for: Array = None) -> dict[str, Array]:
    """For each cluster the number of rows, their weight, the sum of their squared weights, and their weighted sum; a row may stand for so many."""
    xp = aac.array_namespace(weights)
    many = xp.ones_like(weights) if stand_for is None else stand_for
    if aac.is_numpy_array(weights):
        place, inside = np.maximum(label, 0), many * (label >= 0)
        count, weight, squares = (np.bincount(place, inside * w, clusters) for w in (weights**0, weights, weights**2))
        member = csr_matrix((inside * weights, place, np.arange(len(label) + 1)), shape=(len(label), clusters))
        total = member.T @ Y
    else:
        member = many * xp.astype(numbers(label, clusters)[:, None] == label, xp.float64)
        beside = xp.stack([xp.ones_like(weights), weights, weights**2], axis=1)
        found = member @ xp.concat([beside, weights[:, None] * xp.astype(Y, xp.float64)], axis=1)
        count, weight, squares, total = found[:, 0], found[:, 1], found[:, 2], found[:, 3:]
    return {"count": count, "weight": weight, "squares": squares, "sum": total}


def means(total: Arrays, even: bool) -> tuple[np.ndarray, np.ndarray]:
    """Which clusters have enough rows and, if `even`, weights like those of so many equal ones; and the means of all.

    The means are rounded, so that sums in another order give the same bits.
    """
    alike = total["weight"] ** 2 >= (LEAST_CLUSTER - ROUNDING) * total["squares"]  # no few rows outweigh the others
    there = (np.rint(total["count"]) >= LEAST_CLUSTER) & (total["weight"] > 0) & (alike | (not even))
    mean = total["sum"] / np.where(there, total["weight"], 1.0)[:, None]
    return there, np.where(there[:, None], mean, 0.0).astype(np.float32).astype(np.float64)


def cuts_of(count: np.ndarray, weight: np.ndarray, wanted: int, seed: int) -> np.ndarray:
    """Into 2^cuts pieces each cluster is cut, in proportion to its weight, so that there are about `wanted` new ones with enough rows each."""
    if wanted <= 0 or not weight.sum() > 0:
        return np.zeros(len(count))
    drawn = uniform((len(count), 1), shared_seed(seed, "cuts"))[:, 0]
    share = np.minimum(np.floor(weight / weight.sum() * wanted + drawn), count // LEAST_CLUSTER)
    return np.minimum(np.ceil(np.log2(np.maximum(share, 0) + 1)), MOST_CUTS)


def check_cuts(cuts: np.ndarray, wanted: int) -> None:
    good = (cuts >= 0) & (cuts <= MOST_CUTS) & (cuts == np.rint(cuts))
    most = 4 * wanted + 64  # a share of s has at most 2 s pieces, and shares are rounded up
    if not good.all() or (2.0**cuts)[cuts > 0].sum() > most:
        raise BadConclusion("the root wants to cut clusters into more pieces than new landmarks; start all nodes anew")


def check_count(count: np.ndarray, most: int) -> None:
    if not (0 <= count[0] <= most and count[0] == np.rint(count[0])):
        raise BadConclusion(f"the root tells {count[0]:g} new landmarks, of at most {most}; start all nodes anew")


def independent(points: np.ndarray, room: int, most: int, marks: Landmarks, kernel: Kernel) -> Arrays:
    """Of these points those that add something to the landmarks and to each other, in an order with a stable factor, at most `most`; zeros up to
    `room` points."""
    points = on_host(like(marks.points, points))  # as the nodes will have them
    kept = np.zeros(0, dtype=np.int64)
    if len(points):
        least = max(landmarks.REDUNDANT, 1000 * eps(marks.points))
        kept = marks.offered(like(marks.points, points), kernel).independent(least, most)
    told = np.zeros((room, marks.points.shape[1]))
    told[: len(kept)] = points[kept]
    return {"count": np.array([float(len(kept))]), "points": told}


@dataclass(frozen=True, eq=False)
class Pieces:
    """The pieces of clusters after their cuts; a piece is a number from 0 to `many`."""

    centres: np.ndarray
    cuts: np.ndarray
    planes: np.ndarray  # (most cuts, clusters, p)

    @classmethod
    def of(cls, centres: np.ndarray, cuts: np.ndarray, axes: Axes, seed: int) -> Pieces:
        cuts = cuts.astype(np.int64)
        shape = int(cuts.max(initial=0)), len(centres), len(axes.spread)
        drawn = normal((shape[0] * shape[1], shape[2]), shared_seed(seed, "planes"))
        return cls(centres, cuts, drawn.reshape(shape) * axes.spread)

    @property
    def many(self) -> int:
        return int((2**self.cuts)[self.cuts > 0].sum())

    def label(self, Y: Array) -> Array:
        """The piece of each row, -1 if its cluster is not cut."""
        xp, cluster, sizes = aac.array_namespace(Y), nearest(Y, self.centres), np.where(self.cuts > 0, 2**self.cuts, 0)
        found = take(integers(Y, np.where(self.cuts > 0, np.cumsum(sizes) - sizes, -1)), cluster)
        there = found >= 0
        cluster, exact = cluster[there], xp.astype(Y, xp.float64, copy=False)
        cuts, away = take(integers(Y, self.cuts), cluster), exact[there] - take(like(exact, self.centres), cluster)
        piece = found[there]
        for h, planes in enumerate(self.planes):
            side = xp.vecdot(away, take(like(exact, planes), cluster)) > 0
            piece = piece + xp.astype(side & (cuts > h), xp.int64) * 2**h
        found[there] = piece
        return found


def first_landmarks(rows: SiteRows, axes: Axes, marks: Landmarks, options: SumsOptions) -> Solver:
    """About options.first points, from the mean of all rows: all centres move. Returns the points (m, M)."""
    wanted, seed = options.first, options.seed
    some = summarized(rows.sampled(ROWS_A_CENTRE * wanted, FIRST))
    Y, ones, together = axes.along(some.X), lambda: some.equal_weights, lambda: 0 * some.node
    centres = np.zeros((1, Y.shape[1]))
    cuts = (yield Weigh(some, together, ones, 1, max(wanted // STAGES[0], 2), 1.0, seed))["cuts"]
    for number, part in enumerate(STAGES):
        pieces = Pieces.of(centres, cuts, axes, seed + number)
        if pieces.many:
            told = yield Centres(some, partial(pieces.label, Y), ones, pieces.many, 0, 1.0, seed, Y, True)
            centres = np.concatenate([centres, told["centre"][told["there"] > 0]])
        for step in range(STEPS):
            last, nearby = step == STEPS - 1, partial(nearest, Y, centres)
            if last and part == STAGES[-1]:
                break
            more = max(wanted // STAGES[number + 1] - len(centres), 0) if last else 0
            told = yield Centres(some, nearby, ones, len(centres), more, 1.0, seed + number, Y, True)
            there = told["there"] > 0
            if there.any():
                centres, cuts = told["centre"][there], told["cuts"][there]
            else:  # fewer rows than a cluster needs
                cuts = np.zeros(len(centres))
    most, kernel = options.max_landmarks, options.kernel
    told = yield NewLandmarks(some, nearby, ones, len(centres), most, 1.0, True, axes.mean, marks, kernel)
    return told["points"][: int(told["count"][0])]


def more_landmarks(
    rows: SiteRows, weights: Weights, heaviest: float, axes: Axes, wanted: int, marks: Landmarks, options: SumsOptions, stage: int
) -> Solver:  # fmt: skip
    """About `wanted` new points where the weight is, which is at most `heaviest` for a row: clusters around the landmarks are weighted by what the
    landmarks miss of their rows. Old landmarks stay where they are. Returns the points (m, M)."""
    even, seed, most = not options.share_rows, options.seed + stage, options.max_landmarks - marks.size
    Y, old = axes.along(rows.X), on_host(axes.along(marks.points))
    told = yield Weigh(rows, partial(nearest, Y, old), weights, len(old), wanted, heaviest, seed)
    pieces = Pieces.of(old, told["cuts"], axes, seed)
    if not pieces.many:
        return np.zeros((0, rows.columns))
    told = yield Centres(rows, partial(pieces.label, Y), weights, pieces.many, 0, heaviest, seed, Y, even)
    new = told["centre"][told["there"] > 0]

    def among_new(new: np.ndarray) -> Array:
        return aac.array_namespace(Y).clip(nearest(Y, np.concatenate([old, new])) - len(old), min=-1)

    for _ in range(STEPS - 1):
        if len(new):
            told = yield Centres(rows, partial(among_new, new), weights, len(new), 0, heaviest, seed, Y, even)
            new = told["centre"][told["there"] > 0]
    if not len(new):
        return np.zeros((0, rows.columns))
    label, mean, kernel = partial(among_new, new), axes.mean, options.kernel
    told = yield NewLandmarks(rows, label, weights, len(new), most, heaviest, even, mean, marks, kernel)
    return told["points"][: int(told["count"][0])]
