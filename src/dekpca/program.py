"""The program of a node: request, compute, repeat.

It is a generator for a block of nodes (block.py): it yields requests (messages.py), and an engine sends back the
replies. It uses no files, sockets or clocks. Read `program`, then `iterate`: the algorithm of docs/algorithm.md.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import array_api_compat as aac
import numpy as np

from . import private_solver
from .answer import separated_answer, sums_answer, whole_answer
from .backends import backend_for
from .block import Block, pad_rows
from .collectives import network_sum
from .core import consensus, landmarks, ritz, stopping
from .core.centering import filled
from .core.chunks import by_nodes, row_bytes, summed
from .core.consensus import Estimate, Iterate, Penalties
from .core.landmarks import node_random
from .core.spectrum import sane, transposed
from .core.stopping import CONVERGED, DIVERGED, GO_ON, INTERRUPTED, VERDICTS
from .features import feature_answer
from .messages import Broadcast, Checkpoint, Exchange, NeighborBroadcast, Script
from .options import CHECK_EVERY, Options
from .privacy.errors import PublicError
from .rounds import Transcript, run_rounds
from .solvers import sums
from .solvers.sums.columns import prepared
from .solvers.sums.moments import EXTRA
from .space import Coordinates, Known, Space, build_space, by_slot, deflate, with_noise
from .sums_input import landmark_options, rows_of, sums_options

Array = Any

HISTORY = ("residual", "change", "since_check", "objective", "lagrangian")


@dataclass(eq=False)
class State:
    """The state of the iteration: the content of a checkpoint besides `Known`."""

    iteration: int
    iterate: Iterate
    verdict: int  # of the last check
    history: dict[str, list[Array]]  # by name, one array (B,) an iteration
    finished: list[tuple[Array, Estimate]]  # w and z of the components found so far, one by one
    runs: list[tuple[str, int]]  # verdict and iterations of each of them

    @property
    def w(self) -> Array:
        return self.iterate.w.w

    @property
    def z(self) -> Estimate:
        return self.iterate.z

    def record(self, progress: stopping.Progress) -> None:
        self.iteration += 1
        for name in HISTORY:
            if (numbers := getattr(progress, name)) is not None:
                self.history[name].append(numbers)


def program(block: Block, options: Options, resume: tuple[Known, Any] | None = None) -> Script:
    """Decentralized kernel PCA at the nodes of a block; returns their `Answer`."""
    known: Known
    state: Any
    known, state = resume or (Known(options.kernel.gamma), None)
    if options.landmarks.points is not None and not resume:
        yield from compare_landmarks(block, options)
    if options.privacy is not None:
        return (yield from private_solver.solve(block, options, known))
    if options.solver != "projection" and not options.random_features:
        transcript = Transcript()
        found = yield from run_rounds(block, sums.solve(rows_of(block, options), sums_options(options)), transcript)
        return sums_answer(block, options, known, found, transcript)
    if not resume:
        yield from prepare(block, options, known)
    block = with_columns(block, known)
    if resume:
        coordinates = Coordinates.of(block, options, known)
        if state.verdict == INTERRUPTED:  # that stop has served the request
            state = replace(state, verdict=GO_ON)
    else:
        coordinates = yield from meet(block, options, known)
    if options.random_features:
        return (yield from feature_answer(block, options, known, coordinates, state))
    marks, space = coordinates.marks, build_space(block, options, known, coordinates)
    del coordinates  # as large as many Gram blocks
    if len(block.network) == 1:
        return whole_answer(block, options, known, space)
    if known.rho is None:
        known.rho = yield from exchange_penalties(block, space)
    if not resume:
        state = start(block, options, known, space)

    deflated = space
    for removed in known.removed:
        deflated = deflate(block, deflated, removed)
    one_by_one = options.n_components if options.update == "paper" else 1
    interrupted = False
    while True:
        yield from iterate(block, options, known, deflated, state, interrupted)
        interrupted = interrupted or state.verdict == INTERRUPTED
        state.finished.append((state.w, state.z))
        state.runs.append((VERDICTS[state.verdict] or "max_iter", state.iteration))
        if len(state.finished) == one_by_one:
            break
        known.removed.append((yield tell_direction(deflated, state.w)))
        deflated = deflate(block, deflated, known.removed[-1])
        again = start(block, options, known, deflated)
        state = replace(again, history=state.history, finished=state.finished, runs=state.runs)
    w, z = reassemble(block, known, space, state)
    turn, runs, history = state.iterate.rotation, state.runs, state.history
    if one_by_one > 1:  # each is a component already
        turn = block.array(np.eye(one_by_one))
    del state, deflated  # as large as everything that follows
    return (yield from separated_answer(block, options, known, marks, space, w, z, turn, runs, history))


# ---------------------------------------------------------------------- set-up: messages that are sent once
def prepare(block: Block, options: Options, known: Known) -> Script:
    """Missing values, scales of columns and gamma, for a program that iterates."""
    if not (options.impute or options.standardize or options.gamma_by_variance):
        return
    rounds = prepared(
        rows_of(block, options),
        options.kernel,
        options.impute,
        options.standardize,
        options.gamma_by_variance,
        options.sealed,
    )
    first = yield from run_rounds(block, rounds, Transcript())
    known.fill, known.columns, known.gamma = first.fill, first.columns, first.kernel.gamma


def with_columns(block: Block, known: Known) -> Block:
    """The block with missing values filled and columns standardized, as `known` says."""
    if known.fill is not None:
        block = replace(block, samples=filled(block.samples, known.fill))
    if known.columns is not None:
        block = replace(block, samples=known.columns.standardized(block.samples) * block.mask[..., None])
    return block


def meet(block: Block, options: Options, known: Known) -> Script:
    """Agree on landmarks, mean and start, and send the samples to the neighbors. Returns the landmark coordinates of the own samples."""
    sent = with_noise(block, options)
    if options.n_landmarks and not options.random_features:
        known.points = yield from agree_on_landmarks(block, options, known)
    coordinates = Coordinates.of(block, options, known)
    if options.n_landmarks:
        yield from learn_directions(block, options, known, coordinates)
    if options.solver == "projection" and len(block.network) > 1:
        known.samples = yield NeighborBroadcast("data", sent)
    return coordinates


def compare_landmarks(block: Block, options: Options) -> Script:
    """Check that all nodes were given the same landmarks: each compares their fingerprint with the root's."""
    xp = aac.array_namespace(block.samples)
    mine = block.array(landmarks.digest(options.landmarks.points))
    theirs = yield Broadcast("fingerprint", lambda: mine, mine.shape)
    if not bool(xp.all(mine == theirs)):
        root = block.network.names[block.network.root]
        raise PublicError(
            f"node {block.names[0]}: its landmarks differ from those of node {root}; give all nodes the same"
        )


def agree_on_landmarks(block: Block, options: Options, known: Known) -> Script:
    """The landmarks (m, M), the same at every node, without redundant ones: given to all nodes, or centres of clusters of all rows."""
    marks = yield from run_rounds(
        block, sums.choose_landmarks(rows_of(block, options), landmark_options(options, known)), Transcript()
    )
    known.kinds.extend(marks.kinds)
    return marks.points.points


def learn_directions(block: Block, options: Options, known: Known, coordinates: Coordinates) -> Script:
    """The network's mean in landmark coordinates; then the principal directions of all the data there, for the start."""
    xp = aac.array_namespace(block.samples)
    m = coordinates.raw.shape[2]
    if options.centering == "global":
        raw = coordinates.raw
        work = row_bytes(raw) // 4  # the results are small
        (mine,) = by_nodes(lambda j: (xp.sum(raw[j, ...], axis=1),), block.n_nodes, work, raw)
        total = yield from network_sum(block, "mean", xp.sum(mine, axis=0), bound=2.0 * float(block.sizes.sum()))
        known.mean = total / float(block.sizes.sum())
    if options.random_features or options.init != "landmarks":
        return
    keep = min(m, options.n_columns + EXTRA)  # the extra ones are for the estimate of accuracy

    def directions(packed: Array) -> Array:
        scale = float(block.sizes.sum()) * xp.max(known.kernel(options).diagonal(known.points))
        values, basis = landmarks.principal_directions(packed, m, keep, scale)
        return xp.concat([values, xp.reshape(basis, (-1,))])

    def covariance(nodes: slice) -> tuple[Array]:
        psi = coordinates.centered(block, options, known, nodes)
        flat = xp.reshape(psi, (-1, m))
        return (transposed(flat) @ flat,)

    (total,) = summed(covariance, block.n_nodes, coordinates.raw)
    found = yield from network_sum(
        block, "covariance", landmarks.pack_triangle(total[None, ...])[0, :], directions, keep * (1 + m)
    )
    known.landmark_values, known.directions = found[:keep], xp.reshape(found[keep:], (m, keep))


def exchange_penalties(block: Block, space: Space) -> Script:
    """(B, d): the penalties of the node and its neighbors on the node's z; None with a schedule."""
    if space.rho is None:
        return None
    xp = aac.array_namespace(block.samples)
    own = xp.broadcast_to(space.rho[:, None, None], (block.n_nodes, block.n_slots, 1))
    no_shared, one_row = space.rho[:, None][:, :0], np.ones(block.slots.size, dtype=np.int64)
    heard, _ = yield Exchange("rho", own, no_shared, one_row, one_row, rows=1)
    return heard.slots(slice(0, block.n_nodes))[:, :, 0]


# ---------------------------------------------------------------------- the iteration
def start(block: Block, options: Options, known: Known, space: Space) -> State:
    """The first iterate, from the w of `init`; multipliers and z follow from it (consensus.begin)."""
    k = 1 if options.update == "paper" else options.n_columns
    if options.init == "local":
        w = consensus.local_start(space.own, space.gram.eigen, k)
    elif options.init == "landmarks":
        w = _landmark_start(block, options, known, space, k)
    else:
        w = _random_start(block, options, space, k)
    z_shape = (block.n_nodes, block.n_slots, block.n_near, k)
    rho = penalties(block, options, known, 0)
    warm = options.init == "landmarks"
    iterate = consensus.begin(space.own, w, z_shape, rho, warm, by_slot=options.diagnostics)
    return State(0, iterate, GO_ON, {name: [] for name in HISTORY}, [], [])


def _landmark_start(block: Block, options: Options, known: Known, space: Space, k: int) -> Array:
    """The principal directions in landmark coordinates, with zero coefficients over the own samples; random columns if there are too few."""
    xp = aac.array_namespace(block.samples)
    (B, n), m = block.samples.shape[:2], space.own.m
    assert known.directions is not None
    on_marks = consensus.pad_columns(known.directions[:, : min(k, known.directions.shape[1])], k)
    over_samples = xp.zeros((B, n, k), dtype=on_marks.dtype, device=aac.device(on_marks))
    w = xp.concat([xp.broadcast_to(on_marks[None, ...], (B, m, k)), over_samples], axis=1)
    empty = xp.all(on_marks == 0, axis=0)
    return xp.where(empty, _random_start(block, options, space, k), w) if bool(xp.any(empty)) else w


def _random_start(block: Block, options: Options, space: Space, k: int) -> Array:
    noise = np.zeros((*block.samples.shape[:2], k))
    for b, (name, size) in enumerate(zip(block.names, block.own_sizes, strict=True)):
        noise[b, :size] = node_random(options.seed, name, "start").standard_normal((size, k))
    return consensus.random_start(space.own, space.gram.eigen, block.array(noise), block.array(block.own_sizes))


def penalties(block: Block, options: Options, known: Known, t: int) -> Penalties:
    """rho of iteration t: from each node's spectrum, sent to its neighbors, or from a schedule that all nodes know."""
    if known.rho is not None:
        return Penalties(known.rho, 1.0, 1.0, constant=True)
    rule = options.rho.at
    ones = block.array(np.ones(block.slots.shape))
    return Penalties(ones, float(rule(t, False)), float(rule(t, True)), constant=False)


def iterate(
    block: Block, options: Options, known: Known, space: Space, state: State, interrupted: bool = False
) -> Script:
    """Iterate until all nodes stop: for one component (the paper's update) or for all at once.

    w_j is node j's part of the answer, over the landmarks and its own samples; z_j is its neighborhood's estimate of the whole. The constraints are
    w_j = P_j z_q for the node itself and each neighbor q, where P_j projects on the span of j; dual_jq is the multiplier of that constraint.

        share  l -> j   how l wants z_j to move: dual_lj + rho_l (w_l - P_l z_j)
               j        z_j moves by the sum of the shares over the sum of rho; its singular values are clipped at 1
        view   j -> l   the values of z_j on the samples of l
               l        P_l z_j from these; w_l, the exact optimum given all P_l z_j and dual_lj; dual_lj += rho_l (w_l - P_l z_j)

    Every few iterations all nodes check together whether to stop. With `interrupted`, a request stopped an earlier
    component. This component stops at its first check and has no checkpoints, so that a resumed fit continues the
    component that was stopped.

    `state.iterate` has w, z and dual; each step replaces its results. With constant penalties `space.gram` is
    overwritten, since it is not needed after the iteration.
    """
    it = state.iterate
    steps = backend_for(options, space, it, penalties(block, options, known, state.iteration))
    while True:
        asked = interrupted or (yield Checkpoint(*snapshot(known, state)))
        if state.verdict or state.iteration >= options.max_iter:
            return
        rho = penalties(block, options, known, state.iteration)
        shares = yield block.exchange("share", *steps.shares(it, rho))
        views = yield block.exchange("view", *steps.z_step(it, shares, rho), back=True)
        del shares  # frees as much as the next step needs
        steps.w_step(it, views, rho)
        del views
        progress = steps.measure(it)
        state.record(progress)
        if state.iteration % CHECK_EVERY == 0 or state.iteration == options.max_iter:
            state.verdict, rotation = yield from check(block, options, it.values, progress, bool(asked))
            if state.verdict == DIVERGED:  # back to the last good iterate
                it.w, it.z = it.at_check
            else:
                it.at_check, it.rotation = (it.w, it.z), rotation


def snapshot(known: Known, state: State) -> tuple[Known, State]:
    """Shallow copies of both: arrays are never changed in place, the objects that hold them are."""
    history = {name: list(rows) for name, rows in state.history.items()}
    iterate = replace(state.iterate, values=None)  # not needed to resume
    kept = replace(state, iterate=iterate, history=history, finished=list(state.finished), runs=list(state.runs))
    return replace(known, removed=list(known.removed), kinds=list(known.kinds)), kept


def check(block: Block, options: Options, values: Array, progress: stopping.Progress, asked: bool) -> Script:
    """One network sum decides for all nodes whether to stop (a verdict), and how to turn the columns into components (a rotation).

    `values` (B, n, k) are those of w on the own samples; `asked`: a request to stop this node.
    """
    xp = aac.array_namespace(values)
    k, like = values.shape[2], {"dtype": values.dtype, "device": aac.device(values)}
    busy = stopping.unfinished(progress, options.tol)
    moments = xp.reshape(xp.sum(transposed(values) @ values, axis=0), (k * k,))
    counts = xp.stack([xp.sum(xp.astype(busy, values.dtype)), xp.full((), float(asked), **like)])
    mine = xp.concat([counts, moments])

    def decide(total: Array) -> Array:
        good = bool(xp.all(sane(total)))
        verdict = DIVERGED
        if good:
            verdict = CONVERGED if float(total[0]) == 0 else INTERRUPTED if float(total[1]) > 0 else GO_ON
        moments = xp.reshape(total[2:], (k, k)) if good else xp.eye(k, **like)
        said = xp.full((1,), float(verdict), **like)
        return xp.concat([said, xp.reshape(ritz.rotation(moments), (-1,))])

    decided = yield from network_sum(block, "check", mine, decide, 1 + k * k)
    return int(decided[0]), xp.reshape(decided[1:], (k, k))


# ---------------------------------------------------------------------- deflation: the paper's way to more components
def tell_direction(space: Space, w: Array) -> NeighborBroadcast:
    """Send the last component to all neighbors, as a unit function over the own samples."""
    xp = aac.array_namespace(w)
    functions = space.own.functions(w)
    square = xp.linalg.diagonal(functions.squares())[:, None, :]
    unit = xp.where(square > 0, w / xp.sqrt(xp.where(square > 0, square, xp.ones_like(square))), xp.zeros_like(w))
    return NeighborBroadcast("deflate", unit)


def reassemble(block: Block, known: Known, space: Space, state: State) -> tuple[Array, Estimate]:
    """All components as coefficients over the original samples: each deflation is undone, the last one first."""
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
            values = before.neighborhood.apply_within(directions)
            near = near - directions @ (transposed(values) @ near)
            mine, at_own = directions[:, 0, ...], values[:, 0, ...]
            mine, at_own = (pad_rows(x, w.shape[1], axis=1) for x in (mine, at_own))
            w = w - mine @ (transposed(at_own) @ w)
        w_columns.append(w)
        z_columns.append(near)
    shared = xp.zeros((block.n_nodes, 0, len(w_columns)), dtype=block.samples.dtype, device=aac.device(block.samples))
    return xp.concat(w_columns, axis=2), Estimate(shared, xp.concat(z_columns, axis=3))
