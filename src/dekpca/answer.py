"""What the nodes of a block end with: components and eigenvalues, from the last iterate or without iterations.

Generators to be used with `yield from` at the end of a node's program.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import array_api_compat as aac
import numpy as np

from .block import Block
from .collectives import network_sum
from .core import consensus, ritz, spectrum
from .core.consensus import Estimate
from .core.landmarks import Landmarks, RandomFeatures
from .core.nodewise import by_nodes, row_bytes
from .core.spectrum import transposed
from .kernels import TILE_BYTES, Kernel, row_tiles
from .messages import Heard, Say
from .options import Options
from .space import Coordinates, Known, Space, random_features

Array = Any
Script = Generator[Say, Any, Any]

REST_FEATURES = 2048  # random features of what the landmarks miss: their estimate of it is good to about 1 / sqrt(1024)


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
    runs: list[tuple[str, int]]  # why the iterations ended and how many they were, for each time they were run
    history: dict[str, Array]  # (iterations, B)

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
    """Components and eigenvalues, by one more exchange of values and one network sum; `turn` (q, q) makes components of the columns already."""
    q, k = w.shape[2], options.n_components
    (values,) = by_nodes(lambda j: (space.own[j].values(w[j, ...]) @ turn,), block.n_nodes, row_bytes(w), w)
    mine = yield from what_is_seen(block, space, values)

    def separate(total: Array) -> Array:
        return ritz.separate(total, q, k, pair_counts(block), mix=options.update != "paper")

    found = yield from network_sum(block, "spectrum", mine.pack(), separate, 1 + k + q * k)
    xp = aac.array_namespace(w)
    turn = turn @ xp.reshape(found[1 + k :], (q, k))
    return Answer(
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


def what_is_seen(block: Block, space: Space, values: Array) -> Script:
    """Exchange values with the neighbors, and multiply all pairs in the neighborhood through the kernel."""
    xp = aac.array_namespace(values)
    B, d, n, q = block.n_nodes, block.n_slots, values.shape[1], values.shape[2]
    psi, rest, m = space.own.psi, space.clean_rest, space.own.m
    work = d * row_bytes(values)

    (on_marks,) = by_nodes(lambda j: (transposed(psi[j, ...]) @ values[j, ...],), B, work, values)
    heard, heard_marks = yield block.say("values", xp.broadcast_to(values[:, None, ...], (B, d, n, q)), on_marks)
    near = heard.slots(slice(0, B))
    shares = block.array(pair_shares(block))
    through = space.near.apply(near, shares)

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
            consensus.products(near[j, ...], through[j, ...]),
            marks_alone,
            xp.sum(marks * marks, axis=1) - marks_alone,
            xp.sum(near_marks * other_marks, axis=(1, 2)),
            marks,
        )

    return ritz.Seen(space.trace, *by_nodes(multiply, B, work, values))


def pair_shares(block: Block) -> np.ndarray:
    """(B, d, d): each pair of different nodes is seen by all nodes that have both around; each of them takes its share of it."""
    watchers, J = block.network.watchers, len(block.network)
    rows = np.repeat(np.arange(J), np.diff(watchers.indptr))
    known = rows * J + watchers.indices  # sorted: the indices of each row are
    wanted = block.slots[:, :, None] * J + block.slots[:, None, :]
    shares = 1.0 / watchers.data[np.searchsorted(known, wanted.ravel())].reshape(wanted.shape)
    shares[:, np.arange(block.n_slots), np.arange(block.n_slots)] = 0.0
    return shares


def pair_counts(block: Block) -> ritz.Pairs:
    """Ordered pairs of different samples, by who sees them."""
    sizes = block.sizes.astype(np.float64)
    a, b = block.network.watchers.nonzero()
    within = float((sizes * (sizes - 1)).sum())
    between = float((sizes[a] * sizes[b])[a != b].sum())
    return ritz.Pairs(within, between, float(sizes.sum() ** 2 - sizes.sum()) - within - between)


def landmark_answer(block: Block, options: Options, known: Known, coordinates: Coordinates) -> Script:
    """One shot: the principal directions in landmark coordinates, separated with an estimate of what the landmarks miss."""
    assert isinstance(coordinates.marks, Landmarks)
    assert known.directions is not None
    assert known.landmark_values is not None
    raw, psi = coordinates.raw, coordinates.centered(block, options, known)
    xp = aac.array_namespace(psi)
    kernel, k, q = known.kernel(options), options.n_components, known.directions.shape[1]
    left = kernel.diagonal(block.samples) * block.mask - xp.sum(raw * raw, axis=2)
    trace = xp.sum(xp.clip(left, min=0.0), axis=1) + xp.sum(psi * psi, axis=(1, 2))
    missed = what_is_missed(block, options, known, coordinates, psi @ known.directions)
    squares = xp.eye(q, dtype=psi.dtype, device=aac.device(psi)) * known.landmark_values

    def separate(total: Array) -> Array:
        rest = xp.reshape(total[1:], (-1, q))
        values, turn = ritz.resolve(squares @ squares + transposed(rest) @ rest, squares, k)
        return xp.concat([total[:1], values, xp.reshape(turn, (-1,))])

    mine = xp.concat([trace[:, None], xp.reshape(missed, (block.n_nodes, -1))], axis=1)
    found = yield from network_sum(block, "spectrum", mine, separate, 1 + k + q * k)
    w = known.directions @ xp.reshape(found[1 + k :], (q, k))
    return Answer(
        block=block,
        known=known,
        kernel=kernel,
        marks=coordinates.marks,
        sites=None,
        w=xp.broadcast_to(w[None, ...], (block.n_nodes, *w.shape)),
        z=None,
        eigenvalues=found[1 : 1 + k],
        trace=found[0],
        n_iter=1,
        runs=[("converged", 0)],
        history={},
    )


def what_is_missed(block: Block, options: Options, known: Known, coordinates: Coordinates, values: Array) -> Array:
    """(B, features, q): T_j = r(X_j)' values, with r(x) random features of what the landmarks cannot express of phi(x).

    r(x) = z(x) - z(L) K_LL^-1 k(L, x), z the random Fourier features of the kernel, has E r(x)'r(y) = rest(x, y). So T'T, with T the
    sum over all nodes, estimates G' rest G for all pairs of samples, also those that no node sees together. Kernels without
    random features get none, and the landmarks' own answer.
    """
    xp = aac.array_namespace(values)
    marks, kernel = coordinates.marks, known.kernel(options)
    assert isinstance(marks, Landmarks)
    if not kernel.has_features:
        return values[:, :0, :]
    drawn = random_features(block, kernel, REST_FEATURES, options.seed)
    on_marks = transposed(marks.root) @ drawn.coordinates(kernel, marks.points)
    B, n, _ = values.shape
    at_once = TILE_BYTES // (8 * REST_FEATURES)  # samples
    sums = []
    for nodes in row_tiles(B, max(1, at_once // n)):
        total: Array = 0.0
        for rows in row_tiles(n, at_once):
            features = drawn.coordinates(kernel, block.samples[nodes, rows, :])
            rest = features - coordinates.raw[nodes, rows, :] @ on_marks
            total = total + transposed(rest) @ values[nodes, rows, :]  # values are zero where there is no sample
        sums.append(total)
    return xp.concat(sums)


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
    return Answer(block, known, kernel, None, space.sites, w, z, values, space.trace[0], 1, [("converged", 0)], {})
