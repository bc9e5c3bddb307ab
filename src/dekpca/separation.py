"""The root's part in the estimate of the error (judging.py): from the `sketch` sums to eigenvalues and separated components.

All of it is linear algebra on small matrices on the host, but for `Leaving`, which nodes evaluate at their rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import array_api_compat as aac
import numpy as np

from .core import accuracy

Array = Any

SIGNS = 4  # random vectors that detect components in what the landmarks miss


@dataclass(frozen=True)
class Whole:
    """Sums over all rows, centred if the problem is: G'G (p, p) and, at the root of the tree, psi'G (m, p)."""

    squares: np.ndarray
    marks: np.ndarray


@dataclass(frozen=True)
class Rows:
    """Numbers of rows: all, judging rows, and those of each sketch."""

    all: float
    judged: float
    sketched: list[float]


@dataclass(frozen=True)
class Sums:
    """Sums over the judging rows of products of features, psi and functions G (p) with sides: G on the rows of a
    sketch, and random signs on all rows.

    There is one set of sides for both sketches, or one for each (H = 1 or 2).
    """

    features: np.ndarray  # (2, 2 F, p + SIGNS)
    marks: np.ndarray  # (H, m, p + SIGNS)
    diagonal: np.ndarray  # (H, p, p): of G'G weighted with what the landmarks miss of each row
    side_sum: np.ndarray  # (H, p + SIGNS)
    squares: np.ndarray  # (p, p)
    feature_sum: np.ndarray  # (2, 2 F)
    mark_sum: np.ndarray  # (m,)
    value_sum: np.ndarray  # (p,)


@dataclass(frozen=True, eq=False)
class Leaving:
    """A function of rows: features, psi and G times matrices, minus an offset."""

    features: Array
    marks: Array
    columns: Array | None
    offset: Array

    def __call__(self, features: Array, psi: Array, G: Array) -> Array:
        found = product(features, self.features) + psi @ self.marks - self.offset
        return found if self.columns is None else found - G @ self.columns


@dataclass(frozen=True)
class Shapes:
    """Sizes of the root's message: features of one sketch, landmarks, functions, components."""

    features: int
    marks: int
    columns: int
    components: int

    @property
    def told(self) -> int:
        k, s, p = self.components, SIGNS, self.columns
        return k + p * k + 2 * ((self.features + self.marks + p + 1) * k + (self.features + self.marks + 1) * s)

    def unpack(self, told: Array) -> tuple[Array, Array, list[Leaving], list[Leaving]]:
        """Eigenvalues (k,), components (p, k), and for either sketch the part outside the span and the image of random signs under the rest."""
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
    """Rayleigh-Ritz including what the landmarks miss, and the matrices that nodes need to estimate its error."""

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
        rows: Rows,
        shape: Shapes,
        centered: bool,
        whole: Whole | None,
    ) -> Separated:
        """`exact` and `whole` as `judge_values` has them."""
        p, k = shape.columns, shape.components
        scale, weight = rows.all / rows.judged, 1.0 / rows.judged if centered else 0.0
        feature_mean, mark_mean, value_mean = (weight * x for x in (sums.feature_sum, sums.mark_sum, sums.value_sum))
        sketched, rest_mean, images = [], [], []
        for h, count in enumerate(rows.sketched):
            i, stands_for = min(h, len(sums.marks) - 1), rows.all / count
            marks = sums.marks[i] - np.outer(mark_mean, sums.side_sum[i])
            features = sums.features[h] - np.outer(feature_mean[h], sums.side_sum[i])
            t = features - on_marks[h].T @ marks
            sketched.append(t)
            rest_mean.append(feature_mean[h] - on_marks[h].T @ mark_mean)
            # pairs of a row with itself grow with the number of rows, not with its square
            own = stands_for * (1.0 - stands_for) * sums.diagonal[i]
            images.append(stands_for**2 * (t[:, :p].T @ t[:, :p]) + own)
        if exact is not None:
            ritz = accuracy.rayleigh_ritz(np.eye(p), np.diag(exact), images)
        else:
            if whole is None:
                squares = sums.squares - np.outer(value_mean, sums.value_sum)
                marks = sums.marks[..., :p].sum(axis=0) - np.outer(mark_mean, sums.value_sum)
                whole = Whole(scale * squares, scale * marks)
            ritz = accuracy.rayleigh_ritz(whole.squares, whole.marks.T @ whole.marks, images)
        first = ritz.turn[:, :k]
        if first.shape[1] < k:
            first = np.pad(first, ((0, 0), (0, k - first.shape[1])))
        eigenvalues = np.zeros(k)
        eigenvalues[: min(k, len(ritz.values))] = ritz.values[:k]
        largest = np.abs(first).argmax(axis=0)
        first = first * np.where(first[largest, np.arange(k)] < 0, -1.0, 1.0)
        leaving, hidden = [], []
        for h, count in enumerate(rows.sketched):
            t, signs = rows.all / count * sketched[h][:, :p] @ first, sketched[h][:, p:]
            if exact is None:
                assert whole is not None
                back = ritz.white @ ritz.white.T @ (whole.marks.T @ whole.marks + images[h]) @ first
                shared = whole.marks @ first
            else:  # the landmarks' part of K G lies in the span of G
                back, shared = images[h] @ first, np.zeros((shape.marks, k))
            offset = rest_mean[h] @ t + mark_mean @ shared - value_mean @ back
            leaving.append(Leaving(t, shared - on_marks[h] @ t, back, offset))
            hidden.append(Leaving(signs, -on_marks[h] @ signs, None, rest_mean[h] @ signs))
        return cls(ritz, scale, on_marks[0], rest_mean[0], eigenvalues, first * np.sqrt(eigenvalues), leaving, hidden)

    def hidden_size(
        self, squares: np.ndarray, features: np.ndarray, marks: np.ndarray, ones: np.ndarray, trace: float
    ) -> float:
        """About the largest eigenvalue of the rest R, from v_h = R_h s for random signs s: the sum of v_2'R_1 v_2 over that of v_1'v_2.

        The noise of v_2 adds about the trace of R over the number of frequencies, which is subtracted.
        """
        image = features - self.on_marks.T @ marks - np.outer(self.rest_mean, ones)
        size = squares.sum()
        noise = 2.0 * trace / len(features)
        return float(self.scale * max((image**2).sum() / size - noise, 0.0)) if size > 0 else 0.0

    def pack(self) -> np.ndarray:
        """As one vector, for `Shapes.unpack`."""
        pieces: list[Array] = [self.eigenvalues, self.turn]
        for side in self.leaving:
            pieces += [side.features, side.marks, side.columns, side.offset]
        for side in self.hidden:
            pieces += [side.features, side.marks, side.offset]
        return np.concatenate([np.asarray(piece).ravel() for piece in pieces])


def product(features: Array, x: Array) -> Array:
    """Their product, computed in the dtype of the features, in that of x."""
    xp = aac.array_namespace(x)
    return xp.astype(features @ xp.astype(x, features.dtype, copy=False), x.dtype, copy=False)
