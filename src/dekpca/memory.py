"""The memory of a run. If it is limited, Gram blocks that do not fit are recomputed at each use."""

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

import array_api_compat as aac

from .block import Block
from .core import native
from .core.chunks import row_bytes
from .options import Options
from .solvers.sums import LEAST_SAMPLE, SAMPLE
from .solvers.sums.judge import judging_numbers
from .solvers.sums.moments import EXTRA

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

# Live arrays at the peak of an iteration, in the array backend and in the compiled one: per neighbor and sample, and per landmark.
SLOT_ARRAYS, SHARED_ARRAYS = 16, 26
COMPILED_SLOT_ARRAYS, COMPILED_SHARED_ARRAYS = 9, 24


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
    """The blocks, each with its share of the memory for Gram blocks.

    Compiled steps need less memory than others, but all Gram blocks.
    """
    if limit is None:
        return list(blocks)
    if options.solver != "projection":
        needed = sum(_without_gram(block, options) for block in blocks)
        if needed > limit:
            raise ValueError(
                f"memory_limit={limit / 1e9:.3g} GB: the samples of these {sum(b.n_nodes for b in blocks)} nodes and {options.n_landmarks} "
                f"landmarks take about {needed / 1e9:.3g} GB; raise it, use dtype='float32', or spread the nodes over more processes (engine='mpi')"
            )
        return list(blocks)
    gram = [_gram(block) for block in blocks]
    if all(_compiled(block, options) for block in blocks):
        needed = sum(_without_gram(block, options, compiled=True) for block in blocks)
        if needed + sum(gram) <= limit:
            return [replace(block, gram_bytes=size) for block, size in zip(blocks, gram, strict=True)]
    needed = sum(_without_gram(block, options) for block in blocks)
    if needed > limit:
        raise ValueError(
            f"memory_limit={limit / 1e9:.3g} GB: the samples, factors and iterates of these {sum(b.n_nodes for b in blocks)} nodes take about "
            f"{needed / 1e9:.3g} GB; raise it, use dtype='float32', or spread the nodes over more processes (engine='mpi')"
        )
    return [
        replace(block, gram_bytes=(limit - needed) * size / sum(gram)) for block, size in zip(blocks, gram, strict=True)
    ]


def fitting(blocks: Sequence[Block], options: Options, limit: int | None) -> Options:
    """The options, with at most as many landmarks as fit into the limit."""
    if limit is None or not options.grow:
        return options
    most = options.max_landmarks
    while (
        most > options.n_landmarks and sum(_without_gram(b, replace(options, n_landmarks=most)) for b in blocks) > limit
    ):
        most = max(options.n_landmarks, int(0.8 * most))
    return replace(options, max_landmarks=most)


@cache
def _trim() -> Any:
    """glibc's malloc_trim, where there is one."""
    return getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None


def give_back(blocks: Sequence[Block]) -> None:
    """With a limit, return freed memory to the system at once: the C library would keep arrays of up to 32 MB."""
    trim = _trim()
    if trim is not None and any(math.isfinite(block.gram_bytes) for block in blocks):
        trim(0)


def _compiled(block: Block, options: Options) -> bool:
    """Whether the compiled backend will be used, if all Gram blocks are stored."""
    usual = options.solver == "projection" and options.anchored and not options.diagnostics
    usual = usual and not options.exchange_noise
    return native.steps is not None and aac.is_numpy_array(block.samples) and usual


def _gram(block: Block) -> int:
    """Upper bound on the bytes of Gram blocks: one for each pair of nodes in some neighborhood."""
    pairs = (block.network.watchers.nnz + len(block.network)) // 2
    at_most = min(pairs, block.n_nodes * block.n_slots * (block.n_slots + 1) // 2)
    return int(at_most * block.n_near**2 * _item(block))


def _without_gram(block: Block, options: Options, compiled: bool = False) -> int:
    """Bytes of everything else."""
    B, n, M = block.samples.shape
    if block.borrowed:
        M = 0
    m, k, d = options.n_landmarks, options.n_columns, block.n_slots
    judging = 0
    if options.init == "landmarks" and m and not options.random_features:
        judging = judging_numbers(int(block.own_sizes.sum()), block.samples.shape[2], m, k + EXTRA)
    if options.random_features:
        return int(B * n * (M + 2 * m) * _item(block))
    if options.solver != "projection":
        sample = min(B * n, max(SAMPLE * m, LEAST_SAMPLE)) * block.samples.shape[2]
        return int((B * n * M + 4 * B * n + sample + judging + 6 * m * m) * _item(block))
    matrices = 4 * n * n  # rest and its inverse, K_j, the response
    if options.init != "landmarks":
        matrices += 2 * n * n  # eigenvectors to begin with
    if compiled:
        psi, iterates = n * m, block.n_near * COMPILED_SLOT_ARRAYS * d + COMPILED_SHARED_ARRAYS * m
    else:  # psi both centred and uncentred, for blocks that are recomputed
        psi, iterates = 2 * n * m, block.n_near * (SLOT_ARRAYS * d + d * d) + SHARED_ARRAYS * m
    triangles = n * m + m * (m + 1) // 2 if options.init == "landmarks" else 0  # for the start
    return int((B * (n * M + max(triangles, psi + matrices + k * iterates)) + judging) * _item(block))


def _item(block: Block) -> int:
    return row_bytes(block.samples[:1, :1, 0])
