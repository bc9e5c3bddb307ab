"""The judge for kernels without random features: the judging rows themselves are told to all, so that products with the rest of the kernel are exact.

Only with share_rows=True. Where rows may not leave their nodes, only the trace of what the landmarks miss is known: a bound, far above the error.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from ...accuracy import Accuracy
from ...arrays import like, on_host, to_numpy, transposed
from ...chunks import by_rows
from ...draws import normal, shared_seed
from ...rounds import Arrays, Round, Shapes, Solver
from .judge import Verdict, judge_by
from .judging_rows import GROUPS, JUDGES, POWER, JudgingRows
from .moments import Principal
from .rows import SiteRows
from .shared_rows import Counts, InPlaces, places


@dataclass(frozen=True, eq=False)
class Shared:
    """The judging rows of all nodes: points (R, M), their weights and groups (R,), and which of them are this process's, in its order."""

    judges: JudgingRows
    points: np.ndarray
    weights: np.ndarray
    group: np.ndarray
    mine: np.ndarray

    def beside(self, values: np.ndarray) -> Any:
        """Host numbers in the library and on the device of the rows, in float64."""
        return like(self.judges.rest, values)

    @cached_property
    def psi(self) -> np.ndarray:
        seen = self.judges.seen
        return on_host(seen.marks.coordinates(seen.kernel, like(seen.rows.like, self.points)))

    @cached_property
    def rest(self) -> np.ndarray:
        """(R,) what the landmarks miss of each."""
        seen = self.judges.seen
        size = on_host(seen.kernel.diagonal(like(seen.rows.like, self.points)))
        return np.maximum(size - np.einsum("ij,ij->i", self.psi, self.psi), 0.0)

    @cached_property
    def functions(self) -> np.ndarray:
        """(R, q) values of the principal functions."""
        principal = self.judges.principal
        return (self.psi - principal.mean) @ principal.weights

    @cached_property
    def between(self) -> np.ndarray:
        """(n, R) the rest of the kernel between the judging rows of this process and all."""
        seen, X, psi = self.judges.seen, self.judges.rows.X, self.judges.psi
        points, across = like(X, self.points), transposed(like(X, self.psi))

        def some(rows: slice) -> Any:
            return seen.kernel.gram(X[rows, :], points) - psi[rows, :] @ across

        return on_host(by_rows(some, X.shape[0], 8 * len(self.points), X))


@dataclass(frozen=True, eq=False)
class RestMeans(Round):
    """The mean of the rest over all rows, at each judging row."""

    shared: Shared
    kind = "judge"

    def term(self) -> Arrays:
        return {"mean": on_host(self.shared.judges.weights) @ self.shared.between}

    def bounds(self) -> dict[str, Any]:
        return {"mean": 4.0 * self.shared.judges.options.largest * self.shared.weights.sum()}

    def told(self) -> Shapes:
        return {"mean": (len(self.shared.points),)}

    def conclude(self, total: Arrays) -> Arrays:
        return {"mean": total["mean"] / max(self.shared.weights.sum(), 1e-300)}


@dataclass(frozen=True, eq=False)
class ExactImages:
    """As `judge.Images`, with the rest itself in the place of random features. Its operator is the rest, not a root of it (`squared`)."""

    shared: Shared
    mean: np.ndarray | None  # None: not centred
    squared = True
    pairs = None  # they are summed

    @property
    def judges(self) -> JudgingRows:
        return self.shared.judges

    @cached_property
    def told(self) -> Arrays:
        """What the other rounds need to know, which here all nodes know without a sum."""
        shared, count = self.shared, len(self.shared.points)
        seed = shared_seed(self.judges.options.seed, f"power {self.judges.stage}")
        start, weights = np.linalg.qr(normal((count, POWER), seed))[0], shared.weights
        weight = np.array([weights.sum(), weights @ shared.rest, 0.0])
        scaled = self.judges.shares * shared.weights[:, None] * shared.functions
        return {"image": count**0.5 * scaled[None], "power": start, "weight": weight}

    @cached_property
    def _centred(self) -> np.ndarray:
        between, w = self.shared.between, self.shared.weights
        if self.mean is None:
            return between
        own, whole = between @ w / w.sum(), self.mean @ w / w.sum()
        centred = between - own[:, None]
        centred -= self.mean
        centred += whole
        return centred

    def at(self, rows: slice) -> np.ndarray:
        """(rows, R) the rest between some rows of this process and all judging rows, centred."""
        return self._centred[rows]

    def of(self, mine: np.ndarray, rows: slice, image: np.ndarray, g: Any) -> Any:
        """(GROUPS, rows, c)."""
        shared, own, number = self.shared, self.shared.mine[rows], np.arange(len(mine))
        scaled = image[0] / len(shared.points) ** 0.5
        itself = mine[number, own][:, None] * scaled[own]
        if self.judges.all_judge:
            return shared.beside(np.repeat((mine @ scaled - itself)[None], GROUPS, axis=0))
        found = np.stack([mine[:, shared.group == b] @ scaled[shared.group == b] for b in range(GROUPS)])
        found[shared.group[own], number] -= itself
        return shared.beside(found)

    def powered(self, mine: np.ndarray, rows: slice, basis: np.ndarray) -> Any:
        root = np.sqrt(self.shared.weights)[:, None]
        return self.shared.beside(root[self.shared.mine[rows]] * (mine @ (root * basis)))

    def back(self, mine: np.ndarray, rows: slice, values: Any) -> np.ndarray:
        found = np.zeros((len(self.shared.points), values.shape[1]))
        found[self.shared.mine[rows]] = on_host(values)
        return found


def judge_by_rows(judges: JudgingRows) -> Solver:
    """Judge the principal functions by rows that are told to all; returns `Verdict`."""
    rows = judges.seen.rows
    counts = (yield Counts(rows, lambda: judges.rows, 4 * JUDGES))["count"]

    def given() -> SiteRows:
        beside = np.stack([on_host(judges.weights), to_numpy(judges.group).argmax(axis=1)], axis=1)
        return replace(judges.rows, X=np.concatenate([on_host(judges.rows.X), beside], axis=1))

    bound = max(rows.largest, 2.0 * judges.principal.count, float(GROUPS))
    told = (yield InPlaces(replace(rows, X=rows.like[:0, :], largest=bound), given, counts, rows.columns + 2))["rows"]
    group, mine = np.rint(told[:, -1]).astype(np.int64), places(judges.rows, counts)
    shared = Shared(judges, told[:, :-2], told[:, -2], group, mine)
    mean = (yield RestMeans(shared))["mean"] if judges.options.centered else None
    images = ExactImages(shared, mean)
    return (yield from judge_by(images, lambda: judges.functions, np.diag(judges.principal.values)))


def judge_by_trace(principal: Principal, k: int) -> Verdict:
    """The principal functions themselves, and what the missed trace alone says of their error (Davis and Kahan)."""
    q = len(principal.values)
    k = min(k, q)
    values = np.append(principal.values, 0.0)
    gap = np.maximum(values[:k] - values[1 : k + 1], 1e-12 * values[0])
    above = np.append(np.inf, gap[:-1])
    errors = np.minimum((principal.missed / np.minimum(gap, above)) ** 2, 1.0)
    error = min(float((principal.missed / gap[-1]) ** 2), 1.0)
    return Verdict(principal.values[:k], np.eye(q, k), Accuracy.of(errors, error, error, method="trace"), error)
