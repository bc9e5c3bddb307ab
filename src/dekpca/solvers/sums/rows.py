"""The rows of a process, and draws that depend on the seed, a row's node and its number there, not on which process holds it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any

import numpy as np

from ...arrays import take

Array = Any

GOLDEN = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows of one or more nodes: X (n, columns), a key (n,) and the number of the node (n,) of each.

    `total` is the number of rows of the whole network, `nodes` that of its nodes. `least`: clusters, samples and judging groups in which this process
    has fewer rows are left out of its terms (1: none), because others would see the term. `largest`: a public bound on the entries, for sums under
    masks.
    """

    X: Array
    keys: np.ndarray
    node: np.ndarray
    total: int
    nodes: int
    least: int = 1
    largest: float = np.inf
    speaks: bool = False  # of the processes of a fit, one reports progress

    def __len__(self) -> int:
        return int(self.X.shape[0])

    @property
    def fewest(self) -> int:
        """A sample of so many rows leaves a node about four times as many as it may tell of."""
        return 4 * self.least * self.nodes if self.least > 1 else 0

    @property
    def columns(self) -> int:
        return int(self.X.shape[1])

    def uniform(self, purpose: str) -> np.ndarray:
        """(n,) a number between 0 and 1 for each row."""
        return uniform(self.keys, purpose)

    def at(self, places: np.ndarray) -> Rows:
        """Some of the rows."""
        return replace(self, X=take(self.X, places), keys=self.keys[places], node=self.node[places])

    def sampled(self, share: float, purpose: str) -> Rows:
        """Each row with this probability, or a larger one if nodes would have too few; all of them from 1 on. None if below `least`."""
        share = max(share, self.fewest / self.total)
        return self if share >= 1 else self.at(self.drawn(purpose, share))

    def drawn(self, purpose: str, chance: float | np.ndarray) -> np.ndarray:
        """The places of rows that are drawn with these chances; none if they are fewer than `least`."""
        places = np.flatnonzero(self.uniform(purpose) < chance)
        return places if len(places) >= self.least else places[:0]


def row_keys(seed: int, names: Sequence[str], sizes: np.ndarray) -> np.ndarray:
    """Keys of the rows of nodes with these names, node by node."""
    number = np.arange(int(sizes.sum())) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return keys_at(seed, names, np.repeat(np.arange(len(names)), sizes), number)


def keys_at(seed: int, names: Sequence[str], node: np.ndarray, number: np.ndarray) -> np.ndarray:
    """Keys of the rows with these numbers at these nodes, of which `names` has the names."""
    starts = np.array([_code(f"{seed}\0{name}") for name in names], dtype=np.uint64)
    return _mixed(starts[node] + GOLDEN * number.astype(np.uint64))


def uniform(keys: np.ndarray, purpose: str) -> np.ndarray:
    """A number from 0 to 1 for each key, another one for another purpose."""
    return (_mixed(keys ^ np.uint64(_code(purpose))) >> np.uint64(11)) * 2.0**-53


def _code(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little")


def _mixed(x: np.ndarray) -> np.ndarray:
    """The finalizer of SplitMix64: a bijection of 64 bits that looks random."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
