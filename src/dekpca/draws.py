"""Random numbers that all nodes draw alike, whatever their machine, device and version of NumPy: SplitMix64, whose numbers follow from a counter."""

from __future__ import annotations

import math
from functools import lru_cache
from hashlib import blake2b
from typing import Any

import array_api_compat as aac
import numpy as np
from scipy.special import ndtri

from .arrays import like, numbers

Array = Any

HOST = np.zeros(0)
GOLDEN = 0x9E3779B97F4A7C15
CHUNK = 2**14  # numbers that are drawn at once, in a cache


@lru_cache(maxsize=8)
def normal(shape: tuple[int, int], seed: int) -> np.ndarray:
    """Normal numbers from `uniform` ones; cached, since fits with the same seed draw the same."""
    found = ndtri(uniform(shape, seed))
    found.setflags(write=False)
    return found


def normal_like(x: Array, shape: tuple[int, int], seed: int) -> Array:
    """The same numbers, up to rounding, in the library, on the device and in the dtype of x."""
    if not aac.is_torch_array(x):
        return like(x, normal(shape, seed))
    from torch.special import ndtri as on_device

    return like(x, on_device(uniform(shape, seed, x)))


def uniform(shape: tuple[int, ...], seed: int, beside: Array = HOST) -> Array:
    """Numbers between 0 and 1, both excluded, in float64, in the library and on the device of `beside`."""
    xp, words = aac.array_namespace(beside), bits(math.prod(shape), seed, beside)
    # 52 bits: with 53 a half more would be rounded, of the largest number to 1, whose quantile is infinite
    return xp.reshape((xp.astype(shifted(words, 12), xp.float64) + 0.5) * 2.0**-52, shape)


def signs(shape: tuple[int, ...], seed: int) -> np.ndarray:
    """Numbers 1 and -1, each with probability one half."""
    return np.where(bits(math.prod(shape), seed) < 0, 1.0, -1.0).reshape(shape)


def bits(count: int, seed: int, beside: Array = HOST) -> Array:
    """64 random bits (count,), as signed integers."""
    start, step, number = word(code_of(str(seed))), word(GOLDEN), numbers(beside, count)
    size = CHUNK if aac.is_numpy_array(beside) else max(count, 1)
    found = [mixed(start + number[i : min(i + size, count)] * step) for i in range(0, max(count, 1), size)]
    return aac.array_namespace(beside).concat(found)


def code_of(text: str) -> int:
    """64 bits that follow from a text."""
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little")


def mixed(x: Array) -> Array:
    """The finalizer of SplitMix64: a bijection of 64 bits that looks random."""
    x = (x ^ shifted(x, 30)) * word(0xBF58476D1CE4E5B9)
    x = (x ^ shifted(x, 27)) * word(0x94D049BB133111EB)
    return x ^ shifted(x, 31)


def word(value: int) -> int:
    """64 bits as a signed integer: not all libraries have unsigned ones."""
    return value - 2**64 * (value >> 63)


def shifted(x: Array, bits: int) -> Array:
    """To the right, with zeros on the left."""
    return (x >> bits) & (2 ** (64 - bits) - 1)
