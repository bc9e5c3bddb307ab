"""Means and scales of columns, over all nodes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import array_api_compat as aac

from .arrays import eps

Array = Any


class BadColumn(ValueError):
    """An error about a column, of which only the index is known here; `text` follows its name."""

    def __init__(self, column: int, text: str):
        super().__init__(f"column {column} {text}")
        self.column, self.text = column, text


@dataclass(frozen=True, eq=False)
class Scales:
    """Mean and standard deviation of each column, (M,), over all nodes."""

    mean: Array
    scale: Array

    @classmethod
    def of(cls, mean: Array, variance: Array) -> Scales:
        """A column whose deviation is within the rounding of its mean is only shifted, as in scikit-learn's StandardScaler."""
        xp = aac.array_namespace(mean)
        constant = variance <= (100 * eps(mean) * mean) ** 2
        return cls(mean, xp.sqrt(xp.where(constant, xp.ones_like(variance), variance)))

    def standardized(self, X: Array) -> Array:
        return (X - self.mean) / self.scale

    def restored(self, X: Array) -> Array:
        return X * self.scale + self.mean


def filled(X: Array, means: Array) -> Array:
    """X with every NaN replaced by the mean of its column."""
    xp = aac.array_namespace(X)
    return xp.where(xp.isnan(X), means, X)


def prepared(X: Array, fill: Array | None, scales: Scales | None) -> Array:
    """Rows as kernels take them, in a fit and ever after: missing values filled, standardized."""
    X = X if fill is None else filled(X, fill)
    return X if scales is None else scales.standardized(X)
