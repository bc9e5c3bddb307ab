"""The answer of the nodes of a block: components and eigenvalues, from the last iterate or without iterations.

Generators to be used with `yield from` at the end of a node's program.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import array_api_compat as aac
import numpy as np

from .accuracy import ROUNDING, Accuracy
from .block import Block, FlatRows
from .collectives import network_sum
from .core import consensus, ritz, spectrum
from .core.chunks import by_nodes, row_bytes, summed
from .core.consensus import Estimate
from .core.landmarks import Landmarks, RandomFeatures
from .core.spectrum import to_numpy, transposed
from .kernels import Kernel
from .messages import Heard, Script
from .options import Options
from .rounds import Arrays, Round, Shapes, Solver, Transcript, run_rounds
from .solvers.sums import Found
from .solvers.sums.judge import Judged, judge, judge_functions
from .solvers.sums.moments import Moments, Seen
from .solvers.sums.rows import Rows, on_host
from .space import Known, Space
from .sums_input import rows_of

Array = Any

NEARLY_MAXIMUM = 8  # the 8th root of a sum of 8th powers is close to the maximum


@dataclass(eq=False)
class Answer:
    """Components in the last axis, scaled to unit directions of the central problem."""

    block: Block
    known: Known
    kernel: Kernel
    marks: Landmarks | RandomFeatures | None
    sites: Heard | None  # samples behind each slot; None where no sample was exchanged
    w: Array  # (B, m + n, k)
    z: Estimate | None
    eigenvalues: Array  # (k,)
    trace: Array  # of the whole network's centred kernel
    n_iter: int
    runs: list[tuple[str, int]]  # verdict and number of iterations, of each run
    history: dict[str, Array]  # (iterations, B)
    accuracy: Accuracy | None = None
    transcript: Transcript | None = None  # of a solver that is rounds of sums

    @property
    def converged(self) -> bool:
        return all(verdict == "converged" for verdict, _ in self.runs)


def separated_answer(
    block: Block,
    options: Options,
    known: Known,
    marks: Landmarks | RandomFeatures | None,
    space: Space,
    w: Array,
    z: Estimate,
    turn: Array,
    runs: list[tuple[str, int]],
    history: dict[str, list[Array]],
) -> Script:
    """Components and eigenvalues, by one more exchange of values and one network sum; `turn` (q, q) is the rotation of the last check."""
    q, k = w.shape[2], options.n_components
    (values,) = by_nodes(lambda j: (space.own[j].values(w[j, ...]) @ turn,), block.n_nodes, row_bytes(w), w)
    mine = yield from pair_sums(block, space, values)

    def separate(total: Array) -> Array:
        return ritz.separate(total, q, k, pair_counts(block), mix=options.update != "paper")

    xp = aac.array_namespace(w)
    found = yield from network_sum(block, "spectrum", xp.sum(mine.pack(), axis=0), separate, 1 + k + q * k)
    turn = turn @ xp.reshape(found[1 + k :], (q, k))
    answer = Answer(
        block=block,
        known=known,
        kernel=known.kernel(options),
        marks=marks,
        sites=space.sites,
        w=w @ turn,
        z=Estimate(z.shared @ turn, z.near @ turn),
        eigenvalues=found[1 : 1 + k],
        trace=found[0],
        n_iter=len(history["residual"]),
        runs=runs,
        history={name: xp.stack(rows) for name, rows in history.items() if rows},
    )
    if options.init == "landmarks" and options.centering != "local" and answer.kernel.has_sketch:
        (values,) = by_nodes(lambda j: (space.own[j].values(w[j, ...]),), block.n_nodes, row_bytes(w), w)
        return (yield from better_of(block, options, known, answer, space.own.psi, values, turn))
    return answer


def pair_sums(block: Block, space: Space, values: Array) -> Script:
    """Each node's part of G'K G, over the pairs of samples in its neighborhood, by an exchange of values with the neighbors."""
    xp = aac.array_namespace(values)
    B, d, n, q = block.n_nodes, block.n_slots, values.shape[1], values.shape[2]
    psi, rest, m = space.own.psi, space.clean_rest, space.own.m
    work = d * row_bytes(values)

    (on_marks,) = by_nodes(lambda j: (transposed(psi[j, ...]) @ values[j, ...],), B, work, values)
    heard, heard_marks = yield block.exchange("values", xp.broadcast_to(values[:, None, ...], (B, d, n, q)), on_marks)
    near = heard.slots(slice(0, B))
    shares = block.array(pair_shares(block))
    through = space.neighborhood.apply(near, shares)

    def multiply(j: slice) -> tuple[Array, ...]:
        v, rest_j, marks, b = values[j, ...], rest[j, ...], on_marks[j, ...], j.stop - j.start
        near_marks = heard_marks.slots(j)
        other_marks = xp.reshape(shares[j, ...] @ xp.reshape(near_marks, (b, d, m * q)), (b, d, m, q))
        alone = transposed(v) @ (xp.linalg.diagonal(rest_j)[..., None] * v)
        marks_alone = xp.sum(xp.sum(psi[j, ...] ** 2, axis=2)[..., None] * v * v, axis=1)
        return (
            transposed(v) @ v,
            alone,
            transposed(v) @ (rest_j @ v) - alone,
            consensus.column_products(near[j, ...], through[j, ...]),
            marks_alone,
            xp.sum(marks * marks, axis=1) - marks_alone,
            xp.sum(near_marks * other_marks, axis=(1, 2)),
            marks,
        )

    return ritz.PairSums(space.trace, *by_nodes(multiply, B, work, values))


def pair_shares(block: Block) -> np.ndarray:
    """(B, d, d): the weight of each pair of different nodes in this node's sum: one over the number of nodes with both in their neighborhood."""
    watchers, J = block.network.watchers, len(block.network)
    rows = np.repeat(np.arange(J), np.diff(watchers.indptr))
    known = rows * J + watchers.indices  # sorted, since the indices of each row are sorted
    wanted = block.slots[:, :, None] * J + block.slots[:, None, :]
    shares = 1.0 / watchers.data[np.searchsorted(known, wanted.ravel())].reshape(wanted.shape)
    shares[:, np.arange(block.n_slots), np.arange(block.n_slots)] = 0.0
    return shares


def pair_counts(block: Block) -> ritz.PairCounts:
    """Numbers of ordered pairs of different samples: within a node, within a neighborhood, others."""
    sizes = block.sizes.astype(np.float64)
    a, b = block.network.watchers.nonzero()
    within = float((sizes * (sizes - 1)).sum())
    between = float((sizes[a] * sizes[b])[a != b].sum())
    return ritz.PairCounts(within, between, float(sizes.sum() ** 2 - sizes.sum()) - within - between)


def sums_answer(block: Block, options: Options, known: Known, found: Found, transcript: Transcript) -> Answer:
    """The answer of the default solver: components in the span of the landmarks, the same functions at every node."""
    xp, first = aac.array_namespace(block.samples), found.prepared
    known.fill, known.columns, known.gamma = first.fill, first.columns, first.kernel.gamma
    known.points, known.mean = found.marks.points, block.array(found.mean) if options.centering else None
    known.kinds, known.stages = list(found.kinds), list(found.stages)
    weights = block.array(found.weights)
    return Answer(
        block=block,
        known=known,
        kernel=first.kernel,
        marks=found.marks,
        sites=None,
        w=xp.broadcast_to(weights[None, ...], (block.n_nodes, *weights.shape)),
        z=None,
        eigenvalues=block.array(found.eigenvalues),
        trace=block.array([found.trace])[0],
        n_iter=1,
        runs=[("converged", 0)],
        history={},
        accuracy=found.accuracy,
        transcript=transcript,
    )


@dataclass(frozen=True, eq=False)
class Products(Round):
    """Over all rows: products of functions with values G, with each other and with psi; and the sum of `own` over the nodes.

    The root whitens the functions. Told: `white` (p, p) such that G white is orthonormal (columns of zeros for directions that are rounding), `marks`
    (m, p) = psi'G white, `squares` (p, p) = G'G, `own`.
    """

    psi: Array
    values: Array
    rows: float
    centered: bool
    own: float
    kind = "judge"

    def term(self) -> Arrays:
        def products(rows: slice) -> tuple[Array, ...]:
            xp, a, g = aac.array_namespace(self.psi), self.psi[rows, :], self.values[rows, :]
            return transposed(a) @ g, transposed(g) @ g, xp.sum(a, axis=0), xp.sum(g, axis=0)

        names = ("marks", "squares", "mark_sum", "value_sum")
        sums = summed(products, self.psi.shape[0], self.psi)
        return {"own": np.array([self.own])} | {name: on_host(x) for name, x in zip(names, sums, strict=True)}

    def told(self) -> Shapes:
        m, p = self.psi.shape[1], self.values.shape[1]
        return {"own": (1,), "white": (p, p), "marks": (m, p), "squares": (p, p), "mean": (p,)}

    def conclude(self, total: Arrays) -> Arrays:
        weight = 1.0 / self.rows if self.centered else 0.0
        squares = total["squares"] - weight * np.outer(total["value_sum"], total["value_sum"])
        marks = total["marks"] - weight * np.outer(total["mark_sum"], total["value_sum"])
        white = ritz.whitener(squares)
        white = np.pad(white, ((0, 0), (0, len(squares) - white.shape[1])))
        return {
            "own": total["own"],
            "white": white,
            "marks": marks @ white,
            "squares": squares,
            "mean": weight * total["value_sum"],
        }


def better_of(
    block: Block, options: Options, known: Known, answer: Answer, psi: Array, values: Array, turn: Array
) -> Script:
    """The answer of the iteration or of the landmarks at its start, whichever has the smaller estimated error; and its accuracy.

    `psi` (B, n, m) are the landmark coordinates (centred if the problem is) and `values` (B, n, q) the iterate, at
    each node's own rows; `turn` (q, k) maps the iterate to components.
    """
    xp, (q, k) = aac.array_namespace(values), turn.shape
    assert isinstance(answer.marks, Landmarks)
    assert known.directions is not None and known.landmark_values is not None  # noqa: PT018
    there = int((to_numpy(known.landmark_values) > 0).sum())
    if not there:  # all rows are equal
        return replace(answer, accuracy=Accuracy.of(np.ones(k), 1.0, 1.0))
    directions, exact = known.directions[:, :there], known.landmark_values[:there]
    psi = FlatRows(block, psi).X
    # Eigenvalues of the leak are far below those of the iterate's columns; both are judged with the landmarks' other components.
    together = xp.concat([FlatRows(block, values).X, ((psi @ directions) / xp.sqrt(exact))[:, q:]], axis=1)
    apart = float(xp.sum(answer.history["residual"][-1, :] ** (2 * NEARLY_MAXIMUM)))
    rounds = _judge_both(rows_of(block, options), options, answer.kernel, answer.marks, psi, together, apart)
    start, principal, iterate, told = yield from run_rounds(block, rounds, Transcript())

    # The error is at least the distance from the components that the judge finds in the same functions (its estimate
    # includes their noise), and at least the disagreement between neighbors.
    turns = np.pad(to_numpy(turn).astype(np.float64), ((0, together.shape[1] - q), (0, 0)))
    both = np.concatenate([told["white"][:, : len(iterate.basis)] @ iterate.basis, turns], axis=1)
    products = both.T @ told["squares"] @ both
    many = iterate.basis.shape[1]
    theirs, ours, cross = products[:many, :many], products[many:, many:], products[:many, many:]
    sizes = np.diagonal(theirs)[:k] * np.diagonal(ours)[:many]
    overlap = np.divide(np.diagonal(cross) ** 2, sizes, out=np.zeros(min(many, k)), where=sizes > 0)
    error = max(ritz.span_error(theirs, ours, cross), float(told["own"][0]) ** (1 / NEARLY_MAXIMUM))
    about = iterate.accuracy
    errors = np.maximum(about.errors, 1.0 - overlap)
    about = Accuracy.of(
        np.pad(errors, (0, k - len(errors)), constant_values=1.0),
        max(about.error, error),
        max(about.bound, error),
        about.mixed,
    )
    if about.error <= max(start.accuracy.error, ROUNDING) or len(start.values) < k:
        return replace(answer, accuracy=about)
    weights = block.array(principal.weights @ (start.basis * np.sqrt(start.values)))
    return replace(
        answer, sites=None, w=xp.broadcast_to(weights[None, ...], (block.n_nodes, *weights.shape)), z=None,
        eigenvalues=block.array(start.values), accuracy=start.accuracy,
    )  # fmt: skip


def _judge_both(
    rows: Rows, options: Options, kernel: Kernel, marks: Landmarks, psi: Array, values: Array, apart: float
) -> Solver:  # fmt: skip
    """Judge the landmarks' own components, and functions with these values on all rows."""
    centered, k = options.centering is not None, options.n_components
    seen = Seen(rows, marks, kernel)
    moments = Moments(seen, centered, k, 1.0)
    principal = moments.found((yield moments))
    start = yield from judge(seen, principal, k, centered, options.tol, options.seed, "start")
    told = yield Products(psi, values, float(rows.total), centered, apart)
    there = int((np.abs(told["white"]).sum(axis=0) > 0).sum())
    white, on_marks = told["white"][:, :there], told["marks"][:, :there]
    within = on_marks.T @ on_marks
    judged = Judged(seen, principal, options.seed, "iterate")

    def g() -> np.ndarray:
        return (on_host(values)[judged.places] - told["mean"]) @ white

    def outside() -> np.ndarray:
        return on_host(psi)[judged.places] @ on_marks - g() @ within

    iterate = yield from judge_functions(judged, g, within, k, centered, outside)
    return start, principal, iterate, told


def whole_answer(block: Block, options: Options, known: Known, space: Space) -> Answer:
    """A network of one node: central kernel PCA, without iterations."""
    xp = aac.array_namespace(block.samples)
    k = options.n_components
    eigen = space.gram.eigen
    values = xp.flip(eigen.values[0, :])[:k]
    basis = spectrum.flip_signs(xp.flip(eigen.basis[0, ...], axis=1)[:, :k])
    w = (basis * xp.sqrt(xp.flip(eigen.inverse[0, :])[:k]))[None, ...]
    z = Estimate(w[:, :0, :], w[:, None, ...])
    kernel = known.kernel(options)
    exact = Accuracy.exact(k)
    return Answer(
        block, known, kernel, None, space.sites, w, z, values, space.trace[0], 1, [("converged", 0)], {}, exact
    )
