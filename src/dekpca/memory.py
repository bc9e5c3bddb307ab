"""How much memory a run takes, and what to do without when it is limited: the Gram blocks, which can be computed again whenever they are used."""

from __future__ import annotations

import ctypes
import math
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from numbers import Integral
from typing import Any

from .block import Block
from .core.nodewise import row_bytes
from .options import Options

UNITS = {
    "": 1,
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KIB": 2**10,
    "MIB": 2**20,
    "GIB": 2**30,
    "TIB": 2**40,
}

# Arrays alive at once at the peak of an iteration, as counted in program.py: for each neighbor and sample, and for each landmark.
SLOT_ARRAYS, SHARED_ARRAYS = 16, 24


def parse_size(limit: int | str | None) -> int | None:
    """Bytes from a number or a text such as "2GB" or "512 MiB".

    >>> parse_size("2GB"), parse_size("0.5 KiB")
    (2000000000, 512)
    """
    if limit is None:
        return None
    match = re.fullmatch(r"\s*(\d+(?:\.\d*)?)\s*([kmgt]?i?b?)\s*", str(limit), re.IGNORECASE)
    unit = match[2].upper() if match else None
    if isinstance(limit, bool) or not isinstance(limit, (Integral, str)) or unit not in UNITS or float(match[1]) <= 0:  # type: ignore[index]
        raise ValueError(f"memory_limit={limit!r}: give bytes, or a text such as '2GB' or '512MiB'")
    return int(float(match[1]) * UNITS[unit])  # type: ignore[index]


def within(blocks: Sequence[Block], options: Options, limit: int | None) -> list[Block]:
    """The blocks, each with its share of what the limit leaves for Gram blocks."""
    if limit is None:
        return list(blocks)
    needed = sum(_without_gram(block, options) for block in blocks)
    if needed > limit:
        raise ValueError(
            f"memory_limit={limit / 1e9:.3g} GB: the samples, factors and iterates of these {sum(b.n_nodes for b in blocks)} nodes take about "
            f"{needed / 1e9:.3g} GB; raise it, use dtype='float32', or spread the nodes over more processes (engine='mpi')"
        )
    sizes = [block.n_nodes * block.n_slots**2 * block.n_near**2 for block in blocks]
    return [
        replace(block, gram_bytes=(limit - needed) * size / sum(sizes))
        for block, size in zip(blocks, sizes, strict=True)
    ]


@cache
def _trim() -> Any:
    """glibc's malloc_trim, where there is one."""
    return getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None


def give_back(blocks: Sequence[Block]) -> None:
    """With a limit, memory that was freed goes back to the system at once: the C library would keep arrays of up to 32 MB for later."""
    trim = _trim()
    if trim is not None and any(math.isfinite(block.gram_bytes) for block in blocks):
        trim(0)


def _without_gram(block: Block, options: Options) -> int:
    """Bytes of everything else."""
    B, n, M = block.samples.shape
    if block.borrowed:
        M = 0
    m, k, d = options.n_landmarks, options.n_columns, block.n_slots
    if options.solver == "landmarks":
        return int(B * n * (M + 2 * m) * row_bytes(block.samples[:1, :1, 0]))
    matrices = 4 * n * n  # rest and its inverse, K_j, the response
    iterates = k * (block.n_near * (SLOT_ARRAYS * d + d * d) + SHARED_ARRAYS * m)
    return int(B * (n * M + 2 * n * m + matrices + iterates) * row_bytes(block.samples[:1, :1, 0]))
