"""Estimates of the error of an answer, from sums over the nodes. No node has the central answer to compare with.

G (rows, q) are values of functions on rows, psi the rows' landmark coordinates, r1 and r2 two independent sketches of what the landmarks miss:
random features with E r(x)'r(y) = k(x, y) - psi(x)'psi(y) for rows x and y at any nodes. Then Y_h = psi psi'G + r_h
r_h'G are two independent estimates of K G, and

    S = G'(Y_1 + Y_2) / 2            Rayleigh-Ritz in the span of G: eigenvalues, and a rotation that separates components
    O_h = Y_h - G G'Y_h              the part outside the span. The product O_1'O_2 contains no squared noise
    t = noise of S / gaps            rotation of the first k components towards the others by the noise of S

The error of the span of the first k components is sin^2 of its largest angle to the central one: the largest eigenvalue of O_1'O_2 / gap^2 + t t'.
docs/algorithm.md has the derivation, docs/accuracy.md measurements. This module works on small matrices; judging.py makes the sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import array_api_compat as aac
import numpy as np

from .spectrum import eps, to_numpy

Array = Any

LEAST_GAP = 1e-12  # relative to the first eigenvalue: eigenvalues closer than this count as equal
HIDDEN = (
    0.6  # the rest may contain a component if its estimated largest eigenvalue is this fraction of the last eigenvalue
)
SAFETY = 1.3  # estimates are a little low in the median (benchmarks/regimes.py)
ROUNDING = 1e-9  # an error below this counts as zero
SIGNIFICANT = 2.0  # times its variance: an entry whose square is smaller counts as noise
TOLD_APART = 10.0  # times the tolerance: components that noise mixes by more are not separated
NEAR_EQUAL = 0.05  # relative: components farther apart are never confused
LEAST_SIGNAL = 0.1  # of the noise: a mean over some hundred pairs cannot resolve less
MOST_RAISED = 0.05  # relative; beyond it the next term of perturbation theory is meaningless
UNKNOWN = 1.0  # the error of a span without an estimate


@dataclass(frozen=True)
class Accuracy:
    """Estimated accuracy of an answer of k components. Numbers only, since it is saved in files and sent to other nodes.

    `components` are estimated |correlations| of each component's values with the central ones, `span` the smallest cosine between the spans,
    `error` its sin^2. `alike` has, for each component, the last one (counted from 1) whose eigenvalue is too close
    to separate (itself if none; k + 1 is the first beyond the components).
    """

    components: tuple[float, ...]
    span: float
    error: float
    alike: tuple[int, ...]
    method: str  # "sketches" or "doubling"

    @classmethod
    def of(cls, errors: np.ndarray, error: float, mixed: np.ndarray, tol: float, method: str) -> Accuracy:
        """From the error (sin^2) of each component within and outside the span, that of the span, and the mixing between components."""
        k, errors = len(errors), np.minimum(errors, UNKNOWN)
        far = list(range(1, k + 1))
        for i in range(k):
            close = [j + 1 for j in range(mixed.shape[1]) if mixed[i, j] > TOLD_APART * tol]
            far[i] = max([far[i], *close])
        cosine = np.sqrt(np.clip(1.0 - errors, 0.0, 1.0))
        return cls(
            tuple(map(float, cosine)),
            float(np.sqrt(max(0.0, 1.0 - min(error, 1.0)))),
            float(min(error, UNKNOWN)),
            tuple(far),
            method,
        )

    @classmethod
    def exact(cls, k: int) -> Accuracy:
        """The accuracy of an exact answer."""
        return cls((1.0,) * k, 1.0, 0.0, tuple(range(1, k + 1)), "exact")

    def meets(self, tol: float) -> bool:
        """Whether the error of the span is at most `tol`, up to rounding."""
        return self.error <= max(tol, ROUNDING)

    def groups(self) -> list[tuple[int, int]]:
        """First and last component, counted from 1, of each group that is too close to separate."""
        found: list[tuple[int, int]] = []
        for i, last in enumerate(self.alike, start=1):
            if last > i and (not found or i > found[-1][1]):
                found.append((i, last))
            elif found and i <= found[-1][1] < last:
                found[-1] = found[-1][0], last
        return found

    @property
    def component_errors(self) -> np.ndarray:
        """(k,) sin^2 of each component's angle to the central one."""
        return 1.0 - np.square(self.components)

    def limited(self, errors: np.ndarray, error: float) -> Accuracy:
        """With lower bounds on the error of each component and of the span."""
        components = np.sqrt(np.clip(1.0 - np.maximum(self.component_errors, errors), 0.0, 1.0))
        whole = min(max(self.error, error), UNKNOWN)
        return replace(self, components=tuple(map(float, components)), span=float(np.sqrt(1.0 - whole)), error=whole)


@dataclass(frozen=True, eq=False)
class Ritz:
    """Rayleigh-Ritz in the span of G with two estimates of the kernel."""

    white: np.ndarray  # (p, q): makes the columns orthonormal; q < p if they are linearly dependent
    values: np.ndarray
    basis: np.ndarray  # (q, q)
    noise: np.ndarray  # (q, q): estimated variance of each entry of the rest
    believed: float  # average fraction of it that is left in the decomposed matrix
    spread: np.ndarray  # (q,): the noise of the eigenvalues

    def swapped(self) -> np.ndarray:
        """(q, q): probability that noise has swapped two components: the difference of eigenvalues relative to their noise."""
        from scipy.special import ndtr

        apart = np.abs(self.values[:, None] - self.values[None, :])
        size = np.sqrt(self.spread[:, None] + self.spread[None, :])
        chance = np.where(size > 0, ndtr(-apart / np.where(size > 0, size, 1.0)), 0.0)
        np.fill_diagonal(chance, 0.0)
        return chance

    @property
    def turn(self) -> np.ndarray:
        """(p, q): the columns as separated orthonormal functions."""
        return self.white @ self.basis


def rayleigh_ritz(squares: np.ndarray, marks: np.ndarray, rest: Sequence[np.ndarray]) -> Ritz:
    """From G'G, the landmarks' part G'psi psi'G of the kernel, and two independent estimates of the rest, all (p, p)."""
    white = whitener(squares)
    first, second = (white.T @ (r + r.T) @ white / 2 for r in rest)
    mean, off = (first + second) / 2, (first - second) / 2
    seen = white.T @ (marks + marks.T) @ white / 2
    values, basis = np.linalg.eigh(seen + leveled(shrunk(mean, off), np.diagonal(seen), off))
    values, basis = np.maximum(values[::-1], 0.0), basis[:, ::-1]
    mean, off = basis.T @ mean @ basis, basis.T @ off @ basis
    noise = pooled(off, np.maximum(np.diagonal(mean), 0.0))
    return Ritz(white, values, basis, noise, shrinkage(mean, off), 2.0 * np.diagonal(noise))


def shrinkage(mean: np.ndarray, off: np.ndarray) -> float:
    """Shrinkage of the off-diagonal entries of an estimate of the rest: signal / (signal + noise), over all pairs of columns.

    `mean` is the mean of two independent estimates, `off` half of their difference, which is noise alone. The noise shrinks by the same factor.
    """
    missed = np.maximum(np.diagonal(mean), 0.0)
    both, noise = (float(pooled(x, missed).sum()) for x in (mean, off))
    if not 0 < noise < np.inf:  # none, or an iterate that diverged
        return 1.0
    return max(both - noise, LEAST_SIGNAL * noise) / max(both, (1.0 + LEAST_SIGNAL) * noise)


def shrunk(mean: np.ndarray, off: np.ndarray) -> np.ndarray:
    """An estimate of the rest with shrunk off-diagonal entries, so that noise does not rotate near-equal components."""
    noise = pooled(off, np.maximum(np.diagonal(mean), 0.0))
    clear = np.clip(1.0 - SIGNIFICANT * noise / np.maximum(mean**2, 1e-300), 0.0, 1.0)
    np.fill_diagonal(clear, 1.0)
    believed = shrinkage(mean, off)
    return clear * (believed * mean + (1.0 - believed) * np.diag(np.diagonal(mean)))


def leveled(rest: np.ndarray, seen: np.ndarray, off: np.ndarray) -> np.ndarray:
    """The rest with the same ratio to `seen` (the landmarks' part of each column) for adjacent columns whose order may be due to noise.

    So noise on the diagonal does not swap near-equal components; the landmarks' part has the right order more often.
    """
    diagonal = np.diagonal(rest).copy()
    variance = 2.0 * np.diagonal(pooled(off, np.maximum(diagonal, 0.0)))
    total, first = seen + diagonal, 0
    for i in range(1, len(seen) + 1):
        apart = i == len(seen) or abs(seen[first] - seen[i]) > NEAR_EQUAL * seen[first]
        if apart or (total[i - 1] - total[i]) ** 2 > SIGNIFICANT * (variance[i - 1] + variance[i]):
            group = slice(first, i)
            if i - first > 1 and (seen[group] > 0).all():
                diagonal[group] = seen[group] * (diagonal[group].sum() / seen[group].sum())
            first = i
    rest = rest.copy()
    np.fill_diagonal(rest, diagonal)
    return rest


def pooled(off: np.ndarray, missed: np.ndarray) -> np.ndarray:
    """The mean square of the off-diagonal entries of a part of the rest, proportional to what the landmarks miss of either column.

    A single entry is a poor estimate of its variance; the factor is a mean over all pairs.
    """
    size = np.outer(missed, missed)
    upper = np.triu_indices(len(missed), 1)
    known = size[upper] > 0
    if not known.any():
        return np.zeros_like(size)
    return size * float(np.mean(off[upper][known] ** 2 / size[upper][known]))


def whitener(squares: np.ndarray) -> np.ndarray:
    """W (p, q) with W' squares W = 1; directions that are rounding are dropped."""
    size = np.sqrt(np.maximum(np.diagonal(squares), 0.0))
    unit = np.where(size > 0, 1.0 / np.where(size > 0, size, 1.0), 0.0)
    values, basis = np.linalg.eigh(squares * unit[:, None] * unit[None, :])
    keep = values > len(squares) * 100 * eps(squares) * max(values[-1], 0.0)
    return unit[:, None] * basis[:, keep] / np.sqrt(values[keep])


@dataclass(frozen=True, eq=False)
class Outside:
    """Estimates of the kernel outside the span of G."""

    leak: np.ndarray  # O_1'O_2 (k, k), for the separated components
    on_landmarks: float  # the trace of O_1'psi psi'O_2: the landmarks' part of the kernel in the directions of the leak
    hidden: float  # about the largest eigenvalue of what the landmarks miss
    missed: float  # the trace of what the landmarks miss

    def eigenvalue(self, last: float) -> float:
        """Estimated eigenvalue of the directions into which components leak; at most `last`, that of the last column."""
        size = float(np.trace(self.leak))
        return min(max(self.on_landmarks, 0.0) / size + self.hidden, last) if size > 0 else last


def estimate(ritz: Ritz, outside: Outside, k: int, tol: float) -> Accuracy:
    """The accuracy of the k separated components."""
    values = ritz.values
    bound = _bound(values, outside.missed, k)
    if len(values) <= k:  # no eigenvalue beyond the last component
        return Accuracy.of(np.full(k, min(UNKNOWN, bound)), min(UNKNOWN, bound), np.zeros((k, k)), tol, "sketches")
    least = LEAST_GAP * max(values[0], 1e-300)
    gaps = np.maximum(values[:k] - outside.eigenvalue(values[-1]), least)
    leak = (outside.leak + outside.leak.T) / 2 / np.outer(gaps, gaps)
    apart = np.abs(values[:k, None] - values[None, :])
    turned, swapped = ritz.noise[:k, :] / np.maximum(apart, least) ** 2, ritz.swapped()[:k, :]
    to_others = (ritz.believed * turned + swapped)[:, k:].sum(axis=1)
    error = SAFETY * float(np.linalg.eigvalsh(leak + np.diag(to_others))[-1])
    # The mixing of two near-equal components depends on one entry, which may be far above the average in `believed`: all noise counts.
    near = (turned + swapped)[:, : k + 1]
    np.fill_diagonal(near, 0.0)
    errors = SAFETY * (np.maximum(np.diagonal(leak), 0.0) + to_others + near[:, :k].sum(axis=1))
    if outside.hidden >= HIDDEN * values[k - 1]:  # the rest may contain a component that no landmark shows
        error, errors = max(error, UNKNOWN), np.full(k, UNKNOWN)
    return Accuracy.of(errors, min(max(error, 0.0), bound), near, tol, "sketches")


def second_order(ritz: Ritz, outside: Outside, k: int) -> np.ndarray:
    """(k,) factors by which the part outside the span raises the eigenvalues: 1 + |O_i|^2 / (gap_i lam_i), the next term of perturbation theory."""
    values = np.pad(ritz.values, (0, max(0, k - len(ritz.values))))[:k]
    last = outside.eigenvalue(ritz.values[-1]) if len(ritz.values) > k else 0.0
    gap = np.maximum(values - last, LEAST_GAP * max(values[0], 1e-300))
    raised = np.maximum(np.diagonal(outside.leak), 0.0) / (gap * np.where(values > 0, values, 1.0))
    return 1.0 + np.where(values > 0, np.minimum(raised, MOST_RAISED), 0.0)


def _bound(values: np.ndarray, missed: float, k: int) -> float:
    """Upper bound on the error (Davis and Kahan); `missed` is the trace of what the landmarks miss. Components with eigenvalue 0 are exact."""
    if not len(values):
        return 0.0
    last = min(k, len(values))
    following = values[last] if len(values) > last else 0.0
    gap = max(values[last - 1] - following, LEAST_GAP * max(values[0], 1e-300))
    return float((missed / gap) ** 2)


def span_error(a: np.ndarray, b: np.ndarray, cross: np.ndarray) -> float:
    """sin^2 of the largest angle between the spans of A and B, from A'A, B'B and A'B."""
    cosines = np.linalg.svd(whitener(a).T @ cross @ whitener(b), compute_uv=False)
    return float(1.0 - min(cosines[-1], 1.0) ** 2) if len(cosines) == len(a) else UNKNOWN


def doubling(covariance: np.ndarray, half: int, k: int, q: int, missed: float, tol: float) -> Accuracy:
    """For kernels without random features: rotation of the components when the landmarks grow from the first `half` to all.

    `covariance` (m, m) is that of the landmark coordinates, of which the first `half` are those of the first
    landmarks alone. `missed` is the trace of what the landmarks miss; if it is nearly zero, so is the error.
    """
    values, vectors = leading(covariance, q)
    bound = min(_bound(values, missed, k), UNKNOWN)
    if len(values) < k or half < k:
        return Accuracy.of(np.full(k, bound), bound, np.zeros((k, k)), tol, "doubling")
    few, less = leading(covariance[:half, :half], k)
    cross = less.T @ (covariance[:half, :] @ vectors[:, :k])
    size = np.sqrt(np.maximum(few, 1e-300))[:, None] * np.sqrt(np.maximum(values[:k], 1e-300))[None, :]
    cosines = np.linalg.svd(cross / size, compute_uv=False)
    # rows far from all landmarks cause no rotation, so the trace of what is missed counts too
    unseen = (missed / (float(np.trace(covariance)) + missed)) ** 2
    error = min(max(float(1.0 - min(cosines[-1], 1.0) ** 2), unseen), bound)
    each = np.minimum(np.maximum(1.0 - np.minimum((cross / size) ** 2, 1.0).sum(axis=0), unseen), bound)
    return Accuracy.of(np.maximum(each, 0.0), error, np.zeros((k, k)), tol, "doubling")


def leading(covariance: np.ndarray, q: int, like: Array | None = None) -> tuple[np.ndarray, np.ndarray]:
    """The q leading eigenvalues and eigenvectors, largest first; computed on the device of `like`, if that is not the host."""
    m = len(covariance)
    if like is None or aac.is_numpy_array(like):
        from scipy.linalg import eigh

        values, vectors = eigh(covariance, subset_by_index=[max(0, m - q), m - 1])
    else:
        xp = aac.array_namespace(like)
        found = xp.linalg.eigh(xp.asarray(covariance, device=aac.device(like)))
        values, vectors = (to_numpy(x[..., max(0, m - q) :]) for x in found)
    return np.maximum(values[::-1], 0.0), vectors[:, ::-1]
