"""Random numbers that follow from a seed, and keys of rows. All nodes draw alike, on any machine and device: SplitMix64, numbers from a counter."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import Any

import array_api_compat as aac
import numpy as np
from scipy.special import ndtri

from .arrays import integers, like, numbers
from .chunks import by_rows, row_tiles

Array = Any

HOST = np.zeros(0)
GOLDEN = 0x9E3779B97F4A7C15
STEP = np.uint64(GOLDEN)  # from the key of a row to that of the next, before they are mixed
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
    tiles = row_tiles(count, CHUNK) if aac.is_numpy_array(beside) else [slice(0, count)]
    return aac.array_namespace(beside).concat([mixed(start + number[tile] * step) for tile in tiles])


def code_of(text: str, size: int = 8) -> int:
    """So many bytes that follow from a text, as a number."""
    return int.from_bytes(blake2b(text.encode(), digest_size=size).digest(), "little")


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


# ---------------------------------------------------------------------- seeds
def node_random(seed: int, name: str, purpose: str) -> np.random.Generator:
    """A node's own random numbers: they depend on its name, not on its number or its process."""
    return np.random.default_rng(code_of(f"{seed}\0{purpose}\0{name}", 16))


def shared_seed(seed: int, purpose: str) -> int:
    """A seed for numbers that all nodes draw alike."""
    return code_of(f"{seed}\0{purpose}", 16)


# ---------------------------------------------------------------------- keys of rows
def row_keys(seed: int, names: Sequence[str], sizes: np.ndarray, beside: Array = HOST) -> Array:
    """Keys of the rows of nodes with these names, node by node, in the library and on the device of `beside`. Draws by them depend on the seed, a
    row's node and its number there, not on which process holds the row."""
    xp, before = aac.array_namespace(beside), np.cumsum(sizes) - sizes
    starts = np.array([start_of(seed, name) for name in names], dtype=np.uint64) - STEP * before.astype(np.uint64)
    number = numbers(beside, int(sizes.sum()))
    first = xp.repeat(integers(beside, starts.view(np.int64)), integers(beside, sizes))
    return by_rows(lambda some: mixed(first[some] + number[some] * word(GOLDEN)), number.shape[0], 8, beside)


def numbered(node: np.ndarray, before: np.ndarray) -> np.ndarray:
    """(n,) the numbers of rows of these nodes (n,), which had `before` (nodes,) rows."""
    order, more = np.argsort(node, kind="stable"), np.bincount(node, minlength=len(before))
    found = np.empty(len(node), dtype=np.int64)
    found[order] = np.arange(len(node)) - np.repeat(np.cumsum(more) - more, more)
    return found + before[node]


def keys_at(seed: int, names: Sequence[str], node: np.ndarray, number: np.ndarray) -> np.ndarray:
    """Keys of the rows with these numbers at these nodes, of which `names` has the names."""
    return keys_from(np.array([start_of(seed, name) for name in names], dtype=np.uint64)[node], number)


def keys_from(starts: Any, number: np.ndarray) -> np.ndarray:
    """Keys of the rows with these numbers at nodes that begin with these `starts`."""
    return mixed((starts + STEP * number.astype(np.uint64)).view(np.int64))


def start_of(seed: int, name: str) -> np.uint64:
    """What the keys of the rows of a node begin with."""
    return np.uint64(code_of(f"{seed}\0{name}"))


def uniform_by_key(keys: Array, purpose: str) -> Array:
    """A number from 0 to 1 for each key, another one for another purpose."""
    xp, code = aac.array_namespace(keys), word(code_of(purpose))

    def some(rows: slice) -> Array:
        return xp.astype(shifted(mixed(keys[rows] ^ code), 11), xp.float64) * 2.0**-53

    return by_rows(some, keys.shape[0], 8, keys)
