"""The default solver: kernel PCA in the span of landmarks, as a few rounds of sums. Read `solve` first.

Everything that a node tells is its term of a sum over the whole network; what the root makes of a total is told to all (rounds.py). The number of
rounds does not depend on the number of rows.

    columns      means and variances: missing values, scales, gamma
    directions   linear components, along which k-means works
    clusters     landmarks: centres of k-means of the whole network
    groups       means of a few rows, which k-means has in the place of rows where others see sums
    shared_rows  more landmarks: rows, where these may leave and clusters are too small
    moments      principal directions of all rows in landmark coordinates
    judging_rows the rows that judge, and their random features
    judge        how far the components are from central kernel PCA
    stream       rows that come in parts, and rows that are forgotten
"""

from __future__ import annotations

import logging
from dataclasses import replace
from itertools import count
from typing import Any

import array_api_compat as aac
import numpy as np

from ...accuracy import ROUNDING, Accuracy
from ...answer import Answer, Expansion
from ...arrays import integers, inverse, like, numbers, on_host, take
from ...data.blocks import Blocks, Draws
from ...draws import keys_at, row_keys
from ...landmarks import Landmarks
from ...rounds import Solver
from ...signs import signed
from ...site import Site
from .clusters import (
    FIRST,
    ROWS_A_CENTRE,
    GivenLandmarks,
    Weights,
    first_landmarks,
    more_landmarks,
)
from .columns import PreparedRows, prepare_rows
from .directions import AXES, Axes, find_axes
from .directions import SAMPLE as AXES_SAMPLE
from .groups import Groups, grouped, summarized
from .judge import NEGLIGIBLE, Verdict, judge
from .judge_by_rows import judge_by_rows, judge_by_trace
from .judging_rows import EFFORT, GROUPS, LAST, JudgingRows, likely_judges
from .moments import Moments, Principal, Seen, chances
from .options import LEAST_CLUSTER, SumsOptions
from .rows import SiteRows
from .shared_rows import earlier_landmarks, rows_as_landmarks
from .stream import Basis as Basis
from .stream import Stream

log = logging.getLogger("dekpca")

Array = Any

Stages = list[tuple[int, float, float]]  # landmarks, error and bound of each judgement

SAMPLE = 32  # rows a landmark, drawn at random, are enough to grow by and to judge, until the last pass over all rows
LEAST_SAMPLE = 4096  # rows
ORDER = 1.5  # the error falls at least with this power of the number of landmarks
LEAST_GROWTH, MOST_GROWTH, MANY = 1.4, 3.0, 300  # factors from a stage to the next; beyond MANY landmarks at most 2
MANY_STAGES = 6  # from 100 landmarks to 2,500; more take more passes over a file
CLOSE = 0.02  # relative: eigenvalues that are nearer to each other make the span hard to find
WORTHWHILE = 1.05  # growth by less ends it: no clusters of enough rows are left where the rest is


def rows_of(site: Site, options: SumsOptions) -> SiteRows:
    """The rows of the nodes of a site, where they are in X: keys and nodes are made node by node, and put into the order of X."""
    if isinstance(site.X, Blocks):
        keys, node = site.X.keys, site.X.node
    elif site.numbered is not None:
        keys = integers(site.X, keys_at(options.seed, site.network.names, *site.numbered))
        node = integers(site.X, site.numbered[0])
    else:
        sizes = site.own_sizes if site.X.shape[0] else 0 * site.own_sizes  # whoever only concludes has no rows
        keys = row_keys(options.seed, site.names, sizes, site.X)
        node = aac.array_namespace(site.X).repeat(integers(site.X, site.nodes), integers(site.X, sizes))
    if site.order is not None:
        back = inverse(integers(keys, site.order))
        keys, node = take(keys, back), take(node, back)
    return SiteRows(site.X, keys, node, site.total, len(site.sizes), options.least, speaks=site.has_root)


def solve(site: Site, options: SumsOptions) -> Solver:
    """The components of all rows, the same functions at every node; returns the `Answer`."""
    if options.points is None and options.least > int(site.sizes.max()):
        few = f"share_rows=False: no node has {options.least} rows, and nothing is told of fewer"
        raise ValueError(f"{few}; join nodes, or use share_rows=True if rows may leave their nodes")
    given = rows_of(site, options)
    apart = options.least > 1 and options.points is None
    groups = Groups.of(given, grouped(given, options.standardize)) if apart else None
    prepared = yield from prepare_rows(given, options)
    rows, options = prepared.rows, replace(options, kernel=prepared.kernel)
    axes = yield from axes_of(prepared, options)
    if groups is not None:
        rows = replace(rows, groups=groups.prepared(prepared.fill, prepared.scales, rows.like))
        prepared = replace(prepared, rows=rows)
    marks = yield from first_stage(prepared, options, axes)
    whole, stages, likely, effort = False, Stages(), None, 1
    for step in count(1):
        size = sample_size(marks.size, options)
        whole = whole or size >= 0.5 * rows.total
        seen = Seen(rows if whole else rows.sampled(size, at_stage(step)), marks, options.kernel, likely)
        moments = Moments(seen, options.centered, options.n_components, options.largest)
        principal = moments.found((yield moments))
        bound, known = 1.0, replace(options, n_components=principal.components)
        if not options.fixed and principal.enough:
            name = LAST if whole and options.stream else str(step)
            verdict = yield from judge_components(seen, principal, known, name, effort)
            bound = note(rows, marks, verdict, stages, principal.values)
        more = yield from next_stage(seen, principal, options, axes, marks, step, bound)
        if more is not None:
            marks = more
        elif not whole:
            # Each row of the sample judged in all GROUPS groups; of all rows a few will judge, each in one group. So the noise of the bound will be
            # GROUPS times as large: unless it meets tol even so, they begin with EFFORT. (Streams: later judgements have few rows, too.)
            whole, effort = True, 1 if options.fixed or options.stream or GROUPS * bound <= options.tol else EFFORT
            likely = likely_judges(principal, rows.total, LAST if options.fixed or options.least > 1 else str(step + 1))
        else:
            if bound >= 1.0:  # not known; more work may tell
                verdict = yield from judge_components(seen, principal, known, LAST, 1 if options.fixed else EFFORT)
                note(rows, marks, verdict, stages, principal.values)
            return answer_of(site, prepared, known, marks, principal, verdict, stages)
    return None


def solve_stream(site: Site, stream: Stream) -> Solver:
    """The components of all rows of streams, with the landmarks that these have; returns the `Answer`."""
    principal, verdict = yield from stream.rounds(site.total, judge_components)
    basis, marks, about = stream.basis, stream.basis.marks, verdict.accuracy
    prepared = PreparedRows(basis.rows(), None, basis.fill, basis.scales, basis.kernel)
    known = replace(basis.options, n_components=principal.components)
    return answer_of(site, prepared, known, marks, principal, verdict, [(marks.size, about.error, about.bound)])


def at_stage(step: int) -> str:
    """The purpose of the random numbers that choose the rows of a stage."""
    return f"stage {step}"


def sample_size(landmarks: int, options: SumsOptions) -> int:
    """How many rows are enough to grow by. Where others see sums, a power of two: else samples for numbers of landmarks that a root tells in two runs
    differ by few rows."""
    size = max(SAMPLE * landmarks, LEAST_SAMPLE)
    return 1 << (size - 1).bit_length() if options.least > 1 else size


def draws_ahead(options: SumsOptions) -> Draws:
    """The random samples that a fit of many rows may ask for before it makes a pass over all rows, and how many rows each has, about at most. Whoever
    reads rows from a file can keep them in one pass."""
    found = []
    if options.points is None:
        found = [(AXES, AXES_SAMPLE), (FIRST, ROWS_A_CENTRE * options.first)]
    most = options.max_landmarks if options.points is None else len(options.points)
    m = min(2 * options.first, most)
    for step in range(1, MANY_STAGES + 1):
        found.append((at_stage(step), sample_size(m, options)))
        m = min(most, int(m * (MOST_GROWTH if m < MANY else 2.0)) + 1)
    return found


def note(rows: SiteRows, marks: Landmarks, verdict: Verdict, stages: Stages, values: np.ndarray) -> float:
    """Note a judgement, and say so once in the network; returns the bound on the error. `values` are eigenvalues, also beyond the components."""
    stages.append((marks.size, verdict.accuracy.error, verdict.accuracy.bound))
    if rows.speaks:
        k, close = len(verdict.values), ""
        if 0 < k < len(values) and (gap := 1.0 - values[k] / values[k - 1]) < CLOSE:
            close = f"; eigenvalues {k} and {k + 1} are {gap:.1%} apart: another n_components needs fewer landmarks"
        log.info("stage %d: %d landmarks, error of the span %.2g, at most %.2g%s", len(stages), *stages[-1], close)
    return verdict.accuracy.bound


# ---------------------------------------------------------------------- landmarks
def choose_landmarks(prepared: PreparedRows, options: SumsOptions) -> Solver:
    """The landmarks of the first stage alone, for a solver that does something else with them; returns `Landmarks`."""
    return (yield from first_stage(prepared, options, (yield from axes_of(prepared, options))))


def axes_of(prepared: PreparedRows, options: SumsOptions) -> Solver:
    """The axes along which landmarks are found; None if they are given."""
    return (yield from find_axes(prepared.rows, prepared.mean, options.seed)) if options.points is None else None


def first_stage(prepared: PreparedRows, options: SumsOptions, axes: Axes | None) -> Solver:
    """The first landmarks; returns `Landmarks`."""
    rows, kernel, marks = prepared.rows, options.kernel, Landmarks.none(prepared.rows.like)
    if axes is None or options.resume is not None:
        points, kind = options.points, "points"
        if points is None:
            points, kind = (yield from earlier_landmarks(rows, options)), "earlier"
        if prepared.scales is not None:
            points = on_host(prepared.scales.standardized(like(rows.like, points)))
        told = yield GivenLandmarks(points, marks, kernel)
        marks = marks.plus(told["points"][: int(told["count"][0])], kind, kernel)
    elif as_many_as_rows(options.first, rows, options):
        marks = yield from all_rows(rows, options)
    else:
        marks = marks.plus((yield from first_landmarks(rows, axes, marks, options)), "means", kernel)
        if options.share_rows and marks.size < min(options.first, rows.total) / 2:  # too few rows for as many clusters
            alike, wanted = (lambda: rows.equal_weights), options.first - marks.size
            more = yield from rows_as_landmarks(rows, alike, float(rows.total), wanted, marks, options, "0")
            marks = marks.plus(more, "rows", kernel)
            if as_many_as_rows(marks.size, rows, options):
                marks = yield from all_rows(rows, options)
    if not marks.size:
        raise ValueError(
            f"no landmarks came out: the kernel is zero at all of them, or there are fewer than {LEAST_CLUSTER} rows and share_rows=False; use other "
            "landmarks or another kernel, or share_rows=True if rows may leave their nodes"
        )
    return marks


def next_stage(
    seen: Seen,
    principal: Principal,
    options: SumsOptions,
    axes: Axes | None,
    marks: Landmarks,
    stage: int,
    bound: float,
) -> Solver:
    """More landmarks, where the rest is; returns `Landmarks`, or None if these are enough or there are hardly more."""
    wanted = more_wanted(marks.size, bound, options)
    if not wanted or axes is None:
        return None
    if as_many_as_rows(marks.size + wanted, seen.rows, options):
        found = yield from all_rows(seen.rows, options)
        return None if found.kinds == marks.kinds else found
    size, kernel = sample_size(marks.size, options), options.kernel
    rows, weights = rows_to_grow_by(seen, principal, size, f"growth {stage}")
    heaviest = max(options.largest, 2.0 * principal.missed / size)
    points = yield from more_landmarks(rows, weights, heaviest, axes, wanted, marks, options, stage)
    more = marks.plus(points, "means", kernel)
    if options.share_rows and more.size < marks.size + wanted / 2:
        rest, missed = (lambda: seen.rest), principal.missed
        points = yield from rows_as_landmarks(seen.rows, rest, missed, wanted, more, options, str(stage))
        more = more.plus(points, "rows", kernel)
        if as_many_as_rows(more.size, seen.rows, options):  # means and some of the rows
            return (yield from all_rows(seen.rows, options))
    least = marks.size + 1 if options.share_rows else WORTHWHILE * marks.size
    return more if more.size >= least else None


def as_many_as_rows(wanted: int, rows: SiteRows, options: SumsOptions) -> bool:
    """Whether as many landmarks are wanted, and allowed, as there are rows, and these may be told."""
    return options.share_rows and options.resume is None and rows.total <= min(wanted, options.max_landmarks)


def all_rows(rows: SiteRows, options: SumsOptions) -> Solver:
    """All rows as landmarks, with which the answer is exact; returns `Landmarks`."""
    none, total = Landmarks.none(rows.like), rows.total
    points = yield from rows_as_landmarks(rows, lambda: rows.equal_weights, float(total), total, none, options, "all")
    return none.plus(points, "rows", options.kernel)


def rows_to_grow_by(seen: Seen, principal: Principal, size: int, purpose: str) -> tuple[SiteRows, Weights]:
    """All rows or, if there are many, about `size` of them; and what the landmarks miss of each and of those that it stands for, which is at most
    twice the missed trace over `size`."""
    if seen.rows.groups is not None:
        own = len(seen.rows) if len(seen.rows) >= seen.rows.least else 0
        few = own <= 2 * size
        places = numbers(seen.rows.keys, own) if few else seen.rows.groups.drawn(purpose, size / own)
        weight = seen.rows.weight * min(1.0, size / seen.rows.total) * (1.0 if few else own / size)
        means = summarized(seen.rows.at(places))
        # what is missed of a mean, not of its rows: that would tell of single ones
        return means, lambda: weight * Seen(means, seen.marks, seen.kernel).rest
    if principal.count <= 2 * size:
        return seen.rows.here(), lambda: seen.rest

    def chance(rest: Array) -> Array:
        return chances(rest, principal.count, principal.missed, size)

    places = seen.rows.drawn(purpose, lambda some: chance(seen.rest[some]))
    return seen.rows.at(places), lambda: take(seen.rest, places) / chance(take(seen.rest, places))


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
def judge_components(seen: Seen, principal: Principal, options: SumsOptions, stage: str, effort: int = 1) -> Solver:
    """The components of the rows, and their accuracy; returns `Verdict`."""
    there, k = len(principal.values), int(options.n_components)
    if not there or (there < k and principal.missed > NEGLIGIBLE * principal.trace):
        # All rows are alike, or the landmarks see nothing of them, or may miss the other components: nothing is known.
        return Verdict(principal.values, np.eye(there), Accuracy.of(np.ones(there), 1.0, 1.0), 1.0)
    if options.kernel.has_sketch:
        return (yield from judge(seen, principal, options, stage, effort))
    if options.share_rows:
        return (yield from judge_by_rows(JudgingRows(seen, principal, options, stage, as_points=True)))
    return judge_by_trace(principal, k)


def answer_of(
    site: Site, prepared: PreparedRows, options: SumsOptions, marks: Landmarks, principal: Principal, verdict: Verdict, stages: Stages
) -> Answer:  # fmt: skip
    """The answer; components that the data does not have are zero, with an error of 1."""
    k, there, about = int(options.n_components), len(verdict.values), verdict.accuracy
    basis = signed(verdict.basis, principal.along @ verdict.basis)
    weights = np.zeros((marks.size, k))
    weights[:, :there] = principal.weights @ (basis * np.sqrt(verdict.values))
    about = Accuracy.of([*about.errors, *[1.0] * (k - there)], about.error, about.bound, about.mixed, about.method)
    values = np.pad(verdict.values, (0, k - there))
    return Answer(
        site=site, kernel=prepared.kernel, terms=Expansion(site.array(weights)), eigenvalues=site.array(values), trace=principal.trace,
        marks=marks, mean=site.array(principal.mean), scales=prepared.scales, fill=prepared.fill,
        accuracy=about, stages=tuple(stages),
    )  # fmt: skip
