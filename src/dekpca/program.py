"""The script of a node: say, listen, compute, repeat.

Written once, for a block of nodes (block.py), as a generator: it yields messages (messages.py) and an engine sends back what the
neighbors said. It opens no file, socket or clock. Read top to bottom, `program` is the algorithm of docs/algorithm.md.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import array_api_compat as aac
import numpy as np

from . import landmark_solver
from .answer import landmark_answer, separated_answer, whole_answer
from .block import Block, FlatRows, pad_rows
from .collectives import network_sum
from .core import consensus, landmarks, ritz, stopping
from .core.centering import BadColumn, Columns, filled
from .core.consensus import Estimate, Penalties, Sums
from .core.fused import Steps
from .core.landmarks import node_random
from .core.nodewise import by_nodes, chunks_of, row_bytes, summed
from .core.spectrum import sane, to_numpy, transposed
from .core.stopping import CONVERGED, DIVERGED, GO_ON, INTERRUPTED, VERDICTS
from .features import feature_answer
from .judging import EXTRA_COLUMNS
from .kernels import Kernel
from .landmark_supply import Supply, without_redundant
from .messages import Checkpoint, Say, Slots, Tell
from .options import CHECK_EVERY, Options
from .space import Coordinates, Known, Space, build_space, by_slot, deflate, with_noise

Array = Any
Script = Generator[Say | Tell | Checkpoint, Any, Any]

HISTORY = ("residual", "change", "since_check", "objective", "lagrangian")


@dataclass(eq=False)
class State:
    """The iterate. `finished` are the components that deflation has done with, as (w, z)."""

    iteration: int
    w: Array
    dual: Array  # over the own samples, by slot
    pulled: Array  # and its sum over the slots; in shared coordinates it follows from
    sums: Sums
    shares: Array  # to be said next: over the own samples, one for each slot;
    said: Array  # in shared coordinates, the same for all;
    late: Array  # and to itself beyond that
    z: Estimate
    at_check: tuple[Array, Estimate]  # w and z at the last check
    rotation: Array  # (k, k) from the last check: turns the columns into components
    verdict: int  # of the last check
    history: dict[str, list[Array]]
    finished: list[tuple[Array, Estimate]]
    runs: list[tuple[str, int]]  # verdict and iterations of the finished components


def program(block: Block, options: Options, resume: tuple[Known, Any] | None = None) -> Script:
    """Decentralized kernel PCA at the nodes of a block; returns their `Answer`."""
    known: Known
    state: Any
    known, state = resume or (Known(options.kernel.gamma), None)
    if options.impute:
        if known.fill is None:
            known.fill = yield from column_means(block)
        block = replace(block, samples=filled(block.samples, known.fill))
    if options.standardize:
        if known.columns is None:
            known.columns = yield from column_scales(block)
        block = replace(block, samples=known.columns.standardized(block.samples) * block.mask[..., None])
    if resume:
        coordinates = Coordinates.of(block, options, known)
        if state.verdict == INTERRUPTED:  # whoever resumes wants to go on
            state = replace(state, verdict=GO_ON)
    else:
        if options.gamma_by_variance:
            known.gamma = yield from variance_gamma(block, options.kernel)
        if options.solver != "projection" and not options.random_features:
            if options.landmarks.points is not None:
                yield from compare_landmarks(block, options)
            found = yield from landmark_solver.solve(block, options, known)
            return landmark_answer(block, options, known, found)
        coordinates = yield from meet(block, options, known)
    if options.random_features:
        return (yield from feature_answer(block, options, known, coordinates, state))
    marks, space = coordinates.marks, build_space(block, options, known, coordinates)
    del coordinates  # psi is as large as many Gram blocks
    if len(block.network) == 1:
        return whole_answer(block, options, known, space)
    if known.rho_near is None:
        known.rho_near = yield from exchange_penalties(block, space)
    if not resume:
        state = start(block, options, known, space)

    deflated = space
    for removed in known.removed:
        deflated = deflate(block, deflated, removed)
    sequential = options.n_components if options.update == "paper" else 1
    while True:
        yield from iterate(block, options, known, deflated, state)
        state.finished.append((state.w, state.z))
        state.runs.append((VERDICTS[state.verdict] or "max_iter", state.iteration))
        if len(state.finished) == sequential:
            break
        known.removed.append((yield tell_direction(block, deflated, state.w)))
        deflated = deflate(block, deflated, known.removed[-1])
        again = start(block, options, known, deflated)
        state = replace(again, history=state.history, finished=state.finished, runs=state.runs)
    w, z = reassemble(block, known, space, state)
    turn, runs, history = state.rotation, state.runs, state.history
    if sequential > 1:  # each is a component already
        turn = block.array(np.eye(sequential))
    del state, deflated  # as large as all that follows
    return (yield from separated_answer(block, options, known, marks, space, w, z, turn, runs, history))


# ---------------------------------------------------------------------- set-up: what the nodes tell each other once
def column_means(block: Block) -> Script:
    """Mean of the values that each column has, over all nodes; raises where it has none."""
    xp = aac.array_namespace(block.samples)
    there = ~xp.isnan(block.samples)
    total = xp.sum(xp.where(there, block.samples, xp.zeros_like(block.samples)), axis=(0, 1))
    count = xp.sum(xp.astype(there, block.samples.dtype) * block.mask[..., None], axis=(0, 1))
    found = yield from network_sum(block, "columns", xp.concat([total, count]))
    total, count = found[: total.shape[0]], found[total.shape[0] :]
    empty = np.flatnonzero(to_numpy(count) == 0)
    if len(empty):
        raise BadColumn(int(empty[0]), "has no value at any node, so missing='mean' has none to put; drop it")
    return total / count


def column_scales(block: Block) -> Script:
    """Mean and standard deviation of each column over all nodes; two sums, for the accuracy of the second."""
    count = int(block.sizes.sum())
    mean = (yield from network_sum(block, "columns", column_sums(block))) / count
    variance = (yield from network_sum(block, "columns", column_sums(block, mean))) / count
    bad = np.flatnonzero(~np.isfinite(to_numpy(variance)))
    if len(bad):
        text = f"is too large to standardize: its squares overflow {block.samples.dtype}; scale it down, or use dtype='float64'"
        raise BadColumn(int(bad[0]), text)
    return Columns.of(mean, variance)


def meet(block: Block, options: Options, known: Known) -> Script:
    """Agree on landmarks, mean and start, and exchange samples; returns the own samples' landmark coordinates."""
    sent = with_noise(block, options)
    if options.n_landmarks and not options.random_features:
        known.points = yield from agree_on_landmarks(block, options, known, sent)
    coordinates = Coordinates.of(block, options, known)
    if options.n_landmarks:
        yield from learn_directions(block, options, known, coordinates)
    if options.solver == "projection" and len(block.network) > 1:
        known.near = yield Tell("data", sent, block.own_sizes)
    return coordinates


def compare_landmarks(block: Block, options: Options) -> Script:
    """Points that all nodes were given must be the same everywhere: a fingerprint of them is compared with the root's."""
    xp = aac.array_namespace(block.samples)
    mine = block.array(landmarks.digest(options.landmarks.points))
    theirs = yield from network_sum(block, "fingerprint", mine * 0, lambda total: mine)  # the root's own
    if not bool(xp.all(mine == theirs)):
        root = block.network.names[block.network.root]
        raise ValueError(
            f"node {block.names[0]}: its landmarks differ from those of node {root}; give all nodes the same"
        )


def agree_on_landmarks(block: Block, options: Options, known: Known, sent: Array) -> Script:
    """The same points (m, M) at every node, none of them redundant: given to all, or drawn or averaged from the nodes' samples and passed on."""
    rows = FlatRows(block, block.samples)
    sent_rows = rows if sent is block.samples else FlatRows(block, sent)
    if options.landmarks.points is not None:
        yield from compare_landmarks(block, options)
    supply = Supply(block, options, rows, sent_rows)
    ((kind, points),) = (yield from supply.more(options.n_landmarks)).items()
    if known.columns is not None and kind == "points":
        points = known.columns.standardized(points)
    if points.shape[0]:
        none = landmarks.Landmarks.none(rows.X)
        points = yield from without_redundant(block, known.kernel(options), none, points)
    if not points.shape[0]:
        raise ValueError("no landmarks came out; raise n_landmarks, or use another kind of landmarks")
    known.kinds.append((kind, int(points.shape[0])))
    return points


def variance_gamma(block: Block, kernel: Kernel) -> Script:
    """gamma="scale", by the variance of all entries; two sums, for the accuracy of the second."""
    xp = aac.array_namespace(block.samples)
    entries = int(block.sizes.sum()) * block.samples.shape[2]
    total = yield from network_sum(block, "scale", xp.reshape(xp.sum(column_sums(block)), (1,)))
    squares = yield from network_sum(block, "scale", xp.reshape(xp.sum(column_sums(block, total[0] / entries)), (1,)))
    return kernel.scaled(block.samples.shape[2], float(squares[0]) / entries)


def column_sums(block: Block, less: Array | None = None) -> Array:
    """(M,) the sum of each column over the rows of the block, or that of its squared difference from `less`."""
    X = FlatRows(block, block.samples).X
    xp = aac.array_namespace(X)

    def part(rows: slice) -> tuple[Array]:
        total = xp.zeros((X.shape[1],), dtype=X.dtype, device=aac.device(X))
        for chunk in chunks_of(rows.stop - rows.start, 4 * row_bytes(X), X):
            some = X[rows.start + chunk.start : rows.start + chunk.stop, :]
            if less is not None:
                some = (some - less) ** 2
            total = total + xp.sum(some, axis=0)
        return (total,)

    return summed(part, X.shape[0], X)[0]


def learn_directions(block: Block, options: Options, known: Known, coordinates: Coordinates) -> Script:
    """The network's mean in landmark coordinates, then (unless there are too many) the principal directions of all the data there."""
    xp = aac.array_namespace(block.samples)
    m = coordinates.raw.shape[2]
    if options.centering == "global":
        raw = coordinates.raw
        work = row_bytes(raw) // 4  # little is kept of it
        (mine,) = by_nodes(lambda j: (xp.sum(raw[j, ...], axis=1),), block.n_nodes, work, raw)
        total = yield from network_sum(block, "mean", xp.sum(mine, axis=0))
        known.mean = total / float(block.sizes.sum())
    if options.random_features or options.init != "landmarks":
        return
    keep = min(m, options.n_columns + EXTRA_COLUMNS)  # the extra ones are for the judge

    def directions(triangle: Array) -> Array:
        scale = float(block.sizes.sum()) * xp.max(known.kernel(options).diagonal(known.points))
        values, basis = landmarks.principal_directions(triangle, m, keep, scale)
        return xp.concat([values, xp.reshape(basis, (-1,))])

    def triangle(nodes: slice) -> tuple[Array]:
        psi = coordinates.centered(block, options, known, nodes)
        flat = xp.reshape(psi, (-1, m))
        return (transposed(flat) @ flat,)

    (total,) = summed(triangle, block.n_nodes, coordinates.raw)
    found = yield from network_sum(
        block, "covariance", landmarks.pack_triangle(total[None, ...])[0, :], directions, keep * (1 + m)
    )
    known.landmark_values, known.directions = found[:keep], xp.reshape(found[keep:], (m, keep))


def exchange_penalties(block: Block, space: Space) -> Script:
    """(B, d): what each neighbor's penalty on this node's z is; rules that all know need no message."""
    if space.rho is None:
        return None
    xp = aac.array_namespace(block.samples)
    said = xp.broadcast_to(space.rho[:, None, None], (block.n_nodes, block.n_slots, 1))
    heard = yield Say("rho", xp.reshape(said, (-1, 1)), block.everywhere, block.everywhere, (1,))
    return xp.reshape(heard, (block.n_nodes, block.n_slots))


# ---------------------------------------------------------------------- the iteration
def start(block: Block, options: Options, known: Known, space: Space) -> State:
    """The first w, by `init`. From the landmarks, multipliers and z begin where a stationary point has them; otherwise at zero.

    At a stationary point the multipliers of a node add up to twice the image of its values: with zeros the first iterations would destroy a start
    that is nearly right.
    """
    xp = aac.array_namespace(block.samples)
    own = space.own
    B, n = block.samples.shape[:2]
    k = 1 if options.update == "paper" else options.n_columns
    like = {"dtype": block.samples.dtype, "device": aac.device(block.samples)}
    if options.init == "local":
        w = consensus.local_start(own, space.gram.eigen, k)
    elif options.init == "landmarks":
        assert known.directions is not None
        on_marks = consensus.pad_columns(known.directions[:, : min(k, known.directions.shape[1])], k)
        w = xp.concat([xp.broadcast_to(on_marks[None, ...], (B, own.m, k)), xp.zeros((B, n, k), **like)], axis=1)
        empty = xp.all(on_marks == 0, axis=0)  # more columns than the landmarks have directions
        if bool(xp.any(empty)):
            w = xp.where(empty, _random_start(block, options, space, k), w)
    else:
        w = _random_start(block, options, space, k)
    rho = _rho(block, options, known, 0)
    zeros, shared = xp.zeros((B, block.n_slots, n, k), **like), xp.zeros((B, own.m, k), **like)
    z = Estimate(shared, xp.zeros((B, block.n_slots, block.n_near, k), **like))
    seen = xp.zeros((B, block.n_slots if options.diagnostics else 1, own.m, k), **like)
    factor, top = rho.factor[:, None, None], w[:, : own.m, :]
    dual, pulled, on_marks = zeros, zeros[:, 0, ...], shared
    shares, late = rho.weighted(w[:, None, own.m :, :] + zeros), factor * (rho.mine - rho.near) * top
    if options.init == "landmarks":
        values = own.values(w) * (2.0 / block.n_slots / factor)
        on_marks, dual, pulled = own.spread(values)[:, : own.m, :], values[:, None, ...] + zeros, block.n_slots * values
        shares, late, z = dual, 0.0 * top, Estimate(xp.broadcast_to(top, shared.shape), z.near)
    return State(
        iteration=0,
        w=w,
        dual=dual,
        pulled=pulled,
        sums=Sums(on_marks, shared, seen, shared),
        shares=shares,
        said=factor * (on_marks + rho.near * top),
        late=late,
        z=z,
        at_check=(w, z),
        rotation=xp.eye(k, **like),
        verdict=GO_ON,
        history={name: [] for name in HISTORY},
        finished=[],
        runs=[],
    )


def _random_start(block: Block, options: Options, space: Space, k: int) -> Array:
    noise = np.zeros((*block.samples.shape[:2], k))
    for b, (name, size) in enumerate(zip(block.names, block.own_sizes, strict=True)):
        noise[b, :size] = node_random(options.seed, name, "start").standard_normal((size, k))
    return consensus.random_start(space.own, space.gram.eigen, block.array(noise), block.array(block.own_sizes))


def _rho(block: Block, options: Options, known: Known, t: int) -> Penalties:
    """The penalties of iteration t."""
    if known.rho_near is not None:
        return Penalties(known.rho_near, 1.0, 1.0)
    rule = options.rho.at
    return Penalties(block.array(np.ones(block.slots.shape)), float(rule(t, False)), float(rule(t, True)))


def iterate(block: Block, options: Options, known: Known, space: Space, state: State) -> Script:
    """Until all nodes are done: one component (the paper's update) or all at once. Changes `state`, and may use up `space.gram`."""
    if state.sums.seen.shape[1] != (block.n_slots if options.diagnostics else 1):
        raise ValueError("a run must be resumed with the diagnostics it was begun with")
    alike = known.rho_near is not None
    compiled = Steps.of(space.own, space.near, alike) if options.anchored and not options.diagnostics else None
    measured_of = compiled.measured if compiled else partial(stopping.Measured.of, space.own)
    before = at_check = measured_of(state.w)
    if state.at_check[0] is not state.w:
        at_check = measured_of(state.at_check[0])
    response, made_for = None, None
    # what penalties that never change make of K_j is all that is needed of it
    once = alike and options.update != "paper" and space.gram.matrix is not space.own.rest
    while True:
        t = state.iteration
        going = t < options.max_iter and not state.verdict
        if going:  # before the checkpoint: the first response is not a part of the iterations
            rho, next_rho = _rho(block, options, known, t), _rho(block, options, known, t + 1)
            if made_for != (rho.near, rho.mine):
                response, made_for = space.gram.response(rho.spent, in_place=once), (rho.near, rho.mine)

        asked = yield Checkpoint(*snapshot(known, state))
        if not going:
            return
        shares, heard = yield block.say("share", state.shares, state.said)
        if compiled:
            z, values = compiled.z_step(state.z, state.sums, shares, heard, state.late, rho)
        else:
            z, values = z_step(options, space, state, shares, heard, rho)
        shares = state.shares = state.said = None  # their memory is for what follows
        views, heard = yield block.say("view", values, z.shared, back=True)
        leading = state.rotation[:, : min(state.w.shape[2], options.n_components)]
        args = (views, heard, rho, next_rho, response, before, at_check, leading)
        measured, progress = compiled.w_step(state, *args) if compiled else w_step(options, space, state, *args)
        state.w, state.z, state.iteration, before = measured.w, z, t + 1, measured
        del args, views, values, heard
        for name in HISTORY:
            if (numbers := getattr(progress, name)) is not None:
                state.history[name].append(numbers)

        if state.iteration % CHECK_EVERY == 0 or state.iteration == options.max_iter:
            state.verdict, rotation = yield from check(block, options, measured, progress, bool(asked))
            if state.verdict == DIVERGED:  # what was there at the last check is still good
                state.w, state.z = state.at_check
            else:
                state.rotation, state.at_check, at_check = rotation, (state.w, z), measured


def z_step(
    options: Options, space: Space, state: State, shares: Slots, heard: Slots, rho: Penalties
) -> tuple[Estimate, Array]:
    """From the neighbors' shares the new z, and its values on the samples of the neighborhood."""
    near = state.z.near
    xp = aac.array_namespace(near)
    B, d, n, k = near.shape
    work = row_bytes(near)

    def target(j: slice) -> tuple[Array, ...]:
        z = consensus.z_target(
            state.z[j], state.sums[j], shares.slots(j), heard.slots(j), state.late[j, ...], rho[j], options.anchored
        )
        return z.shared, z.near

    wanted = Estimate(*by_nodes(target, B, work, near))
    products = space.near.products(xp.reshape(wanted.near, (B * d, n, k)))

    def clip(j: slice) -> tuple[Array, ...]:
        z, values = consensus.z_clip(wanted[j], space.near.collect(products, j))
        return z.shared, z.near, values

    shared, near, values = by_nodes(clip, B, work, near)
    return Estimate(shared, near), values


def w_step(
    options: Options,
    space: Space,
    state: State,
    views: Slots,
    heard: Slots,
    rho: Penalties,
    next_rho: Penalties,
    response: Array,
    before: stopping.Measured,
    at_check: stopping.Measured,
    leading: Array,
) -> tuple[stopping.Measured, stopping.Progress]:
    """From what the nodes heard of their neighbors' z, the new w, multipliers and shares (into `state`), and how far they are."""
    xp = aac.array_namespace(state.dual)
    (B, d), m = state.dual.shape[:2], space.own.m

    def some(j: slice) -> tuple[Array, ...]:
        own, dual, sums, on, after = space.own[j], state.dual[j, ...], state.sums[j], rho[j], next_rho[j]
        values, slots = views.slots(j), heard.slots(j)
        seen = own.project(values)
        if options.update == "paper":
            signs = consensus.view_signs(own, seen)
            seen, values = signs * seen, signs * values
        around, mine, shared = xp.sum(seen, axis=1), slots[:, 0, ...], xp.sum(slots, axis=1)
        w, w_values = consensus.w_step(
            own, around, seen[:, 0, ...], shared, mine, state.pulled[j, ...], sums, on, response[j, ...]
        )
        new = stopping.Measured(w, own.dual_vector(w), w_values)
        alone, g_alone = w[:, m:, :], new.gw[:, m:, :]
        gap = alone[:, None, ...] - seen
        dual, shares = consensus.dual_step(alone, gap, dual, on, after, options.anchored)
        pulled = state.pulled[j, ...] + on.near * (d * alone - around) + (on.mine - on.near) * gap[:, 0, ...]
        by_slot = slots if options.diagnostics else shared[:, None, ...]
        sums, said, late = consensus.sums_step(sums, w[:, :m, :], mine, by_slot, on, after)
        apart = w[:, None, :m, :] - slots
        # <w - P z_q, w - P z_q>, summed over q: over the own samples the gaps times their values
        between = transposed(d * alone - around) @ g_alone - consensus.products(gap, values)
        between = between + consensus.products(apart, apart)
        pull = None
        if options.diagnostics:
            pull = xp.sum((dual + 0.5 * on.weighted(gap)) * (g_alone[:, None, ...] - values), axis=(1, 2, 3))
            pull = pull + xp.sum((sums.w[:, None, ...] - sums.seen + 0.5 * on.weighted(apart)) * apart, axis=(1, 2, 3))
            pull = on.factor * (pull + xp.sum(sums.extra * apart[:, 0, ...], axis=(1, 2)))
        progress = stopping.measure(new, between / d, before[j], at_check[j], leading, pull)
        return (w, new.gw, new.values, dual, pulled, shares, said, late, *sums.arrays(), *progress.numbers())

    found = by_nodes(some, B, row_bytes(state.dual), state.dual)
    w, gw, own_values, state.dual, state.pulled, state.shares, state.said, state.late = found[:8]
    state.sums = Sums(*found[8:12])
    return stopping.Measured(w, gw, own_values), stopping.Progress(*found[12:])


def snapshot(known: Known, state: State) -> tuple[Known, State]:
    """Both as they are now: arrays are never changed in place, lists are."""
    history = {name: list(rows) for name, rows in state.history.items()}
    kept = replace(state, history=history, finished=list(state.finished), runs=list(state.runs))
    return replace(known, removed=list(known.removed), kinds=list(known.kinds)), kept


def check(block: Block, options: Options, new: stopping.Measured, progress: stopping.Progress, asked: bool) -> Script:
    """One network sum decides for all nodes alike whether to stop, and how to separate the columns."""
    w, values = new.w, new.values
    xp = aac.array_namespace(w)
    k = w.shape[2]
    busy = stopping.unfinished(progress, options.tol)
    moments = xp.reshape(xp.sum(transposed(values) @ values, axis=0), (k * k,))
    state = xp.stack([xp.sum(xp.astype(busy, w.dtype)), moments[0] * 0 + float(asked)])
    mine = xp.concat([state, moments])

    def decide(total: Array) -> Array:
        good = bool(xp.all(sane(total)))
        verdict = DIVERGED
        if good:
            verdict = CONVERGED if float(total[0]) == 0 else INTERRUPTED if float(total[1]) > 0 else GO_ON
        moments = xp.reshape(total[2:], (k, k)) if good else xp.eye(k, dtype=w.dtype, device=aac.device(w))
        said = xp.full((1,), float(verdict), dtype=w.dtype, device=aac.device(w))
        return xp.concat([said, xp.reshape(ritz.rotation(moments), (-1,))])

    decided = yield from network_sum(block, "check", mine, decide, 1 + k * k)
    return int(decided[0]), xp.reshape(decided[1:], (k, k))


# ---------------------------------------------------------------------- deflation: the paper's way to more components
def tell_direction(block: Block, space: Space, w: Array) -> Tell:
    """Tell the neighbors the component just found, as a unit function over the own samples."""
    xp = aac.array_namespace(w)
    square = xp.sum(w * space.own.dual_vector(w), axis=1, keepdims=True)
    unit = xp.where(square > 0, w / xp.sqrt(xp.where(square > 0, square, xp.ones_like(square))), xp.zeros_like(w))
    return Tell("deflate", unit, block.own_sizes)


def reassemble(block: Block, known: Known, space: Space, state: State) -> tuple[Array, Estimate]:
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
            directions = by_slot(block, removed)  # (B, d, n_near, 1)
            values = before.near.apply_within(directions)
            near = near - directions @ (transposed(values) @ near)
            mine, at_own = directions[:, 0, ...], values[:, 0, ...]
            mine, at_own = (pad_rows(x, w.shape[1], axis=1) for x in (mine, at_own))
            w = w - mine @ (transposed(at_own) @ w)
        w_columns.append(w)
        z_columns.append(near)
    shared = xp.zeros((block.n_nodes, 0, len(w_columns)), dtype=block.samples.dtype, device=aac.device(block.samples))
    return xp.concat(w_columns, axis=2), Estimate(shared, xp.concat(z_columns, axis=3))
