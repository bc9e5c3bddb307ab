"""Rows that leave their nodes, as a sum: each node puts its rows into places of their own, and zeros elsewhere. Only with share_rows=True."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...arrays import on_host, to_numpy, where
from ...kernels import Kernel
from ...landmarks import Landmarks
from ...rounds import Arrays, BadConclusion, Round, Shapes, Solver
from .clusters import Weights, check_count, independent
from .options import SumsOptions
from .rows import SiteRows

ROUNDED = 1e-13  # relative: sums under masks are in fixed point
Given = Callable[[], SiteRows]  # the rows that nodes of this process give


@dataclass(frozen=True, eq=False)
class Counts(Round):
    """How many rows each node gives."""

    rows: SiteRows
    given: Given
    most: int
    kind = "landmarks"

    def term(self) -> Arrays:
        return {"count": np.bincount(to_numpy(self.given().node), minlength=self.rows.nodes).astype(np.float64)}

    def bounds(self) -> dict[str, Any]:
        return {"count": self.rows.total}

    def implausible(self, total: Arrays, rows: int) -> str | None:
        return super().implausible(total, self.most)  # landmarks of an earlier run may be more than rows

    def told(self) -> Shapes:
        return {"count": (self.rows.nodes,)}

    def conclude(self, total: Arrays) -> Arrays:
        return {"count": np.rint(total["count"])}

    def check(self, told: Arrays) -> None:
        count = told["count"]
        if not ((count >= 0) & (count == np.rint(count))).all() or count.sum() > self.most:
            raise BadConclusion(f"nodes give {count.sum():g} rows, where {self.most} are allowed; start all nodes anew")


def places(given: SiteRows, counts: np.ndarray) -> np.ndarray:
    """Where the rows of this process are among those that all nodes give: node by node, in the order that they have here."""
    node = to_numpy(given.node)
    order = np.argsort(node, kind="stable")
    node, starts = node[order], (np.cumsum(counts) - counts).astype(np.int64)
    found = np.empty(len(node), dtype=np.int64)
    found[order] = starts[node] + np.arange(len(node)) - np.searchsorted(node, node)
    return found


@dataclass(frozen=True, eq=False)
class InPlaces(Round):
    """The rows that nodes give, one after the other by number of the node."""

    rows: SiteRows
    given: Given
    counts: np.ndarray
    width: int
    kind = "landmarks"

    def term(self) -> Arrays:
        found, given = np.zeros((int(self.counts.sum()), self.width)), self.given()
        found[places(given, self.counts)] = on_host(given.X)
        return {"rows": found}

    def bounds(self) -> dict[str, Any]:
        return {"rows": self.rows.largest}

    def told(self) -> Shapes:
        return {"rows": (int(self.counts.sum()), self.width)}

    def conclude(self, total: Arrays) -> Arrays:
        return total


@dataclass(frozen=True, eq=False)
class RowLandmarks(InPlaces):
    """The rows that add something to the landmarks, at most `most`."""

    most: int
    marks: Landmarks
    kernel: Kernel

    def told(self) -> Shapes:
        return {"count": (1,), "points": (int(self.counts.sum()), self.rows.columns)}

    def conclude(self, total: Arrays) -> Arrays:
        return independent(total["rows"], len(total["rows"]), self.most, self.marks, self.kernel)

    def check(self, told: Arrays) -> None:
        super().check(told)
        check_count(told["count"], min(int(self.counts.sum()), max(self.most, 0)))


def rows_as_landmarks(
    rows: SiteRows, weights: Weights, mass: float, wanted: int, marks: Landmarks, options: SumsOptions, stage: str
) -> Solver:
    """About `wanted` rows, drawn with probabilities proportional to their weights, whose sum over all nodes is `mass`; returns the points (m, M)."""

    def drawn() -> SiteRows:
        return rows.at(where(rows.uniform(f"rows {stage}") * mass < wanted * weights()))

    counts = (yield Counts(rows, drawn, 4 * wanted + 64))["count"]
    if not counts.sum():
        return np.zeros((0, rows.columns))
    most = options.max_landmarks - marks.size
    told = yield RowLandmarks(rows, drawn, counts, rows.columns, most, marks, options.kernel)
    return told["points"][: int(told["count"][0])]


def earlier_landmarks(rows: SiteRows, options: SumsOptions) -> Solver:
    """The landmarks of an earlier run: the first node that has them tells them to all. Returns the points (m, M)."""
    mine, most, resumed = options.earlier, options.max_landmarks, f"resume={options.resume!r}"
    points = np.zeros((0, rows.columns)) if mine is None else np.asarray(mine, dtype=np.float64)
    node = to_numpy(rows.node[:1]) if len(rows) else np.zeros(1, dtype=np.int64)

    def held(of: int | None = None) -> SiteRows:
        kept = points if len(rows) and of in (None, node[0]) else points[:0]  # without rows it has no node
        return replace(rows, X=kept, keys=np.zeros(len(kept), dtype=np.int64), node=np.repeat(node, len(kept)))

    counts = (yield Counts(rows, held, most * rows.nodes))["count"]
    sizes, remedy = np.unique(counts[counts > 0]), "resume with models of one run, or start a new run without resume"
    if not len(sizes):
        raise ValueError(f"{resumed}: no node has the model of that run; start a new run without resume")
    if len(sizes) > 1 or sizes[0] > most:
        have = ", ".join(f"{n:g}" for n in sizes)
        need = f"all must have the same, at most {most} (max_landmarks, or what rows of others allow)"
        raise ValueError(f"{resumed}: nodes have {have} landmarks of that run, where {need}; {remedy}")
    giver = int(np.flatnonzero(counts)[0])
    given = np.where(np.arange(rows.nodes) == giver, counts, 0)
    in_its_units = replace(rows, largest=np.inf)  # no bound on the rows of this run is one on them
    told = (yield InPlaces(in_its_units, lambda: held(giver), given, rows.columns))["rows"]
    if mine is not None and np.abs(told - points).max() > ROUNDED * np.abs(points).max():
        raise ValueError(f"{resumed}: node number {giver} has other landmarks of that run than this node; {remedy}")
    return told
