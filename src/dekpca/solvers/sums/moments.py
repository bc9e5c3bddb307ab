"""The moments of all rows in landmark coordinates, and the principal directions that follow from them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import array_api_compat as aac
import numpy as np
from scipy.linalg import eigh

from ...arrays import (
    add_products,
    flip_signs,
    is_on_host,
    on_host,
    squares_of_rows,
    symmetric,
    times_triangle,
    upper_triangle,
)
from ...chunks import DEVICE_BYTES, row_bytes, row_tiles, summed
from ...data.blocks import Blocks, blocks_of
from ...kernels import Kernel
from ...landmarks import Landmarks, row_kernel
from ...rounds import Arrays, BadConclusion, Round, Shapes
from ...signs import LONGEST, reference
from .rows import SiteRows

Array = Any

EXTRA = 32  # functions besides the components: what leaves the span of so many has far smaller eigenvalues
NOTHING = 1e-12  # relative to the first: an eigenvalue below it is rounding
CHUNK_BYTES = 2**20  # of a chunk of landmark coordinates: half of a cache
LEAST_CHUNK = 256  # rows
FEW = 8192  # rows, up to which their landmark coordinates are kept: all of them may judge, if the kernel has random features
ROUNDED = 1e-3  # relative, and of a sum that is zero: more than the rounding of sums in float32


@dataclass(frozen=True, eq=False)
class Seen:
    """Rows, and what the landmarks see of them. One pass over the rows, in chunks, when the first of its results is needed.

    `likely` says which rows of a file are likely to be asked for after the pass, from their keys and what the landmarks miss of them.
    """

    rows: SiteRows
    marks: Landmarks
    kernel: Kernel
    likely: Callable[[np.ndarray, np.ndarray], np.ndarray] | None = None

    @cached_property
    def _pass(self) -> tuple[Array, ...]:
        rows, total = self.rows, None
        if isinstance(rows.X, Blocks):
            rows.X.reader.forget()
        like = rows.like
        xp, kind = aac.array_namespace(like), {"dtype": like.dtype, "device": aac.device(like)}
        rest = xp.empty((len(rows),), **kind)
        few = self.kernel.has_sketch and len(rows) <= FEW
        coordinates = xp.empty((len(rows), self.marks.size), **kind) if few else None
        for start, X in blocks_of(rows.X):
            at = slice(start, start + X.shape[0])
            found = self._sums(X, rest[at], None if coordinates is None else coordinates[at, :])
            total = found if total is None else tuple(a + b for a, b in zip(total, found, strict=True))
            if isinstance(rows.X, Blocks) and self.likely is not None:
                rows.X.reader.keep(self.likely(rows.keys[at], rest[at]))
        assert total is not None
        first, second, trace, along, level = total
        rest = xp.astype(rest, xp.float64, copy=False)
        trace, along = xp.stack([trace, xp.sum(rest)]), xp.concat([along, xp.reshape(level, (1,))])
        return coordinates, rest, first, second, trace, along

    def _sums(self, X: Array, rest: Array, coordinates: Array | None) -> tuple[Array, ...]:
        """Of some rows; what the landmarks miss of each is written to `rest`, and what they see of it to `coordinates`."""
        marks, kernel, xp, m = self.marks, self.kernel, aac.array_namespace(X), self.marks.size
        with_points, fixed = row_kernel(kernel, marks.points), reference(kernel, marks.points)
        chunk = (CHUNK_BYTES if aac.is_numpy_array(X) else DEVICE_BYTES) // max(1, row_bytes(marks.root))

        def part(rows: slice) -> tuple[Array, ...]:
            first, second = xp.zeros((m,), dtype=xp.float64, device=aac.device(X)), None
            along, trace, level = first, xp.sum(first), xp.sum(first)
            for tile in row_tiles(rows.stop - rows.start, max(LEAST_CHUNK, chunk)):
                at = slice(rows.start + tile.start, rows.start + tile.stop)
                psi, size = times_triangle(with_points(X[at, :]), marks.root), kernel.diagonal(X[at, :])
                if coordinates is not None:
                    coordinates[at, :] = psi
                left = size - squares_of_rows(psi)
                rest[at] = xp.clip(left, min=0.0) if kernel.is_definite else xp.abs(left)
                first = first + xp.sum(psi, axis=0, dtype=xp.float64)
                second = add_products(second, psi)
                trace = trace + xp.sum(size, dtype=xp.float64)
                t = fixed(X[at, :])
                along, level = along + xp.astype(t @ psi, xp.float64), level + xp.sum(t, dtype=xp.float64)
            return first, second, trace, along, level

        return summed(part, X.shape[0], X, 8 * m * m)

    @property
    def psi(self) -> Array | None:
        """(n, m) the landmark coordinates of each row, not centred; None if they are not kept."""
        return self._pass[0]

    @property
    def rest(self) -> Array:
        """(n,) what the landmarks miss of each row: k(x, x) - |psi(x)|^2, in float64."""
        return self._pass[1]

    @property
    def own(self) -> float:
        """How many rows this process has to draw from."""
        return float(len(self.rows))

    @property
    def missed(self) -> float:
        """What the landmarks miss of the rows of this process in all."""
        return float(self.rest.sum())

    @property
    def drawn_from(self) -> tuple[float, float]:
        """A number of rows, and what the landmarks miss of them: the rows here include all that are drawn from so many or more. 0: all rows are
        here."""
        return 0.0, 0.0

    @property
    def moments(self) -> tuple[Array, ...]:
        """The sums of psi, of psi psi' (its upper triangle is valid), and of k(x, x) and `rest`; and of (psi, 1) times the reference of signs.py."""
        return self._pass[2:]


@dataclass(frozen=True, eq=False)
class Principal:
    """The principal directions of rows in landmark coordinates, as all nodes know them.

    `directions` (m, q) with eigenvalues `values` (q,); `along` (q,), the sums of their functions times the reference for signs; the `mean` (m,) of
    psi, the `trace` of the centred kernel, the number of rows, and `missed`, the part of the trace that the landmarks do not see. `whole`: there are
    no directions beyond these.
    """

    directions: np.ndarray
    values: np.ndarray
    along: np.ndarray
    mean: np.ndarray
    trace: float
    count: float
    missed: float
    whole: bool
    components: int  # how many are wanted
    enough: bool = True  # whether these explain the share of the variance that was asked for

    @property
    def weights(self) -> np.ndarray:
        """(m, q): (psi - mean) @ weights are functions that are orthonormal over the rows."""
        return self.directions / np.sqrt(self.values)


def chances(rest: Array, count: float, missed: float, wanted: int) -> Array:
    """(n,) the chance of each row to be among about `wanted` of `count` rows, of which the landmarks miss `missed` in all: half of it even, half by
    what they miss of the row, `rest` (n,)."""
    even, mass = 0.5 / count, max(missed, 1e-300)
    return aac.array_namespace(rest).clip(wanted * (even + 0.5 * rest / mass), max=1.0)


def leading(matrix: np.ndarray, q: int, beside: Array) -> tuple[np.ndarray, np.ndarray]:
    """The q leading eigenvalues and eigenvectors, largest first; found on the device of `beside`, which is far faster with many landmarks."""
    m, xp = len(matrix), aac.array_namespace(beside)
    if is_on_host(beside):
        values, vectors = eigh(matrix, subset_by_index=[m - q, m - 1])
        if len(values) < q:  # where many eigenvalues are equal, LAPACK may miss some of a subset
            values, vectors = np.linalg.eigh(matrix)
    else:
        there = xp.linalg.eigh(xp.asarray(matrix, device=aac.device(beside)))
        values, vectors = on_host(there[0]), on_host(there[1][:, m - q :])
    return values[::-1][:q], vectors[:, ::-1][:, :q]


@dataclass(frozen=True, eq=False)
class Moments(Round):
    """The first and second moments of psi over all rows; the root finds the principal directions."""

    seen: Seen
    centered: bool
    n_components: int | float
    largest: float  # k(x, x), at most
    kind = "moments"

    def term(self) -> dict[str, Any]:
        if not len(self.seen.rows):  # a kernel that a user gives need not know what to do with no rows
            m = self.seen.marks.size
            sizes = {"count": 1, "first": m, "second": m * (m + 1) // 2, "trace": 2, "along": m + 1}
            return {name: np.zeros(size) for name, size in sizes.items()}
        first, second, trace, along = self.seen.moments
        count = np.array([float(len(self.seen.rows))])
        return {"count": count, "first": first, "second": upper_triangle(second), "trace": trace, "along": along}

    def bounds(self) -> dict[str, Any]:
        total, largest = 1.1 * self.seen.rows.total, self.largest
        bounds = {"count": total, "first": total * largest**0.5, "second": total * largest, "trace": total * largest}
        return bounds | {"along": total * LONGEST * max(largest, largest**0.5)}

    def implausible(self, total: Arrays, rows: int) -> str | None:
        if (why := super().implausible(total, rows)) is not None:
            return why
        m, kernel, slack = self.seen.marks.size, self.seen.kernel, 1 + ROUNDED
        (count,), (trace, _), first = total["count"], total["trace"], total["first"]
        squares = total["second"][np.cumsum(np.arange(m + 1, 1, -1)) - m - 1]  # the diagonal of an upper triangle
        if not kernel.is_definite:
            return None
        if (kernel.is_normal or kernel.normalize) and trace > slack * count + ROUNDED:
            return f"a trace of {trace:.6g} for {count:.6g} rows, of which each adds at most 1"
        i, j = np.triu_indices(m)
        beyond = (total["second"] ** 2 > slack * np.abs(squares[i] * squares[j]) + ROUNDED).any()  # Cauchy-Schwarz
        beyond |= (first**2 > slack * max(count, 1.0) * squares + ROUNDED).any()
        if squares.sum() > slack * trace + ROUNDED or beyond:
            return f"moments that are larger than their trace of {trace:.6g} allows"
        return None

    @property
    def _q(self) -> int:
        m = self.seen.marks.size
        return m if self.n_components < 1 else min(m, int(self.n_components) + EXTRA)

    def told(self) -> Shapes:
        m, q = self.seen.marks.size, self._q
        shapes = {"count": (1,), "trace": (2,), "mean": (m,), "values": (q,), "directions": (m, q), "along": (q,)}
        return shapes | ({"components": (1,)} if self.n_components < 1 else {})

    def conclude(self, total: Arrays) -> Arrays:
        m, q, count = self.seen.marks.size, self._q, max(float(np.rint(total["count"][0])), 1.0)
        second = np.zeros((m, m))
        second[np.triu_indices(m)] = total["second"]
        second = symmetric(second)
        mean = total["first"] / count if self.centered else np.zeros(m)
        values, vectors = leading(second - count * np.outer(mean, mean), q, self.seen.rows.like)
        vectors = flip_signs(vectors)
        floor = max(NOTHING * values[0], 100 * np.finfo(np.float64).eps * float(total["trace"][0]))
        trace = total["trace"] - np.array([count * float(mean @ mean), 0.0])
        there, found = values > floor, {}
        if self.n_components < 1:
            # Of the whole trace, with what the landmarks miss; eigenvalues in their span are too small: the share is not overstated. 0: not reached.
            reached = np.cumsum(np.where(there, values, 0.0)) >= self.n_components * trace[0]
            components = min(int(np.argmax(reached)) + 1 if reached.any() else 0, int(there.sum()))
            there &= np.arange(q) < (components + EXTRA if components else q)
            found = {"components": np.array([float(components)])}
        values, vectors = np.where(there, values, 0.0), np.where(there, vectors, 0.0)
        along = (total["along"][:m] - total["along"][m] * mean) @ vectors / np.sqrt(np.where(there, values, 1.0))
        about = found | {"count": np.array([count]), "trace": trace, "mean": mean}
        return about | {"values": values, "directions": vectors, "along": along}

    def check(self, told: Arrays) -> None:
        super().check(told)
        values, (trace, missed), mean = told["values"], told["trace"], told["mean"]
        falling = (values >= 0).all() and (np.diff(values) <= 0).all()
        # of rows that are all alike the trace is the rounding of what centring takes off
        least = -1e-6 * (abs(missed) + told["count"][0] * float(mean @ mean))
        if not falling or told["count"][0] < 1 or trace < least:
            raise BadConclusion("the root tells eigenvalues or a trace that no sum of squares has; start all anew")
        (count,), rows, kernel = told["count"], self.seen.rows.total, self.seen.kernel
        normal = kernel.is_normal or kernel.normalize
        if count > rows + 0.5 or (normal and missed > (1 + ROUNDED) * count + ROUNDED):
            text = f"the root tells of {count:g} rows, of which {missed:.6g} is missed"
            raise BadConclusion(f"{text}, where there are {rows}; start all anew")
        if self.n_components < 1 and told["components"][0] not in range(int((values > 0).sum()) + 1):
            raise BadConclusion("the root tells more components than there are eigenvalues; start all anew")

    def found(self, told: Arrays) -> Principal:
        """From what all nodes were told."""
        there = int((told["values"] > 0).sum())
        count, trace, missed = map(float, (*told["count"], *told["trace"]))
        wanted = int(self.n_components if self.n_components >= 1 else told["components"][0])
        whole, enough = there < wanted + EXTRA or wanted == 0, wanted > 0
        directions, values, along = told["directions"][:, :there], told["values"][:there], told["along"][:there]
        return Principal(
            directions,
            values,
            along,
            told["mean"],
            trace,
            count,
            max(missed, 0.0),
            whole,
            wanted or max(there, 1),
            enough,
        )
