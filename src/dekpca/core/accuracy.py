"""How good an answer is, estimated from sums over the nodes: no node has the central answer to compare with.

G (rows, q) are values of functions on rows, psi the rows' landmark coordinates, r1 and r2 two independent sketches of what the landmarks miss:
random features with E r(x)'r(y) = k(x, y) - psi(x)'psi(y) for any two rows, whoever has them. Then Y_h = psi psi'G + r_h r_h'G are two independent
estimates of K G, and

    S = G'(Y_1 + Y_2) / 2            Rayleigh-Ritz in the span of G: eigenvalues, and a rotation that separates components
    O_h = Y_h - G G'Y_h              what leaves the span. The product O_1'O_2 has no noise of its own squared
    t = noise of S / gaps            how far the noise of S turns the first k components towards the others

The error of the span of the first k components is sin^2 of its largest angle to the central one: the largest eigenvalue of O_1'O_2 / gap^2 + t t'.
docs/algorithm.md has more, docs/accuracy.md how good it was. All works on small matrices; the sums are taken elsewhere (judging.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import array_api_compat as aac
import numpy as np

from .spectrum import eps, to_numpy

Array = Any

LEAST_GAP = 1e-12  # relative to the first eigenvalue: components nearer than this count as equal
HIDDEN = 0.6  # the rest may hold a component of its own if its largest eigenvalue, as it is estimated, is so much of the last eigenvalue
SAFETY = 1.3  # estimates are a little low in the median (benchmarks/regimes.py)
ROUNDING = 1e-9  # an error below this is none
SIGNIFICANT = 2.0  # times its variance: an entry whose square is smaller is taken for noise
TOLD_APART = 10.0  # times the tolerance: components that noise turns into each other by more are not told apart
NEAR_EQUAL = 0.05  # relative: components farther apart are not taken for each other
LEAST_SIGNAL = 0.1  # of the noise: a mean over some hundred pairs cannot tell less from nothing
MOST_RAISED = 0.05  # relative; beyond it the next term of perturbation theory says nothing
UNKNOWN = 1.0  # the error of a span of which nothing can be said


@dataclass(frozen=True)
class Accuracy:
    """What is known about an answer of k components without the central one. Numbers only: it goes into files and to other nodes.

    `components` are estimated |correlations| of each component's values with the central ones, `span` the smallest cosine between the spans,
    `error` its sin^2. `alike` says of each component up to which one, counted from 1, eigenvalues are too close to be told apart (itself, if it is
    apart; k + 1 is the first that is not among the components).
    """

    components: tuple[float, ...]
    span: float
    error: float
    alike: tuple[int, ...]
    method: str  # "sketches" or "doubling"

    @classmethod
    def of(cls, errors: np.ndarray, error: float, mixed: np.ndarray, tol: float, method: str) -> Accuracy:
        """From the error (sin^2) of each component within and outside the span, that of the span, and how far components mix with each other."""
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
        """Of an answer that is the central one."""
        return cls((1.0,) * k, 1.0, 0.0, tuple(range(1, k + 1)), "exact")

    def meets(self, tol: float) -> bool:
        """Whether the span is as good as asked for, up to rounding."""
        return self.error <= max(tol, ROUNDING)

    def groups(self) -> list[tuple[int, int]]:
        """First and last component, counted from 1, of each group that is too close to be told apart."""
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
        """At least so much error of each component and of the span."""
        components = np.sqrt(np.clip(1.0 - np.maximum(self.component_errors, errors), 0.0, 1.0))
        whole = min(max(self.error, error), UNKNOWN)
        return replace(self, components=tuple(map(float, components)), span=float(np.sqrt(1.0 - whole)), error=whole)


@dataclass(frozen=True, eq=False)
class Ritz:
    """Rayleigh-Ritz in the span of G with two estimates of the kernel."""

    white: np.ndarray  # (p, q): makes the columns orthonormal; p >= q where some depend on others
    values: np.ndarray
    basis: np.ndarray  # (q, q)
    noise: np.ndarray  # (q, q): about how far each entry of the estimated rest is off, squared
    believed: float  # how much of it is left in the matrix that was decomposed, on average
    spread: np.ndarray  # (q,): the noise of the eigenvalues

    def swapped(self) -> np.ndarray:
        """(q, q): how likely it is that two components have the other one's place: eigenvalues as near as their noise is large."""
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
    """How much to believe the entries off the diagonal of an estimate of the rest: signal / (signal + noise), over all pairs of columns.

    `mean` is the mean of two independent estimates, `off` half of their difference: noise alone. What is left of the noise after shrinking is as much
    of it as is believed.
    """
    missed = np.maximum(np.diagonal(mean), 0.0)
    both, noise = (float(pooled(x, missed).sum()) for x in (mean, off))
    if not 0 < noise < np.inf:  # none, or an iterate that diverged
        return 1.0
    return max(both - noise, LEAST_SIGNAL * noise) / max(both, (1.0 + LEAST_SIGNAL) * noise)


def shrunk(mean: np.ndarray, off: np.ndarray) -> np.ndarray:
    """An estimate of the rest of which what is not on the diagonal is shrunk as far as it may be noise: noise must not turn near-equal components."""
    noise = pooled(off, np.maximum(np.diagonal(mean), 0.0))
    clear = np.clip(1.0 - SIGNIFICANT * noise / np.maximum(mean**2, 1e-300), 0.0, 1.0)
    np.fill_diagonal(clear, 1.0)
    believed = shrinkage(mean, off)
    return clear * (believed * mean + (1.0 - believed) * np.diag(np.diagonal(mean)))


def leveled(rest: np.ndarray, seen: np.ndarray, off: np.ndarray) -> np.ndarray:
    """The rest with the same share of `seen`, what the landmarks see of each column, for neighbors that noise alone may have put in this order.

    Noise on the diagonal must not swap near-equal components, which the landmarks have in the right order more often.
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
    """The mean square of the entries off the diagonal of a part of the rest, as it goes with what the landmarks miss of either column.

    One number says little about its own variance; the factor is a mean over all pairs.
    """
    size = np.outer(missed, missed)
    upper = np.triu_indices(len(missed), 1)
    known = size[upper] > 0
    if not known.any():
        return np.zeros_like(size)
    return size * float(np.mean(off[upper][known] ** 2 / size[upper][known]))


def whitener(squares: np.ndarray) -> np.ndarray:
    """W (p, q) with W' squares W = 1; directions that are rounding are left out."""
    size = np.sqrt(np.maximum(np.diagonal(squares), 0.0))
    unit = np.where(size > 0, 1.0 / np.where(size > 0, size, 1.0), 0.0)
    values, basis = np.linalg.eigh(squares * unit[:, None] * unit[None, :])
    keep = values > len(squares) * 100 * eps(squares) * max(values[-1], 0.0)
    return unit[:, None] * basis[:, keep] / np.sqrt(values[keep])


@dataclass(frozen=True, eq=False)
class Outside:
    """What is known about the kernel outside the span of G."""

    leak: np.ndarray  # O_1'O_2 (k, k), for the separated components
    on_landmarks: float  # the trace of O_1'psi psi'O_2: the landmarks' part of the kernel, where the leak goes
    hidden: float  # about the largest eigenvalue of what the landmarks miss
    missed: float  # the trace of what the landmarks miss

    def eigenvalue(self, last: float) -> float:
        """About that of the directions into which components leak; at most `last`, that of the last column."""
        size = float(np.trace(self.leak))
        return min(max(self.on_landmarks, 0.0) / size + self.hidden, last) if size > 0 else last


def estimate(ritz: Ritz, outside: Outside, k: int, tol: float) -> Accuracy:
    """How good the k separated components are."""
    values = ritz.values
    bound = _bound(values, outside.missed, k)
    if len(values) <= k:  # nothing to tell the last component apart from
        return Accuracy.of(np.full(k, min(UNKNOWN, bound)), min(UNKNOWN, bound), np.zeros((k, k)), tol, "sketches")
    least = LEAST_GAP * max(values[0], 1e-300)
    gaps = np.maximum(values[:k] - outside.eigenvalue(values[-1]), least)
    leak = (outside.leak + outside.leak.T) / 2 / np.outer(gaps, gaps)
    apart = np.abs(values[:k, None] - values[None, :])
    turned, swapped = ritz.noise[:k, :] / np.maximum(apart, least) ** 2, ritz.swapped()[:k, :]
    to_others = (ritz.believed * turned + swapped)[:, k:].sum(axis=1)
    error = SAFETY * float(np.linalg.eigvalsh(leak + np.diag(to_others))[-1])
    # One entry decides how two near-equal components mix. It may be far larger than the others, by which `believed` goes: all noise counts.
    near = (turned + swapped)[:, : k + 1]
    np.fill_diagonal(near, 0.0)
    errors = SAFETY * (np.maximum(np.diagonal(leak), 0.0) + to_others + near[:, :k].sum(axis=1))
    if outside.hidden >= HIDDEN * values[k - 1]:  # a component of its own may lie where no landmark is
        error, errors = max(error, UNKNOWN), np.full(k, UNKNOWN)
    return Accuracy.of(errors, min(max(error, 0.0), bound), near, tol, "sketches")


def second_order(ritz: Ritz, outside: Outside, k: int) -> np.ndarray:
    """(k,) factors by which what leaves the span raises the eigenvalues: 1 + |O_i|^2 / (gap_i lam_i), the next term of perturbation theory."""
    values = np.pad(ritz.values, (0, max(0, k - len(ritz.values))))[:k]
    last = outside.eigenvalue(ritz.values[-1]) if len(ritz.values) > k else 0.0
    gap = np.maximum(values - last, LEAST_GAP * max(values[0], 1e-300))
    raised = np.maximum(np.diagonal(outside.leak), 0.0) / (gap * np.where(values > 0, values, 1.0))
    return 1.0 + np.where(values > 0, np.minimum(raised, MOST_RAISED), 0.0)


def _bound(values: np.ndarray, missed: float, k: int) -> float:
    """The error can be no larger (Davis and Kahan): `missed` is the trace of what the landmarks miss. Components that the data lacks are exact."""
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
    """For kernels without random features: how far the components turn when the landmarks grow from the first `half` to all.

    `covariance` (m, m) is that of the landmark coordinates, of which the first `half` are those of the first landmarks alone. `missed` is the
    trace of what the landmarks miss: where that is next to nothing, nothing can turn.
    """
    values, vectors = leading(covariance, q)
    bound = min(_bound(values, missed, k), UNKNOWN)
    if len(values) < k or half < k:
        return Accuracy.of(np.full(k, bound), bound, np.zeros((k, k)), tol, "doubling")
    few, less = leading(covariance[:half, :half], k)
    cross = less.T @ (covariance[:half, :] @ vectors[:, :k])
    size = np.sqrt(np.maximum(few, 1e-300))[:, None] * np.sqrt(np.maximum(values[:k], 1e-300))[None, :]
    cosines = np.linalg.svd(cross / size, compute_uv=False)
    # rows that no landmark is near do not turn anything: what is missed of the whole counts as well
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
