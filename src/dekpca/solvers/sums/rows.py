"""The rows of a process, and draws that depend on the seed, a row's node and its number there, not on which process holds it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...arrays import take
from ...data.blocks import Blocks, array_of
from ...kernels import row_tiles
from ...site import DRAWN, uniform

Array = Any
Chance = float | Callable[[slice], np.ndarray]  # of each row, or a function of some places


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows of one or more nodes: X (n, columns), a key (n,) and the number of the node (n,) of each.

    `total` is the number of rows of the whole network, `nodes` that of its nodes. `least`: clusters, samples and judging groups in which this process
    has fewer rows are left out of its terms (1: none), because others would see the term. `largest`: a public bound on the entries, for sums under
    masks.
    """

    X: Array  # or Blocks, of a file that does not fit into memory
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

    @property
    def array(self) -> Array:
        """An array of the library, device and dtype of the rows: these, or none of them if they are in blocks."""
        return array_of(self.X)

    def uniform(self, purpose: str) -> np.ndarray:
        """(n,) a number between 0 and 1 for each row."""
        return uniform(self.keys, purpose)

    def at(self, places: np.ndarray) -> Rows:
        """Some of the rows, in memory."""
        X = self.X.take(places) if isinstance(self.X, Blocks) else take(self.X, places)
        return replace(self, X=X, keys=self.keys[places], node=self.node[places])

    def here(self) -> Rows:
        """All of them, in memory."""
        return self.at(np.arange(len(self))) if isinstance(self.X, Blocks) else self

    def sampled(self, share: float, purpose: str) -> Rows:
        """Each row with this probability, or a larger one if nodes would have too few; all of them from 1 on. None if below `least`."""
        share = max(share, self.fewest / self.total)
        return self.here() if share >= 1 else self.at(self.drawn(purpose, share))

    def drawn(self, purpose: str, chance: Chance) -> np.ndarray:
        """The places of rows that are drawn with these chances; none if they are fewer than `least`."""
        places = self.below(purpose, chance)
        return places if len(places) >= self.least else places[:0]

    def below(self, purpose: str, chance: Chance) -> np.ndarray:
        """The places of rows whose number `uniform` is below their chance."""
        found = [np.zeros(0, dtype=np.int64)]
        for some in row_tiles(len(self), DRAWN):
            limit = chance(some) if callable(chance) else chance
            found.append(some.start + np.flatnonzero(uniform(self.keys[some], purpose) < limit))
        return np.concatenate(found)
