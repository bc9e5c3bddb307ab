"""The default solver: kernel PCA in the span of landmarks, as a few rounds of sums. Read `solve` first.

Everything that a node tells is its term of a sum over the whole network; what the root makes of a total is told to all (rounds.py). The number of
rounds does not depend on the number of rows.

    columns      means and variances: missing values, scales, gamma
    directions   linear components, along which k-means works
    clusters     landmarks: centres of k-means of the whole network
    shared_rows  more landmarks: rows, where these may leave and clusters are too small
    moments      principal directions of all rows in landmark coordinates
    judge        how far the components are from central kernel PCA
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import count

import numpy as np

from ...accuracy import ROUNDING, Accuracy
from ...arrays import like, on_host
from ...kernels import Kernel
from ...landmarks import Landmarks
from ...rounds import Solver
from ...signs import signed
from ...site import Site
from .clusters import LEAST_CLUSTER, GivenLandmarks, first_landmarks, more_landmarks
from .columns import Prepared, prepared
from .directions import Axes, find_axes
from .judge import EFFORT, NEGLIGIBLE, Judged, Verdict, judge
from .judge_by_rows import judge_by_rows, judge_by_trace
from .moments import Moments, Principal, Seen
from .rows import Rows, row_keys
from .shared_rows import earlier_landmarks, rows_as_landmarks

log = logging.getLogger("dekpca")

SAMPLE = 32  # rows a landmark, drawn at random, are enough to grow by and to judge, until the last pass over all rows
LEAST_SAMPLE = 4096  # rows
ORDER = 1.5  # the error falls at least with this power of the number of landmarks
LEAST_GROWTH, MOST_GROWTH, MANY = 1.4, 3.0, 300  # factors from a stage to the next; beyond MANY landmarks at most 2
WORTHWHILE = 1.05  # growth by less ends it: no clusters of enough rows are left where the rest is


@dataclass(frozen=True, eq=False)
class SumsOptions:
    """What the solver needs to know, the same at every node."""

    n_components: int
    kernel: Kernel
    seed: int
    tol: float = 1e-3
    first: int = 100  # landmarks to begin with
    max_landmarks: int = 2500  # `first`: just so many
    points: np.ndarray | None = None  # the landmarks themselves
    resume: str | None = None  # the run whose landmarks are the first ones
    earlier: np.ndarray | None = None  # these landmarks, at a node of that run
    share_rows: bool = True
    centered: bool = True
    gamma_by_variance: bool = False
    impute: bool = False
    standardize: bool = False
    sealed: bool = False
    owners_apart: bool = False  # a node's neighbors belong to others, who see its terms of sums in clear

    @property
    def fixed(self) -> bool:
        """Whether a number of landmarks was asked for, or points were given: then only the answer is judged."""
        return self.points is not None or self.first == self.max_landmarks


@dataclass(frozen=True, eq=False)
class Found:
    """The result of the solver, the same at every node."""

    prepared: Prepared
    marks: Landmarks
    kinds: list[tuple[str, int]]  # of the landmarks, in order, and how many of each
    mean: np.ndarray  # (m,) of psi
    weights: np.ndarray  # (m, k): (psi - mean) @ weights are the components' values
    eigenvalues: np.ndarray  # (k,)
    trace: float
    accuracy: Accuracy
    stages: list[tuple[int, float, float]]  # landmarks, error and bound of each judgement


@dataclass(frozen=True, eq=False)
class Marks:
    """The landmarks so far, their kinds in order, and how many there are of each."""

    points: Landmarks
    kinds: tuple[tuple[str, int], ...] = ()

    @property
    def size(self) -> int:
        return self.points.size

    def plus(self, points: np.ndarray, kind: str, kernel: Kernel) -> Marks:
        if not len(points):
            return self
        return Marks(self.points.grown(like(self.points.points, points), kernel), (*self.kinds, (kind, len(points))))


def rows_of(site: Site, options: SumsOptions) -> Rows:
    """The rows of the nodes of a site."""
    keys, node = row_keys(options.seed, site.names, site.own_sizes), np.repeat(site.nodes, site.own_sizes)
    if site.order is not None:
        back = np.empty_like(site.order)
        back[site.order] = np.arange(len(back))
        keys, node = keys[back], node[back]
    seen = options.owners_apart and not options.share_rows and site.sealer is None
    return Rows(site.X, keys, node, site.total, len(site.sizes), LEAST_CLUSTER if seen else 1, speaks=site.has_root)


def solve(rows: Rows, options: SumsOptions) -> Solver:
    """The components of all rows; returns `Found`."""
    first = yield from prepared(
        rows, options.kernel, options.impute, options.standardize, options.gamma_by_variance, options.sealed
    )
    rows, options = first.rows, replace(options, kernel=first.kernel)
    axes = (yield from find_axes(rows, first.mean, options.seed)) if options.points is None else None
    marks, whole = (yield from first_stage(first, options, axes)), False
    stages: list[tuple[int, float, float]] = []
    for step in count(1):
        share = max(SAMPLE * marks.size, LEAST_SAMPLE) / rows.total
        whole = whole or share >= 0.5
        seen = Seen(rows if whole else rows.sampled(share, f"stage {step}"), marks.points, options.kernel)
        moments = Moments(seen, options.centered, options.n_components, first.size)
        principal = moments.found((yield moments))
        bound = 1.0
        if not options.fixed:
            verdict = yield from judged(seen, principal, first, options, str(step))
            bound = verdict.accuracy.bound
            stages.append((marks.size, verdict.accuracy.error, bound))
            report(rows, stages)
        more = yield from next_stage(seen, principal, first, options, axes, marks, step, bound)
        if more is not None:
            marks = more
        elif not whole:
            whole = True
        else:
            if bound >= 1.0:  # not known; more work may tell
                effort = 1 if options.fixed else EFFORT
                verdict = yield from judged(seen, principal, first, options, f"{step} last", effort)
                stages.append((marks.size, verdict.accuracy.error, verdict.accuracy.bound))
                report(rows, stages)
            return found(first, options, marks, principal, verdict, stages)
    return None


def report(rows: Rows, stages: list[tuple[int, float, float]]) -> None:
    """Say how far the fit is, once in the network."""
    if rows.speaks:
        log.info("stage %d: %d landmarks, error of the span %.2g, at most %.2g", len(stages), *stages[-1])


# ---------------------------------------------------------------------- landmarks
def choose_landmarks(first: Prepared, options: SumsOptions) -> Solver:
    """The landmarks of the first stage alone, for a solver that does something else with them; returns `Marks`."""
    axes = (yield from find_axes(first.rows, first.mean, options.seed)) if options.points is None else None
    return (yield from first_stage(first, options, axes))


def first_stage(first: Prepared, options: SumsOptions, axes: Axes | None) -> Solver:
    """The first landmarks; returns `Marks`."""
    rows, kernel, none = first.rows, options.kernel, Landmarks.none(first.rows.X)
    if options.points is not None or options.resume is not None:
        points = options.points
        if points is None:
            points = yield from earlier_landmarks(rows, options.earlier, options.max_landmarks, options.resume or "")
        if first.columns is not None:
            points = on_host(first.columns.standardized(like(rows.X, points)))
        told = yield GivenLandmarks(points, none, kernel)
        marks = Marks(none).plus(
            told["points"][: int(told["count"][0])], "points" if options.resume is None else "earlier", kernel
        )
    else:
        assert axes is not None
        points = yield from first_landmarks(
            rows, axes, options.first, options.max_landmarks, none, kernel, options.seed
        )
        marks = Marks(none).plus(points, "means", kernel)
        if options.share_rows and marks.size < min(options.first, rows.total) / 2:  # too few rows for as many clusters
            alike = lambda: np.ones(len(rows))  # noqa: E731
            wanted = options.first - marks.size
            points = yield from rows_as_landmarks(
                rows, alike, float(rows.total), wanted, options.max_landmarks - marks.size, marks.points, kernel, "0"
            )
            marks = marks.plus(points, "rows", kernel)
    if not marks.size:
        raise ValueError(
            f"no landmarks came out: the kernel is zero at all of them, or there are fewer than {LEAST_CLUSTER} rows and share_rows=False; use other "
            "landmarks or another kernel, or share_rows=True if rows may leave their nodes"
        )
    return marks


def next_stage(
    seen: Seen, principal: Principal, first: Prepared, options: SumsOptions, axes: Axes | None, marks: Marks, stage: int, bound: float
) -> Solver:  # fmt: skip
    """More landmarks, where the rest is; returns `Marks`, or None if these are enough or there are hardly more."""
    wanted = more_wanted(marks.size, bound, options)
    if not wanted or axes is None:
        return None
    rows, rest, kernel, most = seen.rows, (lambda: seen.rest), options.kernel, options.max_landmarks
    some = Drawn(seen, principal, max(SAMPLE * marks.size, LEAST_SAMPLE), f"growth {stage}")
    points = yield from more_landmarks(
        some.rows,
        some.weights,
        axes,
        wanted,
        most - marks.size,
        marks.points,
        kernel,
        max(first.size, some.heaviest),
        not options.share_rows,
        options.seed + stage,
    )
    more = marks.plus(points, "means", kernel)
    if options.share_rows and more.size < marks.size + wanted / 2:
        points = yield from rows_as_landmarks(
            rows, rest, principal.missed, wanted, most - more.size, more.points, kernel, str(stage)
        )
        more = more.plus(points, "rows", kernel)
    least = (
        marks.size + 1 if options.share_rows else WORTHWHILE * marks.size
    )  # with all rows as landmarks the answer is exact
    return more if more.size >= least else None


@dataclass(frozen=True, eq=False)
class Drawn:
    """Rows for growth: if there are many, about `size` of them, half drawn evenly and half by what the landmarks miss of them."""

    seen: Seen
    principal: Principal
    size: int
    purpose: str

    @property
    def _all(self) -> bool:
        return self.principal.count <= 2 * self.size

    @cached_property
    def _chance(self) -> np.ndarray:
        even, mass = 0.5 / self.principal.count, max(self.principal.missed, 1e-300)
        return np.minimum(1.0, self.size * (even + 0.5 * self.seen.rest / mass))

    @cached_property
    def _places(self) -> np.ndarray:
        drawn = np.flatnonzero(self.seen.rows.uniform(self.purpose) < self._chance)
        return drawn if len(drawn) >= self.seen.rows.least else drawn[:0]

    @cached_property
    def rows(self) -> Rows:
        return self.seen.rows if self._all else self.seen.rows.at(self._places)

    def weights(self) -> np.ndarray:
        """What the landmarks miss of each row, and of those that it stands for."""
        return self.seen.rest if self._all else self.seen.rest[self._places] / self._chance[self._places]

    @property
    def heaviest(self) -> float:
        """A weight, at most."""
        return 2.0 * self.principal.missed / self.size


def more_wanted(m: int, bound: float, options: SumsOptions) -> int:
    """How many landmarks to add, from the bound on the error; 0 if it is low enough, or no more are allowed."""
    if options.points is not None or m >= options.max_landmarks:
        return 0
    if options.fixed:
        return options.max_landmarks - m
    if bound <= max(options.tol, ROUNDING):
        return 0
    factor = (bound / options.tol) ** (1 / ORDER) if options.tol > 0 else MOST_GROWTH
    most = MOST_GROWTH if m < MANY else 2.0
    return max(0, min(int(m * min(max(factor, LEAST_GROWTH), most)) + 1, options.max_landmarks) - m)


# ---------------------------------------------------------------------- components
def judged(
    seen: Seen, principal: Principal, first: Prepared, options: SumsOptions, stage: str, effort: int = 1
) -> Solver:
    """The components of the rows, and their accuracy; returns `Verdict`."""
    if not len(principal.values):  # all rows are alike, or the landmarks see nothing of them
        none = np.zeros(0)
        return Verdict(none, np.zeros((0, 0)), Accuracy.of([], 1.0, 1.0), 1.0)
    k, centered = options.n_components, options.centered
    if len(principal.values) < k and principal.missed > NEGLIGIBLE * principal.trace:
        return missing_components(principal, k)
    if options.kernel.has_sketch:
        return (yield from judge(seen, principal, k, centered, options.tol, options.seed, stage, effort, first.size))
    if options.share_rows:
        rows = Judged(seen, principal, options.seed, stage, size=first.size, by_rows=True)
        return (yield from judge_by_rows(rows, k, centered))
    return judge_by_trace(principal, k)


def missing_components(principal: Principal, k: int) -> Verdict:
    """Fewer components than asked for, where the landmarks may miss the others: nothing is known."""
    there = len(principal.values)
    return Verdict(principal.values, np.eye(there), Accuracy.of(np.ones(there), 1.0, 1.0), 1.0)


def found(
    first: Prepared, options: SumsOptions, marks: Marks, principal: Principal, verdict: Verdict, stages: list[tuple[int, float, float]]
) -> Found:  # fmt: skip
    """The result; components that the data does not have are zero, with an error of 1."""
    k, there, about = options.n_components, len(verdict.values), verdict.accuracy
    weights = np.zeros((marks.size, k))
    basis = signed(verdict.basis, principal.along @ verdict.basis)
    weights[:, :there] = principal.weights @ (basis * np.sqrt(verdict.values))
    about = Accuracy.of([*about.errors, *[1.0] * (k - there)], about.error, about.bound, about.mixed, about.method)
    values = np.pad(verdict.values, (0, k - there))
    return Found(
        first, marks.points, list(marks.kinds), principal.mean, weights, values, principal.trace, about, stages
    )
