"""The blocks of a group of pairs: stored or, if a memory limit leaves no room, recomputed at each use.

For the rbf kernel and small sites compiled code computes them pair by pair. For all others BLAS computes a panel,
some sites with all their partners of one pool, in one product.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import groupby
from typing import Any

import array_api_compat as aac
import numpy as np

from ...kernels import Kernel, row_tiles
from .. import native
from ..centering import center_blocks
from ..chunks import by_nodes, guided_chunks, row_bytes, run_chunks
from ..spectrum import transposed
from .layout import Layout, PairGroup

Array = Any

PANEL_BYTES = 4 * 2**20  # of the samples gathered for a panel, or of its blocks: fits into a thread's cache
DEVICE_PANEL_BYTES = 2**30
PACKED_BYTES = 2**20  # of one site: packing once does not speed up larger ones

Tile = Callable[[int, Array, int, Array], Array]  # pool, its rows (S,), other pool, its rows (S, c) -> (S, c, a, b)


@dataclass(frozen=True, eq=False)
class Pool:
    """Sites of one padded shape: samples (S, n, M), their landmark coordinates (S, n, m), 1 for real rows (S, n)."""

    samples: Array
    psi: Array
    mask: Array
    full: bool  # whether all rows are real
    squares: Array | None = None  # (S, n): Kernel.squares

    def some(self, rows: Array, n: int) -> Pool:
        """The sites with these numbers, cut to n rows."""
        xp = aac.array_namespace(self.samples)
        count = rows.shape[0]
        adjacent = aac.is_numpy_array(rows) and (rows == np.arange(rows[0], rows[0] + count)).all()

        def pick(x: Array) -> Array:
            found = x[rows[0] : rows[0] + count, ...] if adjacent else xp.take(x, rows, axis=0)
            return found[:, :n, ...]

        squares = None if self.squares is None else pick(self.squares)
        return Pool(pick(self.samples), pick(self.psi), pick(self.mask), self.full, squares)

    @property
    def packs(self) -> bool:
        """Whether compiled code computes blocks of its sites faster than BLAS: the packed samples of a pair stay in the cache."""
        if native.steps is None or not native.steps.BLOCKS or not aac.is_numpy_array(self.samples):
            return False
        return row_bytes(self.samples) + row_bytes(self.psi) <= PACKED_BYTES


@dataclass(frozen=True, eq=False)
class Blocks:
    """The blocks (P, a, b) of the pairs of a group."""

    stored: Array | None  # None: recomputed at each use
    make: Callable[[slice], Array]  # computes the blocks of some pairs
    shape: tuple[int, int, int]
    work_bytes: int  # of the samples of one block, or of the block
    like: Array  # for the library and device

    def some(self, pairs: slice) -> Array:
        return self.make(pairs) if self.stored is None else self.stored[pairs, ...]

    def all(self) -> Array:
        if self.stored is not None:
            return self.stored
        return by_nodes(lambda pairs: (self.make(pairs),), self.shape[0], self.work_bytes, self.like)[0]

    def changed(self, make: Callable[[slice], Array]) -> Blocks:
        """Other blocks of the same shape; stored if these are."""
        other = replace(self, stored=None, make=make)
        return other if self.stored is None else other.kept(other.all())

    def kept(self, stored: Array) -> Blocks:
        """With these blocks stored. `make` is dropped, since it would keep its inputs alive, which are as large."""
        return replace(self, stored=stored, make=_stored)


def _stored(pairs: slice) -> Array:
    raise RuntimeError("these blocks are stored, not computed")


@dataclass(frozen=True, eq=False)
class Filler:
    """Computes blocks of the rest of a kernel, between sites of some pools cut to `n_rows` rows."""

    pools: Sequence[Pool]
    n_rows: int
    kernel: Kernel
    local_means: bool  # each block is double-centred by its own means
    far: bool  # some samples are far from the origin: distances need another origin for each pair

    @classmethod
    def of(cls, pools: Sequence[Pool], n_rows: int, kernel: Kernel, local_means: bool) -> Filler:
        return cls(pools, n_rows, kernel, local_means, any(kernel.far(pool.squares) for pool in pools))

    @property
    def by_pair(self) -> list[bool]:
        """(pools,): whether compiled code computes their blocks, pair by pair."""
        usual = self.kernel.name == "rbf" and not self.far and not self.local_means
        return [usual and pool.packs for pool in self.pools]

    def fill(self, layout: Layout, groups: Sequence[PairGroup], keep: float) -> list[Blocks]:
        """The blocks of all groups (those of the layout, indexed for the pools' device); at most `keep` bytes are stored."""
        empty = []
        for group in groups:
            empty.append(self._empty(group, keep))
            keep -= math.prod(empty[-1].shape) * self._item if empty[-1].stored is not None else 0
        done = self._fill_by_pair(groups, empty)
        self._fill_by_panel(layout, groups, empty, done)
        return [blocks if blocks.stored is None else blocks.kept(blocks.stored) for blocks in empty]

    @property
    def _item(self) -> int:
        return row_bytes(self.pools[0].samples[:1, :1, :1])

    def _rows(self, pool: int) -> int:
        return min(self.pools[pool].samples.shape[1], self.n_rows)

    def _empty(self, group: PairGroup, keep: float) -> Blocks:
        like = self.pools[group.pools[0]].samples
        xp = aac.array_namespace(like)
        (p, q), (p_rows, q_rows) = group.pools, group.rows
        shape = len(group), self._rows(p), self._rows(q)
        fits = math.prod(shape) * self._item <= keep
        work_bytes = max((shape[1] + shape[2]) * row_bytes(like[:1, 0, :]), shape[1] * shape[2] * self._item)
        stored = xp.empty(shape, dtype=like.dtype, device=aac.device(like)) if fits else None
        return Blocks(stored, partial(_one_by_one, self.tile, p, p_rows, q, q_rows), shape, work_bytes, p_rows)

    def _fill_by_pair(self, groups: Sequence[PairGroup], blocks: Sequence[Blocks]) -> set[int]:
        """Compiled code, pair by pair; returns the groups that are done."""
        by_pair = self.by_pair
        by_pools: dict[tuple[int, int], list[int]] = {}
        for number, group in enumerate(groups):
            p, q = group.pools
            if blocks[number].stored is not None and by_pair[p] and by_pair[q]:
                by_pools.setdefault((p, q), []).append(number)

        packing = cache(lambda pool: _packing(self.pools[pool], self.n_rows))

        def pairs_of(number: int) -> np.ndarray:
            """(P, 3): the two sites, and the address of their block."""
            stored = blocks[number].stored
            assert stored is not None
            return np.column_stack(
                [*groups[number].rows, stored.ctypes.data + np.arange(len(stored)) * stored.strides[0]]
            )

        for (p, q), members in by_pools.items():
            pairs = np.concatenate([pairs_of(number) for number in members]).astype(np.intp)
            pairs = pairs[np.lexsort((pairs[:, 1], pairs[:, 0]))]  # so that the sites of most pairs are packed already
            p_rows, q_rows, address = np.ascontiguousarray(pairs.T)
            given: dict[str, Any] = {f"p_{name}": array for name, array in packing(p).items()}
            given |= {f"q_{name}": array for name, array in packing(q).items()}
            given |= {"alike": p == q, "p_rows": p_rows, "q_rows": q_rows, "address": address}
            given |= {"kept_bytes": 8 * PACKED_BYTES, "gamma": self.kernel.gamma}

            def compute(some: slice, given: dict[str, Any] = given) -> None:
                native.steps.rest_blocks(some.start, some.stop, **given)

            run_chunks(compute, guided_chunks(len(pairs)), self.pools[p].samples)
        return {number for members in by_pools.values() for number in members}

    def _fill_by_panel(
        self, layout: Layout, groups: Sequence[PairGroup], blocks: Sequence[Blocks], done: set[int]
    ) -> None:
        """The other groups, a panel at a time: some sites, each with all its partners of one pool, in one wide product."""
        like = self.pools[0].samples
        xp = aac.array_namespace(like)
        limit = PANEL_BYTES if aac.is_numpy_array(like) else DEVICE_PANEL_BYTES
        work = []
        begun = np.zeros(len(groups), dtype=np.int64)
        for pattern, sites in zip(layout.patterns, layout.n_sites, strict=True):
            present = [g for g in np.flatnonzero(pattern).tolist() if g not in done and blocks[g].stored is not None]
            for (p, q), members in groupby(present, key=lambda g: groups[g].pools):
                parts = [(g, int(begun[g]), int(pattern[g])) for g in members]
                rows, columns = blocks[parts[0][0]].shape[1], sum(count * blocks[g].shape[2] for g, _, count in parts)
                step = max(1, limit // max((rows + columns) * row_bytes(like[:1, 0, :]), rows * columns * self._item))
                work += [(p, q, parts, chunk) for chunk in row_tiles(int(sites), step)]
            begun += pattern * sites

        def compute(panel: tuple[int, int, list[tuple[int, int, int]], slice]) -> None:
            p, q, parts, chunk = panel
            S = chunk.stop - chunk.start
            places = [slice(start + chunk.start * count, start + chunk.stop * count) for _, start, count in parts]
            g, _, count = parts[0]
            p_rows = groups[g].rows[0][places[0]][::count]
            q_rows = [
                xp.reshape(groups[g].rows[1][here], (S, count))
                for (g, _, count), here in zip(parts, places, strict=True)
            ]
            partners = xp.concat(q_rows, axis=1)
            order = np.arange(partners.shape[1])
            if S == 1 and aac.is_numpy_array(like):  # adjacent partners need not be gathered
                order = np.argsort(partners[0])
                partners = partners[:, order]
            found = self.tile(p, p_rows, q, partners)
            where = iter(np.argsort(order).tolist())
            for (g, _, count), here in zip(parts, places, strict=True):
                for i in range(count):
                    blocks[g].stored[here.start + i : here.stop : count, ...] = found[:, next(where), ...]  # type: ignore[index]

        run_chunks(compute, work, like)

    def tile(self, p: int, p_rows: Array, q: int, q_rows: Array) -> Array:
        """rest(X_p, X_q) of S sites of pool p with c partners each, of pool q: (S, c, a, b)."""
        pools = self.pools
        xp = aac.array_namespace(pools[p].samples)
        (S, c), a, b = q_rows.shape, self._rows(p), self._rows(q)
        mine, theirs = pools[p].some(p_rows, a), pools[q].some(xp.reshape(q_rows, (-1,)), b)

        def side_by_side(x: Array) -> Array:
            return xp.reshape(x, (S, c * b, *x.shape[2:]))

        if self.far:
            apart = self.kernel.gram(mine.samples[:, None, ...], xp.reshape(theirs.samples, (S, c, b, -1)))
            block = xp.reshape(xp.permute_dims(apart, (0, 2, 1, 3)), (S, a, c * b))
        else:
            squares = None if theirs.squares is None else side_by_side(theirs.squares)
            block = self.kernel.gram(mine.samples, side_by_side(theirs.samples), (mine.squares, squares))
        if mine.psi.shape[2]:
            block -= mine.psi @ transposed(side_by_side(theirs.psi))
        if not pools[p].full:
            block *= mine.mask[:, :, None]
        if not pools[q].full:
            block *= side_by_side(theirs.mask)[:, None, :]
        block = xp.permute_dims(xp.reshape(block, (S, a, c, b)), (0, 2, 1, 3))
        if self.local_means:
            return center_blocks(block, mine.mask[:, None, :], xp.reshape(theirs.mask, (S, c, b)))
        return block


def _one_by_one(tile: Tile, p: int, p_rows: Array, q: int, q_rows: Array, pairs: slice) -> Array:
    return tile(p, p_rows[pairs], q, q_rows[pairs][:, None])[:, 0, ...]


def _packing(pool: Pool, n_rows: int) -> dict[str, np.ndarray]:
    """The data that compiled code packs for a site: samples and landmark coordinates, cut to n_rows; and the number of real rows."""
    sizes = np.asarray(pool.mask[:, :n_rows].sum(axis=1)).astype(np.intp)
    samples, psi = (_contiguous_rows(x[:, :n_rows, :]) for x in (pool.samples, pool.psi))
    return {"samples": samples, "psi": psi, "sizes": sizes}


def _contiguous_rows(x: np.ndarray) -> np.ndarray:
    """x, or a copy of it in which each matrix is contiguous."""
    contiguous = x.strides[1:] == (x.shape[2] * x.itemsize, x.itemsize)
    return x if contiguous else np.ascontiguousarray(x)
