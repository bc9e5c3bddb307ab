"""Exact discrete Gaussian noise (Canonne, Kamath, Steinke 2020), in arrays, from the operating system's generator.

P(x) is proportional to exp(-x^2 / (2 sigma^2)) on the integers. There is no floating-point noise whose low digits could tell the value under it
(Mironov 2012). A coin of probability exp(-g) is a comparison of exp(-g) with a uniform number, of which as many bits are drawn as it takes: where
float64 leaves a doubt, the coin goes on in integers.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np

LARGEST_SIGMA = 2**50  # so that float64 holds what the coins need; noise is a few bits above the scale of the data
DOUBT = 1e-9  # relative: float64 has exp(-g) to better than this for g up to LARGEST_G, which tests compare with exact numbers
LARGEST_G = 700.0  # beyond it float64 cannot hold exp(-g)


def random_words(count: int) -> np.ndarray:
    """So many uniform 64-bit words."""
    return np.frombuffer(os.urandom(8 * count), dtype=np.uint64)


def discrete_gaussian(sigma: int, size: int) -> np.ndarray:
    """`size` independent samples, int64. `sigma` is a whole number from 1 on.

    Examples
    --------
    >>> drawn = discrete_gaussian(1000, 4000)
    >>> bool(abs(drawn.std() / 1000 - 1) < 0.1), drawn.dtype
    (True, dtype('int64'))
    """
    if not 1 <= sigma <= LARGEST_SIGMA or sigma != int(sigma):
        raise ValueError(f"sigma={sigma!r}: a whole number from 1 to 2^50 is needed")
    sigma = int(sigma)
    t = 1 << round(np.log2(sigma))  # any scale of the proposal is right; a power of two is drawn without a remainder

    def drawn(missing: int) -> np.ndarray:
        y = discrete_laplace(t, 2 * missing + 16)
        # accept with probability exp(-(|y| - sigma^2 / t)^2 / (2 sigma^2))
        off = np.abs(y).astype(np.float64) - float(sigma) * (sigma / t)
        g = (off / sigma) ** 2 / 2
        return y[coins(g, lambda i: Fraction((abs(int(y[i])) * t - sigma**2) ** 2, 2 * sigma**2 * t**2))]

    return repeated(drawn, size)


def discrete_laplace(t: int, size: int) -> np.ndarray:
    """`size` samples with P(x) proportional to exp(-|x| / t), t a power of two."""

    def drawn(missing: int) -> np.ndarray:
        words = random_words(3 * missing + 16)
        u = (words & np.uint64(t - 1)).astype(np.int64)
        negative = words >> np.uint64(63) == 1  # t is at most 2^50: the top bit is not in u
        kept = coins(u / t, lambda i: Fraction(int(u[i]), t))
        magnitude = u[kept] + t * geometric(int(kept.sum()))
        negative = negative[kept]
        there = ~(negative & (magnitude == 0))  # zero has one sign
        return np.where(negative, -magnitude, magnitude)[there]

    return repeated(drawn, size)


def repeated(drawn: Callable[[int], np.ndarray], size: int) -> np.ndarray:
    """`size` samples, of a draw that rejects some and is asked for as many as are missing."""
    found = np.zeros(0, dtype=np.int64)
    while len(found) < size:
        found = np.concatenate([found, drawn(size - len(found))[: size - len(found)]])
    return found


def geometric(size: int) -> np.ndarray:
    """How many coins of probability exp(-1) fall before the first that does not."""
    count = np.zeros(size, dtype=np.int64)
    going = np.arange(size)
    while len(going):
        going = going[coins(np.ones(len(going)), lambda i: Fraction(1))]
        count[going] += 1
    return count


def coins(g: np.ndarray, exactly: Callable[[int], Fraction]) -> np.ndarray:
    """True with probability exp(-g), g from 0 on; `exactly(i)` is the i-th g without rounding, asked for where float64 cannot decide."""
    words = random_words(len(g))
    u = words * 2.0**-64  # the first 64 bits of a uniform number, to 2^-53 relative
    p = np.exp(-np.minimum(g, LARGEST_G))
    slack = DOUBT * (p + u) + 2.0**-60
    heads = u < p - slack
    for i in np.flatnonzero((np.abs(u - p) <= slack) | (g > LARGEST_G)):
        heads[i] = exact_coin(int(words[i]), exactly(int(i)))
    return heads


def exact_coin(word: int, g: Fraction) -> bool:
    """Whether the uniform number that begins with these 64 bits is below exp(-g): more bits and digits until it is clear."""
    bits, known = 64, word
    while True:
        digits = bits // 3 + 20
        with localcontext() as context:
            context.prec = digits
            p = (-(Decimal(g.numerator) / Decimal(g.denominator))).exp()
            lower, step = Decimal(known) / Decimal(2**bits), Decimal(1) / Decimal(2**bits)
            doubt = Decimal(10) ** (5 - digits) * (1 + int(g))  # of p: rounding of g, exp and the divisions
            if lower >= p + doubt:
                return False
            if lower + step <= p - doubt:
                return True
        known = (known << 64) | int.from_bytes(os.urandom(8), "little")
        bits += 64
