"""Rows that keep coming, and rows that are to be forgotten.

For given landmarks, kernel and scales everything that a fit needs is a sum over rows, or concerns only the rows that judge:

    moments       sums over all rows: terms of new rows are added, terms of forgotten rows subtracted
    judging rows  a row judges if its own draw is below its chance, which falls while rows are added: rows above it are dropped for good

So the rows that are kept always include those that a fit of all rows would draw, and the answer is that of the fit, up to rounding, however the rows
were cut. Rows are summed in blocks of BLOCK, in the order in which they came, so that not even the rounding depends on the cut. Plain sums are exact
enough: 10,000 rows added to 100,000 one by one and subtracted again leave a relative error of 5e-15 (benchmarks/stream.py).

When rows are forgotten, chances rise again, and rows that were dropped are missing. So rows are kept as if there were FORGETTABLE times fewer. Until
so many are forgotten the answer is that of a fit; beyond, the rows that are left judge with the chances that they were drawn with.

`Basis` is what rows are compared with. What a stream takes from some rows, `Basis.summed`, is a function of these and of their numbers alone, so any
process may compute it; `Summed.plus` adds it to that of the rows before. `Stream` has the rows of one process. Several processes have one each, with
the same basis: in `rounds` their sums are added.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any, NamedTuple

import array_api_compat as aac
import numpy as np

from ...answer import Answer
from ...arrays import all_on_host, integers, take, to_numpy, where
from ...draws import keys_at, numbered
from ...kernels import Kernel
from ...landmarks import Landmarks
from ...rounds import Arrays, BadConclusion, Shapes, Solver
from ...scaling import Scales, prepared
from .judging_rows import LAST, may_judge
from .moments import Moments, Seen
from .options import SumsOptions
from .rows import SiteRows

Array = Any

BLOCK = 4096  # rows that are summed at once: then the products of a block take longer than adding its moments
FORGETTABLE = 3.0  # rows are kept as if there were so many times fewer: half of all rows may be forgotten, and half of what is missed, up to chance
CROWDED = 1.25  # kept rows are drawn again when there are so many times more than after the last time


NONE = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, eq=False)
class Kept(Seen):
    """Rows that may judge, and what the landmarks miss of each, which is known already."""

    left: Array = field(default_factory=lambda: np.zeros(0))
    own: float = 0.0  # how many rows this process had at the most
    missed: float = 0.0  # of all its rows; as `own`, in the place of the properties of `Seen`
    most: tuple[float, float] = (0.0, 0.0)  # the number of rows and what was missed of them, at the most so far
    psi = None

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
    """The same round, of sums that were made before. All are told `most` of the whole network, too: the sum of those of all processes."""

    total: Arrays
    most: tuple[float, float]

    def term(self) -> Arrays:
        return self.total | {"most": np.array(self.most)}

    def bounds(self) -> dict[str, Any]:
        return super().bounds() | {"most": 1.1 * self.seen.rows.total * np.array([1.0, self.largest])}

    def told(self) -> Shapes:
        return dict(super().told()) | {"most": (2,)}

    def conclude(self, total: Arrays) -> Arrays:
        return super().conclude(total) | {"most": total["most"]}

    def check(self, told: Arrays) -> None:
        super().check(told)
        if told["count"][0] != self.seen.rows.total:
            text = f"the root tells of {told['count'][0]:g} rows, where nodes have said {self.seen.rows.total}"
            raise BadConclusion(f"{text}: some node has others than it said; start all anew")
        most, missed = told["most"]
        # else a few rows would judge alone, in groups; chances do not depend on what is missed
        if self.seen.rows.least > 1 and most > self.bounds()["most"][0]:
            text = f"the root tells of {most:g} rows, of which {missed:g} is missed, at the most so far"
            raise BadConclusion(f"{text}, where there are {self.seen.rows.total}; start all anew")


@dataclass(frozen=True, eq=False)
class Summed:
    """The sums over some rows, and those of them that may judge, in the order in which they came.

    `most`: the number of rows and what the landmarks miss of them, at the most so far.
    """

    total: Arrays
    kept: tuple[Kept, ...] = ()
    most: tuple[float, float] = (0.0, 0.0)
    crowd: float = BLOCK  # so many kept rows are drawn from again

    def plus(self, other: Summed, options: SumsOptions) -> Summed:
        """With other rows, which come later."""
        total = added([self.total, other.total])
        most = max(self.most[0], total["count"][0]), max(self.most[1], total["trace"][1])
        summed = replace(self, total=total, most=most)
        summed = replace(summed, kept=(*self.kept, *summed.needed(other.kept, options)))
        return summed.drawn(options) if sum(len(some.rows) for some in summed.kept) > self.crowd else summed

    def minus(self, total: Arrays, keys: np.ndarray) -> Summed:
        """Without the rows with these keys, whose sums are `total`."""
        kept = [some.at(_others(some.rows, keys)) for some in self.kept]
        return replace(self, total={name: x - total[name] for name, x in self.total.items()}, kept=tuple(kept))

    def needed(self, kept: Sequence[Kept], options: SumsOptions) -> list[Kept]:
        """Those of some rows that may judge."""
        (count, missed), as_points = (number / FORGETTABLE for number in self.most), not options.kernel.has_sketch
        found = []
        for some in kept:
            rows = some.rows
            there = may_judge(rows.keys, some.rest, count, missed, LAST, as_points)
            found.append(some.at(where(there)))
        return found

    def drawn(self, options: SumsOptions) -> Summed:
        """Without the rows that cannot judge any more."""
        if not self.kept:
            return self
        kept = self.needed(self.kept, options)
        left = aac.array_namespace(kept[0].left).concat([some.left for some in kept])
        one = replace(kept[0], rows=_joined([some.rows for some in kept]), left=left)
        return replace(self, kept=(one,), crowd=max(CROWDED * len(one.rows), BLOCK))


def added(terms: Sequence[Arrays]) -> Arrays:
    """The sum of terms of a round."""
    return {name: sum((term[name] for term in terms[1:]), start=value) for name, value in terms[0].items()}


@dataclass(frozen=True, eq=False)
class Basis:
    """What is the same for all rows of a stream and at all of its processes.

    `names` are those of all nodes of the network, by number. `options` have the kernel with its gamma; `fill` and `scales` are what is done to rows
    before anything else.
    """

    names: Sequence[str]
    options: SumsOptions
    marks: Landmarks
    fill: Array | None = None
    scales: Scales | None = None

    @classmethod
    def of(cls, names: Sequence[str], options: Any, answer: Answer) -> Basis:
        """The landmarks, kernel and scales of a fit of the first rows."""
        assert isinstance(options, SumsOptions)
        assert isinstance(answer.marks, Landmarks)
        options = replace(options, kernel=answer.kernel, earlier=None)
        return cls(names, options, answer.marks, answer.fill, answer.scales)

    def grown(self, answer: Answer) -> Basis:
        """With the landmarks of a fit that began with these."""
        assert isinstance(answer.marks, Landmarks)
        (_, first), *more = answer.marks.kinds
        kinds = (*self.marks.kinds, *more) if first == self.marks.size else answer.marks.kinds
        return replace(self, marks=replace(answer.marks, kinds=kinds))

    @property
    def kernel(self) -> Kernel:
        return self.options.kernel

    def prepared(self, X: Array) -> Array:
        """Rows without missing values, in the scales and the dtype of the first rows."""
        xp, points = aac.array_namespace(X), self.marks.points
        X = xp.astype(X, points.dtype, copy=False)
        return prepared(X, self.fill, self.scales)

    def fingerprints(self, X: Array) -> np.ndarray:
        """(n,) a code for each row, not 0: rows with the same numbers have the same."""
        host = to_numpy(aac.array_namespace(X).astype(X, self.marks.points.dtype, copy=False))
        host = np.ascontiguousarray(host) + 0.0  # -0.0 is 0.0
        codes = b"".join(blake2b(row, digest_size=8).digest() for row in host)
        return np.maximum(np.frombuffer(codes, dtype=np.uint64), 1)

    def checked(self, X: Array, who: str = "X") -> Array:
        """Rows, prepared, if all can be summed: what is not finite would be in the sums for good."""
        X = self.prepared(X)
        xp, dtype = aac.array_namespace(X), self.marks.points.dtype
        bad = np.flatnonzero(to_numpy(~xp.all(xp.isfinite(X), axis=1)))
        if len(bad):
            remedy = f"give rows that are numbers of {dtype}, as the first ones"
            raise ValueError(f"row {bad[0]} of {who}: NaN or infinity as {dtype}; {remedy}")
        bad = np.flatnonzero(to_numpy(~xp.isfinite(self.kernel.diagonal(X)))) if X.shape[0] else NONE
        if len(bad):
            remedy = "scale the data down, lower gamma or degree, or use dtype='float64'"
            raise ValueError(f"row {bad[0]} of {who}: kernel {self.kernel.label} gives NaN or infinity; {remedy}")
        return X

    def keys(self, node: np.ndarray, number: np.ndarray) -> np.ndarray:
        return keys_at(self.options.seed, self.names, node, number)

    def rows(self, X: Array = None, node: np.ndarray = NONE, number: np.ndarray = NONE) -> SiteRows:
        """Prepared rows, which have these numbers at these nodes; by default none."""
        X, options = self.marks.points[:0, :] if X is None else X, self.options
        return SiteRows(X, integers(X, self.keys(node, number)), integers(X, node), 0, len(self.names), options.least)

    def summed(self, rows: SiteRows) -> Summed:
        """What a stream takes from these rows. All may judge, as far as they know of no others."""
        seen, options = Seen(rows, self.marks, self.kernel), self.options
        total = all_on_host(Moments(seen, options.centered, options.n_components, options.largest).term())
        if not len(rows) or not (options.kernel.has_sketch or options.share_rows):  # no rows judge
            return Summed(total)
        return Summed(total, (self.kept(rows, seen.rest),))

    def kept(self, rows: SiteRows, left: Array = None) -> Kept:
        """Rows that may judge, and what the landmarks miss of each; without `left` there are no rows."""
        return Kept(rows, self.marks, self.kernel, left=rows.equal_weights if left is None else left)

    def landmarks_among(self, X: Array) -> int:
        """How many of these rows are landmarks."""
        points = {point.tobytes() for point in np.ascontiguousarray(to_numpy(self.marks.points))}
        return sum(row.tobytes() in points for row in np.ascontiguousarray(to_numpy(self.prepared(X))))


class Addition(NamedTuple):
    """What becomes of a stream by new rows: its sums, rows that wait, and how many; and a fingerprint and the node of each new row."""

    summed: Summed
    waiting: list[SiteRows]
    waits: int
    prints: np.ndarray
    node: np.ndarray


class Stream:
    """The rows of a process, which come in parts: sums, rows that may judge, rows that are not summed yet, and a fingerprint of each row."""

    def __init__(self, basis: Basis):
        self.basis = basis
        self.summed = basis.summed(basis.rows())
        self.waiting: list[SiteRows] = []
        self.waits = 0  # rows that wait
        # of each node: a fingerprint of each row by its number; 0 if it is forgotten
        self.prints = [array("Q") for _ in basis.names]
        self.gone = np.zeros(len(basis.names), dtype=np.int64)

    def __copy__(self) -> Stream:
        """Rows that are added to the copy are not added here."""
        other = Stream.__new__(Stream)
        other.__dict__.update(self.__dict__, prints=[prints[:] for prints in self.prints], gone=self.gone.copy())
        return other

    @property
    def ever(self) -> np.ndarray:
        """(nodes,) the number of rows of each node that were ever added."""
        return np.array([len(prints) for prints in self.prints], dtype=np.int64)

    @property
    def sizes(self) -> np.ndarray:
        """(nodes,) the number of rows of each node that are in the sums."""
        return self.ever - self.gone

    # ------------------------------------------------------------------ rows that come
    def add(self, X: Array, node: np.ndarray) -> None:
        """Add rows (n, columns) of these nodes (n,)."""
        self.take(self.adding(X, node))

    def adding(self, X: Array, node: np.ndarray) -> Addition:
        """What `take` is to take, of rows (n, columns) of these nodes (n,). Rows that do not fill a block wait."""
        basis = self.basis
        found, X = basis.fingerprints(X), basis.checked(X)
        rows, first = basis.rows(X, node, numbered(node, self.ever)), 0
        summed, waiting, waits = self.summed, self.waiting, self.waits
        while first < len(rows):
            last = min(len(rows), first + BLOCK - waits)
            waiting = [*waiting, rows.at(np.arange(first, last))]  # a copy: X is the caller's
            waits += last - first
            if waits == BLOCK:
                summed = summed.plus(basis.summed(_joined(waiting)), basis.options)
                waiting, waits = [], 0
            first = last
        return Addition(summed, waiting, waits, found, node)

    def take(self, addition: Addition) -> None:
        """All rows are in after this, and none before: nothing here fails."""
        self.summed, self.waiting, self.waits, found, node = addition
        for j in np.unique(node).tolist():
            self.prints[j].frombytes(found[node == j].tobytes())

    # ------------------------------------------------------------------ rows that go
    def find(self, found: np.ndarray, node: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        """Node and number of rows with these fingerprints; of equal rows the first ones. `node` (n,): only rows of these nodes.

        ValueError: a row is not there.
        """
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
            where = "" if node is None else f" at node {self.basis.names[node[row]]}"
            raise ValueError(
                f"forget: row {row} of X was never added{where}, or is forgotten already ({lacking} of {len(at)} rows); nothing was changed; "
                "give rows exactly as they were added"
            )
        return at, number

    def in_sums(self, node: np.ndarray, number: np.ndarray) -> np.ndarray:
        """(n,) which of the rows with these numbers at these nodes are in the sums; the others wait."""
        waiting = [to_numpy(some.keys) for some in self.waiting]
        return ~np.isin(self.basis.keys(node, number), np.concatenate([NONE, *waiting]))

    def forget(self, node: np.ndarray, number: np.ndarray, total: Arrays) -> None:
        """Take off rows that `find` has found; `total` are the sums of those that are `in_sums`."""
        keys = self.basis.keys(node, number)
        waiting = [_joined(self.waiting)] if self.waits else []
        self.waiting = [some.at(_others(some, keys)) for some in waiting]
        self.waits, self.summed = sum(map(len, self.waiting)), self.summed.minus(total, keys)
        for j, i in zip(node.tolist(), number.tolist(), strict=True):
            self.prints[j][i] = 0
        self.gone += np.bincount(node, minlength=len(self.gone))

    # ------------------------------------------------------------------ the answer
    def rounds(self, total: int, judge: Any) -> Solver:
        """The rounds of a fit with these landmarks, from the sums; returns what was found of `Moments`, and the verdict of `judge`.

        `total` is the number of rows of the whole network.
        """
        summed, basis, options = self.summed, self.basis, self.basis.options
        if self.waits:  # their sums are not kept: then blocks would depend on when an answer was asked for
            summed = summed.plus(basis.summed(_joined(self.waiting)), options)
        summed = summed.drawn(options)
        kept = summed.kept[0] if summed.kept else basis.kept(basis.rows())
        kept = replace(kept, rows=replace(kept.rows, total=total))
        about = options.centered, options.n_components, options.largest
        kept = replace(kept, own=summed.most[0], missed=float(summed.total["trace"][1]))
        moments = SummedMoments(kept, *about, summed.total, summed.most)
        told = yield moments
        principal, kept = moments.found(told), replace(kept, most=tuple(told["most"].tolist()))
        known = replace(options, n_components=principal.components)
        return principal, (yield from judge(kept, principal, known, LAST))


def _ranked(codes: np.ndarray) -> np.ndarray:
    """(n,) pairs of a code and how many equal ones come before it, as structured numbers."""
    order = np.argsort(codes, kind="stable")
    code = codes[order]
    found = np.empty(len(codes), dtype=[("code", np.uint64), ("before", np.int64)])
    found["code"][order], found["before"][order] = code, np.arange(len(code)) - np.searchsorted(code, code)
    return found


def _joined(parts: Sequence[SiteRows]) -> SiteRows:
    if len(parts) == 1:
        return parts[0]
    concat = aac.array_namespace(parts[0].X).concat
    joined = {name: concat([getattr(rows, name) for rows in parts]) for name in ("X", "keys", "node")}
    return replace(parts[0], **joined)


def _others(rows: SiteRows, keys: np.ndarray) -> np.ndarray:
    """The places of the rows that have none of these keys."""
    return np.flatnonzero(~np.isin(to_numpy(rows.keys), keys))
