"""Rows that keep coming, and rows that are to be forgotten.

For given landmarks, kernel and scales everything that a fit needs is a sum over rows, or concerns only the rows that judge:

    moments       sums over all rows: terms of new rows are added, terms of forgotten rows subtracted
    judging rows  a row judges if its own draw is below its chance, which falls while rows are added: rows above it are dropped for good

So the rows that are kept always include those that a fit of all rows would draw, and the answer is that of the fit, up to rounding, however the rows
were cut. Rows are summed in blocks of BLOCK, in the order in which they came, so that not even the rounding depends on the cut. Plain sums are exact
enough: 10,000 rows added to 100,000 one by one and subtracted again leave a relative error of 5e-15 (benchmarks/stream.py).

When rows are forgotten, chances rise again, and rows that were dropped are missing. So rows are kept as if there were FORGETTABLE times fewer. Until
so many are forgotten the answer is that of a fit; beyond, the rows that are left judge with the chances that they were drawn with.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any

import array_api_compat as aac
import numpy as np

from ...answer import Answer
from ...arrays import all_on_host, integers, take, to_numpy, where
from ...kernels import Kernel
from ...landmarks import Landmarks
from ...rounds import Arrays, Solver
from ...scaling import Columns, filled
from ...site import keys_at
from .judge import LAST, may_judge
from .moments import Moments, Seen
from .options import SumsOptions
from .rows import Rows

Array = Any

BLOCK = 4096  # rows that are summed at once: then the products of a block take longer than adding its moments
FORGETTABLE = 3.0  # rows are kept as if there were so many times fewer: half of all rows may be forgotten, and half of what is missed, up to chance
CROWDED = 1.25  # kept rows are drawn again when there are so many times more than after the last time


NONE = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, eq=False)
class Kept(Seen):
    """Rows that may judge, and what the landmarks miss of each, which is known already."""

    left: Array = field(default_factory=lambda: np.zeros(0))
    most: tuple[float, float] = (0.0, 0.0)  # the number of rows and what was missed of them, at the most so far

    @property
    def rest(self) -> Array:
        return self.left

    @property
    def drawn_from(self) -> tuple[float, float]:
        return self.most[0] / FORGETTABLE, self.most[1] / FORGETTABLE

    def at(self, places: Array) -> Kept:
        return replace(self, rows=self.rows.at(places), left=take(self.left, places))


@dataclass(frozen=True, eq=False)
class SummedMoments(Moments):
    """The same round, of sums that were made before."""

    total: Arrays

    def term(self) -> Arrays:
        return self.total


@dataclass(frozen=True, eq=False)
class Summed:
    """The sums over the rows so far, and those of them that may judge, in the order in which they came."""

    total: Arrays
    kept: tuple[Kept, ...]
    most: tuple[float, float]
    crowd: float  # so many kept rows are drawn from again

    def plus(self, seen: Seen, options: SumsOptions, sign: float = 1.0) -> Summed:
        term = all_on_host(_moments(seen, options).term())
        total = {name: value + sign * term[name] for name, value in self.total.items()}
        count, missed = total["count"][0], total["trace"][1]
        most = max(self.most[0], count), max(self.most[1], missed)
        if sign < 0:
            kept = [some.at(_without(some.rows, seen.rows)) for some in self.kept]
            return replace(self, total=total, kept=tuple(kept))
        summed = replace(self, total=total, most=most)
        if options.kernel.has_sketch or options.share_rows:  # else no rows judge
            new = Kept(seen.rows, seen.marks, seen.kernel, left=seen.rest)
            kept = [*self.kept, new.at(where(summed.needed(new, options)))]
            summed = replace(summed, kept=tuple(kept))
        return summed.drawn(options) if sum(len(some.rows) for some in summed.kept) > self.crowd else summed

    def needed(self, kept: Kept, options: SumsOptions) -> Array:
        """(n,) which of the rows may judge."""
        count, missed = (number / FORGETTABLE for number in self.most)
        return may_judge(kept.rows.keys, kept.rest, count, missed, LAST, not options.kernel.has_sketch)

    def drawn(self, options: SumsOptions) -> Summed:
        """Without the rows that cannot judge any more."""
        if not self.kept:
            return self
        kept = [some.at(where(self.needed(some, options))) for some in self.kept]
        left = aac.array_namespace(kept[0].left).concat([x.left for x in kept])
        one = replace(kept[0], rows=_joined([some.rows for some in kept]), left=left)
        return replace(self, kept=(one,), crowd=max(CROWDED * len(one.rows), BLOCK))


class Stream:
    """The rows of a process, which come in parts: sums, rows that may judge, rows that are not summed yet, and a fingerprint of each row.

    `names` are those of all nodes of the network, by number. `options` have the kernel with its gamma; `fill` and `columns` are what is done to rows
    before anything else.
    """

    def __init__(
        self, names: Sequence[str], options: SumsOptions, marks: Landmarks, kinds: tuple[tuple[str, int], ...],
        fill: Array | None = None, columns: Columns | None = None,
    ):  # fmt: skip
        self.names, self.options, self.marks, self.kinds, self.fill, self.columns = (
            names, options, marks, kinds, fill, columns,
        )  # fmt: skip
        nothing = _moments(self._seen(self.rows()), options).term()
        self.summed = Summed(nothing, (), (0.0, 0.0), BLOCK)
        self.waiting: list[Rows] = []
        self.waits = 0  # rows that wait
        # of each node: a fingerprint of each row by its number; 0 if it is forgotten
        self.prints = [array("Q") for _ in names]
        self.gone = np.zeros(len(names), dtype=np.int64)

    @classmethod
    def of(cls, names: Sequence[str], options: Any, answer: Answer) -> Stream:
        """With the landmarks, kernel and scales of a fit of the first rows."""
        assert isinstance(options, SumsOptions)
        assert isinstance(answer.marks, Landmarks)
        options = replace(options, kernel=answer.kernel)
        return cls(names, options, answer.marks, answer.kinds, answer.fill, answer.columns)

    def anew(self, answer: Answer) -> Stream:
        """No rows yet, with the landmarks of a fit that began with those of this stream."""
        assert isinstance(answer.marks, Landmarks)
        (_, first), *more = answer.kinds
        kinds = (*self.kinds, *more) if first == self.marks.size else answer.kinds
        return Stream(self.names, self.options, answer.marks, kinds, self.fill, self.columns)

    @property
    def kernel(self) -> Kernel:
        return self.options.kernel

    @property
    def sizes(self) -> np.ndarray:
        """(nodes,) the number of rows of each node that are in the sums."""
        return np.array([len(prints) for prints in self.prints], dtype=np.int64) - self.gone

    def prepared(self, X: Array) -> Array:
        """Rows without missing values, in the scales and the dtype of the first rows."""
        xp, points = aac.array_namespace(X), self.marks.points
        X = xp.astype(X, points.dtype, copy=False)
        X = X if self.fill is None else filled(X, self.fill)
        return X if self.columns is None else self.columns.standardized(X)

    def fingerprints(self, X: Array) -> np.ndarray:
        """(n,) a code for each row, not 0: rows with the same numbers have the same."""
        host = to_numpy(aac.array_namespace(X).astype(X, self.marks.points.dtype, copy=False))
        host = np.ascontiguousarray(host) + 0.0  # -0.0 is 0.0
        codes = b"".join(blake2b(row, digest_size=8).digest() for row in host)
        return np.maximum(np.frombuffer(codes, dtype=np.uint64), 1)

    # ------------------------------------------------------------------ rows that come
    def add(self, X: Array, node: np.ndarray) -> None:
        """Add rows (n, columns) of these nodes (n,). Rows that do not fill a block wait."""
        found, X = self.fingerprints(X), self.prepared(X)
        xp = aac.array_namespace(X)
        bad = np.flatnonzero(to_numpy(~xp.all(xp.isfinite(X), axis=1)))  # in the sums it would be there for good
        if len(bad):
            remedy = f"give rows that are numbers of {self.marks.points.dtype}, as the first ones"
            raise ValueError(f"row {bad[0]} of X: NaN or infinity as {self.marks.points.dtype}; {remedy}")
        bad = np.flatnonzero(to_numpy(~xp.isfinite(self.kernel.diagonal(X))))
        if len(bad):
            remedy = "scale the data down, lower gamma or degree, or use dtype='float64'"
            raise ValueError(f"row {bad[0]} of X: kernel {self.kernel.label} gives NaN or infinity; {remedy}")
        owns = {j: np.flatnonzero(node == j) for j in np.unique(node).tolist()}
        number = np.empty(len(node), dtype=np.int64)
        for j, own in owns.items():
            number[own] = len(self.prints[j]) + np.arange(len(own))
        rows, first, summed, waiting, waits = self.rows(X, node, number), 0, self.summed, self.waiting, self.waits
        while first < len(rows):
            last = min(len(rows), first + BLOCK - waits)
            waiting = [*waiting, rows.at(np.arange(first, last))]  # a copy: X is the caller's
            waits += last - first
            if waits == BLOCK:
                summed = summed.plus(self._seen(_joined(waiting)), self.options)
                waiting, waits = [], 0
            first = last
        # from here on nothing fails: all rows are in, or none
        self.summed, self.waiting, self.waits = summed, waiting, waits
        for j, own in owns.items():
            self.prints[j].frombytes(found[own].tobytes())

    # ------------------------------------------------------------------ rows that go
    def find(self, X: Array, node: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        """Node and number of each of these rows; of equal rows the first ones. `node` (n,): only rows of these nodes.

        ValueError: a row is not there.
        """
        found = self.fingerprints(X)
        at, number = np.full(len(found), -1), np.full(len(found), -1)
        for j, prints in enumerate(self.prints):
            asked = np.flatnonzero((at < 0) & (node == j if node is not None else True))
            held = np.frombuffer(prints, dtype=np.uint64)
            there = np.flatnonzero(np.isin(held, found[asked]))
            # the first row that asks for a fingerprint gets the first that has it, and so on
            order, places = _ranked(found[asked]), _ranked(held[there])
            _, ours, theirs = np.intersect1d(order, places, assume_unique=True, return_indices=True)
            at[asked[ours]], number[asked[ours]] = j, there[theirs]
            del held  # an array does not grow while it is looked at
        if (at < 0).any():
            row, lacking = int(np.argmax(at < 0)), int((at < 0).sum())
            where = "" if node is None else f" at node {self.names[node[row]]}"
            raise ValueError(
                f"forget: row {row} of X was never added{where}, or is forgotten already ({lacking} of {len(at)} rows); nothing was changed; "
                "give rows exactly as they were added"
            )
        return at, number

    def landmarks_among(self, X: Array) -> int:
        """How many of these rows are landmarks."""
        points = {point.tobytes() for point in np.ascontiguousarray(to_numpy(self.marks.points))}
        return sum(row.tobytes() in points for row in np.ascontiguousarray(to_numpy(self.prepared(X))))

    def forget(self, X: Array, node: np.ndarray, number: np.ndarray) -> None:
        """Take off rows that `find` has found."""
        rows = self.rows(self.prepared(X), node, number)
        waiting = [_joined(self.waiting)] if self.waits else []
        places, summed = np.arange(len(rows)), self.summed
        for some in waiting:
            places = _without(rows, some)
        waiting = [some.at(_without(some, rows)) for some in waiting]
        for first in range(0, len(places), BLOCK):
            summed = summed.plus(self._seen(rows.at(places[first : first + BLOCK])), self.options, -1.0)
        self.summed, self.waiting, self.waits = summed, waiting, sum(map(len, waiting))
        for j, i in zip(node.tolist(), number.tolist(), strict=True):
            self.prints[j][i] = 0
        self.gone += np.bincount(node, minlength=len(self.names))

    # ------------------------------------------------------------------ the answer
    def rounds(self, total: int, judged: Any) -> Solver:
        """The rounds of a fit with these landmarks, from the sums; returns what was found of `Moments`, and the verdict of `judged`.

        `total` is the number of rows of the whole network.
        """
        summed, options = self.summed, self.options
        if self.waits:  # their sums are not kept: then blocks would depend on when an answer was asked for
            summed = summed.plus(self._seen(_joined(self.waiting)), options)
        summed = summed.drawn(options)
        nothing = self._seen(self.rows())
        kept = summed.kept[0] if summed.kept else Kept(nothing.rows, self.marks, self.kernel, left=nothing.rest)
        kept = replace(kept, rows=replace(kept.rows, total=total), most=summed.most)
        moments = SummedMoments(kept, options.centered, options.n_components, options.largest, summed.total)
        principal = moments.found((yield moments))
        known = replace(options, n_components=principal.components)
        return principal, (yield from judged(kept, principal, known, LAST))

    def rows(self, X: Array = None, node: np.ndarray = NONE, number: np.ndarray = NONE) -> Rows:
        """Prepared rows with these numbers at these nodes; by default none."""
        X = self.marks.points[:0, :] if X is None else X
        keys = integers(X, keys_at(self.options.seed, self.names, node, number))
        return Rows(X, keys, integers(X, node), 0, len(self.names))

    def _seen(self, rows: Rows) -> Seen:
        return Seen(rows, self.marks, self.kernel)


def _ranked(codes: np.ndarray) -> np.ndarray:
    """(n,) pairs of a code and how many equal ones come before it, as structured numbers."""
    order = np.argsort(codes, kind="stable")
    code = codes[order]
    found = np.empty(len(codes), dtype=[("code", np.uint64), ("before", np.int64)])
    found["code"][order], found["before"][order] = code, np.arange(len(code)) - np.searchsorted(code, code)
    return found


def _moments(seen: Seen, options: SumsOptions) -> Moments:
    return Moments(seen, options.centered, options.n_components, options.largest)


def _joined(parts: Sequence[Rows]) -> Rows:
    if len(parts) == 1:
        return parts[0]
    concat = aac.array_namespace(parts[0].X).concat
    joined = {name: concat([getattr(rows, name) for rows in parts]) for name in ("X", "keys", "node")}
    return replace(parts[0], **joined)


def _without(rows: Rows, others: Rows) -> np.ndarray:
    """The places of the rows that are not among the others."""
    return np.flatnonzero(~np.isin(to_numpy(rows.keys), to_numpy(others.keys)))
