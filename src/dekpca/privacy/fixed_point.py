"""Fixed-point numbers modulo 2^64: sums of them do not depend on the order of additions.

The scale follows from a public bound on the total, so all nodes have the same. A value beyond its bound is an error before anything is sent.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from .errors import PublicError

TOTAL_BITS = 61  # a total at its bound: two bits below the sign, for rounding of the nodes' shares and for noise
SMALLEST, LARGEST = 1e-280, 1e280  # bounds, so that all powers of two are normal numbers


class OutOfBounds(PublicError):
    """A value is larger than the public bound of its sum."""


@dataclass(frozen=True, eq=False)
class FixedPoint:
    """Numbers of which each total is at most `bound` in size (a number, or one for each entry).

    Examples
    --------
    >>> code = FixedPoint(100.0)
    >>> parts = [code.encode(np.array([0.5, -3.0])), code.encode(np.array([1.25, 1.0]))]
    >>> code.decode(parts[0] + parts[1])
    array([ 1.75, -2.  ])
    """

    bound: Any

    def __post_init__(self) -> None:
        bound = np.asarray(self.bound, dtype=np.float64)
        if not ((bound > SMALLEST) & (bound < LARGEST)).all():
            raise ValueError(f"the public bound of a sum is {self.bound!r}; it must be a finite number above 0")

    @property
    def bits(self) -> np.ndarray:
        """Binary digits after the point."""
        _, exponent = np.frexp(np.asarray(self.bound, dtype=np.float64))  # bound < 2^exponent
        return TOTAL_BITS - exponent

    def encode(self, values: np.ndarray, what: str = "a sum", shift: Any = 0.0, below: Any = 0.0) -> np.ndarray:
        """The integers at this scale that are nearest to the values plus a `shift`, in units of the last place, as uint64. `below` (from -0.5 to 0.5)
        is put in the place of the digits that a float64 lacks, where these are above a unit."""
        values = np.asarray(values, dtype=np.float64)
        inside = np.abs(values) <= self.bound  # False for NaN
        if not inside.all():
            place = int(np.flatnonzero(~inside.ravel())[0])
            value, bound = values.flat[place], np.broadcast_to(self.bound, values.shape).flat[place]
            text = f"{what}: entry {place} is {value:.6g}, but its public bound is {bound:.6g}; nothing was sent"
            raise OutOfBounds(text, told=f"{what}: a number is beyond its public bound; nothing was sent")
        scaled = values * power_of_two(self.bits)
        whole = np.rint(scaled)
        # apart: beside 2^53 units float64 has no fractions
        part = np.rint(scaled - whole + shift + below * np.spacing(scaled))
        return (whole.astype(np.int64) + part.astype(np.int64)).view(np.uint64)

    def decode(self, total: np.ndarray, what: str = "a sum", terms: int = 1) -> np.ndarray:
        """The numbers that a total of so many terms stands for; 0 where rounding of the terms may be all that there is."""
        units = total.view(np.int64).astype(np.float64)
        found = np.where(np.abs(units) <= terms / 2, 0.0, units) * power_of_two(-self.bits)
        if not (np.abs(found) <= np.asarray(self.bound) * 1.001).all():  # the nodes' shares are rounded
            raise OutOfBounds(f"{what}: the total is beyond its public bound; some value was, or masks are wrong")
        return found


def power_of_two(bits: np.ndarray) -> np.ndarray:
    """2^bits, from -1022 to 1023, put together from its bits: np.ldexp of arrays takes ten times as long."""
    return ((np.asarray(bits, dtype=np.int64) + 1023) << 52).view(np.float64)
