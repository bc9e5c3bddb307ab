"""The Gram matrices of all neighborhoods of a block, each pair of nodes stored once.

A neighborhood's Gram matrix consists of blocks rest(X_p, X_q) for pairs p, q of its nodes, and most pairs lie in
several neighborhoods: on a ring with 4 neighbors each is needed by up to 5 nodes, in both orders. Here each unordered
pair of *sites* (distinct sets of samples) is one block, grouped with the pairs of the same shape that serve equally
many neighborhoods, so that a product with all neighborhoods is a few batched matrix products.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from itertools import groupby
from typing import Any

import array_api_compat as aac
import numpy as np

from ..kernels import Kernel, row_tiles
from . import native
from .centering import center_blocks
from .nodewise import by_nodes, chunks_of, in_turn, row_bytes, shares_of
from .spectrum import to_numpy, transposed

Array = Any

PANEL_BYTES = (
    4 * 2**20
)  # of samples gathered at a time while Gram blocks are computed, or of these, in a thread's cache
DEVICE_PANEL_BYTES = 2**30
PACKED_BYTES = 2**20  # of one site: larger ones gain nothing from being packed once


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
        together = aac.is_numpy_array(rows) and (rows == np.arange(rows[0], rows[0] + count)).all()

        def pick(x: Array) -> Array:
            found = x[rows[0] : rows[0] + count, ...] if together else xp.take(x, rows, axis=0)
            return found[:, :n, ...]

        squares = None if self.squares is None else pick(self.squares)
        return Pool(pick(self.samples), pick(self.psi), pick(self.mask), self.full, squares)


@dataclass(frozen=True, eq=False)
class Group:
    """P pairs of sites; each serves u neighborhoods. `first` and `second` (P * u) say where: node * d + slot."""

    blocks: Array | None  # (P, a, b); None: too large to be kept, and made again each time
    make: Callable[[slice], Array]  # the blocks of some pairs, computed
    shape: tuple[int, int, int]
    work_bytes: int  # of the samples that making one block takes, or of the block
    n_uses: int
    first: Array
    second: Array | None  # None: pairs of a site with itself
    sites: tuple[tuple[int, Array], tuple[int, Array]]  # (pool, rows) of either side

    def some(self, pairs: slice) -> Array:
        """The blocks of some pairs."""
        return self.make(pairs) if self.blocks is None else self.blocks[pairs, ...]

    def all(self) -> Array:
        """The blocks of all pairs."""
        if self.blocks is not None:
            return self.blocks
        like = self.sites[0][1]
        return by_nodes(lambda pairs: (self.make(pairs),), self.shape[0], self.work_bytes, like)[0]

    def products(self, flat: Array, out: Array, pairs: slice, start: int) -> None:
        """What some pairs add to the values at `first` and then at `second`, u times (n, k) a pair, into `out` from `start` on.

        `flat` (B * d, n, k) are coefficients.
        """
        blocks = self.some(pairs)
        uses, count = slice(pairs.start * self.n_uses, pairs.stop * self.n_uses), self.shape[0] * self.n_uses
        here = slice(start + uses.start, start + uses.stop)
        if self.second is None:
            self._product(flat, self.first[uses], blocks, out, here)
            return
        self._product(flat, self.second[uses], blocks, out, here)
        self._product(flat, self.first[uses], transposed(blocks), out, slice(here.start + count, here.stop + count))

    def _product(self, flat: Array, source: Array, blocks: Array, out: Array, here: slice) -> None:
        xp = aac.array_namespace(flat)
        P, a, b = blocks.shape
        rows, k = flat.shape[1:]
        u = self.n_uses
        x = xp.reshape(xp.take(flat[:, :b, :] if b < rows else flat, source, axis=0), (P, u, b, k))
        if aac.is_numpy_array(flat):  # a block stays in the cache for its u products
            np.matmul(blocks[:, None, ...], x, out=out[here].reshape(P, u, rows, k)[:, :, :a, :])
        else:  # one wide product reads a pair's block once
            wide = blocks @ xp.reshape(xp.permute_dims(x, (0, 2, 1, 3)), (P, b, u * k))
            out[here, :a, :] = xp.reshape(xp.permute_dims(xp.reshape(wide, (P, a, u, k)), (0, 2, 1, 3)), (P * u, a, k))
        if a < rows:
            out[here, a:, :] = 0.0


@dataclass(frozen=True, eq=False)
class NeighborhoodGram:
    """The operator c -> G c for all neighborhoods of a block, c being (B, d, n, k)."""

    groups: tuple[Group, ...]
    order: Array  # (d, B * d): for each source slot, which product goes to (node, target slot)
    n_nodes: int
    n_slots: int
    n_rows: int

    def apply(self, c: Array, weights: Array | None = None) -> Array:
        """The values of the functions with coefficients c on the samples of their neighborhoods: (B, d, n, k).

        `weights` (B, d, d) scale what each slot (last axis) adds to the values at another.
        """
        if native.steps is not None and weights is not None and self.in_memory:
            return self._apply_compiled(c, weights)
        products = self.products(_flat(c))
        return by_nodes(lambda nodes: (self.collect(products, nodes, weights),), self.n_nodes, row_bytes(c), c)[0]

    @property
    def kept(self) -> bool:
        """Whether all blocks are."""
        return all(group.blocks is not None for group in self.groups)

    @property
    def in_memory(self) -> bool:
        """Whether they are NumPy arrays too, as compiled code needs them."""
        return self.kept and aac.is_numpy_array(self.order)

    def _apply_compiled(self, c: Array, weights: Array) -> Array:
        out = np.empty(c.shape, dtype=c.dtype)
        arguments = (np.ascontiguousarray(c), np.ascontiguousarray(weights), *self.blocks_of_nodes, out)
        in_turn(lambda j: native.steps.apply_nodes(j.start, j.stop, *arguments), shares_of(self.n_nodes), c)
        return out

    def products(self, flat: Array) -> Array:
        """(B * d * d, n, k): what each slot adds to each, for coefficients (B * d, n, k); in the order of the groups."""
        return self._products(flat, self.groups, self.n_nodes * self.n_slots**2)

    def _products(self, flat: Array, groups: Sequence[Group], count: int) -> Array:
        xp = aac.array_namespace(flat)
        out = xp.empty((count, *flat.shape[1:]), dtype=flat.dtype, device=aac.device(flat))
        work, start = [], 0
        for group in groups:
            both = 1 if group.second is None else 2
            pair_bytes = both * group.n_uses * row_bytes(flat) if group.blocks is not None else group.work_bytes
            work += [(group, pairs, start) for pairs in chunks_of(group.shape[0], pair_bytes, flat)]
            start += both * group.shape[0] * group.n_uses
        in_turn(lambda w: w[0].products(flat, out, w[1], w[2]), work, flat)
        return out

    def collect(self, products: Array, nodes: slice, weights: Array | None = None) -> Array:
        """The values (b, d, n, k) at some nodes."""
        xp = aac.array_namespace(products)
        d = self.n_slots
        here = slice(nodes.start * d, nodes.stop * d)
        summed: Array = None
        spare = np.empty((0,))
        for source in range(d):
            if weights is None and source and aac.is_numpy_array(products):  # no new memory for each
                spare = np.empty_like(summed) if source == 1 else spare
                summed += np.take(products, self.order[source, here], axis=0, out=spare, mode="clip")
                continue
            added = xp.take(products, self.order[source, here], axis=0)
            if weights is not None:
                added = added * xp.reshape(weights[nodes, :, source], (-1, 1, 1))
            summed = added if summed is None else summed + added
        return xp.reshape(summed, (nodes.stop - nodes.start, d, *products.shape[1:]))

    @cached_property
    def blocks_of_nodes(self) -> tuple[np.ndarray, np.ndarray]:
        """Where in memory the blocks of each neighborhood are (NumPy): (B, T) addresses, and (B, T, 4) first and second slot, rows, columns."""
        d, T = self.n_slots, self.n_slots * (self.n_slots + 1) // 2
        tables = []
        for group in self.groups:
            blocks = group.blocks
            assert blocks is not None
            second = group.first if group.second is None else group.second
            at = blocks.ctypes.data + np.repeat(np.arange(blocks.shape[0]), group.n_uses) * blocks.strides[0]
            shape = np.broadcast_to(blocks.shape[1:], (len(at), 2))
            tables.append(np.column_stack([group.first // d, at, group.first % d, second % d, shape]))
        together = np.concatenate(tables)
        together = together[np.lexsort((together[:, 3], together[:, 2], together[:, 0]))]
        address = np.ascontiguousarray(together[:, 1].astype(np.intp).reshape(-1, T))
        return address, np.ascontiguousarray(together[:, 2:].astype(np.intc).reshape(-1, T, 4))

    def apply_within(self, c: Array) -> Array:
        """As `apply`, but each slot by itself: the values on a node's samples of the function over those samples alone."""
        xp = aac.array_namespace(c)
        B, d, n, k = c.shape
        groups = [group for group in self.groups if group.second is None]
        order = np.argsort(np.concatenate([to_numpy(group.first) for group in groups]))
        parts = self._products(_flat(c), groups, B * d)
        return xp.reshape(xp.take(parts, xp.asarray(order, device=aac.device(c)), axis=0), (B, d, n, k))

    def own(self, n: int) -> Array:
        """The blocks of slot 0 with itself: (B, n, n)."""
        xp = aac.array_namespace(self.order)
        first: list[np.ndarray] = []
        blocks = []
        for group in self.groups:
            if group.second is None:
                a = min(n, group.shape[1])
                square = group.all()[:, :a, :a]
                blocks.append(transposed(_pad(transposed(_pad(square, n)), n)))
                first.append(to_numpy(group.first).reshape(-1, group.n_uses))
        place = np.empty(self.n_nodes, dtype=np.int64)
        start = 0
        for uses in first:
            pairs, at = np.nonzero(uses % self.n_slots == 0)
            place[uses[pairs, at] // self.n_slots] = start + pairs
            start += len(uses)
        stacked = xp.concat(blocks) if len(blocks) > 1 else blocks[0]
        if len(place) == stacked.shape[0] and (place == np.arange(len(place))).all():
            return stacked
        there = xp.asarray(place, device=aac.device(stacked))
        return by_nodes(lambda j: (xp.take(stacked, there[j], axis=0),), self.n_nodes, row_bytes(stacked), stacked)[0]

    def deflated(self, directions: Sequence[Array]) -> NeighborhoodGram:
        """Every site p has removed its direction from its samples: phi(x) <- phi(x) - <phi(x), v_p> v_p.

        `directions[pool]` (S, n, 1) are the coefficients of the unit functions v_p over the site's own samples.
        """
        xp = aac.array_namespace(self.order)
        values, place, start = [], [np.zeros(p.shape[0], dtype=np.int64) for p in directions], 0
        for group in self.groups:
            if group.second is None:
                (pool, rows), _ = group.sites
                found = group.all() @ xp.take(directions[pool], rows, axis=0)[:, : group.shape[1], :]
                values.append(_pad(found, self.n_rows))
                place[pool][to_numpy(rows)] = start + np.arange(rows.shape[0])
                start += rows.shape[0]
        at_site = xp.concat(values)  # values of v_p on the site's own samples

        def one_side(side: tuple[int, Array], pairs: slice, n: int) -> tuple[Array, Array]:
            pool, rows = side[0], side[1][pairs]
            at = xp.asarray(place[pool][to_numpy(rows)], device=aac.device(at_site))
            return xp.take(directions[pool], rows, axis=0)[:, :n, :], xp.take(at_site, at, axis=0)[:, :n, :]

        def without(group: Group) -> Group:
            def make(pairs: slice) -> Array:
                blocks, (p, q) = group.some(pairs), group.sites
                (v_p, g_p), (v_q, g_q) = one_side(p, pairs, group.shape[1]), one_side(q, pairs, group.shape[2])
                half = blocks - g_p @ (transposed(v_p) @ blocks)
                return half - (half @ v_q) @ transposed(g_q)

            changed = replace(group, blocks=None, make=make)
            # blocks that are kept are never made again; `make` would hold on to those before
            return changed if group.blocks is None else replace(changed, blocks=changed.all(), make=_kept)

        return replace(self, groups=tuple(without(group) for group in self.groups))


def _kept(pairs: slice) -> Array:
    raise RuntimeError("these blocks are kept")


def _one_by_one(tile: Tile, p: int, p_rows: Array, q: int, q_rows: Array, pairs: slice) -> Array:
    blocks = tile(p, p_rows[pairs], q, q_rows[pairs][:, None])
    return blocks[:, 0, ...]


def _flat(c: Array) -> Array:
    """(B, d, n, k) as (B * d, n, k)."""
    return aac.array_namespace(c).reshape(c, (-1, *c.shape[2:]))


def _pad(blocks: Array, rows: int) -> Array:
    """Zeros below each matrix of a stack, up to `rows`."""
    xp = aac.array_namespace(blocks)
    count, have, columns = blocks.shape
    if have == rows:
        return blocks
    return xp.concat(
        [blocks, xp.zeros((count, rows - have, columns), dtype=blocks.dtype, device=aac.device(blocks))], axis=1
    )


def neighborhood_gram(
    pools: Sequence[Pool],
    pool_of: np.ndarray,
    row_of: np.ndarray,
    n_rows: int,
    kernel: Kernel,
    local_means: bool,
    keep: float = math.inf,
) -> NeighborhoodGram:
    """Compute the Gram blocks of all neighborhoods: slot s of node b is row `row_of[b, s]` of `pools[pool_of[b, s]]`.

    `n_rows` is the padded number of samples a slot. The kernel is what the landmarks leave of it; with `local_means`
    each block is double-centred by its own means. At most `keep` bytes of blocks are stored; the others are computed whenever they are used.
    """
    B, d = pool_of.shape
    offsets = np.concatenate([[0], np.cumsum([p.samples.shape[0] for p in pools])])
    n_sites = int(offsets[-1])
    sites = offsets[pool_of] + row_of
    s, t = np.triu_indices(d)
    swap = sites[:, s] > sites[:, t]
    slot_1, slot_2 = np.where(swap, t, s), np.where(swap, s, t)  # (B, T)
    node = np.arange(B)[:, None]
    keys = (sites[node, slot_1] * n_sites + sites[node, slot_2]).ravel()
    at_1, at_2 = (node * d + slot_1).ravel(), (node * d + slot_2).ravel()
    pairs, inverse, uses = np.unique(keys, return_inverse=True, return_counts=True)
    by_pair = np.argsort(inverse.ravel(), kind="stable")
    starts = np.concatenate([[0], np.cumsum(uses)])[:-1]
    site_1, site_2 = pairs // n_sites, pairs % n_sites
    pool_1, pool_2 = (np.searchsorted(offsets, x, side="right") - 1 for x in (site_1, site_2))
    kinds, kind = np.unique(np.stack([pool_1, pool_2, uses, site_1 == site_2], axis=1), axis=0, return_inverse=True)
    kind = kind.ravel()

    # Sites whose pairs are alike (so many of each kind) are computed together, so that their blocks lie together in each group.
    counts = np.zeros((n_sites, len(kinds)), dtype=np.int64)
    np.add.at(counts, (site_1, kind), 1)
    patterns, pattern = np.unique(counts, axis=0, return_inverse=True)
    pattern = pattern.ravel()
    sequence = np.lexsort((site_2, kind, site_1, pattern[site_1]))  # pattern by pattern, site by site, kind by kind

    far = any(kernel.far(pool.squares) for pool in pools)
    tile: Tile = partial(_tile, pools, n_rows, kernel, local_means, far)
    small = [kernel.name == "rbf" and not far and not local_means and _small(pool) for pool in pools]
    compiled = {(p, q) for p, q in kinds[:, :2].tolist() if small[p] and small[q]}
    xp = aac.array_namespace(pools[0].samples)
    device = aac.device(pools[0].samples)
    item = row_bytes(pools[0].samples[:1, :1, :1])
    groups: list[Group] = []
    order = np.empty((B * d, d), dtype=np.int64)
    start = 0
    for number, (p, q, n_uses, diagonal) in enumerate(kinds.tolist()):
        members = sequence[kind[sequence] == number]
        if (p, q) in compiled:
            members = np.sort(members)  # site by site
        used = by_pair[starts[members][:, None] + np.arange(n_uses)].ravel()
        rows = tuple(
            xp.asarray(site[members] - offsets[pool], device=device) for site, pool in ((site_1, p), (site_2, q))
        )
        first, second = at_1[used], at_2[used]
        shape = (len(members), *(min(pools[i].samples.shape[1], n_rows) for i in (p, q)))
        fits = math.prod(shape) * item <= keep
        keep -= math.prod(shape) * item if fits else 0
        groups.append(
            Group(
                blocks=xp.empty(shape, dtype=pools[p].samples.dtype, device=device) if fits else None,
                make=partial(_one_by_one, tile, p, rows[0], q, rows[1]),
                shape=shape,
                work_bytes=max(
                    (shape[1] + shape[2]) * row_bytes(pools[p].samples[:1, 0, :]), shape[1] * shape[2] * item
                ),
                n_uses=n_uses,
                first=xp.asarray(first, device=device),
                second=None if diagonal else xp.asarray(second, device=device),
                sites=((p, rows[0]), (q, rows[1])),
            )
        )
        order[first, second % d] = start + np.arange(len(used))
        start += len(used)
        if not diagonal:
            order[second, first % d] = start + np.arange(len(used))
            start += len(used)

    done = _fill_compiled(groups, compiled, pools, n_rows, kernel)
    sites_of_pattern = np.bincount(pattern[np.unique(site_1)], minlength=len(patterns))
    _fill(groups, done, pools, kinds, patterns, sites_of_pattern, tile)
    # blocks that are kept are never made again; `make` would hold on to the landmark coordinates of all samples
    kept = tuple(group if group.blocks is None else replace(group, make=_kept) for group in groups)
    return NeighborhoodGram(kept, xp.asarray(np.ascontiguousarray(order.T), device=device), B, d, n_rows)


def _fill_compiled(
    groups: Sequence[Group], compiled: set[tuple[int, int]], pools: Sequence[Pool], n_rows: int, kernel: Kernel
) -> set[int]:
    """Compute the blocks of groups of these pairs of pools pair by pair; returns which groups are done."""
    by_pools: dict[tuple[int, int], list[int]] = {}
    for number, group in enumerate(groups):
        (p, _), (q, _) = group.sites
        if group.blocks is not None and (p, q) in compiled:
            by_pools.setdefault((p, q), []).append(number)

    packing = cache(lambda pool: _packing(pools[pool], n_rows))

    def pairs_of(group: Group) -> np.ndarray:
        """(P, 3): the two sites, and where in memory their block is."""
        (_, p_rows), (_, q_rows) = group.sites
        blocks = group.blocks
        assert blocks is not None
        return np.column_stack([p_rows, q_rows, blocks.ctypes.data + np.arange(len(blocks)) * blocks.strides[0]])

    for (p, q), members in by_pools.items():
        pairs = np.concatenate([pairs_of(groups[number]) for number in members]).astype(np.intp)
        pairs = pairs[np.lexsort((pairs[:, 1], pairs[:, 0]))]  # so that most pairs find their sites packed already
        columns = np.ascontiguousarray(pairs.T)
        given = *packing(p), *packing(q), p == q, *columns, 8 * PACKED_BYTES, kernel.gamma

        def compute(some: slice, given: tuple[Any, ...] = given) -> None:
            native.steps.rest_blocks(some.start, some.stop, *given)

        in_turn(compute, shares_of(len(pairs)), pools[p].samples)
    return {number for members in by_pools.values() for number in members}


def _small(pool: Pool) -> bool:
    """Whether compiled code makes better blocks of its sites than BLAS: what it packs for a pair stays in the cache."""
    if native.steps is None or not native.steps.BLOCKS or not aac.is_numpy_array(pool.samples):
        return False
    return row_bytes(pool.samples) + row_bytes(pool.psi) <= PACKED_BYTES


def _packing(pool: Pool, n_rows: int) -> tuple[np.ndarray, ...]:
    """What compiled code packs of a site: samples and landmark coordinates, cut to n_rows; and how many rows are real."""
    sizes = np.asarray(pool.mask[:, :n_rows].sum(axis=1)).astype(np.intp)
    return *(_rows_together(x[:, :n_rows, :]) for x in (pool.samples, pool.psi)), sizes


def _rows_together(x: np.ndarray) -> np.ndarray:
    """x, or a copy of it, with the rows of each matrix one behind the other."""
    together = x.strides[1:] == (x.shape[2] * x.itemsize, x.itemsize)
    return x if together else np.ascontiguousarray(x)


def _fill(
    groups: Sequence[Group],
    done: set[int],
    pools: Sequence[Pool],
    kinds: np.ndarray,
    patterns: np.ndarray,
    n_sites: np.ndarray,
    tile: Tile,
) -> None:
    """Compute the blocks that the other groups keep, a panel at a time: some sites, each with all its partners of one pool, in one wide product.

    `patterns` (., kinds) says how many pairs of each kind a site has, `n_sites` how many sites have that pattern.
    """
    like = pools[0].samples
    xp = aac.array_namespace(like)
    work = []
    begun = np.zeros(len(kinds), dtype=np.int64)
    for pattern, sites in zip(patterns, n_sites, strict=True):
        present = [g for g in np.flatnonzero(pattern).tolist() if g not in done and groups[g].blocks is not None]
        for (p, q), members in groupby(present, key=lambda g: tuple(kinds[g, :2].tolist())):
            parts = [(g, int(begun[g]), int(pattern[g])) for g in members]
            rows, columns = groups[parts[0][0]].shape[1], sum(count * groups[g].shape[2] for g, _, count in parts)
            limit = PANEL_BYTES if aac.is_numpy_array(like) else DEVICE_PANEL_BYTES
            samples, blocks = (rows + columns) * row_bytes(like[:1, 0, :]), rows * columns * row_bytes(like[:1, :1, 0])
            step = max(1, limit // max(samples, blocks))
            work += [(p, q, parts, chunk) for chunk in row_tiles(int(sites), step)]
        begun += pattern * sites

    def compute(panel: tuple[int, int, list[tuple[int, int, int]], slice]) -> None:
        p, q, parts, chunk = panel
        S = chunk.stop - chunk.start
        places = [slice(start + chunk.start * count, start + chunk.stop * count) for _, start, count in parts]
        g, _, count = parts[0]
        p_rows = groups[g].sites[0][1][places[0]][::count]
        q_rows = [
            xp.reshape(groups[g].sites[1][1][here], (S, count))
            for (g, _, count), here in zip(parts, places, strict=True)
        ]
        partners = xp.concat(q_rows, axis=1)
        order = np.arange(partners.shape[1])
        if S == 1 and aac.is_numpy_array(like):  # partners that are next to each other need not be gathered
            order = np.argsort(partners[0])
            partners = partners[:, order]
        blocks = tile(p, p_rows, q, partners)
        where = iter(np.argsort(order).tolist())
        for (g, _, count), here in zip(parts, places, strict=True):
            for i in range(count):
                groups[g].blocks[here.start + i : here.stop : count, ...] = blocks[:, next(where), ...]  # type: ignore[index]

    in_turn(compute, work, like)


def _tile(
    pools: Sequence[Pool],
    n_rows: int,
    kernel: Kernel,
    local_means: bool,
    far: bool,
    p: int,
    p_rows: Array,
    q: int,
    q_rows: Array,
) -> Array:
    """rest(X_p, X_q) of S sites of pool p with c partners each, of pool q: (S, c, a, b)."""
    xp = aac.array_namespace(pools[p].samples)
    S, c = q_rows.shape
    a, b = (min(pools[i].samples.shape[1], n_rows) for i in (p, q))
    mine, theirs = pools[p].some(p_rows, a), pools[q].some(xp.reshape(q_rows, (-1,)), b)

    def side_by_side(x: Array) -> Array:
        return xp.reshape(x, (S, c * b, *x.shape[2:]))

    if far:  # each partner has an origin of its own then
        apart = kernel.gram(mine.samples[:, None, ...], xp.reshape(theirs.samples, (S, c, b, -1)))
        block = xp.reshape(xp.permute_dims(apart, (0, 2, 1, 3)), (S, a, c * b))
    else:
        squares = None if theirs.squares is None else side_by_side(theirs.squares)
        block = kernel.gram(mine.samples, side_by_side(theirs.samples), (mine.squares, squares))
    if mine.psi.shape[2]:
        block -= mine.psi @ transposed(side_by_side(theirs.psi))
    if not pools[p].full:
        block *= mine.mask[:, :, None]
    if not pools[q].full:
        block *= side_by_side(theirs.mask)[:, None, :]
    block = xp.permute_dims(xp.reshape(block, (S, a, c, b)), (0, 2, 1, 3))
    if local_means:
        return center_blocks(block, mine.mask[:, None, :], xp.reshape(theirs.mask, (S, c, b)))
    return block
