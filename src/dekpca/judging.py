"""Estimates of the error of functions, by network sums over rows sketched with random features of what the landmarks miss.

There are two sums, `sketch` and `accuracy`. The root's computations are in separation.py and in core/accuracy.py.
Generators, to be used with `yield from`.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import array_api_compat as aac
import numpy as np

from .block import Block, FlatRows, take
from .collectives import network_sum
from .core import accuracy, landmarks
from .core.accuracy import Accuracy
from .core.chunks import by_nodes, row_bytes, summed
from .core.clusters import LEAST_CLUSTER
from .core.landmarks import Landmarks, Offered
from .core.sketch import Sketch
from .core.spectrum import to_numpy, transposed
from .kernels import Kernel
from .options import SMALL_TABLE, Options
from .separation import SIGNS, Leaving, Rows, Separated, Shapes, Sums, Whole, product

Array = Any
Script = Generator[Any, Any, Any]

JUDGED_ROWS = 2048  # judging rows, if there are more rows than SMALL_TABLE: at least this many,
JUDGED_SHARE = 64  # one row in so many,
MOST_JUDGED_ROWS = 16384  # and at most this many. Always the maximum where rows may not leave their nodes: sums over few rows reveal more about each
EXTRA_COLUMNS = 32  # beyond the components, so that eigenvalues of the leak are far below
FREQUENCIES = 192  # of each of the two sketches
MORE_FREQUENCIES = (
    1024  # for data of few columns, if FREQUENCIES do not show an error below the tolerance: less noise saves landmarks
)
CHEAP_COLUMNS = 64  # up to which a frequency is cheap compared with a landmark
LEAST_BOUND = 1e-60  # of a sum that is zero
LONGEST = 2.0  # of a row's features and coordinates: 1, and with weights of frequencies at most their number's root


def judged_shares(block: Block, options: Options) -> np.ndarray:
    """(J,) the number of judging rows of each node of the network: all rows, or the node's share of the limit.

    Where rows may not leave their nodes, a node whose share is less than a cluster has none: a sum over one row reveals the row.
    """
    rows = int(block.sizes.sum())
    most = min(max(JUDGED_ROWS, rows // JUDGED_SHARE), MOST_JUDGED_ROWS) if options.share_rows else MOST_JUDGED_ROWS
    if rows <= max(most, SMALL_TABLE):
        return block.sizes
    shares = landmarks.allot(block.sizes, block.network.names, most, options.seed)
    if not options.share_rows:
        shares = np.where(shares < LEAST_CLUSTER, 0, shares)
    return shares if shares.any() else block.sizes


@dataclass(eq=False)
class Judged:
    """The judging rows of a block, with psi (rows, m), k(x, x) and features of the two sketches (rows, 4 F)."""

    X: Array
    shares: np.ndarray  # (J,) how many rows of each node these are
    places: np.ndarray | None  # which rows of the block; None: all
    kernel: Kernel
    marks: Landmarks
    psi: Array
    diagonal: Array
    sketches: tuple[Sketch, Sketch] | None
    features: Array | None

    @classmethod
    def of(
        cls, block: Block, options: Options, kernel: Kernel, rows: FlatRows, frequencies: int = FREQUENCIES
    ) -> Judged:
        """Every node's share of judging rows, evenly spread over its rows; before there are landmarks."""
        shares, places, X = judged_shares(block, options), None, rows.X
        if shares is not block.sizes:
            own = shares[block.nodes]
            step = np.repeat(block.own_sizes / np.maximum(own, 1), own)
            places = (np.repeat(rows.starts[:-1], own) + np.floor((_counted(own) + 0.5) * step)).astype(np.int64)
            places = rows.at(places)
            X = take(X, places)
        judged = cls(X, shares, places, kernel, Landmarks.none(X), X[:, :0], kernel.diagonal(X), None, None)
        if kernel.has_features:
            judged.draw_sketches(options.seed, max(frequencies, first_frequencies(int(block.sizes.sum()))))
        return judged

    def draw_sketches(self, seed: int, count: int) -> None:
        """Draw two sketches of `count` frequencies each, and compute their features of the rows."""
        X, kernel = self.X, self.kernel
        xp = aac.array_namespace(X)
        first, second = (Sketch.drawn(kernel, X, count, seed, f"sketch {h}") for h in (1, 2))
        # With a part of the rows, the rounding of float32 is below the sampling noise, unless rows are so far from
        # the origin that angles need more digits.
        near = self.places is not None and not kernel.far(xp.vecdot(X, X))
        rough = xp.astype(X, xp.float32, copy=False) if near else X
        work = first.size * row_bytes(rough[:, :1])
        self.sketches = first, second
        (self.features,) = by_nodes(
            lambda r: (xp.concat([h.features(rough[r, :]) for h in (first, second)], axis=1),), X.shape[0], work, X
        )

    def refine(self, seed: int) -> bool:
        """Draw more frequencies, if there are few and more are cheap; returns whether it did."""
        if self.sketches is None or self.sketches[0].size >= 2 * most_frequencies(self.X.shape[1]):
            return False
        self.draw_sketches(seed, most_frequencies(self.X.shape[1]))
        return True

    @property
    def count(self) -> float:
        """Number of judging rows of the whole network."""
        return float(self.shares.sum())

    @property
    def rest(self) -> Array:
        """(rows,) what the landmarks miss of each row: k(x, x) - |psi(x)|^2."""
        xp = aac.array_namespace(self.psi)
        return xp.clip(self.diagonal - xp.sum(self.psi * self.psi, axis=1), min=0.0)

    def halves(self, block: Block) -> list[tuple[Array, float]]:
        """Every second of the network's judging rows, and the others: (rows,) of 1 and 0, and their numbers in the network."""
        own, before = self.shares[block.nodes], np.cumsum(self.shares) - self.shares
        number = np.repeat(before[block.nodes], own) + _counted(own)
        total = int(self.shares.sum())
        return [(block.array(number % 2 == h), float((total + 1 - h) // 2)) for h in range(2)]

    def of_all(self, rows: Array) -> Array:
        """The judging rows among the block's rows (rows, ...)."""
        return rows if self.places is None else take(rows, self.places)

    def extend(self, block: Block, points: Array, offered: Offered | None = None) -> None:
        """Add landmarks; earlier results are kept. `offered` are the new points, if computed already."""
        marks, kernel, X, psi = self.marks, self.kernel, self.X, self.psi
        self.marks, growth = block.once("landmarks", marks.size, lambda: marks.grown(points, kernel, offered))
        work = row_bytes(self.marks.root) // 4  # rows enough for a product at full speed
        (new,) = by_nodes(lambda r: (growth.coordinates(X[r, :], psi[r, :]),), X.shape[0], work, X)
        self.psi = aac.array_namespace(points).concat([psi, new], axis=1) if psi.shape[1] else new


@dataclass(eq=False)
class Verdict:
    """Eigenvalues (k,), the map (p, k) from functions to components, and their accuracy."""

    eigenvalues: Array
    turn: Array
    accuracy: Accuracy


def first_frequencies(rows: int) -> int:
    """Frequencies of each of the two sketches, for a total number of rows: with many rows more are cheap compared with a pass over them."""
    return min(FREQUENCIES * max(1, rows // (JUDGED_SHARE * JUDGED_ROWS)), MORE_FREQUENCIES)


def most_frequencies(columns: int) -> int:
    """Frequencies of each of the two sketches, if the first few do not show a small enough error."""
    return MORE_FREQUENCIES if columns <= CHEAP_COLUMNS else FREQUENCIES


def judging_numbers(rows: int, all_rows: int, columns: int, m: int, p: int, root: bool) -> int:
    """Peak count of numbers for judging p functions in the span of m landmarks with these judging rows, including the root (for memory.py)."""
    features = 4 * max(first_frequencies(all_rows), most_frequencies(columns))
    sums = (features + 2 * m) * (p + SIGNS)
    at_root = 6 * sums + 4 * m * m + m * features if root else 0
    return rows * (columns + 2 * m + features + features // 2 + 3 * p) + 2 * sums + at_root


def judge_values(
    block: Block,
    options: Options,
    judged: Judged,
    G: Array,
    exact: Array | None,
    all_rows: float | None = None,
    whole: Whole | None = None,
    largest: np.ndarray | None = None,
) -> Script:
    """Estimate the error of functions with the values G (rows, p) on the judging rows.

    `exact` are their eigenvalues in landmark coordinates, for functions in the span of the landmarks that are
    orthonormal over `all_rows` rows: the judging rows, or (by default) all. `whole` is for other functions; without
    it the judging rows represent all. `largest` (p,) is a public bound on their values, for masked sums.
    """
    all_rows = float(block.sizes.sum()) if all_rows is None else all_rows
    assert judged.sketches is not None
    assert judged.features is not None
    xp = aac.array_namespace(judged.psi)
    z, psi, rest, k, p = judged.features, judged.psi, judged.rest, options.n_components, G.shape[1]
    # If a part of the rows represents all, each sketch has half of them, so that their difference includes the effect of the choice of rows.
    halves = judged.halves(block) if all_rows > judged.count else [(xp.ones_like(rest), judged.count)]
    one_for_each = (halves[0], halves[-1])
    shape = Shapes(judged.sketches[0].size, judged.marks.size, p, k)
    ours = z[:, : shape.features], z[:, shape.features :]
    signs = random_signs(block, options, judged)

    def products(rows: slice) -> tuple[Array, ...]:
        g, s = G[rows, :], signs[rows, :]
        sides = [xp.concat([half[rows, None] * g, s], axis=1) for half, _ in halves]
        return (
            xp.stack([product(transposed(ours[h][rows, :]), side) for h, side in enumerate((sides[0], sides[-1]))]),
            xp.stack([transposed(psi[rows, :]) @ side for side in sides]),
            xp.stack([transposed(g) @ (rest[rows, None] * side[:, :p]) for side in sides]),
            xp.stack([xp.sum(side, axis=0) for side in sides]),
            transposed(g) @ g,
            xp.stack([xp.sum(features[rows, :], axis=0, dtype=psi.dtype) for features in ours]),
            xp.sum(psi[rows, :], axis=0),
            xp.sum(g, axis=0),
        )

    sums = summed(products, G.shape[0], G)
    kept: list[Separated] = []

    def separate(total: Array, sums: tuple[Array, ...] = sums) -> Array:
        on_marks = [to_numpy(s.on_landmarks(judged.marks, z.dtype)).astype(np.float64) for s in judged.sketches or ()]
        values = None if exact is None else to_numpy(exact).astype(np.float64)
        taken = Sums(*_split(total, sums))
        rows = Rows(all_rows, judged.count, [count for _, count in one_for_each])
        kept.append(Separated.of(taken, on_marks, values, rows, shape, options.centering is not None, whole))
        return block.array(kept[0].pack())

    most = np.ones(p)  # functions that are orthonormal over all rows are at most 1 at a row
    if exact is None:
        most = np.full(p, all_rows) if largest is None else np.maximum(largest, LEAST_BOUND)
    mine = xp.concat([xp.reshape(x, (-1,)) for x in sums])
    bounds = None if block.sealer is None else sketch_bounds(judged, most, sums)
    told = yield from network_sum(block, "sketch", mine, separate, shape.told, bounds)
    eigenvalues, turn, leaving, hidden = shape.unpack(told)
    unit = turn / xp.sqrt(xp.where(eigenvalues > 0, eigenvalues, xp.ones_like(eigenvalues)))

    def leaks(rows: slice) -> tuple[Array, ...]:
        out, own = [], []
        alone = rest[rows, None] * (G[rows, :] @ unit)
        for h in range(2):
            features = ours[h][rows, :]
            # the pair of a row with itself must count once; so far it has the weight of the rows it represents, or none
            half, count = one_for_each[h]
            weight = all_rows / count * half[rows, None] - 1.0
            out.append(leaving[h](features, psi[rows, :], G[rows, :]) - weight * alone)
            own.append(hidden[h](features, psi[rows, :], G[rows, :]))
        image = (
            product(transposed(ours[0][rows, :]), own[1]),
            transposed(psi[rows, :]) @ own[1],
            xp.sum(own[1], axis=0),
        )
        return (
            transposed(out[0]) @ out[1],
            xp.stack([transposed(psi[rows, :]) @ x for x in out]),
            xp.sum(own[0] * own[1], axis=0),
            *image,
            xp.reshape(xp.sum(rest[rows]), (1,)),
        )

    sums = summed(leaks, G.shape[0], G)

    def decide(total: Array) -> Array:
        leak, on_psi, squares, features, marks, ones, trace = _split(total, sums)
        scale = kept[0].scale
        size = kept[0].hidden_size(squares, features, marks, ones, float(trace[0]))
        outside = accuracy.Outside(
            scale * leak, scale**2 * float((on_psi[0] * on_psi[1]).sum()), size, scale * float(trace[0])
        )
        found = accuracy.estimate(kept[0].ritz, outside, k, options.tol)
        raised = accuracy.second_order(kept[0].ritz, outside, k)
        return block.array([found.error, found.span, *found.components, *found.alike, *raised])

    mine = xp.concat([xp.reshape(x, (-1,)) for x in sums])
    if block.sealer is not None:
        counts = [count for _, count in one_for_each]
        bounds = leak_bounds(judged, all_rows, counts, (leaving, hidden), unit, most, sums)
    decided = yield from network_sum(block, "accuracy", mine, decide, 2 + 3 * k, bounds)
    raised = decided[2 + 2 * k :]
    return Verdict(raised * eigenvalues, turn * xp.sqrt(raised), told_accuracy(decided[: 2 + 2 * k], k, "sketches"))


def sketch_bounds(judged: Judged, values: np.ndarray, sums: tuple[Array, ...]) -> np.ndarray:
    """Public bounds on the sums of `products`, in their order, for sums under masks: a row's functions are at most `values`, its signs 1, its
    features and coordinates no longer than LONGEST."""
    sides, squares = np.concatenate([values, np.ones(SIGNS)]), np.outer(values, values)
    largest: tuple[Any, ...] = (LONGEST * sides, LONGEST * sides, squares, sides, squares, LONGEST, LONGEST, values)
    room = 2.0 * judged.count  # with room for rounding
    return room * np.concatenate([np.broadcast_to(y, x.shape).ravel() for x, y in zip(sums, largest, strict=True)])


def leak_bounds(
    judged: Judged, all_rows: float, sketched: list[float], told: tuple[list[Leaving], list[Leaving]], unit: Array, values: np.ndarray,
    sums: tuple[Array, ...],
) -> np.ndarray:  # fmt: skip
    """The same for the sums of `leaks`: by what the root told, which all nodes know. They are as small as what the landmarks miss; a looser bound
    costs digits of the eigenvalues."""

    def largest_of(side: Leaving) -> np.ndarray:
        made = LONGEST * (lengths(side.features) + lengths(side.marks)) + _sizes(side.offset)
        return made if side.columns is None else made + values @ _sizes(side.columns)

    leaving, hidden = told
    itself = [max(all_rows / count - 1.0, 1.0) * (values @ _sizes(unit)) for count in sketched]
    out = [np.maximum(largest_of(side) + y, LEAST_BOUND) for side, y in zip(leaving, itself, strict=True)]
    own = [np.maximum(largest_of(side), LEAST_BOUND) for side in hidden]
    largest: tuple[Any, ...] = (
        np.outer(out[0], out[1]), LONGEST * np.stack(out)[:, None, :], own[0] * own[1], LONGEST * own[1], LONGEST * own[1], own[1], 1.0,
    )  # fmt: skip
    room = 4.0 * judged.count
    return room * np.concatenate([np.broadcast_to(y, x.shape).ravel() for x, y in zip(sums, largest, strict=True)])


def _sizes(x: Array) -> np.ndarray:
    return np.abs(to_numpy(x).astype(np.float64))


def lengths(columns: Array) -> np.ndarray:
    """Of the columns of a matrix, in float64 on the host."""
    return np.sqrt((to_numpy(columns).astype(np.float64) ** 2).sum(axis=0))


def told_accuracy(decided: Array, k: int, method: str) -> Accuracy:
    """The accuracy from the root: error, span, components and, for each, up to which component eigenvalues are too close to separate."""
    numbers = to_numpy(decided).astype(np.float64)
    if not ((numbers[: 2 + k] >= 0) & (numbers[: 2 + k] <= 1)).all():  # also where it is NaN
        raise ValueError("the root of the network tells an accuracy that is none; start all nodes anew")
    alike = numbers[2 + k :].clip(1, k + 1) if len(numbers) > 2 + k else np.arange(1, k + 1)
    return Accuracy(
        tuple(numbers[2 : 2 + k].tolist()), float(numbers[1]), float(numbers[0]), tuple(map(int, alike)), method
    )


def _split(total: Array, like: tuple[Array, ...]) -> list[np.ndarray]:
    """A vector as arrays of the shapes of `like`, in float64 on the host."""
    pieces, at = [], 0
    for x in like:
        size = int(np.prod(x.shape))
        pieces.append(to_numpy(total[at : at + size]).astype(np.float64).reshape(x.shape))
        at += size
    return pieces


def _counted(sizes: np.ndarray) -> np.ndarray:
    """0, 1, ... within each of groups of these sizes."""
    return np.arange(int(sizes.sum())) - np.repeat(np.cumsum(sizes) - sizes, sizes)


def random_signs(block: Block, options: Options, judged: Judged) -> Array:
    """(rows, SIGNS) of +1 and -1 for the judging rows; they depend on node and row only."""
    own = judged.shares[block.nodes]
    node, row = np.repeat(block.nodes, own).astype(np.uint64), _counted(own).astype(np.uint64)
    start = np.uint64(landmarks.shared_seed(options.seed, "signs") % 2**64)
    mixed = node * np.uint64(0x9E3779B97F4A7C15) + row * np.uint64(0xBF58476D1CE4E5B9) + start
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):  # the mixing of splitmix64
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    mixed ^= mixed >> np.uint64(31)
    bits = (mixed[:, None] >> np.arange(SIGNS, dtype=np.uint64)) & np.uint64(1)
    return block.array(2.0 * bits.astype(np.float64) - 1.0)
