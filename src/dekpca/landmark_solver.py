"""The landmark solver: kernel PCA in the span of points that all nodes share, as many of them as the tolerance needs.

Everything is a sum over the nodes of what each computes from its own rows. A stage has up to three of them:

    covariance   of the landmark coordinates psi          -> principal directions, found at the root of the tree
    sketch       of the components with random features of what the landmarks miss   -> eigenvalues, and components told apart
    accuracy     what leaves the span                     -> how good the answer is, and how many landmarks the next stage has

Stages work on at most `JUDGED_ROWS` rows of the network; then all rows give the covariance once more. Generators, to be used with `yield from`.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field, replace
from typing import Any

import array_api_compat as aac
import numpy as np
from scipy.special import ndtri

from .block import Block
from .collectives import collect_rows, network_sum
from .core import accuracy, landmarks
from .core.accuracy import Accuracy
from .core.clusters import LEAST_CLUSTER, ROWS_A_CLUSTER, cluster_means
from .core.landmarks import Landmarks, node_random
from .core.nodewise import by_nodes, row_bytes, summed
from .core.sketch import FEW_COLUMNS, Sketch
from .core.spectrum import eps, to_numpy, transposed
from .kernels import Kernel, row_tiles, uniform
from .options import Options
from .space import Known, with_noise

Array = Any
Script = Generator[Any, Any, Any]

JUDGED_ROWS = 4096  # by which the number of landmarks is chosen and the answer judged
EXTRA_COLUMNS = 32  # beyond the components: what leaks out of these lies far below
FREQUENCIES = 256  # of each of the two sketches, and for data of few columns
MORE_FREQUENCIES = 1024
LINEAR_COMPONENTS = 50  # at most, of the Gaussian that landmarks which nobody owns are drawn from
SIGNS = 4  # random vectors that look for components in what the landmarks miss
MARGIN = 2  # landmarks grow until the estimated error is so many times below the tolerance: the estimate may be too low
MOST_GROWTH, LEAST_GROWTH = 4.0, 1.4  # of the landmarks from a stage to the next
ORDER = 1.5  # the error falls about like landmarks to this power
MIXED = 5  # times the tolerance: an error of a component for which the landmarks are doubled, once
ENOUGH_MEANS = (
    0.75  # of the landmarks that are wanted; where nodes have fewer means to give, rows or other points come too
)
GIVE_UP = 0.8  # a stage that leaves so much of the error is the last, unless rows are left to give
CORRECTING = 2048  # frequencies of the sketch that corrects components
WORTHWHILE = 0.7  # a correction that leaves more of the error is not worth its cost in transform
CHUNK_BYTES = 2**21  # of landmark coordinates worked on at a time


@dataclass(eq=False)
class Found:
    """What the solver ends with, the same at every node."""

    marks: Landmarks
    mean: Array  # (m,) of psi over all rows
    weights: Array  # (m, k): the components as functions of psi, scaled to unit functions of the central problem
    eigenvalues: Array  # (k,)
    trace: Array
    accuracy: Accuracy
    correction: Correction | None = None


@dataclass(eq=False)
class Correction:
    """What random features add to the components: z(x)'coefficients - offset, for frequencies (F, M)."""

    frequencies: Array
    coefficients: Array  # (2 F, k)
    offset: Array  # (k,)


class FlatRows:
    """The rows of a block's nodes one after the other, without padding."""

    def __init__(self, block: Block, samples: Array):
        xp = aac.array_namespace(samples)
        if int(block.own_sizes.min()) == samples.shape[1]:
            self.X = xp.reshape(samples, (-1, samples.shape[2]))
        else:
            self.X = xp.concat([samples[b, : int(size), :] for b, size in enumerate(block.own_sizes)])
        self.starts = np.concatenate([[0], np.cumsum(block.own_sizes)])

    def of(self, b: int) -> Array:
        """Those of one node."""
        return self.X[int(self.starts[b]) : int(self.starts[b + 1]), :]

    def some(self, places: np.ndarray) -> Array:
        return some(self.X, places)


def some(X: Array, places: np.ndarray) -> Array:
    """Some of the rows of X."""
    xp = aac.array_namespace(X)
    return xp.take(X, xp.asarray(places, device=aac.device(X)), axis=0)


def judged_places(block: Block, options: Options, count: int) -> np.ndarray | None:
    """Which rows of the block judge the answer: every node's share, evenly spread over its rows; None: all."""
    if int(block.sizes.sum()) <= count:
        return None
    shares = landmarks.allot(block.sizes, block.network.names, count, options.seed)[block.nodes]
    starts = np.concatenate([[0], np.cumsum(block.own_sizes)])[:-1]
    first = np.repeat(starts, shares)
    step = np.repeat(block.own_sizes / np.maximum(shares, 1), shares)
    number = np.arange(int(shares.sum())) - np.repeat(np.cumsum(shares) - shares, shares)
    return (first + np.floor((number + 0.5) * step)).astype(np.int64)


# ---------------------------------------------------------------------- where landmarks come from
@dataclass(eq=False)
class Supply:
    """Hands out landmarks: means of clusters of a node's rows, rows, or points drawn from a Gaussian; each row is used for one of them.

    How much every node has given is known to all nodes.
    """

    block: Block
    options: Options
    rows: FlatRows
    sent: FlatRows  # rows as others may see them
    clustered: np.ndarray = field(init=False)  # (J,) rows that went into means
    sampled: np.ndarray = field(init=False)  # (J,) rows given as they are
    shape: tuple[Array, Array] | None = (
        None  # mean (M,) and spread (p, M) of all rows, for points drawn from a Gaussian
    )
    stage: int = 0
    spent: bool = False  # nothing is left to hand out

    def __post_init__(self) -> None:
        self.clustered = np.zeros_like(self.block.sizes)
        self.sampled = np.zeros_like(self.block.sizes)

    @property
    def has_rows(self) -> bool:
        """Whether rows are left to give: with all of them the answer is exact."""
        may = self.kind == "samples" or (self.kind == "auto" and self.options.share_rows)
        return may and bool((self.sampled < self.block.sizes).any())

    @property
    def kind(self) -> str:
        return self.options.landmarks if isinstance(self.options.landmarks, str) else "points"

    def more(self, wanted: int) -> Script:
        """About so many new points, at every node the same, by kind; none where nothing is left."""
        self.stage += 1
        found: dict[str, Array] = {}
        if self.kind == "points":
            found["points"] = self.block.array(self.options.landmarks)
        if self.kind in ("auto", "kmeans"):
            found["kmeans"] = yield from self.means(wanted)
            few = found["kmeans"].shape[0] < ENOUGH_MEANS * wanted
            wanted = wanted - found["kmeans"].shape[0] if few else 0
        rows_too = self.kind == "auto" and self.options.share_rows
        if self.kind == "samples" or (rows_too and wanted > 0):
            found["samples"] = yield from self.samples(wanted)
        if self.kind == "gaussian" or (self.kind == "auto" and not rows_too and wanted > 0):
            found["gaussian"] = yield from self.drawn(wanted)
        self.spent = self.kind == "points" or not any(points.shape[0] for points in found.values())
        return found

    def means(self, wanted: int) -> Script:
        """Means of clusters. A node clusters rows that it has not clustered before, so that no two means share a row."""
        block, seed = self.block, self.options.seed
        left = block.sizes - self.clustered
        few = left < 4 * LEAST_CLUSTER
        room = np.where(few, left, left // 2)  # half is left for later stages
        most = room // (LEAST_CLUSTER + np.where(few, 0, 1))
        counts = np.minimum(
            landmarks.allot(block.sizes, block.network.names, min(wanted, int(block.sizes.sum())), seed + self.stage),
            most,
        )
        if not counts.sum():
            return self.rows.X[:0, :]
        taken = np.where(counts > 0, np.where(few, left, np.minimum(ROWS_A_CLUSTER * counts, room)), 0)
        made = []
        for b, j in enumerate(block.nodes):
            if counts[j]:
                own = to_numpy(self.rows.of(b))
                order = node_random(seed, block.names[b], "clusters").permutation(len(own))
                mine = own[order[self.clustered[j] : self.clustered[j] + taken[j]]]
                made.append(
                    cluster_means(mine, int(counts[j]), node_random(seed, block.names[b], f"means {self.stage}"))
                )
            else:
                made.append(np.empty((0, self.rows.X.shape[1])))
        self.clustered = self.clustered + taken
        # how many came out depends on the data: everybody must know
        found = np.zeros(len(counts))
        found[block.nodes] = [len(rows) for rows in made]
        total = yield from network_sum(block, "counts", block.array(found))
        return (
            yield from collect_rows(
                block, "landmarks", block.array(np.concatenate(made)), to_numpy(total).round().astype(np.int64)
            )
        )

    def drawn(self, wanted: int) -> Script:
        """Points that nobody owns: from a Gaussian with the mean of all rows and their leading linear principal components."""
        if self.shape is None:
            self.shape = yield from spread_of_rows(self.block, self.rows, self.options.seed)
        mean, spread = self.shape
        numbers = ndtri(
            uniform((wanted, spread.shape[0]), landmarks.shared_seed(self.options.seed, f"gaussian {self.stage}"))
        )
        return mean + self.block.array(numbers) @ spread

    def samples(self, wanted: int) -> Script:
        """Rows that were not given before."""
        block, seed = self.block, self.options.seed
        left = block.sizes - self.sampled
        counts = np.minimum(
            landmarks.allot(block.sizes, block.network.names, min(wanted, int(block.sizes.sum())), seed + self.stage),
            left,
        )
        if wanted >= left.sum():
            counts = left
        places = []
        for b, j in enumerate(block.nodes):
            if counts[j]:
                order = node_random(seed, block.names[b], "landmarks").permutation(int(block.own_sizes[b]))
                places.append(self.sent.starts[b] + np.sort(order[self.sampled[j] : self.sampled[j] + counts[j]]))
        self.sampled = self.sampled + counts
        rows = self.sent.some(np.concatenate([np.zeros(0, dtype=np.int64), *places]))
        return (yield from collect_rows(block, "landmarks", rows, counts))


def spread_of_rows(block: Block, rows: FlatRows, seed: int) -> Script:
    """The mean (M,) of all rows and A (p, M) such that A'A is about their covariance: its leading part, by network sums of M x p numbers.

    A node with few rows says nothing: the sum over one row is that row.
    """
    counted = block.sizes >= LEAST_CLUSTER
    count = float(block.sizes[counted].sum())
    if not count:
        raise ValueError(
            f"share_rows=False: no node has the {LEAST_CLUSTER} rows of which a mean can be told, the largest has {block.sizes.max()}; "
            "use larger nodes, landmarks that all nodes have, or share_rows=True if rows may leave their nodes"
        )
    X = rows.X
    if not counted[block.nodes].all():
        X = some(X, np.flatnonzero(np.repeat(counted[block.nodes], block.own_sizes)))
    xp = aac.array_namespace(X)
    width = int(X.shape[1])
    mean = (yield from network_sum(block, "scale", xp.sum(X, axis=0))) / count
    p = min(width, LINEAR_COMPONENTS)
    basis = xp.eye(width, dtype=X.dtype, device=aac.device(X))
    if p < width:
        start = ndtri(uniform((width, p), landmarks.shared_seed(seed, "linear")))
        basis = block.array(np.linalg.qr(start)[0])

    def image_of(basis: Array) -> Array:
        def part(rows: slice) -> tuple[Array, ...]:
            centred = X[rows, :] - mean
            return (transposed(centred) @ (centred @ basis),)

        return summed(part, X.shape[0], X)[0]

    for last in [True] if p == width else [False, False, True]:

        def improve(total: Array, basis: Array = basis, last: bool = last) -> Array:
            image = to_numpy(total).astype(np.float64).reshape(width, p) / count
            if not last:
                return block.array(np.linalg.qr(image)[0].ravel())
            inside = to_numpy(basis).astype(np.float64)
            covariance = inside.T @ image
            values, vectors = np.linalg.eigh((covariance + covariance.T) / 2)
            return block.array((inside @ vectors * np.sqrt(np.maximum(values, 0.0))).ravel())

        told = yield from network_sum(block, "scale", xp.reshape(image_of(basis), (-1,)), improve, width * p)
        basis = xp.reshape(told, (width, p))
    return mean, transposed(basis)


def without_redundant(block: Block, kernel: Kernel, marks: Landmarks, points: Array) -> Script:
    """Those of new points that add something to the landmarks, in an order that keeps their Cholesky factor sound; the root decides for all."""
    least = max(landmarks.REDUNDANT, 1000 * eps(points))

    def decide(total: Array) -> Array:
        kept = marks.independent(to_numpy(points), kernel, least)
        return block.array(np.concatenate([kept, np.full(points.shape[0] - len(kept), -1)]))

    places = yield from network_sum(block, "landmarks", points[0, :1] * 0, decide, points.shape[0])
    kept = to_numpy(places).round().astype(np.int64)
    return some(points, kept[kept >= 0])


# ---------------------------------------------------------------------- the stages
@dataclass(eq=False)
class Stage:
    """Landmarks so far, and what the judged rows of the block know: psi (rows, m), k(x, x), features of the two sketches (rows, 4 F)."""

    X: Array
    kernel: Kernel
    marks: Landmarks
    psi: Array
    diagonal: Array
    sketches: tuple[Sketch, Sketch] | None
    features: Array | None
    moments: Moments  # at the root of the tree
    error: float = np.inf  # as it was last estimated
    doubled: bool = False  # to tell components apart

    @property
    def rest(self) -> Array:
        """(rows,) what the landmarks miss of each row: k(x, x) - |psi(x)|^2."""
        xp = aac.array_namespace(self.psi)
        return xp.clip(self.diagonal - xp.sum(self.psi * self.psi, axis=1), min=0.0)


@dataclass(eq=False)
class Moments:
    """Sums over rows, as the root of the tree keeps them from stage to stage: of psi (m,), psi psi' (m, m), k(x, x), and the number of rows."""

    first: np.ndarray
    second: np.ndarray
    trace: float
    count: float

    @classmethod
    def none(cls) -> Moments:
        return cls(np.zeros(0), np.zeros((0, 0)), 0.0, 0.0)

    def grown(self, total: np.ndarray, new: int) -> Moments:
        """With what a stage adds: sums of the new coordinates, of their products with the old and with each other, of k(x, x), and rows."""
        old = len(self.first)
        ends = np.cumsum([new, old * new, new * (new + 1) // 2])
        first, across = total[: ends[0]], total[ends[0] : ends[1]].reshape(old, new)
        among = to_numpy(landmarks.unpack_triangle(total[ends[1] : ends[2]], new))
        second = np.block([[self.second, across], [across.T, among]])
        return Moments(np.concatenate([self.first, first]), second, float(total[-2]), float(total[-1]))

    def centered(self, centering: str | None) -> np.ndarray:
        """The sum of products of centred coordinates."""
        if centering is None:
            return self.second
        return self.second - np.outer(self.first, self.first) / self.count

    def principal(self, centering: str | None, q: int, kernel_size: float) -> tuple[np.ndarray, np.ndarray]:
        """The q leading eigenvalues and unit directions, signs settled; directions that are rounding are left out."""
        if not len(self.first):
            return np.zeros(0), np.zeros((0, 0))
        values, vectors = accuracy.leading(self.centered(centering), q)
        keep = values > max(1e-12 * values[0], 100 * np.finfo(np.float64).eps * self.count * kernel_size)
        vectors = vectors[:, keep]
        largest = np.abs(vectors).argmax(axis=0)
        return values[keep], vectors * np.where(vectors[largest, np.arange(vectors.shape[1])] < 0, -1.0, 1.0)


@dataclass(eq=False)
class Principal:
    """Directions (m, q) of the data in landmark coordinates, their eigenvalues (q,), the mean (m,) of psi, the trace of the centred kernel.

    At every node the same; `moments` only at the root.
    """

    directions: Array
    values: Array
    mean: Array
    trace: Array
    rows: float  # over which they were found: all, or those that judge
    moments: Moments

    def functions(self, psi: Array) -> Array:
        """Values (rows, q) of the unit functions along the directions, orthonormal over all rows."""
        xp = aac.array_namespace(psi)
        return ((psi - self.mean) @ self.directions) / xp.sqrt(self.values)


@dataclass(eq=False)
class Verdict:
    """How good the components are: eigenvalues (k,), the directions as components (q, k), the accuracy."""

    eigenvalues: Array
    turn: Array
    accuracy: Accuracy


def solve(block: Block, options: Options, known: Known) -> Script:
    """Components in the span of the landmarks, and how good they are; returns `Found`."""
    rows = FlatRows(block, block.samples)
    sent = with_noise(block, options)
    supply = Supply(block, options, rows, rows if sent is block.samples else FlatRows(block, sent))
    places = judged_places(block, options, JUDGED_ROWS)
    stage = begin(options, known.kernel(options), rows.X if places is None else rows.some(places))
    total = float(block.sizes.sum())
    judged = min(total, float(JUDGED_ROWS))
    wanted = options.n_landmarks
    while True:
        before = stage.marks.size
        for kind, points in (yield from supply.more(wanted)).items():
            if points.shape[0]:
                if kind == "points" and known.columns is not None:
                    points = known.columns.standardized(points)
                points = yield from without_redundant(block, stage.kernel, stage.marks, points)
            if points.shape[0]:
                extend(block, stage, points)
                known.kinds.append((kind, int(points.shape[0])))
        if not stage.marks.size:
            raise ValueError(
                "no landmarks came out: the kernel is zero there; raise n_landmarks, or use other landmarks or another kernel"
            )
        found = yield from principal(
            block, options, stage, new_moments(stage, before), stage.marks.size - before, judged
        )
        stage.moments = found.moments
        verdict, wanted = yield from judge(block, options, stage, found, supply)
        if not wanted and places is not None:
            sums, stage.moments = stage.moments, Moments.none()
            mine = all_moments(rows.X, stage)
            found = yield from principal(block, options, stage, mine, stage.marks.size, total, raw_sums(rows.X))
            stage.moments = found.moments
            verdict, wanted = yield from judge(block, options, stage, found, supply)
            stage.moments = sums
            wanted = 0 if verdict.accuracy.meets(options.tol) else wanted
        known.stages.append((stage.marks.size, verdict.accuracy.error))
        wanted = wanted or to_tell_apart(options, stage, verdict.accuracy, supply)
        if not wanted:
            break
    xp = aac.array_namespace(stage.psi)
    weights = (found.directions / xp.sqrt(found.values)) @ verdict.turn
    answer = Found(stage.marks, found.mean, weights, verdict.eigenvalues, found.trace, verdict.accuracy)
    if places is None and stage.sketches is not None and verdict.accuracy.error > options.tol:
        answer = yield from corrected(block, options, stage, found, answer)
    return answer


def corrected(block: Block, options: Options, stage: Stage, found: Principal, answer: Found) -> Script:
    """The components after one power iteration with a sketch of what the landmarks miss, if that is estimated to be better.

    K G = psi psi'G + r r'G, with random features r that take no part in the judgement. New points are covered: r(x) is known everywhere.
    """
    xp = aac.array_namespace(stage.psi)
    G, scale = found.functions(stage.psi), float(block.sizes.sum())
    sketch = Sketch.drawn(stage.kernel, stage.X, CORRECTING, options.seed, "correction")
    work = sketch.size * row_bytes(stage.X[:, :1])
    (z,) = by_nodes(lambda r: (sketch.features(stage.X[r, :]),), stage.X.shape[0], work, stage.X)

    def products(rows: slice) -> tuple[Array, ...]:
        one = xp.reshape(xp.sum(G[rows, 0] * 0 + 1.0), (1,))
        return transposed(z[rows, :]) @ G[rows, :], xp.sum(z[rows, :], axis=0), xp.sum(G[rows, :], axis=0), one

    sums = summed(products, G.shape[0], G)
    total = yield from network_sum(block, "sketch", xp.concat([xp.reshape(x, (-1,)) for x in sums]))
    ends = np.cumsum([0, *(int(np.prod(x.shape)) for x in sums)])
    image, features, ones, count = (
        xp.reshape(total[int(a) : int(b)], x.shape) for a, b, x in zip(ends[:-1], ends[1:], sums, strict=True)
    )
    scale = scale / float(count[0])
    mean = features / count[0] if options.centering else features * 0
    image = scale * (image - mean[:, None] * ones[None, :]) - transposed(sketch.on_landmarks(stage.marks)) @ (
        found.directions * xp.sqrt(found.values)
    )
    on_marks = found.directions * xp.sqrt(found.values) - sketch.on_landmarks(stage.marks) @ image
    values = (stage.psi - found.mean) @ on_marks + (z - mean) @ image
    verdict = yield from judge_values(block, options, stage, values, None)
    if verdict.accuracy.error > WORTHWHILE * answer.accuracy.error:
        return answer
    coefficients = image @ verdict.turn
    correction = Correction(sketch.frequencies, sketch.weighted(coefficients), mean @ coefficients)
    return replace(
        answer, weights=on_marks @ verdict.turn, eigenvalues=verdict.eigenvalues, accuracy=verdict.accuracy, correction=correction
    )  # fmt: skip


def frequencies_for(columns: int) -> int:
    """Of each of the two sketches: few columns take more (sketch.py)."""
    return MORE_FREQUENCIES if columns <= FEW_COLUMNS else FREQUENCIES


def judging_numbers(rows: int, columns: int, m: int, p: int, root: bool) -> int:
    """How many numbers it takes at once to judge p functions in the span of m landmarks by these rows, and at the root: for memory.py."""
    features = 4 * frequencies_for(columns)
    sums = (features + m) * (p + SIGNS)
    at_root = 6 * sums + 4 * m * m + m * features if root else 0
    return rows * (columns + 2 * m + features + features // 2 + 3 * p) + 2 * sums + at_root


def begin(options: Options, kernel: Kernel, X: Array) -> Stage:
    """Before there are landmarks."""
    sketches, features = None, None
    if kernel.has_features:
        count = frequencies_for(X.shape[1])
        first, second = (Sketch.drawn(kernel, X, count, options.seed, f"sketch {h}") for h in (1, 2))
        sketches = first, second
        work = first.size * row_bytes(X[:, :1])
        xp = aac.array_namespace(X)
        (features,) = by_nodes(
            lambda r: (xp.concat([h.features(X[r, :]) for h in (first, second)], axis=1),), X.shape[0], work, X
        )
    return Stage(X, kernel, Landmarks.none(X), X[:, :0], kernel.diagonal(X), sketches, features, Moments.none())


def extend(block: Block, stage: Stage, points: Array) -> None:
    """With more landmarks: what is there already stays as it is."""
    marks, kernel = stage.marks, stage.kernel
    stage.marks, growth = block.once("landmarks", marks.size, lambda: marks.grown(points, kernel))
    xp = aac.array_namespace(points)
    X, psi = stage.X, stage.psi
    work = row_bytes(stage.marks.root)
    (new,) = by_nodes(lambda r: (growth.coordinates(stage.kernel, X[r, :], psi[r, :]),), X.shape[0], work, X)
    stage.psi = xp.concat([psi, new], axis=1)


def new_moments(stage: Stage, before: int) -> Array:
    """The block's sums of the coordinates after the first `before`: themselves, with the others, with each other; of k(x, x); rows."""
    xp = aac.array_namespace(stage.psi)
    psi = stage.psi

    def some(rows: slice) -> tuple[Array, ...]:
        old, new = psi[rows, :before], psi[rows, before:]
        return xp.sum(new, axis=0), transposed(old) @ new, transposed(new) @ new

    first, across, among = summed(some, psi.shape[0], psi, row_bytes(psi) * (psi.shape[1] - before))
    rest = xp.stack([xp.sum(stage.diagonal), xp.sum(stage.diagonal * 0 + 1.0)])
    return xp.concat([first, xp.reshape(across, (-1,)), landmarks.pack_triangle(among[None, ...])[0, :], rest])


def raw_sums(X: Array) -> bool:
    """Whether sums over all rows are those of k = k(L, x), which the root turns into those of psi = R'k: R'(sum k k')R.

    That is half of the work, but in float32 it would lose too many digits.
    """
    return bool(X.dtype == aac.array_namespace(X).float64)


def all_moments(X: Array, stage: Stage) -> Array:
    """The same over all rows, in chunks: landmark coordinates are not kept. With `raw_sums`, of the kernel with the landmarks instead of psi."""
    xp = aac.array_namespace(X)
    marks, kernel = stage.marks, stage.kernel
    direct = raw_sums(X)
    chunk = max(256, marks.size, CHUNK_BYTES // max(1, row_bytes(marks.root)))  # a product must be worth adding it up

    def part(rows: slice) -> tuple[Array, ...]:
        total: tuple[Array, ...] = ()
        for tile in row_tiles(rows.stop - rows.start, chunk):
            own = X[rows.start + tile.start : rows.start + tile.stop, :]
            found = kernel.gram(own, marks.points) if direct else marks.coordinates(kernel, own)
            sums = xp.sum(found, axis=0), transposed(found) @ found, xp.sum(kernel.diagonal(own))
            total = tuple(a + b for a, b in zip(total, sums, strict=True)) if total else sums
        return total

    first, second, trace = summed(part, X.shape[0], X, row_bytes(marks.root, 0))
    rest = xp.stack([trace, trace * 0 + float(X.shape[0])])
    return xp.concat([first, landmarks.pack_triangle(second[None, ...])[0, :], rest])


def principal(
    block: Block, options: Options, stage: Stage, mine: Array, new: int, rows: float, raw: bool = False
) -> Script:
    """The principal directions in landmark coordinates of so many rows, by one network sum; the root finds them for all.

    `raw`: the sums are those of `raw_sums`.
    """
    m = stage.marks.size
    q = min(m, options.n_components + EXTRA_COLUMNS)
    kept: list[Moments] = [stage.moments]

    def find(total: Array) -> Array:
        moments = stage.moments.grown(to_numpy(total).astype(np.float64), new)
        if raw:
            root = to_numpy(stage.marks.root)
            moments = replace(moments, first=root.T @ moments.first, second=root.T @ moments.second @ root)
        kept[0] = moments
        size = moments.trace / max(moments.count, 1.0)
        values, directions = moments.principal(options.centering, q, size)
        mean = moments.first / moments.count if options.centering else np.zeros(m)
        trace = moments.trace - moments.count * float(mean @ mean)
        out = np.zeros(1 + q + m + m * q)
        out[0] = trace
        out[1 : 1 + len(values)] = values
        out[1 + q : 1 + q + m] = mean
        whole = np.zeros((m, q))
        whole[:, : len(values)] = directions
        out[1 + q + m :] = whole.ravel()
        return block.array(out)

    found = yield from network_sum(block, "covariance", mine, find, 1 + q + m + m * q)
    xp = aac.array_namespace(found)
    p = int((to_numpy(found[1 : 1 + q]) > 0).sum())  # directions in which there is data
    directions = xp.reshape(found[1 + q + m :], (m, q))[:, :p]
    return Principal(directions, found[1 : 1 + p], found[1 + q : 1 + q + m], found[0], rows, kept[0])


def judge(block: Block, options: Options, stage: Stage, found: Principal, supply: Supply | None) -> Script:
    """How good the components of `found` are, and how many landmarks the next stage should add (0: this was the last)."""
    if not found.directions.shape[1]:  # all rows are equal
        return nothing_found(options, stage), 0
    if stage.sketches is None:
        verdict = yield from judge_by_doubling(block, options, stage, found)
    else:
        verdict = yield from judge_values(block, options, stage, found.functions(stage.psi), found.values, found.rows)
    error, before = verdict.accuracy.error, stage.error
    stage.error = error
    if supply is None or supply.spent or (error > GIVE_UP * before and not supply.has_rows):
        return verdict, 0
    return verdict, next_landmarks(options, stage.marks.size, error)


def nothing_found(options: Options, stage: Stage) -> Verdict:
    """Of rows that are all equal: no component, and that is exact."""
    xp, k = aac.array_namespace(stage.psi), options.n_components
    like = {"dtype": stage.psi.dtype, "device": aac.device(stage.psi)}
    return Verdict(xp.zeros((k,), **like), xp.zeros((0, k), **like), Accuracy.exact(k))


def judge_values(
    block: Block, options: Options, stage: Stage, G: Array, exact: Array | None, all_rows: float | None = None
) -> Script:
    """How good functions with the values G (rows, p) on the judged rows are.

    `exact` are their eigenvalues in landmark coordinates, for functions in the span of the landmarks that are orthonormal over `all_rows` rows:
    the judged ones, or (by default) all.
    """
    all_rows = float(block.sizes.sum()) if all_rows is None else all_rows
    assert stage.sketches is not None
    assert stage.features is not None
    xp = aac.array_namespace(stage.psi)
    z, psi, rest, k, p = stage.features, stage.psi, stage.rest, options.n_components, G.shape[1]
    sides = xp.concat([G, random_signs(block, options, stage)], axis=1)

    def products(rows: slice) -> tuple[Array, ...]:
        some, g = sides[rows, :], G[rows, :]
        return (
            transposed(z[rows, :]) @ some,
            transposed(psi[rows, :]) @ some,
            transposed(g) @ some,
            transposed(g) @ (rest[rows, None] * g),
            xp.sum(z[rows, :], axis=0),
            xp.sum(psi[rows, :], axis=0),
            xp.sum(some, axis=0),
            xp.reshape(xp.sum(rest[rows] * 0 + 1.0), (1,)),
        )

    sums = summed(products, G.shape[0], G)
    shape = Shapes(stage.sketches[0].size, stage.marks.size, p, k)
    kept: list[Separated] = []

    def separate(total: Array, sums: tuple[Array, ...] = sums) -> Array:
        on_marks = [to_numpy(sketch.on_landmarks(stage.marks)).astype(np.float64) for sketch in stage.sketches or ()]
        values = None if exact is None else to_numpy(exact).astype(np.float64)
        taken = Sums(*_split(total, sums))
        kept.append(Separated.of(taken, on_marks, values, all_rows, shape, options.centering is not None))
        return block.array(kept[0].pack())

    told = yield from network_sum(
        block, "sketch", xp.concat([xp.reshape(x, (-1,)) for x in sums]), separate, shape.told
    )
    eigenvalues, turn, leaving, hidden = shape.unpack(told)

    # one of so many rows judges; a pair of a row with itself stands for as many pairs, not for their square
    scale = all_rows / float(min(int(block.sizes.sum()), JUDGED_ROWS))
    unit = (scale - 1.0) * turn / xp.sqrt(xp.where(eigenvalues > 0, eigenvalues, xp.ones_like(eigenvalues)))

    def leaks(rows: slice) -> tuple[Array, ...]:
        out, own = [], []
        alone = rest[rows, None] * (G[rows, :] @ unit)
        for h in range(2):
            features = z[rows, h * shape.features : (h + 1) * shape.features]
            out.append(leaving[h](features, psi[rows, :], G[rows, :]) - alone)
            own.append(hidden[h](features, psi[rows, :], G[rows, :]))
        image = (
            transposed(z[rows, : shape.features]) @ own[1],
            transposed(psi[rows, :]) @ own[1],
            xp.sum(own[1], axis=0),
        )
        return (
            transposed(out[0]) @ out[1],
            xp.sum(own[0] * own[1], axis=0),
            *image,
            xp.reshape(xp.sum(rest[rows]), (1,)),
        )

    sums = summed(leaks, G.shape[0], G)

    def decide(total: Array) -> Array:
        leak, squares, features, marks, ones, trace = _split(total, sums)
        size = kept[0].hidden_size(squares, features, marks, ones, float(trace[0]))
        missed = kept[0].scale * float(trace[0])
        found = accuracy.estimate(kept[0].ritz, leak * kept[0].scale, size, missed, k, options.tol)
        return block.array([found.error, found.span, *found.components, *found.alike])

    mine = xp.concat([xp.reshape(x, (-1,)) for x in sums])
    decided = to_numpy((yield from network_sum(block, "accuracy", mine, decide, 2 + 2 * k))).astype(np.float64)
    about = Accuracy(
        tuple(decided[2 : 2 + k].tolist()),
        float(decided[1]),
        float(decided[0]),
        tuple(decided[2 + k :].astype(int).tolist()),
        "sketches",
    )
    return Verdict(eigenvalues, turn, about)


def _split(total: Array, like: tuple[Array, ...]) -> list[np.ndarray]:
    """A vector as arrays of the shapes of `like`, in float64 on the host."""
    pieces, at = [], 0
    for x in like:
        size = int(np.prod(x.shape))
        pieces.append(to_numpy(total[at : at + size]).astype(np.float64).reshape(x.shape))
        at += size
    return pieces


def random_signs(block: Block, options: Options, stage: Stage) -> Array:
    """(rows, SIGNS) of +1 and -1 for the judged rows: by node and row, whoever hosts the node."""
    shares = block.own_sizes
    if stage.X.shape[0] != int(shares.sum()):
        shares = landmarks.allot(block.sizes, block.network.names, JUDGED_ROWS, options.seed)[block.nodes]
    node = np.repeat(block.nodes.astype(np.uint64), shares)
    row = np.arange(int(shares.sum()), dtype=np.uint64) - np.repeat(
        (np.cumsum(shares) - shares).astype(np.uint64), shares
    )
    mixed = (
        node * np.uint64(0x9E3779B97F4A7C15)
        + row * np.uint64(0xBF58476D1CE4E5B9)
        + np.uint64(landmarks.shared_seed(options.seed, "signs") % 2**64)
    )
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):  # the mixing of splitmix64
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    mixed ^= mixed >> np.uint64(31)
    bits = (mixed[:, None] >> np.arange(SIGNS, dtype=np.uint64)) & np.uint64(1)
    return block.array(2.0 * bits.astype(np.float64) - 1.0)


def next_landmarks(options: Options, m: int, error: float) -> int:
    """How many more landmarks the next stage should have; 0 where these are enough."""
    goal = options.tol / MARGIN
    if not options.grow or error <= goal or m >= options.max_landmarks:
        return 0
    factor = (error / goal) ** (1 / ORDER) if goal > 0 else MOST_GROWTH
    return min(options.max_landmarks, int(m * min(max(factor, LEAST_GROWTH), MOST_GROWTH)) + 1) - m


def to_tell_apart(options: Options, stage: Stage, about: Accuracy, supply: Supply) -> int:
    """As many landmarks again, once, where the span is good but some of its components are mixed: their eigenvalues lie close, or are equal."""
    worst = 1.0 - min(about.components) ** 2
    if (
        not options.grow
        or supply.spent
        or stage.doubled
        or worst <= MIXED * options.tol
        or not about.meets(options.tol)
    ):
        return 0
    stage.doubled = True
    return min(stage.marks.size, options.max_landmarks - stage.marks.size)


def judge_by_doubling(block: Block, options: Options, stage: Stage, found: Principal) -> Script:
    """For kernels without random features: how much the components change from half of the landmarks to all of them."""
    k, m, p = options.n_components, stage.marks.size, found.directions.shape[1]
    xp = aac.array_namespace(stage.psi)
    rest = xp.reshape(xp.sum(stage.rest), (1,))

    def decide(total: Array) -> Array:
        missed = float(total[0]) * found.rows / float(min(int(block.sizes.sum()), JUDGED_ROWS))
        about = accuracy.doubling(stage.moments.centered(options.centering), m // 2, k, p, missed, options.tol)
        return block.array([about.error, about.span, *about.components])

    decided = to_numpy((yield from network_sum(block, "accuracy", rest, decide, 2 + k))).astype(np.float64)
    about = Accuracy(
        tuple(decided[2:].tolist()), float(decided[1]), float(decided[0]), tuple(range(1, k + 1)), "doubling"
    )
    turn = xp.zeros((p, k), dtype=stage.psi.dtype, device=aac.device(stage.psi))
    eigenvalues = xp.zeros((k,), dtype=stage.psi.dtype, device=aac.device(stage.psi))
    for i in range(min(p, k)):
        turn[i, i] = found.values[i] ** 0.5
        eigenvalues[i] = found.values[i]
    return Verdict(eigenvalues, turn, about)


# ---------------------------------------------------------------------- the root's part: small matrices, on the host
@dataclass(frozen=True)
class Sums:
    """Sums over the judged rows: of features z (4 F), psi (m) and functions G (p) with functions and random signs, and their own."""

    features: np.ndarray  # (4 F, p + SIGNS)
    marks: np.ndarray  # (m, p + SIGNS)
    squares: np.ndarray  # (p, p + SIGNS)
    diagonal: np.ndarray  # (p, p): of G'G weighted with what the landmarks miss of each row
    feature_sum: np.ndarray
    mark_sum: np.ndarray
    side_sum: np.ndarray
    count: np.ndarray


@dataclass(frozen=True, eq=False)
class Leaving:
    """A function of rows: features, psi and G times matrices, less an offset."""

    features: Array
    marks: Array
    columns: Array | None
    offset: Array

    def __call__(self, features: Array, psi: Array, G: Array) -> Array:
        found = features @ self.features + psi @ self.marks - self.offset
        return found if self.columns is None else found - G @ self.columns


@dataclass(frozen=True)
class Shapes:
    """Of what the root tells all: features of one sketch, landmarks, functions, components."""

    features: int
    marks: int
    columns: int
    components: int

    @property
    def told(self) -> int:
        k, s, p = self.components, SIGNS, self.columns
        return k + p * k + 2 * ((self.features + self.marks + p + 1) * k + (self.features + self.marks + 1) * s)

    def unpack(self, told: Array) -> tuple[Array, Array, list[Leaving], list[Leaving]]:
        """Eigenvalues (k,), components (p, k), and for either sketch what leaves the span and what random signs find in the rest."""
        xp = aac.array_namespace(told)
        k, p, at = self.components, self.columns, 0

        def take(*shape: int) -> Array:
            nonlocal at
            size = int(np.prod(shape))
            at += size
            return xp.reshape(told[at - size : at], shape)

        eigenvalues, turn = take(k), take(p, k)
        leaving = [Leaving(take(self.features, k), take(self.marks, k), take(p, k), take(k)) for _ in range(2)]
        hidden = [Leaving(take(self.features, SIGNS), take(self.marks, SIGNS), None, take(SIGNS)) for _ in range(2)]
        return eigenvalues, turn, leaving, hidden


@dataclass(frozen=True, eq=False)
class Separated:
    """Rayleigh-Ritz with what the landmarks miss, and what the nodes need to see how good it is."""

    ritz: accuracy.Ritz
    scale: float  # all rows over judged rows
    on_marks: np.ndarray  # of the first sketch
    rest_mean: np.ndarray
    eigenvalues: np.ndarray
    turn: np.ndarray
    leaving: list[Leaving]
    hidden: list[Leaving]

    @classmethod
    def of(
        cls,
        sums: Sums,
        on_marks: list[np.ndarray],
        exact: np.ndarray | None,
        rows: float,
        shape: Shapes,
        centered: bool,
    ) -> Separated:
        """`exact`: eigenvalues over all rows of functions in the span of the landmarks, which are orthonormal over all rows."""
        p, k, F = shape.columns, shape.components, shape.features
        count = float(sums.count[0])
        scale = rows / count
        means = [x / count if centered else 0.0 * x for x in (sums.feature_sum, sums.mark_sum, sums.side_sum)]
        features, marks, squares = (
            whole - np.outer(mean, sums.side_sum)
            for whole, mean in zip(
                (sums.features, sums.marks, sums.squares), (means[0], means[1], means[2][:p]), strict=True
            )
        )
        sketched = [features[h * F : (h + 1) * F] - on_marks[h].T @ marks for h in range(2)]
        rest_mean = [means[0][h * F : (h + 1) * F] - on_marks[h].T @ means[1] for h in range(2)]
        own = (
            scale * sums.diagonal * (1.0 - scale)
        )  # pairs of a row with itself do not grow with the number of rows squared
        images = [scale**2 * (t[:, :p].T @ t[:, :p]) + own for t in sketched]
        if exact is None:
            ritz = accuracy.rayleigh_ritz(scale * squares[:, :p], scale**2 * marks[:, :p].T @ marks[:, :p], images)
        else:
            ritz = accuracy.rayleigh_ritz(np.eye(p), np.diag(exact), images)
        first = ritz.turn[:, :k]
        if first.shape[1] < k:
            first = np.pad(first, ((0, 0), (0, k - first.shape[1])))
        eigenvalues = np.zeros(k)
        eigenvalues[: min(k, len(ritz.values))] = ritz.values[:k]
        largest = np.abs(first).argmax(axis=0)
        first = first * np.where(first[largest, np.arange(k)] < 0, -1.0, 1.0)
        leaving, hidden = [], []
        for h in range(2):
            t, signs = sketched[h][:, :p] @ first, sketched[h][:, p:]
            if exact is None:
                back = ritz.white @ ritz.white.T @ (scale**2 * marks[:, :p].T @ marks[:, :p] + images[h]) @ first
                shared = scale * marks[:, :p] @ first
            else:  # the landmarks' part of K G lies in the span of G
                back, shared = images[h] @ first, np.zeros((shape.marks, k))
            offset = scale * rest_mean[h] @ t + means[1] @ shared - means[2][:p] @ back
            leaving.append(Leaving(scale * t, shared - scale * on_marks[h] @ t, back, offset))
            hidden.append(Leaving(signs, -on_marks[h] @ signs, None, rest_mean[h] @ signs))
        return cls(ritz, scale, on_marks[0], rest_mean[0], eigenvalues, first * np.sqrt(eigenvalues), leaving, hidden)

    def hidden_size(
        self, squares: np.ndarray, features: np.ndarray, marks: np.ndarray, ones: np.ndarray, trace: float
    ) -> float:
        """About the largest eigenvalue of the rest R, from v_h = R_h s for random signs s: the sum of v_2'R_1 v_2 over that of v_1'v_2.

        The noise of v_2 adds about the trace of R over the number of frequencies, which is taken off.
        """
        image = features - self.on_marks.T @ marks - np.outer(self.rest_mean, ones)
        size = squares.sum()
        noise = 2.0 * trace / len(features)
        return float(self.scale * max((image**2).sum() / size - noise, 0.0)) if size > 0 else 0.0

    def pack(self) -> np.ndarray:
        """As one vector, as `Shapes.unpack` reads it."""
        pieces: list[Array] = [self.eigenvalues, self.turn]
        for side in self.leaving:
            pieces += [side.features, side.marks, side.columns, side.offset]
        for side in self.hidden:
            pieces += [side.features, side.marks, side.offset]
        return np.concatenate([np.asarray(piece).ravel() for piece in pieces])
