"""How far the components are from those of central kernel PCA: three rounds of sums over some rows.

The landmarks miss the rest of the kernel, rest(x, y) = k(x, y) - psi(x)'psi(y). No node has all pairs of rows, but random features r of the rest,
which all nodes draw alike, have E r(x)'r(y) = rest(x, y), so sums over the nodes give products with the rest. Judging rows A are drawn by what the
landmarks miss of them, with weights w = 1 / chance. They and the features are in GROUPS groups: group b has its own features r_b and rows A_b. G are
functions with values g(x), orthonormal over all rows, that diagonalize psi psi': G'psi psi'G = diag(lam).

    Sketch      T_b = sum over A_b of GROUPS w r_b(x) g(x)'      -> Y_b(x) = r_b(x)'T_b, an estimate of (rest G)(x) at any row x
    Separate    S = pairs of a row and a group that it is not in, plus the exact diagonal -> diag(lam) + S = B diag(values) B' (Rayleigh-Ritz)
    Leak        O_b = (Y_b + rest(x, x) g - g S) B, what leaves the span; products of two different groups contain no squared noise

Where all rows judge, each is in all groups, S is the mean of T_b'T_b, and a row's own term stays in Y_b, where it estimates rest(x, x) g: so no more
than f(x), a row's features of the kernel itself, is needed of each row, since sums of r follow from sums of f and psi.

First-order perturbation theory turns the leak into an angle. The noise of S turns the components: how far is seen by leaving out each group in turn
(jackknife). docs/explanation/algorithm.md has the derivation, docs/explanation/accuracy.md measurements.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import array_api_compat as aac
import numpy as np

from ...accuracy import Accuracy, mixed_groups
from ...arrays import flip_signs, like, squares_of_rows, transposed, upper_triangle
from ...chunks import STRIPES, row_bytes, summed
from ...privacy.fixed_point import FixedPoint
from ...rounds import Arrays, BadConclusion, Round, Shapes, Solver
from .judging_rows import (
    EFFORT,
    FREQUENCIES,
    GROUPS,
    JUDGES,
    MOST_FEATURES,
    POWER,
    JudgingRows,
    again_at,
)
from .moments import Principal, Seen
from .options import SumsOptions

Array = Any
Values = Callable[[], Array]  # of functions on the judging rows of this process, in float64

LEAK = 1.25  # the leak is an estimate too, of which the truth may be a little more
LUCK = 3.84  # the turn is a random angle whose mean square is estimated: the 95 % quantile of chi-square with one degree of freedom
HIDDEN = 0.4  # of the k-th eigenvalue: a rest with a larger one may hide a component. Few power steps see about 0.7 of it, noise makes it larger
TWICE = 2.0  # the missed trace of the judging rows may differ from that of all rows by this factor
NEGLIGIBLE = 1e-6  # of the trace: what is missed cannot hide a component
LONGEST = 64.0  # a row's features of one group, at most: on average they are not longer than 1, but the landmarks may extrapolate
ROOM = 4.0  # times the number of rows: the weights of the judging rows add up to less


@dataclass(frozen=True, eq=False)
class Sketch(Round):
    """The products of features and functions, by group; and a start for the largest eigenvalue of the rest."""

    judges: JudgingRows
    g: Values
    q: int
    kind = "judge"

    def term(self) -> Arrays:
        judges, w, features = self.judges, self.judges.weights, self.judges.random_features[0]
        xp, scaled = aac.array_namespace(w), judges.shares * w[:, None] * self.g()
        # of all rows: the mean, and random signs as a start; of the rows of a group: the functions
        beside = xp.concat([w[:, None], xp.sqrt(w)[:, None] * judges.signs], axis=1)
        left = xp.concat([beside, scaled], axis=1) if judges.all_judge else beside
        shape = GROUPS, features.shape[1] // GROUPS

        def part(rows: slice) -> tuple[Array, ...]:
            found, *along = judges.back(features[rows, :], rows, left[rows, :])
            if not judges.all_judge:
                mine, own = xp.reshape(features[rows, :], (-1, *shape)), transposed(judges.members[rows, :])
                grouped = xp.permute_dims(mine, (1, 2, 0)) @ xp.astype(own[:, :, None] * scaled[rows, :], mine.dtype)
                grouped = xp.reshape(xp.astype(grouped, xp.float64, copy=False), (features.shape[1], -1))
                found = xp.concat([found, grouped], axis=1)
            ones = transposed(judges.members[rows, :]) @ scaled[rows, :]
            return ones, found, *along

        ones, *sums = summed(part, w.shape[0], features, bytes_a_row=row_bytes(features))
        found = xp.reshape(judges.of_rest(*sums), (*shape, -1))
        mean, power, image = found[..., 0], found[..., 1 : 1 + POWER], found[..., 1 + POWER :]
        weight = xp.stack([xp.sum(w), xp.vecdot(w, judges.rest), 0.0 * xp.sum(w) + judges.present])
        return {"image": image, "ones": ones, "mean": mean, "weight": weight, "power": power}

    def bounds(self) -> dict[str, Any]:
        total, size = ROOM * self.judges.principal.count, self.judges.options.largest
        long = LONGEST * size * total
        weight = np.array([1.0, size, size]) * total
        return {"image": GROUPS * long, "ones": GROUPS * total, "mean": long, "weight": weight, "power": long}

    def told(self) -> Shapes:
        many, power = 2 * self.judges.frequencies, (2 * GROUPS * self.judges.frequencies, POWER)
        return {"image": (GROUPS, many, self.q), "mean": (GROUPS, many), "weight": (3,), "power": power}

    def check(self, told: Arrays) -> None:
        """Refuse a mean that is longer than any row's features, if k(x, x) has a bound: beside it they would be rounded, to steps."""
        super().check(told)
        kernel = self.judges.seen.kernel
        bounded = kernel.is_normal or kernel.normalize
        if bounded and (np.linalg.norm(told["mean"], axis=1) ** 2 > LONGEST).any():
            raise BadConclusion(
                "the root tells a mean of features that is longer than those of any row; start all anew"
            )

    def conclude(self, total: Arrays) -> Arrays:
        mean, weight = total["mean"], max(total["weight"][0], 1e-300)
        mean = mean / weight if self.judges.options.centered else np.zeros_like(mean)
        image = total["image"] - mean[:, :, None] * total["ones"][:, None, :]
        power = np.linalg.qr(total["power"].reshape(-1, POWER))[0]
        return {"image": image, "mean": mean, "weight": total["weight"], "power": power}


@dataclass(frozen=True, eq=False)
class Images:
    """What follows from the sketch at the judging rows of this process."""

    judges: JudgingRows
    told: Arrays
    g: Values
    squared = False  # the Gram matrix of `powered` has the eigenvalues of the rest, not their squares

    @cached_property
    def _centred(self) -> Array:
        features = self.judges.random_features[0]
        features -= like(features, self.told["mean"].ravel())  # in place: nobody needs the others any more
        return features

    def at(self, rows: slice) -> Array:
        """(rows, GROUPS * features) the centred features of some rows."""
        return self._centred[rows, :]

    def of(self, mine: Array, rows: slice, image: np.ndarray, g: Array) -> Array:
        """(GROUPS, rows, c) the images under the rest, by each group, of functions with these values g (n, c) and this sketch; where not everyone
        judges, without the term of the row itself. `mine` are the features `at` the rows."""
        judges, xp = self.judges, aac.array_namespace(g)
        found = xp.astype(judges.times(mine, rows, image), xp.float64, copy=False)
        if not judges.all_judge:
            squares = squares_of_rows(xp.reshape(mine, (-1, mine.shape[1] // GROUPS)))
            squares = xp.reshape(xp.astype(squares, xp.float64, copy=False), (-1, GROUPS))
            own = GROUPS * judges.weights[rows, None] * judges.members[rows, :] * squares
            found -= transposed(own)[:, :, None] * g[rows, :]
        return found

    @cached_property
    def pairs(self) -> np.ndarray | None:
        """(GROUPS, q, q) the functions' products with their images, by each group: where everyone judges they follow from the sketch."""
        image = self.told["image"]
        return transposed(image) @ image if self.judges.all_judge else None

    def _root(self, rows: slice) -> Array:
        return aac.array_namespace(self.judges.weights).sqrt(self.judges.weights[rows] / GROUPS)[:, None]

    def powered(self, mine: Array, rows: slice, basis: np.ndarray) -> Array:
        """(rows, POWER) the weighted features of all groups times a basis; its Gram matrix over all rows has the eigenvalues of the rest."""
        root = self._root(rows)
        return root * like(root, self.judges.times(mine, rows, basis[None])[0, ...])

    def back(self, mine: Array, rows: slice, values: Array) -> Array:
        """The transpose of `powered`: (GROUPS * features, POWER)."""
        return self.judges.of_rest(*self.judges.back(mine, rows, self._root(rows) * values))


@dataclass(frozen=True, eq=False)
class Separate(Round):
    """Rayleigh-Ritz in the span of the functions, with all groups and without each in turn."""

    images: Any  # Images, or ExactImages (judge_by_rows.py)
    g: Values
    within: np.ndarray  # (q, q)
    k: int
    kind = "judge"

    def term(self) -> Arrays:
        images, judges, g = self.images, self.images.judges, self.g()
        xp, w, told = aac.array_namespace(g), judges.weights, images.told
        weighted, alone = w[:, None] * g, judges.rest[:, None] * g
        chance = xp.zeros_like(judges.members)
        if not judges.all_judge:
            own = judges.group & (w > 1.0)[:, None]
            own = own & (xp.sum(xp.astype(own, xp.int64), axis=0) >= judges.seen.rows.least)
            chance = xp.astype(own, xp.float64) * xp.sqrt(xp.clip(1.0 - 1.0 / w, min=0.0))[:, None]

        images.at(slice(0, 0))  # what it keeps is made once, before there are threads

        def part(rows: slice) -> tuple[Array, ...]:
            mine = images.at(rows)
            power = images.back(mine, rows, images.powered(mine, rows, told["power"]))
            if images.pairs is not None:
                return (power,)
            left = transposed(weighted[rows, :])
            diagonal, across = (left @ alone[rows, :])[None, ...], images.of(mine, rows, told["image"], g)
            drawn = xp.zeros((GROUPS, *diagonal.shape[1:]), dtype=xp.float64, device=aac.device(g))
            if not judges.all_judge:
                drawn = left @ (transposed(chance[rows, :])[:, :, None] * alone[rows, :])
                others = xp.sum(across, axis=0, keepdims=True) - across
                across = xp.where(transposed(judges.group[rows, :])[:, :, None], others, across)
            return power, xp.concat([diagonal, drawn]), left @ across

        images_of_row = GROUPS * row_bytes(g) // 2 if images.pairs is None else 0  # bytes
        power, *products = summed(part, g.shape[0], g, bytes_a_row=images_of_row)
        triangles = (upper_triangle((product + transposed(product)) / 2) for product in products)
        return {"power": power} | dict(zip(("diagonal", "pairs"), triangles, strict=False))

    def bounds(self) -> dict[str, Any]:
        total, size = ROOM * self.images.judges.principal.count, self.images.judges.options.largest
        power = {"power": LONGEST**2 * size * total}
        if self.images.pairs is not None:
            return power
        image = np.linalg.norm(self.images.told["image"], axis=1).sum(axis=0).max()
        image = max(image, 1.0)  # a row's own term is taken off, which is rounding where the landmarks miss nothing
        return power | {"diagonal": size * total, "pairs": LONGEST * size * total * image}

    def told(self) -> Shapes:
        q, k = len(self.within), self.k
        turns = {"turned": (k, k), "alone": (k,), "towards": (k, k + 1)}
        return {"values": (q,), "basis": (q, k), "image": (q, k), "power": self.images.told["power"].shape} | turns

    def conclude(self, total: Arrays) -> Arrays:
        q, k, G, everyone, pairs = len(self.within), self.k, GROUPS, self.images.judges.all_judge, self.images.pairs
        whole = drawn = np.zeros((q, q))
        if pairs is None:
            diagonal, pairs = (_symmetric(total[name], q) for name in ("diagonal", "pairs"))
            whole, drawn = diagonal[0], diagonal[1:]
            drawn = drawn - drawn.mean(axis=0)  # a row that judges for certain adds no noise
        both = pairs.sum(axis=0) / (1 if everyone else 2)  # a pair of groups is in the sums of both
        S = whole + both / (G if everyone else G - 1)
        values, B = _leading(self.within + S)
        others = (both - pairs) * (1 if everyone else G / (G - 2)) / (G - 1)
        other = _leading(self.within + whole - G / (G - 1) * drawn + others)[1][..., :k]  # without each group in turn
        out, beyond = B[:, k:].T @ other, B[:, : k + 1] if q > k else np.pad(B, ((0, 0), (0, 1)))
        cosines, scale = (beyond.T @ other) ** 2, (G - 1) / G
        turned, towards = scale * (transposed(out) @ out).sum(axis=0), scale * cosines.sum(axis=0).T
        alone = scale * np.maximum(0.0, 1.0 - np.diagonal(cosines, axis1=1, axis2=2)).sum(axis=0)
        found = {"values": values, "basis": B[:, :k], "image": S @ B[:, :k], "power": np.linalg.qr(total["power"])[0]}
        return found | {"turned": turned, "alone": alone, "towards": towards}


@dataclass(frozen=True, eq=False)
class Leak(Round):
    """What leaves the span of the functions; the root concludes how large the error is."""

    images: Any  # Images, or ExactImages (judge_by_rows.py)
    g: Values
    outside: Values | None
    separated: Arrays
    whole: bool
    kind = "judge"

    def term(self) -> Arrays:
        images, told, w = self.images, self.separated, self.images.judges.weights[:, None]
        xp, basis = aac.array_namespace(w), like(w, told["basis"])
        g, image = self.g() @ basis, images.told["image"] @ told["basis"]
        stays = -self.g() @ like(g, told["image"])
        if images.pairs is None:  # the images are without a row's own term
            stays = stays + images.judges.rest[:, None] * g
        if self.outside is not None:
            stays = stays + self.outside() @ basis

        images.at(slice(0, 0))  # as in `Separate`

        def part(rows: slice) -> tuple[Array, ...]:
            mine = images.at(rows)
            out = images.of(mine, rows, image, g) + stays[rows, :]
            both, powered = xp.sum(out, axis=0), images.powered(mine, rows, told["power"])
            squares = xp.sum(transposed(w[rows, :] * out) @ out, axis=0)
            return transposed(w[rows, :] * both) @ both - squares, transposed(powered) @ powered

        leak, power = summed(part, g.shape[0], g)
        return {"leak": leak / (GROUPS * (GROUPS - 1)), "power": power}

    def bounds(self) -> dict[str, Any] | None:
        """None for the judge by rows, or for another solver. Else not by the sizes of terms: a root that lies would choose what leaves the span, and
        bisect the size of the term of each node."""
        images, told, judges = self.images, self.separated, self.images.judges
        if images.squared or self.outside is not None:
            return None
        total, size = ROOM * judges.principal.count, judges.options.largest
        long, image = LONGEST * size, np.linalg.norm(images.told["image"] @ told["basis"], axis=1).max()
        # functions have unit length over all rows; where not everyone judges, a row's own term stands for others
        own = size if judges.all_judge else GROUPS * long * max(1.0, total / JUDGES)
        leak = 4.0 * (long * total * image**2 + ROOM * (own**2 + np.linalg.norm(told["image"], axis=0).max() ** 2))
        return {"leak": leak, "power": long * total}

    def _rounded(self) -> float:
        """How much of the leak the fixed point of sums under masks may hide, at most: where eigenvalues are tiny it is not little."""
        judges, bounds = self.images.judges, self.bounds()
        if not judges.options.sealed or bounds is None or not np.isfinite(bounds["leak"]):
            return 0.0
        unit = 2.0 ** -float(FixedPoint(bounds["leak"]).bits)
        return self.separated["basis"].shape[1] * judges.seen.rows.nodes * unit

    def told(self) -> Shapes:
        k = self.separated["basis"].shape[1]
        return {"errors": (k,), "error": (3,), "group": (k,)}

    def conclude(self, total: Arrays) -> Arrays:
        told, principal = self.separated, self.images.judges.principal
        values, k = told["values"], told["basis"].shape[1]
        size = max(float(np.linalg.eigvalsh(total["power"])[-1]), 0.0)
        size = size**0.5 if self.images.squared else size
        _, judges, present = map(float, self.images.told["weight"])
        absent = self.images.judges.absent(present)
        # at most, of the rest of rows that do not judge, and between them and others
        beyond = absent + 2.0 * (size * absent) ** 0.5
        size += beyond
        following = min(values[-1], size) if self.whole or len(values) == k else values[-1]
        hidden = size >= HIDDEN * values[k - 1]  # a component may hide in the rest
        gap = np.maximum(values[:k] - (max(following, size) if hidden else following), 1e-12 * max(values[0], 1e-300))
        leak = _positive((total["leak"] + total["leak"].T) / 2) + self._rounded() * np.eye(k)
        leak = leak / np.outer(gap, gap)
        chances = ((1.0, 1.0), (LEAK, LUCK), (LEAK, LUCK / self.images.judges.gain))
        parts = [low * leak + luck * told["turned"] for low, luck in chances]
        error, bound, within_reach = (float(np.linalg.eigvalsh(part)[-1]) for part in parts)
        turned, group = told["alone"].copy(), np.zeros(k)
        for number, members in enumerate(mixed_groups(told["towards"][:, :k]), start=1):
            # noise pushes near-equal eigenvalues apart, so that their turn is understated: any rotation within the group is possible
            inside = told["towards"][np.ix_(members, members)].sum(axis=1)
            turned[members] = np.maximum(1 - 1 / len(members), GROUPS - 1 - inside)
            group[members] = number
        apart = np.abs(values[:k, None] - values) + np.where(np.eye(k, len(values)) > 0, np.inf, 0.0)
        errors = np.diagonal(leak) + turned + turned_by(beyond, np.minimum(gap, apart.min(axis=1)))
        # from the span to what is outside
        last = min(gap[-1], values[k - 1] - values[k]) if len(values) > k else gap[-1]
        unseen = float(turned_by(beyond, last))
        error, bound, within_reach = error + unseen, bound + unseen, within_reach + unseen
        missed = principal.missed
        stand_for_all = 1 / TWICE < (judges + absent) / max(missed, 1e-300) < TWICE
        if missed > NEGLIGIBLE * principal.trace and (hidden or not stand_for_all):
            bound = within_reach = 1.0
            if size >= values[k - 1] or not stand_for_all:  # nothing is known
                errors, error = np.ones(k), 1.0
        return {"errors": errors, "error": np.array([error, bound, within_reach]), "group": group}


@dataclass(frozen=True, eq=False)
class Verdict:
    """Eigenvalues (k,), the map (q, k) from functions to components of unit length, and their accuracy.

    `within_reach` is the bound on the error that may be expected after EFFORT times the work of judging.
    """

    values: np.ndarray
    basis: np.ndarray
    accuracy: Accuracy
    within_reach: float


def turned_by(size: float, gap: Any) -> Any:
    """sin^2 of the angle, at most, by which an unknown part of the kernel of this size turns components from others so far away (Davis and Kahan)."""
    return np.minimum(size / np.maximum(gap - size, 1e-12 * size + 1e-300), 1.0) ** 2


def largest_sum(q: int) -> int:
    """The most numbers of a term or conclusion of a judgement of q functions."""
    return MOST_FEATURES * (q + 2 + POWER) + 20 * q * q + 64 * q + 64


def judging_bytes(rows: int, columns: int, m: int, k: int, q: int, as_points: bool, item: int) -> int:
    """The most that judging k components among q functions takes at a process with so many rows of `item` bytes a number, with all efforts."""
    images = 8 * (GROUPS * q + 6 * q + 3 * GROUPS * k)  # images, and what is made of them, for each judging row
    if as_points:
        judges = min(rows, 2 * JUDGES)
        return judges * (2 * 8 * columns + item * 3 * m + 8 * 3 * judges + images)
    most = 0
    for count in {min(rows, size) for size in (2 * JUDGES, 4 * JUDGES, 2 * JUDGES * EFFORT)} | {rows}:  # of a stage
        judges = count if count <= 2 * JUDGES * EFFORT else JUDGES * EFFORT
        more = EFFORT * min(1.0, 2 * JUDGES / max(count, 1)) if count <= 4 * JUDGES else 1.0
        features = int(GROUPS * 2 * FREQUENCIES * more)
        sketches = 8 * features * (2 * m + (STRIPES + 2) * (q + 1 + POWER))
        most = max(most, judges * (item * (columns + 2 * m + features) + images) + sketches)
    return most


def judge(seen: Seen, principal: Principal, options: SumsOptions, stage: str, effort: int = 1) -> Solver:
    """Components in the span of the principal functions, and their accuracy; returns `Verdict`. There are at most q components."""

    def at(effort: int) -> Solver:  # a generator of its own: what it keeps goes when it ends
        rows = JudgingRows(seen, principal, options, stage if effort == 1 else again_at(stage), effort)
        return judge_functions(rows, lambda: rows.functions, np.diag(principal.values))

    verdict = yield from at(effort)
    if effort == 1 and verdict.accuracy.bound > options.tol >= verdict.within_reach:
        verdict = yield from at(EFFORT)
    return verdict


def judge_functions(judges: JudgingRows, g: Values, within: np.ndarray, outside: Values | None = None) -> Solver:
    """Judge functions that are orthonormal over all rows, by random features; returns `Verdict`.

    `g` gives their values G (n, q) on the judging rows, `within` (q, q) is G'psi psi'G over all rows, and `outside` gives the values (n, q) of
    psi psi'G - G within. Without it they are zero, as for principal functions.
    """
    told = yield Sketch(judges, g, len(within))
    return (yield from judge_by(Images(judges, told, g), g, within, outside))


def judge_by(images: Any, g: Values, within: np.ndarray, outside: Values | None = None) -> Solver:
    """The last two rounds of a judgement: components in the span of the functions, and what leaves it; returns `Verdict`."""
    k = min(int(images.judges.options.n_components), len(within))
    separated = yield Separate(images, g, within, k)
    told = yield Leak(images, g, outside, separated, images.judges.principal.whole)
    groups = range(1, int(told["group"].max(initial=0)) + 1)
    mixed = [np.flatnonzero(told["group"] == number).tolist() for number in groups]
    error, bound, within_reach = map(float, told["error"])
    about = Accuracy.of(told["errors"], error, bound, mixed)
    return Verdict(np.maximum(separated["values"][:k], 0.0), separated["basis"], about, within_reach)


def _leading(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    values, vectors = np.linalg.eigh(matrix)
    return values[..., ::-1], flip_signs(vectors[..., ::-1])


def _positive(matrix: np.ndarray) -> np.ndarray:
    """Without the negative eigenvalues, which are noise."""
    values, vectors = np.linalg.eigh(matrix)
    return (vectors * np.maximum(values, 0.0)) @ vectors.T


def _symmetric(triangles: np.ndarray, q: int) -> np.ndarray:
    """Symmetric matrices (., q, q) from their upper triangles."""
    found = np.zeros((len(triangles), q, q))
    rows, columns = np.triu_indices(q)
    found[:, rows, columns] = found[:, columns, rows] = triangles
    return found
