"""How good an answer is, as all nodes know it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.sparse.csgraph import connected_components

Groups = Sequence[Sequence[int]]

ROUNDING = 1e-9  # an error (sin^2) below this counts as zero
MIXED = 0.01  # sin^2 of the turn of two components towards each other, from which on nothing tells which is which


@dataclass(frozen=True)
class Accuracy:
    """The estimated accuracy of an answer of k components. Numbers and words only, since it is saved in files.

    `errors` has for each component sin^2 of the angle between its values on all rows and those of central kernel PCA. `error` is sin^2 of the largest
    angle between the spans of all components, `bound` a value that it exceeds in few fits. `mixed` has the groups of components, counted from 0,
    that cannot be told apart. `method` says where the numbers come from.
    """

    errors: tuple[float, ...]
    error: float
    bound: float
    mixed: tuple[tuple[int, ...], ...] = ()
    method: str = "sums"

    @classmethod
    def of(cls, errors: Any, error: float, bound: float, mixed: Groups = (), method: str = "sums") -> Accuracy:
        """With all errors between 0 and 1."""
        clipped = np.clip([*errors, error, bound], 0.0, 1.0).tolist()
        groups = tuple(tuple(map(int, group)) for group in mixed)
        return cls(tuple(clipped[:-2]), clipped[-2], max(clipped[-2:]), groups, method)

    @classmethod
    def unknown(cls, k: int) -> Accuracy:
        """Of k components of which nothing is known: NaN."""
        return cls((np.nan,) * k, np.nan, np.nan)

    @property
    def components(self) -> tuple[float, ...]:
        """The estimated |correlation| of each component's values with the central ones."""
        return tuple(map(float, np.sqrt(1.0 - np.array(self.errors))))

    @property
    def span(self) -> float:
        """The estimated smallest cosine between the spans."""
        return float(np.sqrt(1.0 - self.error))

    @property
    def span_bound(self) -> float:
        """The cosine that is not reached in few fits only."""
        return float(np.sqrt(1.0 - self.bound))

    def meets(self, tol: float) -> bool:
        """Whether the bound on the error of the span is at most `tol`, up to rounding."""
        return self.bound <= max(tol, ROUNDING)


def mixed_groups(turns: np.ndarray) -> list[list[int]]:
    """Groups of components that cannot be told apart, from the turn (k, k) of each towards each (sin^2)."""
    count, label = connected_components(turns + turns.T > MIXED, directed=False)
    groups = [np.flatnonzero(label == number).tolist() for number in range(count)]
    return [group for group in groups if len(group) > 1]
