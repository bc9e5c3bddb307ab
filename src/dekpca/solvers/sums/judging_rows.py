"""The rows that judge, with their random features: which they are, and how many. judge.py has what is summed over them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import array_api_compat as aac
import numpy as np

from ...accuracy import ROUNDING
from ...arrays import inverse, like, numbers, squares_of_rows, take, transposed
from ...chunks import by_rows, row_bytes
from ...draws import shared_seed, uniform_by_key
from .moments import Principal, Seen, chances
from .options import LEAST_CLUSTER, SumsOptions
from .rows import SiteRows, noise

Array = Any

LAST = "last"  # the name of the last judgement, which a fit with given landmarks has alone
JUDGES = 2048  # judging rows, if there are more rows than four times that
GROUPS = 8  # independent estimates, whose spread is the noise
FREQUENCIES = 48  # in each group
EFFORT = 4  # times as many rows, or frequencies where all rows judge, if that may be enough
MOST_FEATURES = GROUPS * 2 * FREQUENCIES * EFFORT  # of a judgement: a sum over the judging rows for each
POWER = 4  # vectors of the power iteration for the largest eigenvalue of the rest
BESIDE = 1 + 2 * POWER  # sums of a feature beside those with functions: its mean, and two steps of the power iteration
LIKELY = 1.5  # times its chance to judge, as a sample tells it: a row of a file is kept that may judge
ROUGH = 1e-5  # of the trace missed by the landmarks: features in float32 are exact enough


@dataclass(frozen=True, eq=False)
class JudgingRows:
    """The judging rows of this process, with all that the rounds need of them; computed when the first term is."""

    seen: Seen
    principal: Principal
    options: SumsOptions
    stage: str
    effort: int = 1
    as_points: bool = False  # as points that all nodes know

    @property
    def count(self) -> float:
        """The number of rows from which judging rows are drawn."""
        return max(self.principal.count, self.seen.drawn_from[0])

    @property
    def all_judge(self) -> bool:
        """Whether all rows judge."""
        return self.count <= self._most_rows or self.count <= 2 * JUDGES * self.effort

    @property
    def _most_rows(self) -> int:
        """Up to so many rows all judge at once, with fewer frequencies the more there are."""
        return (2 if self.as_points else 4) * JUDGES

    @property
    def frequencies(self) -> int:
        """Of each group."""
        if self.count > self._most_rows:
            return FREQUENCIES
        return int(FREQUENCIES * self.effort * min(1.0, 2 * JUDGES / max(self.count, 1.0)))

    @property
    def gain(self) -> int:
        """How many times smaller the noise of the next effort is: it has more rows or frequencies; and all rows in each group, if all rows judge."""
        return EFFORT * (GROUPS if not self.all_judge and self.count <= 2 * JUDGES * EFFORT else 1)

    @property
    def draws(self) -> str:
        """The name of the stage in draws by which rows judge. Where others see terms it is the same in all stages: else a root that tells the same
        functions in each has so many sums over other rows that the values of every row follow from linear equations."""
        return self.stage if self.seen.rows.least == 1 else LAST

    @cached_property
    def places(self) -> Array:
        """Which rows judge. Where others see a node's terms, none of a node that has so few that a term would tell of single rows."""
        rows, chance = self.seen.rows, lambda some: self._chance(self.seen.rest[some])
        stage = again_at(self.draws) if self.effort > 1 and rows.least > 1 else self.draws
        found = numbers(rows.keys, len(rows)) if self.all_judge else rows.below(judging(stage), chance)
        enough = rows.least == 1 or found.shape[0] >= rows.least * self.shares
        return found if enough else found[:0]

    @property
    def present(self) -> float:
        """Where nodes of few rows do not judge: what the landmarks miss of all rows of this process, if some of these judge."""
        return self.seen.missed if self.seen.rows.least > 1 and self.places.shape[0] else 0.0

    def absent(self, present: float) -> float:
        """What they miss of the rows of all nodes that do not judge."""
        missed = self.principal.missed
        left = missed - present if self.seen.rows.least > 1 else 0.0
        return left if left > ROUNDING * missed else 0.0

    def _chance(self, rest: Array) -> Array:
        """Where others see terms, the same for all rows of a node: else the sums of two runs, in which a root tells that a little more is missed, or
        slightly other landmarks, differ by the one row whose chance has passed its draw."""
        wanted, missed = JUDGES * self.effort, self.seen.drawn_from[1]
        if self.seen.rows.least > 1:
            return aac.array_namespace(rest).full_like(rest, self.seen.rows.floor(wanted, self.seen.own))
        return chances(rest, self.count, max(self.principal.missed, missed), wanted)

    @cached_property
    def weights(self) -> Array:
        """(n,) how many rows each stands for."""
        return aac.array_namespace(self.rest).ones_like(self.rest) if self.all_judge else 1.0 / self._chance(self.rest)

    @cached_property
    def rows(self) -> SiteRows:
        rows = self.seen.rows
        return rows.here() if self.places.shape[0] == len(rows) else rows.at(self.places)

    @cached_property
    def group(self) -> Array:
        """(n, GROUPS) which group each row is in: the rows of a node are dealt in a random order."""
        rows = self.rows
        xp = aac.array_namespace(rows.keys)
        order = xp.argsort(rows.uniform(f"groups {self.draws}"))
        order = take(order, xp.argsort(take(rows.node, order), stable=True))
        node, keys = take(rows.node, order), take(rows.keys, order)
        start = xp.searchsorted(node, node)  # where the rows of a row's node begin
        found = ((take(keys, start) & (GROUPS - 1)) + numbers(keys, len(rows)) - start) % GROUPS
        return take(found, inverse(order))[:, None] == numbers(found, GROUPS)

    @cached_property
    def members(self) -> Array:
        """(n, GROUPS) 1 where a row is summed with the features of a group: its own, or all if all rows judge; else 0."""
        xp, w = aac.array_namespace(self.weights), self.weights
        if self.all_judge:
            return xp.ones((w.shape[0], GROUPS), dtype=xp.float64, device=aac.device(w))
        return xp.astype(self.group, xp.float64)

    @property
    def shares(self) -> int:
        """A row is in one of so many groups."""
        return 1 if self.all_judge else GROUPS

    @cached_property
    def rest(self) -> Array:
        return take(self.seen.rest, self.places)

    @cached_property
    def psi(self) -> Array:
        known = self.seen.psi
        if known is None:
            return self.seen.marks.coordinates(self.seen.kernel, self.rows.X)
        return known if self.places.shape[0] == known.shape[0] else take(known, self.places)

    @cached_property
    def functions(self) -> Array:
        """(n, q) values of the principal functions, in float64."""
        apart, principal, xp = self.seen.rows.least > 1, self.principal, aac.array_namespace(self.psi)
        psi = xp.astype(self.psi, xp.float64, copy=False) if apart else self.psi
        mean, weights = like(psi, principal.mean), like(psi, principal.weights)
        found = by_rows(lambda rows: (psi[rows, :] - mean) @ weights, psi.shape[0], row_bytes(psi), psi)
        found = xp.astype(found, xp.float64, copy=False)
        return found + noise(found, psi, principal.mean, principal.weights) if apart else found

    @cached_property
    def signs(self) -> Array:
        """(n, POWER) random signs."""
        xp = aac.array_namespace(self.rows.keys)
        bits = xp.stack([self.rows.uniform(f"signs {self.draws} {i}") for i in range(POWER)], axis=1)
        return 1.0 - 2.0 * xp.astype(bits < 0.5, xp.float64)

    @cached_property
    def random_features(self) -> tuple[Array, Array]:
        """Random features f (n, GROUPS * features) of the kernel, group by group, and what they are in landmark coordinates (m, GROUPS * features):
        features of the rest are their difference r = f - psi @ on_marks. Where not everyone judges, r is in the place of f."""
        kernel, marks, X, psi = self.seen.kernel, self.seen.marks, self.rows.X, self.psi
        xp = aac.array_namespace(X)
        # the rounding of float32 is far below what is missed of a row, and below the noise of drawing rows, or of few frequencies
        missed = self.principal.missed > ROUGH * self.principal.trace
        squares = by_rows(lambda rows: squares_of_rows(X[rows, :]), X.shape[0], row_bytes(X), X)
        rough = missed and self.count > 2 * JUDGES and not kernel.far(squares)
        # totals of float32 numbers would tell of single owners by their last digits (masks.py)
        kind = xp.float64 if self.seen.rows.least > 1 else xp.float32 if rough else X.dtype

        def rounded(x: Array, kind: Any = kind) -> Array:
            return xp.astype(x, kind, copy=False)

        seed = shared_seed(self.options.seed, f"sketch {self.stage}")
        features = kernel.random_map(X.shape[1], self.frequencies, GROUPS, seed)
        on_points = features(rounded(marks.points))
        on_marks = rounded(transposed(marks.root) @ rounded(on_points, marks.root.dtype))

        def some(rows: slice) -> Array:
            found = features(rounded(X[rows, :]))
            if not self.all_judge:
                found -= rounded(psi[rows, :]) @ on_marks
            return found

        found = by_rows(some, X.shape[0], row_bytes(on_marks) // 4, X)  # rows enough for products at full speed
        return found, on_marks

    def back(self, features: Array, rows: slice, values: Array) -> tuple[Array, ...]:
        """Sums over some rows, in float64, of their features times values (rows, c), of which `of_rest` makes those of features of the rest."""
        xp = aac.array_namespace(features)
        found = xp.astype(transposed(features) @ xp.astype(values, features.dtype, copy=False), xp.float64, copy=False)
        if not self.all_judge:
            return (found,)
        return found, transposed(xp.astype(self.psi[rows, :], xp.float64, copy=False)) @ values

    def of_rest(self, found: Array, along: Array = None) -> Array:
        """(GROUPS * features, c): the sums of `back` for features of the rest."""
        if along is None:
            return found
        xp, on_marks = aac.array_namespace(found), self.random_features[1]
        return found - transposed(xp.astype(on_marks, xp.float64, copy=False)) @ along

    def times(self, features: Array, rows: slice, image: np.ndarray) -> Array:
        """(parts, rows, c): features of the rest, in as many equal parts as `image` (parts, ., c) has, each times its matrix."""
        xp, many, factor = aac.array_namespace(features), len(image), like(features, image)
        found, on_marks = parts_of(features, many) @ factor, self.random_features[1]
        if self.all_judge:
            found -= xp.astype(self.psi[rows, :], on_marks.dtype, copy=False) @ (parts_of(on_marks, many) @ factor)
        return found


def least_new(own: int, landmarks: int) -> int:
    """So many new rows at a node of `own` rows, or more, change its part of a judgement by about LEAST_CLUSTER rows in each group; and they are twice
    as many as the landmarks: each of fewer rows follows from the products of their coordinates."""
    return max(GROUPS * LEAST_CLUSTER * max(1, -(-own // JUDGES)), 2 * landmarks)


def judging(stage: str) -> str:
    """The purpose of the random numbers that choose the judging rows."""
    return f"judges {stage}"


def again_at(stage: str) -> str:
    """The name of a stage at a larger effort."""
    return f"{stage} again"


def may_judge(
    keys: Array,
    rest: Array,
    count: float,
    missed: float,
    stage: str,
    as_points: bool = False,
    room: float = 1.0,
) -> Array:
    """(n,) which rows a judgement needs, with any effort, if there are `count` rows or more, of which the landmarks miss `missed` or more; more of
    them with `room` above 1."""
    if count <= 2 * JUDGES * (1 if as_points else EFFORT):
        return keys == keys
    needed = uniform_by_key(keys, judging(stage)) < room * chances(rest, count, missed, JUDGES)
    if not as_points:
        again = chances(rest, count, missed, JUDGES * EFFORT)
        needed |= uniform_by_key(keys, judging(again_at(stage))) < room * again
    return needed


def likely_judges(principal: Principal, total: int, stage: str) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """Which of all rows will judge at a stage, and some more: by keys, and by what the landmarks miss of the rows. `principal` was found from a
    sample of the rows with the same landmarks. So a pass over a file can keep these rows."""
    missed = principal.missed * total / principal.count
    return lambda keys, rest: may_judge(keys, rest, float(total), missed, stage, room=LIKELY)


def parts_of(x: Array, many: int) -> Array:
    """(many, rows, .): the columns of x (rows, .) in equal parts."""
    xp = aac.array_namespace(x)
    return xp.permute_dims(xp.reshape(x, (x.shape[0], many, x.shape[1] // many)), (1, 0, 2))
