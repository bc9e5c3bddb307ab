"""How far out rows are, over the whole network: a histogram that nodes can add up, and thresholds from it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

OCTAVES = 16  # the histogram reaches from 2^-16 to 2^16 times the mean of |phi(x) - mean|^2; hardly a row can be beyond
EACH = 32  # bins in an octave: a bin is 2.2 % wide
BINS = 2 * OCTAVES * EACH


@dataclass(frozen=True, eq=False)
class Histogram:
    """Reconstruction errors of all rows of a network: how many are in each bin, (BINS,). The first and the last bin have those beyond, too.

    `scale` is the mean of |phi(x) - mean|^2, which all nodes know.
    """

    scale: float
    counts: np.ndarray

    @classmethod
    def of(cls, errors: np.ndarray, scale: float) -> Histogram:
        with np.errstate(divide="ignore", invalid="ignore"):  # an error of 0 is in the first bin
            place = np.ceil(EACH * np.log2(errors / scale)) - 1 + BINS // 2
        # a row that overflows must not stop its node: that would tell of it
        place = np.where(np.isnan(place), BINS, place)
        return cls(scale, np.bincount(np.clip(place, 0, BINS - 1).astype(np.int64), minlength=BINS).astype(np.float64))

    @property
    def edges(self) -> np.ndarray:
        """(BINS + 1,) the limits of the bins; a bin includes its upper limit."""
        return self.scale * 2.0 ** (np.arange(-BINS // 2, BINS // 2 + 1) / EACH)

    def quantile(self, share: float) -> float:
        """The limit of a bin, below which at least this share of the rows is: at most one bin above the quantile of all rows."""
        reached = np.cumsum(self.counts) >= share * self.counts.sum() * (1 - 1e-12)
        return float(self.edges[1 + np.argmax(reached)])
