"""The rows of a process, and draws that depend on the seed, a row's node and its number there, not on which process holds it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any

import array_api_compat as aac
import numpy as np

from ...arrays import like, numbers, squares_of_rows, take, to_numpy, where
from ...chunks import by_rows, row_bytes
from ...data.blocks import Blocks, array_of
from ...draws import uniform, uniform_by_key
from .groups import Groups

Array = Any
NOISE = 2.0**-40  # of the numbers that make a function, which float64 rounds at 2^-53
Chance = float | Callable[[slice], Array]  # of each row, or a function of some places


@dataclass(frozen=True, eq=False)
class SiteRows:
    """Rows of one or more nodes: X (n, columns), a key (n,) and the number of the node (n,) of each, in the library and on the device of X.

    `total` is the number of rows of the whole network, `nodes` that of its nodes. `least`: where others see the terms of this process, or totals of
    them, no term is about fewer of its rows (1: no limit). So k-means takes means of `groups` of rows (groups.py), and where a sample or a judging
    group has fewer rows, they are left out. `largest`: a public bound on the entries, for sums under masks.
    """

    X: Array  # or Blocks, of a file that does not fit into memory
    keys: Array
    node: Array
    total: int
    nodes: int
    least: int = 1
    largest: float = np.inf
    speaks: bool = False  # of the processes of a fit, one reports progress
    groups: Groups | None = None
    stand_for: Array | None = None  # (n,) how many rows each is the mean of; None: of itself
    weight: float = 1.0  # of each row in a sum; below 1 where a node draws more than its share of a sample (`floor`)

    def __len__(self) -> int:
        return int(self.X.shape[0])

    def floor(self, many: int, own: float) -> float:
        """The least chance of each of `own` rows to be among about `many` of the network. Where others see terms, a process draws as many of its own
        rows as if there were no others: how many these say they have does not change that. And all of them rather than more than half: those that are
        left out are a difference of two sums."""
        if self.least == 1:
            return 0.0
        return many / own if own > 2 * many else 1.0

    @property
    def columns(self) -> int:
        return int(self.X.shape[1])

    @property
    def like(self) -> Array:
        """An array of the library, device and dtype of the rows: these, or none of them if they are in blocks."""
        return array_of(self.X)

    @property
    def equal_weights(self) -> Array:
        """(n,) the same weight for each row, in float64: 1, or `weight`."""
        xp = aac.array_namespace(self.keys)
        return self.weight * xp.ones_like(self.keys, dtype=xp.float64)

    def uniform(self, purpose: str) -> Array:
        """(n,) a number between 0 and 1 for each row."""
        return uniform_by_key(self.keys, purpose)

    def at(self, places: Array) -> SiteRows:
        """Some of the rows, in memory."""
        X, count = self.X, places.shape[0]
        some = X.take if isinstance(X, Blocks) else lambda of: by_rows(lambda i: take(X, of[i]), count, row_bytes(X), X)
        groups = None if self.groups is None else self.groups.at(places)
        return replace(self, X=some(places), keys=take(self.keys, places), node=take(self.node, places), groups=groups)

    def here(self) -> SiteRows:
        """All of them, in memory."""
        return self.at(np.arange(len(self))) if isinstance(self.X, Blocks) else self

    def sampled(self, many: int, purpose: str) -> SiteRows:
        """About `many` rows of the network, at random; all of them if there are no more. Of groups all rows or none."""
        if len(self) < self.least:
            return self.at(numbers(self.keys, 0))
        even, own = many / self.total, self.floor(many, len(self))
        share = max(even, own)
        some = replace(self, weight=min(even / share, 1.0) if own else 1.0)
        if share >= 1:
            return some.here()
        return some.at(self.drawn(purpose, share) if self.groups is None else self.groups.drawn(purpose, share))

    def drawn(self, purpose: str, chance: Chance) -> Array:
        """The places of rows that are drawn with these chances; none if they are fewer than `least`."""
        places = self.below(purpose, chance)
        return places if places.shape[0] >= self.least else places[:0]

    def below(self, purpose: str, chance: Chance) -> Array:
        """The places of rows whose number `uniform` is below their chance."""

        def some(rows: slice) -> Array:
            return uniform_by_key(self.keys[rows], purpose) < (chance(rows) if callable(chance) else chance)

        return where(by_rows(some, len(self), 8, self.keys))


def noise(found: Array, x: Array, mean: np.ndarray, weights: np.ndarray) -> Array:
    """To be added to functions (x - mean) @ weights of rows x (n, m), where others see sums over them: far above what rounding of float64 does.
    Without it a root that lies would tell numbers that cancel: then rounding makes functions that are zero at all rows but one. It follows from the
    rows and what was told: nobody else knows it, and a restart repeats it."""
    xp, seed = aac.array_namespace(found), blake2b(digest_size=16)
    for known in (to_numpy(x), mean, weights):
        seed.update(np.ascontiguousarray(known).tobytes())
    drawn = uniform(found.shape, int.from_bytes(seed.digest(), "little"), found)
    size = xp.sqrt(by_rows(lambda rows: squares_of_rows(x[rows, :]), x.shape[0], row_bytes(x), x))
    scale = like(size, np.linalg.norm(weights, axis=0))
    return NOISE * (size + float(np.linalg.norm(mean)))[:, None] * scale * (drawn - 0.5)
