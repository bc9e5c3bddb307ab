"""The script of a node: say, listen, compute, repeat.

Written once, for a block of nodes (block.py), as a generator: it yields messages (messages.py) and an engine sends back
what the neighbors said. It opens no file, socket or clock. Read top to bottom, `program` is the algorithm of
docs/algorithm.md.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field, replace
from typing import Any

import array_api_compat as aac
import numpy as np

from .block import Block, pad_rows, take
from .collectives import collect_rows, network_sum
from .core import consensus, landmarks, ritz, spectrum, stopping
from .core.centering import center_blocks, center_rows
from .core.consensus import Estimate, OwnSpace
from .core.landmarks import Landmarks, node_random
from .core.pairs import NeighborhoodGram, Pool, neighborhood_gram
from .core.spectrum import to_numpy, transposed
from .kernels import Kernel
from .messages import Checkpoint, Heard, Say, Tell
from .options import CHECK_EVERY, Options, noise_level, penalties, schedule

Array = Any
Script = Generator[Say | Tell | Checkpoint, Any, Any]

HISTORY = ("residual", "change", "objective", "lagrangian")


@dataclass(eq=False)
class Known:
    """What the block learned from others during set-up; with it and the own samples everything else can be recomputed."""

    kernel: Kernel
    points: Array | None = None  # the landmarks (m, M)
    mean: Array | None = None  # of psi over the network (m,)
    directions: Array | None = None  # where to start: principal directions in landmark coordinates (m, <= k)
    landmark_values: Array | None = None  # and their eigenvalues
    near: Heard | None = None  # samples, as each node and its neighbors sent them
    rho_near: Array | None = None  # (B, d) penalties that the neighbors put on this node's z
    removed: list[Heard] = field(
        default_factory=list
    )  # directions removed by deflation, one for each finished component
    coordinates: tuple[Landmarks, Array] | None = None  # remembered, not learned: psi of the own samples


@dataclass(eq=False)
class State:
    """The iterate. `finished` are the components that deflation has done with, as (w, z)."""

    iteration: int
    w: Array
    dual: Array
    shares: Array
    z: Estimate
    at_check: Array  # w at the last check
    rotation: Array  # (k, k) from the last check: turns the columns into components
    verdict: float  # of the last check: 0, DONE or ASKED
    history: dict[str, list[Array]]
    finished: list[tuple[Array, Estimate]]
    converged: bool  # all finished components


@dataclass(frozen=True, eq=False)
class Space:
    """The block's feature space, computed from samples and what is known."""

    own: OwnSpace
    near: NeighborhoodGram
    sites: Heard  # where the samples behind each slot are
    trace: Array  # (B,) of K_j
    rho: Array | None  # (B,) for penalties from the node's spectrum


@dataclass(eq=False)
class Answer:
    """What the nodes of a block end with. Components in the last axis, scaled to unit directions of the central problem."""

    block: Block
    known: Known
    sites: Heard | None  # samples behind each slot; None where no sample was exchanged
    w: Array  # (B, m + n, k)
    z: Estimate | None
    eigenvalues: Array  # (k,)
    trace: Array  # of the whole network's centred kernel
    n_iter: int
    converged: bool
    history: dict[str, Array]  # (iterations, B)
    root: Array | None  # K_LL^-1/2 (m, m)


def program(block: Block, options: Options, resume: tuple[Known, State] | None = None) -> Script:
    """Decentralized kernel PCA at the nodes of a block; returns their `Answer`."""
    if resume:
        known, state = resume
    else:
        known = yield from meet(block, options)
    marks, raw = coordinates(block, known)
    psi = centered(block, options, known, raw)
    if options.solver == "landmarks":
        return (yield from landmark_answer(block, options, known, marks, raw, psi))
    space = build_space(block, options, known, marks, raw, psi)
    if len(block.network) == 1:
        return whole_answer(block, options, known, space)
    if known.rho_near is None:
        known.rho_near = yield from exchange_penalties(block, space)
    if not resume:
        state = start(block, options, known, space.own)

    deflated = space
    for removed in known.removed:
        deflated = deflate(block, deflated, removed)
    sequential = options.n_components if options.update == "paper" else 1
    while True:
        yield from iterate(block, options, known, deflated, state)
        turn = state.rotation
        state.finished.append((state.w @ turn, Estimate(state.z.shared @ turn, state.z.near @ turn)))
        if len(state.finished) == sequential:
            break
        known.removed.append((yield from tell_direction(block, deflated, state.w)))
        deflated = deflate(block, deflated, known.removed[-1])
        converged = state.converged and state.verdict == DONE
        state = replace(
            start(block, options, known, deflated.own),
            history=state.history,
            finished=state.finished,
            converged=converged,
        )
    w, z = reassemble(block, options, known, space, state)
    return (yield from separated_answer(block, options, known, marks, space, state, w, z))


# ---------------------------------------------------------------------- set-up: what the nodes tell each other once
def meet(block: Block, options: Options) -> Script:
    """Agree on gamma, landmarks, mean and start, and exchange samples."""
    kernel = options.kernel
    if options.gamma_by_variance:
        kernel = replace(kernel, gamma=(yield from variance_gamma(block)))
    known = Known(kernel)
    sent = with_noise(block, options)
    if options.n_landmarks:
        counts = landmarks.allot(block.sizes, block.network.names, options.n_landmarks, options.seed)
        rows = [
            take(sent[b, ...], landmarks.draw(options.seed, name, int(size), int(count)))
            for b, (name, size, count) in enumerate(zip(block.names, block.own_sizes, counts[block.nodes], strict=True))
        ]
        known.points = yield from collect_rows(block, "landmarks", rows, counts)
        yield from learn_coordinates(block, options, known)
    if options.solver == "projection" and len(block.network) > 1:
        known.near = yield Tell("data", sent, block.own_sizes)
    return known


def with_noise(block: Block, options: Options) -> Array:
    """The samples as others get to see them."""
    deviation, decibel = noise_level(options.exchange_noise)
    if deviation == 0:
        return block.samples
    noise = np.zeros(block.samples.shape)
    for b, (name, size) in enumerate(zip(block.names, block.own_sizes, strict=True)):
        noise[b, :size] = node_random(options.seed, name, "noise").standard_normal((size, noise.shape[2]))
    if decibel is None:
        return block.samples + deviation * block.array(noise)
    xp = aac.array_namespace(block.samples)
    entries = block.array(block.own_sizes * noise.shape[2])
    power = xp.sum(block.samples * block.samples, axis=(1, 2)) / entries
    return block.samples + xp.sqrt(power * 10 ** (-decibel / 10))[:, None, None] * block.array(noise)


def variance_gamma(block: Block) -> Script:
    """gamma="scale": 1 / (columns times the variance of all entries), as scikit-learn has it; two sums, for the accuracy of the second."""
    xp = aac.array_namespace(block.samples)
    entries = int(block.sizes.sum()) * block.samples.shape[2]
    total = yield from network_sum(block, "scale", xp.sum(block.samples, axis=(1, 2))[:, None])
    spread = (block.samples - total[0] / entries) * block.mask[..., None]
    squares = yield from network_sum(block, "scale", xp.sum(spread * spread, axis=(1, 2))[:, None])
    variance = float(squares[0]) / entries
    if variance <= 0:
        raise ValueError(
            "gamma='scale' needs data that varies, but all entries of all nodes are equal; give gamma as a number"
        )
    return 1.0 / (block.samples.shape[2] * variance)


def learn_coordinates(block: Block, options: Options, known: Known) -> Script:
    """The network's mean in landmark coordinates, then the principal directions of all the data there."""
    xp = aac.array_namespace(block.samples)
    _, raw = coordinates(block, known)
    m = raw.shape[2]
    if options.centering == "global":
        known.mean = (yield from network_sum(block, "mean", xp.sum(raw, axis=1))) / float(block.sizes.sum())
    if options.solver == "landmarks" or options.init == "landmarks":
        psi = centered(block, options, known, raw)
        keep = min(m, options.n_columns)

        def directions(triangle: Array) -> Array:
            scale = float(block.sizes.sum()) * xp.max(known.kernel.diagonal(known.points))
            values, basis = landmarks.principal_directions(triangle, m, keep, scale)
            return xp.concat([values, xp.reshape(basis, (-1,))])

        triangles = landmarks.pack_triangle(transposed(psi) @ psi)
        found = yield from network_sum(block, "covariance", triangles, directions, keep * (1 + m))
        known.landmark_values, known.directions = found[:keep], xp.reshape(found[keep:], (m, keep))


def exchange_penalties(block: Block, space: Space) -> Script:
    """(B, d): what each neighbor's penalty on this node's z is; rules that all know need no message."""
    if space.rho is None:
        return None
    xp = aac.array_namespace(block.samples)
    said = xp.broadcast_to(space.rho[:, None, None], (block.n_nodes, block.n_slots, 1))
    heard = yield Say("rho", xp.reshape(said, (-1, 1)), block.everywhere, block.everywhere, (1,))
    return xp.reshape(heard, (block.n_nodes, block.n_slots))


# ---------------------------------------------------------------------- the feature space of the block
def coordinates(block: Block, known: Known) -> tuple[Landmarks | None, Array]:
    """The landmarks, and psi of the own samples (B, n, m), not centred; padding is zero."""
    xp = aac.array_namespace(block.samples)
    if known.points is None:
        return None, xp.zeros(
            (*block.samples.shape[:2], 0), dtype=block.samples.dtype, device=aac.device(block.samples)
        )
    if known.coordinates is None:
        marks = Landmarks.of(known.points, known.kernel)
        known.coordinates = marks, marks.coordinates(known.kernel, block.samples) * block.mask[..., None]
    return known.coordinates


def centered(block: Block, options: Options, known: Known, raw: Array) -> Array:
    """psi with the network's mean, or the node's own, subtracted."""
    if options.centering == "local":
        return center_rows(raw, block.mask)
    return raw if known.mean is None else (raw - known.mean) * block.mask[..., None]


def build_space(block: Block, options: Options, known: Known, marks: Landmarks | None, raw: Array, psi: Array) -> Space:
    """Gram blocks of all neighborhoods, factors of the own ones, penalties."""
    xp = aac.array_namespace(block.samples)
    kernel = known.kernel
    # a network of one node hears nobody, and looks at its own samples
    sites = known.near or Heard((block.samples,), *np.zeros((2, block.n_nodes, 1), dtype=np.int64))
    pools = [_pool(block, sites, p, known, marks, raw) for p in range(len(sites.pools))]
    near = neighborhood_gram(pools, sites.pool, sites.row, block.n_near, kernel, options.centering == "local")
    rest = near.own(block.samples.shape[1])
    scale = xp.max(kernel.diagonal(block.samples) * block.mask, axis=1)
    reach = reach_of_noisy(block, options, known, marks, raw)
    own = own_space(block, psi, rest, reach, scale)
    landmarks.check_psd(own.gram_factor, block.own_sizes, scale, [f"node {name}" for name in block.names], kernel)
    rho = _penalties(options, block.n_slots, own.gram_factor, block.array(block.own_sizes), scale)
    return Space(own, near, sites, xp.sum(own.gram_factor.values, axis=1), None if rho is None else block.array(rho))


def own_space(block: Block, psi: Array, rest: Array, reach: Array | None, scale: Array) -> OwnSpace:
    """Factor the own Gram matrices."""
    sizes = block.array(block.own_sizes)
    rest_factor = spectrum.factor(rest, sizes, scale)
    if reach is None and not psi.shape[2]:
        return OwnSpace(psi, rest, rest_factor, rest_factor)
    seen = rest if reach is None else reach @ rest_factor.solve(transposed(reach))
    return OwnSpace(psi, rest, rest_factor, spectrum.factor(psi @ transposed(psi) + seen, sizes, scale), reach)


def reach_of_noisy(block: Block, options: Options, known: Known, marks: Landmarks | None, raw: Array) -> Array | None:
    """The rest of the kernel between a node's samples and what it sent of them; None where they are the same."""
    sent = with_noise(block, options)
    if sent is block.samples or known.near is None:
        return None
    reach = known.kernel.gram(block.samples, sent)
    if marks is not None:
        reach -= raw @ transposed(marks.coordinates(known.kernel, sent))
    reach = reach * block.mask[:, :, None] * block.mask[:, None, :]
    return center_blocks(reach, block.mask, block.mask) if options.centering == "local" else reach


def _penalties(options: Options, n_slots: int, gram: spectrum.Factor, sizes: Array, scale: Array) -> np.ndarray | None:
    top, n, unit = (to_numpy(x).astype(np.float64) for x in (gram.top, sizes, scale))
    # a node whose K_j is zero follows its neighbors; any positive penalty will do, k(x, x) has the right unit
    top = np.where(top > 10 * n * spectrum.eps(gram.top) * unit, top, np.where(unit > 0, unit, 1.0))
    cubes = to_numpy(gram.values).astype(np.float64) ** 3
    return penalties(options.rho, top, np.maximum(cubes.sum(axis=1), top**3), n_slots)


def _pool(block: Block, sites: Heard, number: int, known: Known, marks: Landmarks | None, raw: Array) -> Pool:
    """Sites of one pool; rows that no slot of this block looks at count as padding."""
    samples = sites.pools[number]
    xp = aac.array_namespace(samples)
    size = np.zeros(samples.shape[0], dtype=np.int64)
    here = sites.pool == number
    size[sites.row[here]] = block.near_sizes[here]
    rows = min(samples.shape[1], block.n_near)
    mask = block.array(np.arange(rows) < size[:, None])
    if samples is block.samples:
        psi = raw[:, :rows, :]
    elif marks is not None:
        psi = marks.coordinates(known.kernel, samples[:, :rows, :])
    else:
        psi = xp.zeros((samples.shape[0], rows, 0), dtype=samples.dtype, device=aac.device(samples))
    return Pool(samples[:, :rows, :], psi, mask)


# ---------------------------------------------------------------------- the iteration
def start(block: Block, options: Options, known: Known, own: OwnSpace) -> State:
    """The first w, by `init`; multipliers and z are zero."""
    xp = aac.array_namespace(block.samples)
    B, n = block.samples.shape[:2]
    k = 1 if options.update == "paper" else options.n_columns
    like = {"dtype": block.samples.dtype, "device": aac.device(block.samples)}
    if options.init == "local":
        w = consensus.local_start(own, k)
    elif options.init == "landmarks":
        assert known.directions is not None
        on_marks = consensus.pad_columns(known.directions[:, : min(k, known.directions.shape[1])], k)
        w = xp.concat([xp.broadcast_to(on_marks[None, ...], (B, own.m, k)), xp.zeros((B, n, k), **like)], axis=1)
        empty = xp.all(on_marks == 0, axis=0)  # more columns than the landmarks have directions
        if bool(xp.any(empty)):
            w = xp.where(empty, _random_start(block, options, own, k), w)
    else:
        w = _random_start(block, options, own, k)
    rho = _rho(block, options, known, 0)[0]
    zeros = xp.zeros((B, block.n_slots, own.m + n, k), **like)
    z = Estimate(xp.zeros((B, own.m, k), **like), xp.zeros((B, block.n_slots, block.n_near, k), **like))
    shares = rho * w[:, None, ...] + zeros
    return State(0, w, zeros, shares, z, w, xp.eye(k, **like), 0.0, {name: [] for name in HISTORY}, [], True)


def _random_start(block: Block, options: Options, own: OwnSpace, k: int) -> Array:
    noise = np.zeros((*block.samples.shape[:2], k))
    for b, (name, size) in enumerate(zip(block.names, block.own_sizes, strict=True)):
        noise[b, :size] = node_random(options.seed, name, "start").standard_normal((size, k))
    return consensus.random_start(own, block.array(noise), block.array(block.own_sizes))


def _rho(block: Block, options: Options, known: Known, t: int) -> tuple[Array, Array]:
    """Penalties of this iteration: (B, d, 1, 1) that the node puts on its neighbors' z, (B,) the sum of those put on its own."""
    xp = aac.array_namespace(block.samples)
    if known.rho_near is not None:  # the same for all slots of a node: slot 0 is its own
        own = known.rho_near[:, :1]
        return xp.broadcast_to(own, known.rho_near.shape)[..., None, None], xp.sum(known.rho_near, axis=1)
    rule = schedule(options.rho)
    row = [float(rule(t, s == 0)) for s in range(block.n_slots)]
    if not all(np.isfinite(row)) or min(row) <= 0:
        raise ValueError(f"rho: the schedule gives {min(row)!r} in iteration {t}; penalties must be above 0")
    table = block.array(np.tile(row, (block.n_nodes, 1)))
    return table[..., None, None], xp.sum(table, axis=1)


def iterate(block: Block, options: Options, known: Known, space: Space, state: State) -> Script:
    """Until all nodes are done: one component (the paper's update) or all at once. Changes `state`."""
    xp = aac.array_namespace(block.samples)
    B, d, n = block.n_nodes, block.n_slots, block.samples.shape[1]
    own, m, k = space.own, space.own.m, state.w.shape[2]
    sent, received = (m + n, k), (m + block.n_near, k)
    own_rows, near_rows = np.repeat(m + block.own_sizes, d), (m + block.near_sizes).ravel()
    before, at_check = stopping.Measured.of(own, state.w), stopping.Measured.of(own, state.at_check)
    while True:
        t = state.iteration
        asked = yield Checkpoint(known, state, {"iteration": t, "component": len(state.finished)})
        if t >= options.max_iter or state.verdict:
            return
        rho, total = _rho(block, options, known, t)
        next_rho = _rho(block, options, known, t + 1)[0]

        said = xp.reshape(state.shares, (B * d, *sent))
        shares = yield Say("share", said, block.everywhere, block.everywhere, received, own_rows)
        z, views = consensus.z_step(space.near, state.z, xp.reshape(shares, (B, d, *received)), total, options.anchored)
        said = xp.reshape(views, (B * d, *received))
        views = yield Say("view", said, block.everywhere, block.everywhere, sent, near_rows)
        views = xp.reshape(views, (B, d, *sent))

        seen = own.project(views)
        if options.update == "paper":
            signs = consensus.view_signs(own, seen)
            seen, views = signs * seen, signs * views
        target = xp.sum(rho * seen - state.dual, axis=1)
        w = consensus.w_step(own, target, xp.sum(rho, axis=(1, 2, 3)))
        gap = w[:, None, ...] - seen
        new = stopping.Measured.of(own, w)
        state.dual, state.shares = consensus.dual_step(w, gap, state.dual, rho, next_rho, options.anchored)
        leading = state.rotation[:, : min(k, options.n_components)]
        progress = stopping.measure(
            new, gap, views, before, at_check, leading, state.dual if options.diagnostics else None, rho
        )
        state.w, state.z, state.iteration, before = w, z, t + 1, new
        for name in HISTORY:
            if (numbers := getattr(progress, name)) is not None:
                state.history[name].append(numbers)

        if state.iteration % CHECK_EVERY == 0 or state.iteration == options.max_iter:
            state.verdict, state.rotation = yield from check(block, options, new, progress, bool(asked))
            state.at_check, at_check = w, new


DONE, ASKED = 1.0, 2.0  # why a run stops: all nodes are done; somebody asked


def check(block: Block, options: Options, new: stopping.Measured, progress: stopping.Progress, asked: bool) -> Script:
    """One network sum decides for all nodes alike whether to stop, and how to separate the columns."""
    w, values = new.w, new.values
    xp = aac.array_namespace(w)
    k = w.shape[2]
    busy = stopping.unfinished(progress, options.tol)
    asking = xp.full((block.n_nodes, 1), float(asked), dtype=w.dtype, device=aac.device(w))
    moments = xp.reshape(transposed(values) @ values, (block.n_nodes, k * k))
    mine = xp.concat([xp.astype(busy, w.dtype)[:, None], asking, moments], axis=1)

    def decide(total: Array) -> Array:
        verdict = xp.where(total[1:2] > 0, xp.full_like(total[1:2], ASKED), xp.zeros_like(total[1:2]))
        verdict = xp.where(total[:1] == 0, xp.full_like(verdict, DONE), verdict)
        return xp.concat([verdict, xp.reshape(ritz.rotation(xp.reshape(total[2:], (k, k))), (-1,))])

    decided = yield from network_sum(block, "check", mine, decide, 1 + k * k)
    return float(decided[0]), xp.reshape(decided[1:], (k, k))


# ---------------------------------------------------------------------- deflation: the paper's way to more components
def tell_direction(block: Block, space: Space, w: Array) -> Script:
    """Tell the neighbors the component just found, as a unit function over the own samples."""
    xp = aac.array_namespace(w)
    square = xp.sum(w * space.own.dual_vector(w), axis=1, keepdims=True)
    unit = xp.where(square > 0, w / xp.sqrt(xp.where(square > 0, square, xp.ones_like(square))), xp.zeros_like(w))
    return (yield Tell("deflate", unit, block.own_sizes))


def deflate(block: Block, space: Space, removed: Heard) -> Space:
    """Every node takes its own component out of its samples."""
    near = space.near.deflated(removed.pools)
    reach = space.own.reach
    if reach is not None:
        mine = pad_rows(_dense(block, removed)[:, 0, ...], block.samples.shape[1], axis=1)
        reach = reach - (reach @ mine) @ transposed(space.own.rest @ mine)
    # what was rounding before is rounding still: the scale is the undeflated matrix's
    own = own_space(block, space.own.psi, near.own(block.samples.shape[1]), reach, space.own.gram_factor.top)
    return replace(space, own=own, near=near)


def reassemble(block: Block, options: Options, known: Known, space: Space, state: State) -> tuple[Array, Estimate]:
    """All components over the samples themselves: what deflation removed is put back, the last removed first."""
    xp = aac.array_namespace(block.samples)
    if len(state.finished) == 1:
        return state.finished[0]
    spaces = [space]
    for removed in known.removed:
        spaces.append(deflate(block, spaces[-1], removed))
    w_columns, z_columns = [], []
    for i, (w, z) in enumerate(state.finished):
        near = z.near
        for before, removed in zip(reversed(spaces[:i]), reversed(known.removed[:i]), strict=True):
            directions = _dense(block, removed)  # (B, d, n_near, 1)
            values = before.near.apply_within(directions)
            near = near - directions @ (transposed(values) @ near)
            mine, at_own = directions[:, 0, ...], values[:, 0, ...]
            mine, at_own = (pad_rows(x, w.shape[1], axis=1) for x in (mine, at_own))
            w = w - mine @ (transposed(at_own) @ w)
        w_columns.append(w)
        z_columns.append(near)
    shared = xp.zeros((block.n_nodes, 0, len(w_columns)), dtype=block.samples.dtype, device=aac.device(block.samples))
    return xp.concat(w_columns, axis=2), Estimate(shared, xp.concat(z_columns, axis=3))


def _dense(block: Block, heard: Heard) -> Array:
    """What was heard, one array for each slot: (B, d, n_near, ...)."""
    xp = aac.array_namespace(block.samples)
    starts = np.concatenate([[0], np.cumsum([p.shape[0] for p in heard.pools])])
    together = xp.concat([pad_rows(p, block.n_near, axis=1) for p in heard.pools])
    found = take(together, (starts[heard.pool] + heard.row).ravel())
    return xp.reshape(found, (block.n_nodes, block.n_slots, *found.shape[1:]))


# ---------------------------------------------------------------------- answers
def separated_answer(
    block: Block,
    options: Options,
    known: Known,
    marks: Landmarks | None,
    space: Space,
    state: State,
    w: Array,
    z: Estimate,
) -> Script:
    """Components and eigenvalues, by one more exchange of values and one network sum."""
    q, k = w.shape[2], options.n_components
    values = space.own.values(w)
    mine = yield from what_is_seen(block, space, values)

    def separate(total: Array) -> Array:
        return ritz.separate(total, q, k, *pair_counts(block), mix=options.update != "paper")

    found = yield from network_sum(block, "spectrum", mine.pack(), separate, 1 + k + q * k)
    xp = aac.array_namespace(w)
    turn = xp.reshape(found[1 + k :], (q, k))
    return Answer(
        block=block,
        known=known,
        sites=space.sites,
        w=w @ turn,
        z=Estimate(z.shared @ turn, z.near @ turn),
        eigenvalues=found[1 : 1 + k],
        trace=found[0],
        n_iter=len(state.history["residual"]),
        converged=state.converged and state.verdict == DONE,
        history={name: xp.stack(rows) for name, rows in state.history.items() if rows},
        root=None if marks is None else marks.root,
    )


def what_is_seen(block: Block, space: Space, values: Array) -> Script:
    """Exchange values with the neighbors, and multiply all pairs in the neighborhood through the kernel."""
    xp = aac.array_namespace(values)
    B, d, n, q = block.n_nodes, block.n_slots, values.shape[1], values.shape[2]
    psi, rest, m = space.own.psi, space.own.rest, space.own.m
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

    alone = xp.linalg.diagonal(rest)[..., None] * values
    alone_marks = xp.sum(psi * psi, axis=2)[..., None] * values * values
    rest_alone = transposed(values) @ alone
    return ritz.Seen(
        trace=space.trace,
        squares=transposed(values) @ values,
        rest_alone=rest_alone,
        rest_pairs=transposed(values) @ (rest @ values) - rest_alone + around,
        marks_alone=xp.sum(alone_marks, axis=1),
        marks_pairs=xp.sum(marks * marks, axis=1)
        - xp.sum(alone_marks, axis=1)
        + xp.sum(heard[:, :, :m, :] * other_marks, axis=(1, 2)),
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


def pair_counts(block: Block) -> tuple[float, float]:
    """Ordered pairs of different samples that somebody sees together, and that nobody does."""
    sizes = block.sizes.astype(np.float64)
    a, b = block.network.watchers.nonzero()
    seen = float((sizes[a] * sizes[b]).sum() - sizes.sum())
    return seen, float(sizes.sum() ** 2 - sizes.sum() - seen)


def landmark_answer(
    block: Block, options: Options, known: Known, marks: Landmarks | None, raw: Array, psi: Array
) -> Script:
    """One shot: the principal directions in landmark coordinates are the answer, and nothing more is said but the trace."""
    assert marks is not None
    assert known.directions is not None
    assert known.landmark_values is not None
    xp = aac.array_namespace(psi)
    k = options.n_components
    left = known.kernel.diagonal(block.samples) * block.mask - xp.sum(raw * raw, axis=2)
    mine = xp.sum(xp.clip(left, min=0.0), axis=1) + xp.sum(psi * psi, axis=(1, 2))
    trace = yield from network_sum(block, "spectrum", mine[:, None])
    directions = xp.broadcast_to(known.directions[None, :, :k], (block.n_nodes, marks.root.shape[0], k))
    values = xp.clip(known.landmark_values[:k], min=0.0)
    return Answer(block, known, None, directions, None, values, trace[0], 1, True, {}, marks.root)


def whole_answer(block: Block, options: Options, known: Known, space: Space) -> Answer:
    """A network of one node: central kernel PCA, without iterations."""
    xp = aac.array_namespace(block.samples)
    k = options.n_components
    factor = space.own.gram_factor
    values = xp.flip(factor.values[0, :])[:k]
    basis = spectrum.flip_signs(xp.flip(factor.basis[0, ...], axis=1)[:, :k])
    scale = xp.sqrt(xp.flip(factor.inverse[0, :])[:k])
    w = (basis * scale)[None, ...]
    z = Estimate(w[:, :0, :], w[:, None, ...])
    return Answer(block, known, space.sites, w, z, values, space.trace[0], 1, True, {}, None)
