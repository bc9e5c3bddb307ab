"""Releases: moments of unit vectors as integers, with noise. Here are the sensitivities; docs/explanation/privacy.md has the proof.

A row x has coordinates of norm at most 1, which become integers q with |q| <= S = 2^16. It adds to the sums

    S q / 2                 (r numbers)               norm <= S^2 / 2
    q q', upper triangle    (r (r + 1) / 2 numbers)   Frobenius norm |q|^2 <= S^2: off the diagonal an entry counts twice, and its noise has
                                                      half of the variance
    S^2 / 4                 (1 number: the count)     S^2 / 4

so together sqrt(1 + 1/4 + 1/16) S^2. The products decide how far noise turns components; the mean, which counts by how far it lies along them,
may have more noise. The integers of a row do not depend on the other rows (solvers/private.py), and are added up exactly.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ..arrays import rounded
from ..chunks import row_tiles
from .accounting import discreteness, multiplier_for
from .errors import PublicError
from .ledger import Entry

SCALE = 2**16  # S
FIRST, COUNTED = 0.5, 0.25  # weights of the sum of the coordinates, and of the count, beside the products' 1
HALF = SCALE // 2  # times q, that is added to the first sum
COUNT = SCALE**2 // 4  # that is added to the count
EXACT_ROWS = 2**20  # products of integers up to S that float64 adds up without rounding: 2^52 / S^2
LARGEST_TOTAL = 2**61  # of a sum of S^2 over rows; noise is on top
MECHANISM = "discrete Gaussian"


@dataclass(frozen=True)
class Release:
    """Noisy moments of `width` coordinates. `multiplier` is the noise over the sensitivity, of the honest nodes alone."""

    covers: str
    width: int
    multiplier: float
    n_nodes: int
    colluding: int

    @property
    def numbers(self) -> int:
        return self.width + self.width * (self.width + 1) // 2 + 1

    @property
    def sensitivity(self) -> float:
        return SCALE**2 * math.sqrt(1.0 + FIRST**2 + COUNTED**2)

    @property
    def honest(self) -> int:
        return self.n_nodes - self.colluding

    @property
    def share(self) -> int:
        """Deviation of one node's noise: the honest nodes' together is `multiplier` times the sensitivity, or a little more."""
        return math.ceil(self.multiplier * self.sensitivity / math.sqrt(self.honest))

    @property
    def share_off_diagonal(self) -> int:
        return math.ceil(self.multiplier * self.sensitivity / math.sqrt(2 * self.honest))

    @property
    def shrink(self) -> int:
        """Coordinates of norm 1 are scaled to this, so that the nearest integers have a norm of at most S."""
        return SCALE - math.ceil(math.sqrt(self.width) / 2)

    @property
    def deviation(self) -> float:
        """Of the noise in the total, all nodes' together, in units of a row's |psi|^2 = 1; off the diagonal by sqrt 2 less."""
        return self.share * math.sqrt(self.n_nodes) / self.shrink**2

    def entry(self) -> Entry:
        noise = self.share * math.sqrt(self.honest)
        return Entry(self.covers, MECHANISM, self.sensitivity, noise, self.numbers, self.colluding)

    # ------------------------------------------------------------------ at a node
    def integers(self, coordinates: np.ndarray) -> np.ndarray:
        """Rows (n, width) as whole numbers of norm at most S, in float64. Whatever the rows are, the norm holds."""
        if not np.isfinite(coordinates).all():
            raise ValueError("coordinates that are NaN or infinite have no bounded sums; nothing was sent")
        coordinates = rounded(coordinates)  # so that the norm of a row is exact
        size = np.linalg.norm(coordinates, axis=1)
        q = np.rint(coordinates * (self.shrink / np.maximum(size, 1.0))[:, None])
        squares = np.einsum("ij,ij->i", q, q)  # exact: whole numbers far below 2^53
        over = squares > SCALE**2
        if over.any():  # only by rounding
            q[over] = np.trunc(q[over] * (SCALE * (1 - 1e-9) / np.sqrt(squares[over]))[:, None])
        return q

    def sums(self, q: np.ndarray) -> np.ndarray:
        """(numbers,) int64: S q / 2, the triangle of q q', and the count, over rows of `integers`; exact."""
        first, second = np.zeros(self.width, dtype=np.int64), np.zeros((self.width, self.width), dtype=np.int64)
        for tile in row_tiles(len(q), EXACT_ROWS) if len(q) else ():
            first += q[tile].sum(axis=0).astype(np.int64)
            second += (q[tile].T @ q[tile]).astype(np.int64)
        return np.concatenate([HALF * first, second[np.triu_indices(self.width)], [COUNT * len(q)]]).astype(np.int64)

    def deviations(self) -> np.ndarray:
        """(numbers,) of one node's noise."""
        rows, columns = np.triu_indices(self.width)
        off = np.concatenate([np.zeros(self.width, dtype=bool), rows != columns, [False]])
        return np.where(off, self.share_off_diagonal, self.share).astype(np.float64)

    def with_noise(self, sums: np.ndarray, noise: Callable[[int, int], np.ndarray]) -> np.ndarray:
        """(..., numbers) with this node's share of the noise. `noise(sigma, length)` draws it; no other node may know it."""
        deviations, noisy = self.deviations(), sums.copy()
        for sigma in np.unique(deviations):
            where = deviations == sigma
            shape = (*sums.shape[:-1], int(where.sum()))
            noisy[..., where] += noise(int(sigma), math.prod(shape)).reshape(shape)
        return noisy

    def check_rows(self, rows: int, name: str) -> None:
        most = LARGEST_TOTAL // SCALE**2 // self.n_nodes
        if rows > most:
            room = f"for which sums of {self.n_nodes} nodes have room"
            text = f"node {name}: {rows} rows, where {most} are at most {room} at each; split the node"
            raise PublicError(text, told=f"node {name}: more rows than the {most} {room}")

    # ------------------------------------------------------------------ at the root
    def moments(self, total: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
        """Noisy sums of the coordinates (width,) and of their products (width, width), and the noisy number of rows, at least 1."""
        r = self.width
        first = total[:r] / (HALF * self.shrink)
        second = np.zeros((r, r))
        second[np.triu_indices(r)] = total[r:-1] / self.shrink**2
        second = second + np.triu(second, 1).T
        return first, second, max(float(total[-1]) / COUNT, 1.0)


def releases(
    epsilon: float, delta: float, widths: dict[str, int], shares: dict[str, float], n_nodes: int, colluding: int
) -> tuple[Release, ...]:
    """Releases of these widths that cost together epsilon and delta; `shares` (in 1 / z^2) add up to 1."""

    def made(delta: float) -> tuple[Release, ...]:
        z = {what: multiplier_for(epsilon, delta) / math.sqrt(share) for what, share in shares.items()}
        return tuple(Release(what, width, z[what], n_nodes, colluding) for what, width in widths.items())

    lost = sum(discreteness(epsilon, release.numbers, release.share_off_diagonal) for release in made(delta))
    if lost >= delta / 2:
        raise ValueError(f"delta={delta:g}: {lost:.2g} of it goes to the noise being whole numbers; use a larger one")
    return made(delta - lost)
