"""The answer of the nodes of a block: components and eigenvalues, from the last iterate or without iterations.

Generators to be used with `yield from` at the end of a node's program.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import array_api_compat as aac
import numpy as np

from .block import Block, FlatRows
from .collectives import network_sum
from .core import consensus, ritz, spectrum
from .core.accuracy import Accuracy, span_error
from .core.chunks import by_nodes, row_bytes, summed
from .core.consensus import Estimate
from .core.landmarks import Landmarks, RandomFeatures
from .core.spectrum import to_numpy, transposed
from .judging import Judged, judge_values, most_frequencies
from .kernels import Kernel
from .landmark_solver import Correction, Found
from .messages import Heard, Script
from .options import Options
from .separation import Whole
from .space import Known, Space

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
    correction: Correction | None = None

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
    if options.init == "landmarks" and options.centering != "local" and answer.kernel.has_features:
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


def landmark_answer(block: Block, options: Options, known: Known, found: Found) -> Answer:
    """One shot: components in the span of the landmarks, the same functions at every node."""
    xp = aac.array_namespace(block.samples)
    known.points, known.mean = found.marks.points, found.mean if options.centering else None
    return Answer(
        block=block,
        known=known,
        kernel=known.kernel(options),
        marks=found.marks,
        sites=None,
        w=xp.broadcast_to(found.weights[None, ...], (block.n_nodes, *found.weights.shape)),
        z=None,
        eigenvalues=found.eigenvalues,
        trace=found.trace,
        n_iter=1,
        runs=[("converged", 0)],
        history={},
        accuracy=found.accuracy,
        correction=found.correction,
    )


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
        return replace(answer, accuracy=Accuracy.exact(k))
    directions, exact = known.directions[:, :there], known.landmark_values[:there]
    psi = FlatRows(block, psi).X
    on_marks = (psi @ directions) / xp.sqrt(exact)
    # Eigenvalues of the leak are far below those of the iterate's columns; both are judged with the landmarks' other components.
    together = xp.concat([FlatRows(block, values).X, on_marks[:, q:]], axis=1)
    apart = answer.history["residual"][-1, :] ** (2 * NEARLY_MAXIMUM)
    whole, disagreement = yield from sums_of_all(block, options, psi, together, xp.sum(apart))

    most = most_frequencies(block.samples.shape[2])  # cheap compared with the iterations
    judged = Judged.of(block, options, answer.kernel, FlatRows(block, block.samples), most)
    judged.marks, judged.psi = answer.marks, judged.of_all(psi) + (0.0 if known.mean is None else known.mean)
    start = yield from judge_values(block, options, judged, judged.of_all(on_marks), exact)
    iterate = yield from judge_values(block, options, judged, judged.of_all(together), None, whole=whole)
    # The error is at least the distance from the components that the judge finds in the same functions (its estimate
    # includes their noise), and at least the disagreement between neighbors.
    both = np.concatenate(
        [to_numpy(iterate.turn), np.pad(to_numpy(turn), ((0, together.shape[1] - q), (0, 0)))], axis=1
    )
    products = both.T @ whole.squares @ both
    theirs, ours, cross = products[:k, :k], products[k:, k:], products[:k, k:]
    sizes = np.diagonal(theirs) * np.diagonal(ours)
    overlap = np.divide(np.diagonal(cross) ** 2, sizes, out=np.zeros(k), where=sizes > 0)
    error = max(span_error(theirs, ours, cross), disagreement ** (1 / NEARLY_MAXIMUM))
    about = iterate.accuracy.limited(1.0 - overlap, error)
    if about.error <= start.accuracy.error:
        return replace(answer, accuracy=about)
    weights = (directions / xp.sqrt(exact)) @ start.turn
    return replace(
        answer, sites=None, w=xp.broadcast_to(weights[None, ...], (block.n_nodes, *weights.shape)), z=None, eigenvalues=start.eigenvalues,
        accuracy=start.accuracy,
    )  # fmt: skip


def sums_of_all(block: Block, options: Options, psi: Array, values: Array, own: Array) -> Script:
    """Over all rows: G'G of functions with these values G and, at the root alone, psi'G; and the sum of `own` over the blocks."""
    xp, (m, p) = aac.array_namespace(psi), (psi.shape[1], values.shape[1])

    def products(rows: slice) -> tuple[Array, ...]:
        a, g = psi[rows, :], values[rows, :]
        return transposed(a) @ g, transposed(g) @ g, xp.sum(a, axis=0), xp.sum(g, axis=0)

    kept = np.zeros((m, p))  # only the root needs it

    def squares_of(total: Array) -> Array:
        nonlocal kept
        numbers = to_numpy(total).astype(np.float64)
        marks, squares, mark_sum, value_sum = np.split(numbers[1:], np.cumsum([m * p, p * p, m]))
        weight = 1.0 / float(block.sizes.sum()) if options.centering else 0.0
        kept = marks.reshape(m, p) - weight * np.outer(mark_sum, value_sum)
        squares = squares.reshape(p, p) - weight * np.outer(value_sum, value_sum)
        return block.array(np.concatenate([numbers[:1], squares.ravel()]))

    sums = summed(products, psi.shape[0], psi)
    mine = xp.concat([xp.reshape(own, (1,)), *[xp.reshape(x, (-1,)) for x in sums]])
    told = to_numpy((yield from network_sum(block, "accuracy", mine, squares_of, 1 + p * p))).astype(np.float64)
    return Whole(told[1:].reshape(p, p), kept), float(told[0])


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
