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
from .core import ritz, spectrum
from .core.consensus import Estimate
from .core.spectrum import transposed
from .kernels import Kernel
from .messages import Heard, Say
from .options import Options
from .space import Coordinates, Known, Space

Array = Any
Script = Generator[Say, Any, Any]


@dataclass(eq=False)
class Answer:
    """Components in the last axis, scaled to unit directions of the central problem."""

    block: Block
    known: Known
    kernel: Kernel
    root: Array | None  # K_LL^-1/2 (m, m)
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
    root: Array | None,
    space: Space,
    w: Array,
    z: Estimate,
    runs: list[tuple[str, int]],
    history: dict[str, list[Array]],
) -> Script:
    """Components and eigenvalues, by one more exchange of values and one network sum."""
    q, k = w.shape[2], options.n_components
    mine = yield from what_is_seen(block, space, space.own.values(w))

    def separate(total: Array) -> Array:
        return ritz.separate(total, q, k, pair_counts(block), mix=options.update != "paper")

    found = yield from network_sum(block, "spectrum", mine.pack(), separate, 1 + k + q * k)
    xp = aac.array_namespace(w)
    turn = xp.reshape(found[1 + k :], (q, k))
    return Answer(
        block=block,
        known=known,
        kernel=known.kernel(options),
        root=root,
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
    marks = transposed(psi) @ values
    mine = xp.concat([marks, values], axis=1)
    said = xp.reshape(xp.broadcast_to(mine[:, None, ...], (B, d, m + n, q)), (B * d, m + n, q))
    shape = (m + block.n_near, q)
    heard = yield Say("values", said, block.everywhere, block.everywhere, shape, np.repeat(m + block.own_sizes, d))
    heard = xp.reshape(heard, (B, d, *shape))
    shares = block.array(pair_shares(block))
    through = space.near.apply(heard[:, :, m:, :], shares)
    around = transposed(_joined(heard[:, :, m:, :])) @ _joined(through)
    flat_marks = xp.reshape(heard[:, :, :m, :], (B, d, m * q))
    other_marks = xp.reshape(shares @ flat_marks, (B, d, m, q))

    alone = transposed(values) @ (xp.linalg.diagonal(rest)[..., None] * values)
    marks_alone = xp.sum(xp.sum(psi * psi, axis=2)[..., None] * values * values, axis=1)
    return ritz.Seen(
        trace=space.trace,
        squares=transposed(values) @ values,
        rest_alone=alone,
        rest_within=transposed(values) @ (rest @ values) - alone,
        rest_between=around,
        marks_alone=marks_alone,
        marks_within=xp.sum(marks * marks, axis=1) - marks_alone,
        marks_between=xp.sum(heard[:, :, :m, :] * other_marks, axis=(1, 2)),
        marks=marks,
    )


def _joined(x: Array) -> Array:
    """The slots of each node one below the other."""
    B, d, n, k = x.shape
    return aac.array_namespace(x).reshape(x, (B, d * n, k))


def pair_shares(block: Block) -> np.ndarray:
    """(B, d, d): each pair of different nodes is seen by all nodes that have both around; each of them takes its share of it."""
    watchers = block.network.watchers
    shares = np.stack([1.0 / watchers[slots][:, slots].toarray() for slots in block.slots])
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
    """One shot: the principal directions in landmark coordinates are the answer, and nothing more is said but the trace."""
    assert coordinates.marks is not None
    assert known.directions is not None
    assert known.landmark_values is not None
    raw, psi = coordinates.raw, coordinates.centered(block, options, known)
    xp = aac.array_namespace(psi)
    kernel, k = known.kernel(options), options.n_components
    left = kernel.diagonal(block.samples) * block.mask - xp.sum(raw * raw, axis=2)
    mine = xp.sum(xp.clip(left, min=0.0), axis=1) + xp.sum(psi * psi, axis=(1, 2))
    trace = yield from network_sum(block, "spectrum", mine[:, None])
    root = coordinates.marks.root
    directions = xp.broadcast_to(known.directions[None, :, :k], (block.n_nodes, root.shape[0], k))
    values = known.landmark_values[:k]
    return Answer(block, known, kernel, root, None, directions, None, values, trace[0], 1, [("converged", 0)], {})


def whole_answer(block: Block, options: Options, known: Known, space: Space) -> Answer:
    """A network of one node: central kernel PCA, without iterations."""
    xp = aac.array_namespace(block.samples)
    k = options.n_components
    factor = space.own.gram_factor
    values = xp.flip(factor.values[0, :])[:k]
    basis = spectrum.flip_signs(xp.flip(factor.basis[0, ...], axis=1)[:, :k])
    w = (basis * xp.sqrt(xp.flip(factor.inverse[0, :])[:k]))[None, ...]
    z = Estimate(w[:, :0, :], w[:, None, ...])
    kernel = known.kernel(options)
    return Answer(block, known, kernel, None, space.sites, w, z, values, space.trace[0], 1, [("converged", 0)], {})
