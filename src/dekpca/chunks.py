"""Chunks of rows: work on many rows is done in chunks that fit into a cache, with NumPy in threads.

Products of small matrices gain nothing from BLAS threads, and lose much to their synchronization. So an engine opens
`threads()` around a run: inside, BLAS has one thread and chunks run in parallel. Other array libraries schedule
themselves; a chunk there is as large as memory allows.
"""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, reduce
from itertools import pairwise
from threading import Lock
from typing import Any

import array_api_compat as aac
import numpy as np
from threadpoolctl import ThreadpoolController

Array = Any
Arrays = tuple[Array, ...]

CACHE_BYTES = 2**19  # results of one chunk; its inputs and temporaries are a few times that
STRIPES = 8  # slices of a sum over many rows; fixed, so that sums do not depend on the number of threads
SUMMED_BYTES = 2**25  # results of all slices of a sum
DEVICE_BYTES = 2**28  # as CACHE_BYTES, on a device, where a chunk is a few kernel launches

_pool: ContextVar[ThreadPoolExecutor | None] = ContextVar("pool", default=None)
_workers: ContextVar[int] = ContextVar("workers", default=1)  # threads of the pool, plus the calling thread


@contextmanager
def threads(n_items: int) -> Iterator[int]:
    """Run chunks in as many threads as BLAS may use now. With too few items to keep them busy, BLAS keeps its threads."""
    with _blas.held(n_items) as allowed:
        if allowed == 1:
            yield 1
            return
        tokens = _pool.set(_workers_for(allowed)), _workers.set(allowed)
        try:
            yield allowed
        finally:
            _pool.reset(tokens[0])
            _workers.reset(tokens[1])


@cache
def _workers_for(allowed: int) -> ThreadPoolExecutor:
    """A pool of threads that is kept between fits: starting threads is slow compared with a small fit. The calling thread works too."""
    return ThreadPoolExecutor(allowed - 1, thread_name_prefix="dekpca")


os.register_at_fork(after_in_child=_workers_for.cache_clear)  # threads do not survive a fork


class _Blas:
    """Limits BLAS to one thread while at least one run needs it: the first run sets the limit, the last one removes it."""

    def __init__(self) -> None:
        self.lock, self.users, self.allowed = Lock(), 0, 1
        self.controller: Any = None  # searched once, when NumPy's and SciPy's libraries are loaded
        self.limiter: Any = None

    @contextmanager
    def held(self, n_items: int) -> Iterator[int]:
        """The number of threads that BLAS had, or 1 if it keeps them."""
        with self.lock:
            self.controller = self.controller or ThreadpoolController()
            if self.users == 0:
                found = [library["num_threads"] for library in self.controller.info() if library["user_api"] == "blas"]
                self.allowed = max(found, default=1)
            wanted = self.allowed > 1 and n_items >= 4 * self.allowed
            if wanted and self.users == 0:
                self.limiter = self.controller.limit(limits=1, user_api="blas")
            self.users += wanted
        try:
            yield self.allowed if wanted else 1
        finally:
            with self.lock:
                self.users -= wanted
                if wanted and self.users == 0:
                    self.limiter.restore_original_limits()


_blas = _Blas()


def run_chunks(work: Callable[[Any], None], chunks: Sequence[Any], like: Array) -> None:
    """work(chunk) for each chunk, in parallel inside `threads()`: chunks must not write to the same memory."""
    pool = _pool.get()
    if pool is None or len(chunks) < 2 or not aac.is_numpy_array(like):
        for chunk in chunks:
            work(chunk)
        return

    left = deque(chunks)

    def some() -> None:
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):  # threads do not inherit it
            try:
                while left:
                    try:
                        chunk = left.popleft()
                    except IndexError:  # another thread took it
                        return
                    work(chunk)
            except BaseException:
                left.clear()
                raise

    helpers = [pool.submit(some) for _ in range(min(_workers.get(), len(chunks)) - 1)]
    try:
        some()
    finally:
        begun = [helper for helper in helpers if not helper.cancel()]  # helpers that have not started are cancelled
        wait(begun)  # these write into the caller's arrays
    for helper in begun:
        helper.result()


def each(f: Callable[[Any], Any], items: Sequence[Any], like: Array) -> list[Any]:
    """f of each item, in parallel inside `threads()`."""
    found: list[Any] = [None] * len(items)

    def work(i: int) -> None:
        found[i] = f(items[i])

    run_chunks(work, range(len(items)), like)
    return found


def row_tiles(rows: int, size: int) -> Iterator[slice]:
    """Slices that cover `rows` rows in nearly equal tiles of at most `size`."""
    tiles = max(1, -(-rows // size))
    bounds = [rows * i // tiles for i in range(tiles + 1)]
    return (slice(a, b) for a, b in pairwise(bounds))


def chunks_of(count: int, bytes_a_row: int, like: Array) -> list[slice]:
    """Slices that cover `count` rows of so many bytes each."""
    limit = CACHE_BYTES if aac.is_numpy_array(like) else DEVICE_BYTES
    return list(row_tiles(count, max(1, limit // max(1, bytes_a_row))))


def by_rows(f: Callable[[slice], Array], count: int, bytes_a_row: int, like: Array) -> Array:
    """The arrays f(rows) of all chunks of rows, concatenated along the first axis."""
    slices = chunks_of(count, bytes_a_row, like)
    if len(slices) == 1:
        return f(slices[0])
    out: list[Array] = []
    xp, lock = aac.array_namespace(like), Lock()

    def work(rows: slice) -> None:
        found = f(rows)
        with lock:
            if not out:  # allocate by the shape of the first result
                out.append(xp.empty((count, *found.shape[1:]), dtype=found.dtype, device=aac.device(found)))
        out[0][rows, ...] = found

    run_chunks(work, slices, like)
    return out[0]


def summed(
    f: Callable[[slice], Arrays], count: int, like: Array, result_bytes: int = 0, bytes_a_row: int = 0
) -> Arrays:
    """The sums of the arrays f(slice) over slices of `count` rows, added in the order of the slices.

    The number of slices does not depend on the number of threads, so neither do the sums; large results have fewer slices. With `bytes_a_row` f gets
    chunks of them.
    """
    stripes = STRIPES
    while stripes > 2 and stripes * result_bytes > SUMMED_BYTES:
        stripes //= 2
    cut = aac.is_numpy_array(like) and count > stripes
    slices = list(row_tiles(count, -(-count // stripes))) if cut else [slice(0, count)]

    def stripe(rows: slice) -> Arrays:
        chunks = chunks_of(rows.stop - rows.start, bytes_a_row, like)
        return _added(f(slice(rows.start + chunk.start, rows.start + chunk.stop)) for chunk in chunks)

    found = each(stripe, slices, like)[::-1]
    return _added(found.pop() for _ in slices)  # a result is freed when it is added


def _added(terms: Iterable[Arrays]) -> Arrays:
    return reduce(lambda total, term: tuple(a + b for a, b in zip(total, term, strict=True)), terms)


def item_bytes(x: Array) -> int:
    """Bytes of a number of x."""
    return x.itemsize if aac.is_numpy_array(x) else aac.array_namespace(x).finfo(x.dtype).bits // 8


def row_bytes(x: Array) -> int:
    """Bytes of x[0]."""
    return math.prod(x.shape[1:]) * item_bytes(x)
