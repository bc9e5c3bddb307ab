"""The landmark solver: kernel PCA in the span of points that all nodes share, as many as the tolerance needs.

All results are sums over the nodes of terms that each computes from its own rows. A stage of growth has three sums:

    covariance   of the landmark coordinates psi          -> principal directions, found at the root of the tree
    sketch       of the components with random features of what the landmarks miss   -> eigenvalues, and separated components
    accuracy     the part outside the span                -> accuracy of the answer, and the number of landmarks of the next stage

With many rows, stages use a part of them (judging.py), and at the end the covariance is summed over all rows.
landmark_supply.py provides the landmarks. Generators, to be used with `yield from`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from typing import Any

import array_api_compat as aac
import numpy as np

from .block import Block, FlatRows
from .collectives import network_sum
from .core import accuracy, landmarks
from .core.accuracy import Accuracy
from .core.chunks import DEVICE_BYTES, by_nodes, row_bytes, summed
from .core.landmarks import Landmarks, RowKernel
from .core.sketch import Sketch
from .core.spectrum import add_products, symmetric, times_triangle, to_numpy, transposed
from .judging import EXTRA_COLUMNS, LONGEST, Judged, Verdict, judge_values, lengths, told_accuracy
from .kernels import row_tiles
from .landmark_supply import Supply, without_redundant
from .options import Options
from .space import Known, with_noise

Array = Any
Script = Generator[Any, Any, Any]

MARGIN = 1.25  # landmarks grow until the error estimated by the judging rows is so many times below the tolerance, which is for all rows
COMPONENTS = (
    2.0  # tolerance of a component, relative to the span's. Used if all rows are judging rows: landmarks are cheap then
)
HOPELESS = 8.0  # components so many times above their tolerance are left mixed: they would need too many landmarks
CLEAR = 4.0  # if few frequencies do not show an error so many times below the tolerance, more are used
MOST_GROWTH, LEAST_GROWTH = 4.0, 1.4  # factor of the landmarks from a stage to the next
MANY = 300  # landmarks, from which on growth is limited to half as much: work grows with their square
ORDER, MOST_ORDER = (
    1.5,
    6.0,
)  # assumed decay of the error with landmarks; faster if the last stages show it
GIVE_UP = 0.8  # a stage that leaves this much of the error is the last, unless rows are left
CORRECTING = 2048  # frequencies of the sketch that corrects components
WORTHWHILE = 0.7  # a correction that leaves more of the error is rejected: it costs time in transform
CHUNK_BYTES = 2**20  # of one chunk of the kernel with the landmarks: half of a cache
LEAST_CHUNK = 256  # rows; smaller products cost less than adding them up


@dataclass(eq=False)
class Found:
    """The result of the solver, the same at every node."""

    marks: Landmarks
    mean: Array  # (m,) of psi over all rows
    weights: Array  # (m, k): the components as functions of psi, scaled to unit functions of the central problem
    eigenvalues: Array  # (k,)
    trace: Array
    accuracy: Accuracy
    correction: Correction | None = None


@dataclass(eq=False)
class Correction:
    """Term of the components from random features: z(x)'coefficients - offset, for frequencies (F, M)."""

    frequencies: Array
    coefficients: Array  # (2 F, k)
    offset: Array  # (k,)


@dataclass(eq=False)
class Growth:
    """State of the growth of the landmarks."""

    judged: Judged
    supply: Supply
    moments: Moments  # over the judging rows; at the root of the tree
    counted: int = 0  # landmarks that are in the moments
    error: float = np.inf  # last estimate,
    size: int = 0  # with so many landmarks


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
        """Add a stage: sums of the new coordinates, of their products with the old ones and with each other, of k(x, x), and rows."""
        old = len(self.first)
        ends = np.cumsum([new, old * new, new * (new + 1) // 2])
        first, across = total[: ends[0]], total[ends[0] : ends[1]].reshape(old, new)
        among = to_numpy(landmarks.unpack_triangle(total[ends[1] : ends[2]], new))
        second = np.block([[self.second, across], [across.T, among]])
        return Moments(np.concatenate([self.first, first]), second, float(total[-2]), float(total[-1]))

    def pack(self) -> np.ndarray:
        """As one vector, which can be summed over blocks, and from which `grown` makes moments."""
        triangle = self.second[np.triu_indices(len(self.first))]
        return np.concatenate([self.first, triangle, [self.trace, self.count]])

    def of_coordinates(self, root: np.ndarray) -> Moments:
        """The moments of psi = R'k, from moments of k = k(L, x)."""
        half = times_triangle(self.second.copy(), root)  # S R, then R'(S R) = ((S R)'R)'
        return replace(self, first=root.T @ self.first, second=times_triangle(np.ascontiguousarray(half.T), root))

    def centered(self, centering: str | None) -> np.ndarray:
        """The sum of products of centred coordinates."""
        if centering is None:
            return self.second
        return self.second - np.outer(self.first, self.first) / self.count

    def principal(
        self, centering: str | None, q: int, kernel_size: float, like: Array | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """The q leading eigenvalues and unit directions, with fixed signs, without directions that are rounding. Computed on the device of `like`."""
        if not len(self.first):
            return np.zeros(0), np.zeros((0, 0))
        values, vectors = accuracy.leading(self.centered(centering), q, like)
        keep = values > max(1e-12 * values[0], 100 * np.finfo(np.float64).eps * self.count * kernel_size)
        vectors = vectors[:, keep]
        largest = np.abs(vectors).argmax(axis=0)
        return values[keep], vectors * np.where(vectors[largest, np.arange(vectors.shape[1])] < 0, -1.0, 1.0)


@dataclass(eq=False)
class Principal:
    """Directions (m, q) of the data in landmark coordinates, their eigenvalues (q,), the mean (m,) of psi, the trace of the centred kernel.

    The same at every node; `moments` only at the root.
    """

    directions: Array
    values: Array
    mean: Array
    trace: Array
    rows: float  # number of rows in the sum: all, or judging rows
    moments: Moments

    def functions(self, psi: Array) -> Array:
        """Values (rows, q) of the unit functions along the directions, orthonormal over all rows."""
        xp = aac.array_namespace(psi)
        return ((psi - self.mean) @ self.directions) / xp.sqrt(self.values)


def solve(block: Block, options: Options, known: Known) -> Script:
    """Components in the span of the landmarks, and their accuracy; returns `Found`."""
    rows = FlatRows(block, block.samples)
    sent = with_noise(block, options)
    supply = Supply(block, options, rows, rows if sent is block.samples else FlatRows(block, sent))
    judged = Judged.of(block, options, known.kernel(options), rows)
    growth = Growth(judged, supply, Moments.none())
    wanted = options.n_landmarks
    while wanted:
        yield from add_landmarks(block, growth, known, wanted)
        wanted = 0
        if options.grow or judged.places is None:
            found = yield from principal(block, options, growth)
            verdict = yield from judge(block, options, growth, found)
            about = verdict.accuracy
            error = about.error if judged.places is not None else error_to_lower(options, about)
            wanted = next_landmarks(options, growth, error)
        if not wanted and judged.places is not None:
            found = yield from principal_of_all(block, options, judged, rows.X)
            verdict = yield from judge(block, options, growth, found)
            if not verdict.accuracy.meets(options.tol):
                wanted = next_landmarks(options, growth, verdict.accuracy.error)
        known.stages.append((judged.marks.size, verdict.accuracy.error))
    xp = aac.array_namespace(judged.psi)
    weights = (found.directions / xp.sqrt(found.values)) @ verdict.turn
    answer = Found(judged.marks, found.mean, weights, verdict.eigenvalues, found.trace, verdict.accuracy)
    if judged.places is None and judged.sketches is not None and not verdict.accuracy.meets(options.tol):
        answer = yield from corrected(block, options, judged, found, answer)
    return answer


# ---------------------------------------------------------------------- growth
def add_landmarks(block: Block, growth: Growth, known: Known, wanted: int) -> Script:
    """Add about so many landmarks, without redundant ones."""
    judged = growth.judged
    for kind, points in (yield from growth.supply.more(wanted)).items():
        offered = None
        if points.shape[0]:
            if kind in ("points", "earlier") and known.columns is not None:
                points = known.columns.standardized(points)
            points, offered = yield from without_redundant(block, judged.kernel, judged.marks, points)
        if points.shape[0]:
            judged.extend(block, points, offered)
            known.kinds.append((kind, int(points.shape[0])))
    if not judged.marks.size:
        raise ValueError(
            "no landmarks came out: the kernel is zero there; raise n_landmarks, or use other landmarks or another kernel"
        )


def error_to_lower(options: Options, about: Accuracy) -> float:
    """The error that more landmarks must lower to `tol`, if all rows are judging rows: of the span, or of a component if that is attainable."""
    errors = about.component_errors / COMPONENTS
    return max([about.error, *errors[errors <= HOPELESS * options.tol]])


def next_landmarks(options: Options, growth: Growth, error: float) -> int:
    """Number of landmarks to add in the next stage, from the error of this one; 0 if there are enough, or more would not help."""
    m, goal, supply = growth.judged.marks.size, options.tol / MARGIN, growth.supply
    before, growth.error = growth.error, error
    fewer, growth.size = growth.size, m
    if not options.grow or error <= goal or m >= options.max_landmarks:
        return 0
    if supply.spent or (error > GIVE_UP * before and not supply.has_rows):
        return 0
    order = ORDER
    if 0 < fewer < m and error < before < np.inf:
        order = min(max(order, np.log(before / error) / np.log(m / fewer)), MOST_ORDER)
    most = MOST_GROWTH if m < MANY else MOST_GROWTH / 2
    factor = (error / goal) ** (1 / order) if goal > 0 else most
    return min(options.max_landmarks, int(m * min(max(factor, LEAST_GROWTH), most)) + 1) - m


# ---------------------------------------------------------------------- principal directions
def principal(block: Block, options: Options, growth: Growth) -> Script:
    """The principal directions of the judging rows, by a sum of what the new landmarks add to the moments."""
    judged, before = growth.judged, growth.counted
    growth.counted = judged.marks.size
    new = judged.marks.size - before
    mine = new_moments(judged, before)
    found = yield from directions(
        block, options, judged, mine, lambda total: growth.moments.grown(total, new), judged.count
    )
    growth.moments = found.moments
    return found


def principal_of_all(block: Block, options: Options, judged: Judged, X: Array) -> Script:
    """The principal directions of all rows: X are those of the block."""
    m, root = judged.marks.size, to_numpy(judged.marks.root).astype(np.float64)
    mine = kernel_moments(X, judged)
    exact = block.samples.dtype == aac.array_namespace(X).float64
    if not exact:  # the sum is sent in the dtype of the data, which has too few digits for sums of kernels
        mine = mine.of_coordinates(root)

    def moments(total: np.ndarray) -> Moments:
        found = Moments.none().grown(total, m)
        return found.of_coordinates(root) if exact else found

    return (yield from directions(block, options, judged, block.array(mine.pack()), moments, float(block.sizes.sum())))


def directions(
    block: Block, options: Options, judged: Judged, mine: Array, moments_of: Callable[[np.ndarray], Moments], rows: float
) -> Script:  # fmt: skip
    """Principal directions by one network sum of `mine`, which the root turns into moments of so many rows and decomposes."""
    m = judged.marks.size
    q = min(m, options.n_components + EXTRA_COLUMNS)
    kept: list[Moments] = [Moments.none()]

    def find(total: Array) -> Array:
        moments = kept[0] = moments_of(to_numpy(total).astype(np.float64))
        size = moments.trace / max(moments.count, 1.0)
        values, vectors = moments.principal(options.centering, q, size, total)
        mean = moments.first / moments.count if options.centering else np.zeros(m)
        missing = q - len(values)  # directions without data
        told = [[moments.trace - moments.count * float(mean @ mean)], np.pad(values, (0, missing)), mean]
        return block.array(np.concatenate([*told, np.pad(vectors, ((0, 0), (0, missing))).ravel()]))

    bound = 2.0 * float(block.sizes.sum()) * block.kernel_bound(judged.kernel, judged.marks.points) ** 2
    found = yield from network_sum(block, "covariance", mine, find, 1 + q + m + m * q, bound=bound)
    xp = aac.array_namespace(found)
    p = int((to_numpy(found[1 : 1 + q]) > 0).sum())
    basis = xp.reshape(found[1 + q + m :], (m, q))[:, :p]
    return Principal(basis, found[1 : 1 + p], found[1 + q : 1 + q + m], found[0], rows, kept[0])


def new_moments(judged: Judged, before: int) -> Array:
    """The block's sums of the coordinates after the first `before`: themselves, with the others, with each other; of k(x, x); rows."""
    psi = judged.psi
    xp = aac.array_namespace(psi)

    def part(rows: slice) -> tuple[Array, ...]:
        old, new = psi[rows, :before], psi[rows, before:]
        return xp.sum(new, axis=0), transposed(old) @ new, transposed(new) @ new

    first, across, among = summed(part, psi.shape[0], psi, row_bytes(psi) * (psi.shape[1] - before))
    rest = xp.stack([xp.sum(judged.diagonal), xp.sum(judged.diagonal * 0 + 1.0)])
    return xp.concat([first, xp.reshape(across, (-1,)), landmarks.pack_triangle(among[None, ...])[0, :], rest])


def kernel_moments(X: Array, judged: Judged) -> Moments:
    """The moments of k = k(L, x) over rows X, in float64. Those of psi = R'k follow (`of_coordinates`), so that psi is not computed."""
    xp = aac.array_namespace(X)
    kernel, points, m = judged.kernel, judged.marks.points, judged.marks.size
    with_points = RowKernel(kernel, points)
    chunk = max(
        LEAST_CHUNK, (CHUNK_BYTES if aac.is_numpy_array(X) else DEVICE_BYTES) // max(1, row_bytes(judged.marks.root))
    )

    def part(rows: slice) -> tuple[Array, ...]:
        first, second, trace = xp.zeros((m,), dtype=xp.float64, device=aac.device(X)), None, 0.0
        for tile in row_tiles(rows.stop - rows.start, chunk):
            own = X[rows.start + tile.start : rows.start + tile.stop, :]
            found = with_points(own)
            first = first + xp.sum(found, axis=0, dtype=xp.float64)
            second = add_products(second, found)
            trace = trace + xp.sum(kernel.diagonal(own), dtype=xp.float64)
        return first, second, trace

    first, second, trace = summed(part, X.shape[0], X, 8 * m * m)
    return Moments(to_numpy(first), symmetric(to_numpy(second)), float(trace), float(X.shape[0]))


# ---------------------------------------------------------------------- estimates of the error
def judge(block: Block, options: Options, growth: Growth, found: Principal) -> Script:
    """Estimate the accuracy of the components of `found`."""
    judged = growth.judged
    if not found.directions.shape[1]:  # all rows are equal: no component, and that is exact
        xp, k = aac.array_namespace(judged.psi), options.n_components
        like = {"dtype": judged.psi.dtype, "device": aac.device(judged.psi)}
        return Verdict(xp.zeros((k,), **like), xp.zeros((0, k), **like), Accuracy.exact(k))
    if judged.sketches is None:
        return (yield from judge_by_doubling(block, options, judged, found))
    functions = found.functions(judged.psi)
    verdict = yield from judge_values(block, options, judged, functions, found.values, found.rows)
    if verdict.accuracy.error > options.tol / CLEAR and judged.refine(options.seed):
        verdict = yield from judge_values(block, options, judged, functions, found.values, found.rows)
    return verdict


def judge_by_doubling(block: Block, options: Options, judged: Judged, found: Principal) -> Script:
    """For kernels without random features: the change of the components from half of the landmarks to all of them."""
    k, p = options.n_components, found.directions.shape[1]
    xp = aac.array_namespace(judged.psi)
    rest = xp.reshape(xp.sum(judged.rest), (1,))

    def decide(total: Array) -> Array:
        missed = float(total[0]) * found.rows / judged.count
        covariance = found.moments.centered(options.centering)
        about = accuracy.doubling(covariance, judged.marks.size // 2, k, p, missed, options.tol)
        return block.array([about.error, about.span, *about.components])

    bound = 2.0 * judged.count * block.kernel_bound(judged.kernel)
    decided = yield from network_sum(block, "accuracy", rest, decide, 2 + k, bound=bound)
    values = np.pad(to_numpy(found.values)[:k], (0, max(0, k - p)))
    turn = np.eye(p, k) * np.sqrt(values)
    return Verdict(block.array(values), block.array(turn), told_accuracy(decided, k, "doubling"))


def corrected(block: Block, options: Options, judged: Judged, found: Principal, answer: Found) -> Script:
    """The components after one power iteration with a sketch of what the landmarks miss, if its estimated error is
    smaller. All rows must be judging rows.

    K G = psi psi'G + r r'G, with random features r that are independent of the estimate. It extends to new points, since all nodes know r(x).
    """
    X, psi = judged.X, judged.psi
    xp = aac.array_namespace(psi)
    G = found.functions(psi)
    sketch = Sketch.drawn(judged.kernel, X, CORRECTING, options.seed, "correction")
    (z,) = by_nodes(lambda r: (sketch.features(X[r, :]),), X.shape[0], sketch.size * row_bytes(X[:, :1]), X)

    def products(rows: slice) -> tuple[Array, ...]:
        return transposed(z[rows, :]) @ G[rows, :], xp.sum(z[rows, :], axis=0), xp.sum(G[rows, :], axis=0)

    sums = summed(products, G.shape[0], G)
    mine = xp.concat([xp.reshape(x, (-1,)) for x in sums])
    total = yield from network_sum(block, "sketch", mine, bound=4.0 * judged.count)
    p, size = G.shape[1], sketch.size
    image = xp.reshape(total[: size * p], (size, p))
    features, ones = total[size * p : size * (p + 1)], total[size * (p + 1) :]
    mean = features / judged.count if options.centering else features * 0
    scaled, on_landmarks = found.directions * xp.sqrt(found.values), sketch.on_landmarks(judged.marks)
    image = image - mean[:, None] * ones[None, :] - transposed(on_landmarks) @ scaled
    on_marks = scaled - on_landmarks @ image
    values = (psi - found.mean) @ on_marks + (z - mean) @ image
    largest = None if block.sealer is None else 2 * LONGEST * (lengths(on_marks) + lengths(image))
    verdict = yield from judge_values(block, options, judged, values, None, largest=largest)
    if verdict.accuracy.error > WORTHWHILE * answer.accuracy.error:
        return answer
    coefficients = image @ verdict.turn
    correction = Correction(sketch.frequencies, sketch.weighted(coefficients), mean @ coefficients)
    return replace(
        answer, weights=on_marks @ verdict.turn, eigenvalues=verdict.eigenvalues, accuracy=verdict.accuracy, correction=correction
    )  # fmt: skip
