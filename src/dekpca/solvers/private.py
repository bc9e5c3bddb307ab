"""Kernel PCA with differential privacy: one network sum with noise, in coordinates that do not depend on anybody's rows.

    landmarks    public points, random features, or points drawn from a Gaussian with the noisy mean and linear components of the rows
    coordinates  the leading `rank` of the landmarks' own kernel matrix; |psi(x)|^2 <= k(x, x)
    rest         random features of what these coordinates miss of a row, scaled so that |psi(x)|^2 + |rest(x)|^2 <= 1: only the estimate uses them
    moments      sums of (psi, rest), of their products and of 1, as integers with noise (privacy/releases.py): all that is learned of the rows

Components, eigenvalues, the mean, the number of rows and the estimate of accuracy follow from the noisy moments, and cost nothing more. The noise
comes from the engine (`site.sealer`), never from a seed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.linalg import eigh
from scipy.special import ndtri

from ..accuracy import Accuracy, mixed_groups
from ..answer import Answer, Expansion
from ..arrays import flip_signs, rounded
from ..chunks import row_tiles
from ..draws import shared_seed, uniform
from ..kernels import Kernel, inverse_root
from ..landmarks import Landmarks, RandomFeatures, check_finite
from ..privacy.releases import COUNTED, FIRST, LARGEST_TOTAL, Release
from ..privacy.settings import Privacy, kernel_size
from ..rounds import Arrays, Round, Shapes, Solver
from ..scaling import Scales
from ..site import Site
from .features import RANDOM_FEATURES, draw_features

Array = Any

CHUNK = 4096  # rows whose coordinates are computed at a time
UNSEEN = "private, without what landmarks miss"  # method of the estimate for kernels without random features
LINEAR = 10  # linear components of the Gaussian, at most; noise drowns the others
ABOVE_NOISE = 1.2  # times the largest eigenvalue of noise alone: a linear component below is noise
PUSHED = 6.0  # variances of noise: so much of the squared distance of two eigenvalues may be noise
MIXED = 0.5  # sin^2 of two components of which nothing tells which is which
UNKNOWN = 1.0  # the error of a span without an estimate
LONGEST = 2.0**64  # a coordinate, at most; honest ones are 1 or less. Squares of longer ones might overflow
REST = 128  # random features of what the landmarks miss; fewer make it look larger, more drown in noise
LEAST_EIGENVALUE = 1e-7  # of the landmarks' kernel matrix, relative to the largest: below it a coordinate is mostly rounding, and left out


@dataclass(frozen=True, eq=False)
class PrivateOptions:
    """What the solver needs to know, the same at every node."""

    n_components: int
    kernel: Kernel
    privacy: Privacy
    seed: int
    kind: str  # of landmarks: "points", "synthetic" or RANDOM_FEATURES
    count: int  # of landmarks
    points: np.ndarray | None = None
    standardize: bool = False  # by public ranges

    @property
    def random_features(self) -> bool:
        return self.kind == RANDOM_FEATURES

    @property
    def width(self) -> int:
        """How many coordinates a row has."""
        return self.count + self.count % 2 if self.random_features else min(self.privacy.rank, self.count)

    def releases(self, columns: int, n_nodes: int) -> tuple[Release, ...]:
        """What a fit will release, whatever the rows are."""
        rest = REST if self.kernel.has_frequencies and not self.random_features else 0  # for the estimate of accuracy
        return self.privacy.releases(self.kind, self.width + rest, columns, n_nodes)


def solve(site: Site, options: PrivateOptions) -> Solver:
    """Private components; returns the `Answer` of a site of one node."""
    privacy, kernel, k, rank = options.privacy, options.kernel, options.n_components, options.width
    rows, scales = site.X, None
    if options.standardize:
        scales = Scales(*map(site.array, centre_and_half(privacy.ranges)))
        rows = scales.standardized(rows)
    size = kernel_size(kernel, privacy.norm)
    bounded = kernel.is_normal or kernel.normalize
    norm = None if bounded else float(privacy.norm or 0.0)
    *for_points, main = options.releases(int(rows.shape[1]), len(site.network))
    marks: Any
    embedding, cut = None, 0.0
    if options.random_features:
        marks = draw_features(rows, kernel, rank, options.seed)
    else:
        points = options.points
        if for_points:
            points = yield from synthetic_points(site, options, for_points[0], rows)
        elif scales is not None:
            points = scales.standardized(points)
        points = np.asarray(points, dtype=np.float64)
        told = yield Cut(kernel, points, rank, k)
        marks = Landmarks(site.array(points), site.array(told["root"]), ((options.kind, len(points)),))
        cut = float(told["error"][0])
        if main.width > rank:
            embedding = Embedding.of(kernel, points, np.asarray(marks.root), options.seed)

    coordinates = Coordinates(kernel, marks, embedding, norm, size)
    told = yield Components(site, main, rows, coordinates, k, rank, cut, bounded)
    (error,), method = told["error"], "private" if embedding else UNSEEN
    about = Accuracy.of(told["errors"], error, error, mixed_groups(told["near"][:, :k]), method)
    return Answer(
        site=site, kernel=kernel, terms=Expansion(site.array(told["directions"])), eigenvalues=site.array(told["values"] * size),
        trace=float(told["trace"][0]) * size, marks=marks,
        mean=site.array(told["mean"] * np.sqrt(size)), scales=scales, accuracy=about, stages=((marks.size, about.error, about.bound),),
        rows=float(told["rows"][0]),
    )  # fmt: skip


@dataclass(frozen=True, eq=False)
class Coordinates:
    """Coordinates (n, r) of rows. The bits of a row's coordinates depend on that row alone, not on the rows beside it, their number, or its place:
    sums over columns are exact (`rounded`), and everything else is entry by entry. So adding a row changes no other row's integers."""

    kernel: Kernel
    marks: Any
    embedding: Embedding | None
    norm: float | None  # to which rows are clipped
    size: float  # a bound on k(x, x)

    def __call__(self, rows: np.ndarray) -> np.ndarray:
        rows = rows if self.norm is None else clipped(rows, self.norm)
        if isinstance(self.marks, RandomFeatures):
            return self.kernel.features(rounded(rows), rounded(self.marks.frequencies))
        gram = row_by_row(self.kernel, rows, np.asarray(self.marks.points))
        psi = rounded(rounded(gram) @ rounded(np.asarray(self.marks.root).T).T / np.sqrt(self.size))
        return psi if self.embedding is None else np.concatenate([psi, self.embedding.rest(rows, psi)], axis=1)


def row_by_row(kernel: Kernel, rows: np.ndarray, points: np.ndarray) -> np.ndarray:
    """k of rows with points, each row's numbers from that row alone."""
    origin = points[0] if kernel.is_stationary else 0.0  # rows far from the origin would lose digits
    A, B = rounded(rows - origin), rounded(points - origin)
    a, b = (A * A).sum(axis=1, keepdims=True), (B * B).sum(axis=1)
    gram = kernel.of_products(A @ B.T, a, b)
    if gram is None:
        return np.concatenate([kernel.gram(np.array(rows[i : i + 1]), points) for i in range(len(rows))])
    if kernel.normalize and not kernel.is_normal:
        gram = gram * inverse_root(kernel.of_products(a, a, a)) * inverse_root(kernel.of_products(b, b, b))
    return gram


def clipped(X: np.ndarray, norm: float) -> np.ndarray:
    """Rows of at most this norm. How many were longer is not told."""
    size = np.linalg.norm(rounded(X), axis=1)
    return X * np.minimum(1.0, norm / np.maximum(size, 1e-300))[:, None]


@dataclass(frozen=True, eq=False)
class Released(Round):
    """Moments of coordinates of the rows, as integers with noise; all nodes are told only what the root makes of their total."""

    site: Site
    release: Release
    rows: np.ndarray
    coordinates: Callable[[np.ndarray], np.ndarray]
    kind = "moments"
    integers = True

    def term(self) -> Arrays:
        release, X, site = self.release, self.rows, self.site
        if site.sealer is None or len(site.nodes) != 1:
            raise RuntimeError("differential privacy needs an engine that seals sums, and a site for each node")
        release.check_rows(len(X), site.names[0])
        total = np.zeros(release.numbers, dtype=np.int64)
        for tile in row_tiles(len(X), CHUNK):
            with np.errstate(over="ignore", invalid="ignore"):
                found = self.coordinates(np.asarray(X[tile], dtype=np.float64))
            # No honest map gives others. A root that lies tells one with which a certain row overflows: a node that stopped would tell of this row.
            found = np.where(np.abs(found) <= LONGEST, found, 0.0)
            total += release.sums(release.integers(found))
        return {"moments": release.with_noise(total, site.sealer.noise)}

    def bounds(self) -> dict[str, Any]:
        return {"moments": 2.0 * LARGEST_TOTAL}


@dataclass(frozen=True, eq=False)
class Components(Released):
    """All that the model tells of the rows: eigenvalues (k,), directions (r, k), the mean (r,), the trace of the centred kernel, the number of rows,
    errors (sin^2) of components and span, and how far each component is `near` (k, k + 1) the first ones."""

    k: int
    rank: int
    cut: float
    unit: bool

    def told(self) -> Shapes:
        k, r, one = self.k, self.rank, (1,)
        about = {"trace": one, "rows": one, "error": one, "errors": (k,), "near": (k, k + 1)}
        return {"values": (k,), "directions": (r, k), "mean": (r,)} | about

    def conclude(self, total: Arrays) -> Arrays:
        return components_of(self.release, total["moments"], self.k, self.rank, self.cut, self.unit)


@dataclass(frozen=True, eq=False)
class Embedding:
    """Random features z(x), and those of the landmarks' coordinates: rest(x) = z(x) - image psi(x) are features of what psi misses of a row."""

    kernel: Kernel
    frequencies: np.ndarray
    image: np.ndarray  # (features, rank)

    @classmethod
    def of(cls, kernel: Kernel, points: np.ndarray, root: np.ndarray, seed: int) -> Embedding:
        drawn = kernel.frequencies(points.shape[1], REST // 2, shared_seed(seed, "private estimate"))
        return cls(kernel, rounded(drawn), rounded(np.asarray(kernel.features(points, drawn)).T @ root))

    def rest(self, rows: np.ndarray, psi: np.ndarray) -> np.ndarray:
        """(n, features), no longer than what psi, which is `rounded`, leaves of a unit vector. In expectation it is as long as that."""
        rest = rounded(self.kernel.features(rounded(rows), self.frequencies) - psi @ self.image.T)
        room = np.sqrt(np.maximum(1.0 - np.einsum("ij,ij->i", psi, psi), 0.0))
        return rest * np.minimum(1.0, room / np.maximum(np.linalg.norm(rest, axis=1), 1e-300))[:, None]


# ---------------------------------------------------------------------- landmarks
def synthetic_points(site: Site, options: PrivateOptions, release: Release, X: np.ndarray) -> Solver:
    """Points that nobody owns: from a Gaussian with the noisy mean of all rows and their leading noisy linear components."""
    norm = float(options.privacy.norm or 0.0)
    told = yield Spread(site, release, X, lambda rows: clipped(rows, norm) / norm)
    numbers = ndtri(uniform((options.count, LINEAR), shared_seed(options.seed, "private points")))
    return norm * told["mean"] + numbers @ (norm * told["spread"])


class Spread(Released):
    """The mean of the rows, and their leading linear components, each as long as the rows spread along it: zeros for those that are noise."""

    def told(self) -> Shapes:
        return {"mean": (self.release.width,), "spread": (LINEAR, self.release.width)}

    def conclude(self, total: Arrays) -> Arrays:
        first, second, rows = self.release.moments(total["moments"])
        mean, columns = first / rows, self.release.width
        covariance = second / rows - np.outer(mean, mean)
        values, vectors = eigh(covariance, subset_by_index=[max(0, columns - LINEAR), columns - 1])
        values, vectors = values[::-1], vectors[:, ::-1]
        noise = self.release.deviation / np.sqrt(2) / rows  # of an entry off the diagonal
        kept = values > ABOVE_NOISE * 2 * noise * np.sqrt(columns)
        kept[0] = True
        spread = np.where(kept, np.sqrt(np.maximum(values, 0.0)), 0.0)
        return {"mean": mean, "spread": np.pad((vectors * spread).T, ((0, LINEAR - len(values)), (0, 0)))}


@dataclass(frozen=True, eq=False)
class Cut(Round):
    """The map T (m, rank) to coordinates psi = T'k(L, x), the leading ones of K_LL; and what the cut costs the components of the points themselves
    (sin^2). The root finds them for all: rounding may turn eigenvectors."""

    kernel: Kernel
    points: np.ndarray
    rank: int
    n_components: int
    kind = "landmarks"

    def term(self) -> Arrays:
        return {}

    def told(self) -> Shapes:
        return {"error": (1,), "root": (len(self.points), self.rank)}

    def conclude(self, total: Arrays) -> Arrays:
        values, vectors, root = points_root(self.kernel, self.points, self.rank)
        return {"error": np.array([cut_error(values, vectors, self.rank, self.n_components)]), "root": root}


def points_root(kernel: Kernel, points: np.ndarray, rank: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Eigenvalues and eigenvectors of the points' kernel matrix, largest first, and T (m, rank) for coordinates T'k(L, x)."""
    gram = kernel.gram(points, points)
    check_finite(gram, "the landmarks", kernel)
    values, vectors = eigh(gram)
    values, vectors = values[::-1], vectors[:, ::-1]
    good = values[:rank] > LEAST_EIGENVALUE * max(values[0], 0.0)
    return values, vectors, np.where(good, vectors[:, :rank] / np.sqrt(np.where(good, values[:rank], 1.0)), 0.0)


def centre_and_half(ranges: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of public ranges (columns, 2): by these columns are scaled to -1 and 1."""
    return ranges.mean(axis=1), np.ptp(ranges, axis=1) / 2


def cut_error(values: np.ndarray, vectors: np.ndarray, rank: int, k: int) -> float:
    """sin^2 of the largest angle by which the k leading components of the landmarks themselves turn when only `rank` coordinates are kept."""
    whole = vectors * np.sqrt(np.maximum(values, 0.0))  # coordinates of the landmarks, in their whole span
    whole = whole - whole.mean(axis=0)
    m = len(whole)
    sizes, left = eigh(whole @ whole.T, subset_by_index=[max(0, m - k), m - 1])
    k = min(rank, int((sizes > 1e-12 * sizes[-1]).sum()))
    less = np.linalg.svd(whole[:, :rank], full_matrices=False)[0]
    return float(1.0 - min(np.linalg.svd(left[:, ::-1][:, :k].T @ less[:, :k], compute_uv=False)[-1], 1.0) ** 2)


# ---------------------------------------------------------------------- at the root
def components_of(release: Release, sums: np.ndarray, k: int, rank: int, cut: float = 0.0, unit: bool = True) -> Arrays:
    """What `Components` tells, from noisy moments of `rank` coordinates and of features of the rest, if there are any.

    `cut` is the error of the cut to so many coordinates, at the landmarks: for the estimate where there are no such features. `unit`: k(x, x) = 1 for
    all rows, so that the trace follows from their number; else it is that of the noisy moments, without what the coordinates miss.
    """
    first, second, rows = release.moments(sums)
    mean = first / rows
    # the mean of unit vectors is no longer than 1; noise may say so
    mean = mean / max(1.0, float(np.linalg.norm(mean[:rank])))
    moments = second - rows * np.outer(mean, mean)
    values, vectors = np.linalg.eigh(moments[:rank, :rank])
    values, vectors = values[::-1], flip_signs(vectors[:, ::-1])
    turned, error, bias = noise_errors(values, np.abs(vectors.T @ mean[:rank]), release.deviation, k)
    near = np.zeros((k, k + 1))
    near[:, : min(k + 1, rank)] = turned[:, : k + 1]
    kept = np.clip(values[:k] - bias, 0.0, rows)
    trace = rows * (1.0 - float(mean[:rank] @ mean[:rank])) if unit else max(float(values.sum()), float(kept.sum()))
    missed, missed_span = np.full(k, cut), cut
    if release.width > rank:
        variance = release.deviation**2 * (0.5 + (vectors[:, :k].T @ mean[:rank] / FIRST) ** 2)
        leak = vectors[:, :k].T @ moments[:rank, rank:]
        missed, missed_span = missed_errors(kept, leak, variance, moments[rank:, rank:], release.deviation)
    errors = np.minimum(np.minimum(turned.sum(axis=1), UNKNOWN) + missed, 1.0)
    numbers = {"trace": max(trace, 0.0), "rows": rows, "error": min(error + missed_span, 1.0)}
    arrays = {"values": kept, "directions": vectors[:, :k], "mean": mean[:rank], "errors": errors, "near": near}
    return arrays | {name: np.array([number]) for name, number in numbers.items()}


def missed_errors(
    values: np.ndarray, leak: np.ndarray, variance: np.ndarray, rest: np.ndarray, deviation: float
) -> tuple[np.ndarray, float]:
    """How far components of all that there is are from the k components with these eigenvalues (sin^2 of each, and of the span).

    `leak` (k, F) are products of the components with features of the rest, with noise of this variance (k,); `rest` (F, F) those of the features with
    each other, with noise of half the variance deviation^2. Rayleigh-Ritz in both together. Few features make the rest look larger than it is.
    """
    k, count = leak.shape
    size = np.maximum((leak**2).sum(axis=1), 1e-300)
    leak = leak * np.sqrt(np.maximum(1.0 - count * variance / size, 0.0))[:, None]
    # Noise alone has eigenvalues up to `edge`, and lifts those above it: what they are without it. Those below it are as large as the average.
    within, vectors = np.linalg.eigh(rest)
    edge = 2.0 * deviation * np.sqrt(count / 2)
    lowered = (within + np.sqrt(np.maximum(within**2 - edge**2, 0.0))) / 2
    within = np.where(within > edge, lowered, np.clip(within, 0.0, max(float(within.mean()), 0.0)))
    whole = np.block([[np.diag(values), leak], [leak.T, (vectors * within) @ vectors.T]])
    found, turn = np.linalg.eigh(whole)
    found, turn = np.maximum(found[::-1][:k], 0.0), turn[:, ::-1][:k, :k]
    # products of unit functions over the rows
    cosines = turn * np.sqrt(found) / np.sqrt(np.maximum(values, 1e-300))[:, None]
    smallest = float(np.linalg.svd(cosines, compute_uv=False)[-1])
    return 1.0 - np.minimum(np.diag(cosines) ** 2, 1.0), 1.0 - min(smallest, 1.0) ** 2


def noise_errors(values: np.ndarray, along: np.ndarray, deviation: float, k: int) -> tuple[Any, float, Any]:
    """How far noise turns the k leading eigenvectors towards each of the others (k, r) and together (sin^2), and what it adds to their eigenvalues.

    `along` is how much of the mean lies in each direction: the noise of the mean turns these. The noise of an entry has half of the variance
    deviation^2 off the diagonal, in any basis.
    """
    ends = along[:k, None] ** 2 + along[None, :] ** 2
    variance = deviation**2 * (0.5 + ends / FIRST**2 + (along[:k, None] * along[None, :] / COUNTED) ** 2)
    gaps = values[:k, None] - values[None, :]
    itself = np.eye(k, len(values), dtype=bool)
    # noise pushes near eigenvalues apart: what is left of their distance without it
    apart = np.where(itself, np.inf, np.maximum(gaps**2 - PUSHED * variance, 1e-300))
    # agreement is about values on rows, in which a direction counts by its eigenvalue
    weight = np.clip(values[None, :] / np.maximum(values[:k, None], 1e-300), 0.0, 1.0)
    turned = np.minimum(variance / apart, MIXED) * weight
    bias = (variance / np.maximum(np.where(itself, np.inf, gaps), np.sqrt(variance)))[:, k:].sum(axis=1)
    outside = turned[:, k:].sum(axis=1)
    if len(values) <= k:
        return turned, UNKNOWN, bias
    # the largest eigenvalue of k noisy vectors in about so many dimensions, beyond the length of the longest
    longest = turned[int(outside.argmax()), k:]
    dimensions = max(1.0, longest.sum() ** 2 / max((longest**2).sum(), 1e-300))
    error = float(min(outside.max() * (1 + (k / dimensions) ** 0.5) ** 2, UNKNOWN))
    return turned, error, bias


# ---------------------------------------------------------------------- before anybody says yes
@dataclass(frozen=True)
class Expected:
    """What a private fit can be expected to give, from public points alone: (k,) agreement, and that of the span."""

    rank: int
    components: np.ndarray
    span: float
    noise: float  # deviation of a noisy entry, in rows
    releases: tuple[Release, ...]


def expected(
    points: np.ndarray, kernel: Kernel, rows: int, privacy: Privacy, n_nodes: int, k: int, kind: str = "points"
) -> Expected:
    """As if the rows were distributed like the points: scaled and clipped as rows are. No data is looked at, so this spends no privacy.

    Examples
    --------
    >>> from dekpca.kernels import Rbf
    >>> points = np.random.default_rng(0).normal(size=(200, 5)) * [3, 2, 1, 1, 1]
    >>> privacy = Privacy(epsilon=1.0, delta=1e-6, rank=40)
    >>> few, many = (expected(points, Rbf(gamma=0.05), rows, privacy, 20, 2) for rows in (1000, 100_000))
    >>> bool(few.span < many.span)
    True
    """
    width = min(privacy.rank, len(points))
    planned = privacy.releases(kind, width + REST * kernel.has_frequencies, points.shape[1], n_nodes)
    if privacy.ranges is not None:
        points = Scales(*centre_and_half(privacy.ranges)).standardized(points)
    alike = points if kernel.is_normal or kernel.normalize else clipped(points, float(privacy.norm or 0.0))
    values, vectors, root = points_root(kernel, points, width)
    psi = kernel.gram(alike, points) @ root / np.sqrt(kernel_size(kernel, privacy.norm))
    mean = psi.mean(axis=0)
    found, basis = eigh((psi - mean).T @ (psi - mean) * (rows / len(points)))
    turned, error, _ = noise_errors(found[::-1], np.abs(basis[:, ::-1].T @ mean), planned[-1].deviation, k)
    cut = cut_error(values, vectors, width, k)
    errors = np.minimum(turned.sum(axis=1) + cut, 1.0)
    span = float(np.sqrt(1.0 - min(error + cut, 1.0)))
    return Expected(width, np.sqrt(1.0 - errors), span, planned[-1].deviation, planned)
