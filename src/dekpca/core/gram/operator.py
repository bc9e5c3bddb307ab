"""Products with the Gram matrices of all neighborhoods of a block."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import array_api_compat as aac
import numpy as np

from ...kernels import Kernel
from ..chunks import by_nodes, chunks_of, row_bytes, run_chunks
from ..spectrum import to_numpy, transposed
from .blocks import Blocks, Filler, Pool
from .layout import Layout, PairGroup

Array = Any


@dataclass(frozen=True, eq=False)
class Group:
    """Pairs of sites of the same shape that serve equally many neighborhoods, and their blocks."""

    pairs: PairGroup
    blocks: Blocks

    @property
    def sides(self) -> int:
        """Products with a block for each use: one for a pair of a site with itself, otherwise also one with its transpose."""
        return 1 if self.pairs.diagonal else 2

    def products(self, flat: Array, out: Array, some: slice, start: int) -> None:
        """Contributions of some pairs to the values at `first` and then at `second`, u times (n, k) per pair, into `out` from `start` on.

        `flat` (B * d, n, k) are coefficients.
        """
        pairs, blocks = self.pairs, self.blocks.some(some)
        uses, count = slice(some.start * pairs.n_uses, some.stop * pairs.n_uses), len(pairs) * pairs.n_uses
        here = slice(start + uses.start, start + uses.stop)
        if pairs.diagonal:
            self._product(flat, pairs.first[uses], blocks, out, here)
            return
        self._product(flat, pairs.second[uses], blocks, out, here)
        self._product(flat, pairs.first[uses], transposed(blocks), out, slice(here.start + count, here.stop + count))

    def _product(self, flat: Array, source: Array, blocks: Array, out: Array, here: slice) -> None:
        xp = aac.array_namespace(flat)
        P, a, b = blocks.shape
        rows, k = flat.shape[1:]
        u = self.pairs.n_uses
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

        `weights` (B, d, d) scale the contribution of each slot (last axis) to the values at another.
        """
        products = self.products(_flat(c))
        return by_nodes(lambda nodes: (self.collect(products, nodes, weights),), self.n_nodes, row_bytes(c), c)[0]

    @property
    def stored(self) -> bool:
        """Whether all blocks are stored; otherwise some are recomputed at each use."""
        return all(group.blocks.stored is not None for group in self.groups)

    @property
    def in_memory(self) -> bool:
        """Whether all blocks are stored as NumPy arrays, as compiled code needs them."""
        return self.stored and aac.is_numpy_array(self.order)

    def products(self, flat: Array) -> Array:
        """(B * d * d, n, k): the contribution of each slot to each, for coefficients (B * d, n, k); in the order of the groups."""
        return self._products(flat, self.groups, self.n_nodes * self.n_slots**2)

    def _products(self, flat: Array, groups: Sequence[Group], count: int) -> Array:
        xp = aac.array_namespace(flat)
        out = xp.empty((count, *flat.shape[1:]), dtype=flat.dtype, device=aac.device(flat))
        work, start = [], 0
        for group in groups:
            uses = group.sides * group.pairs.n_uses
            pair_bytes = uses * row_bytes(flat) if group.blocks.stored is not None else group.blocks.work_bytes
            work += [(group, pairs, start) for pairs in chunks_of(len(group.pairs), pair_bytes, flat)]
            start += len(group.pairs) * uses
        run_chunks(lambda w: w[0].products(flat, out, w[1], w[2]), work, flat)
        return out

    def collect(self, products: Array, nodes: slice, weights: Array | None = None) -> Array:
        """The values (b, d, n, k) at some nodes."""
        xp = aac.array_namespace(products)
        d = self.n_slots
        here = slice(nodes.start * d, nodes.stop * d)
        summed: Array = None
        spare = np.empty((0,))
        for source in range(d):
            if weights is None and source and aac.is_numpy_array(products):  # add in place
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
        """The blocks of each neighborhood, for compiled code: (B, T) addresses, and (B, T, 4) first and second slot, rows, columns."""
        d, T = self.n_slots, self.n_slots * (self.n_slots + 1) // 2
        tables = []
        for group in self.groups:
            pairs, blocks = group.pairs, group.blocks.stored
            assert blocks is not None
            at = blocks.ctypes.data + np.repeat(np.arange(blocks.shape[0]), pairs.n_uses) * blocks.strides[0]
            shape = np.broadcast_to(blocks.shape[1:], (len(at), 2))
            tables.append(np.column_stack([pairs.first // d, at, pairs.first % d, pairs.second % d, shape]))
        together = np.concatenate(tables)
        together = together[np.lexsort((together[:, 3], together[:, 2], together[:, 0]))]
        address = np.ascontiguousarray(together[:, 1].astype(np.intp).reshape(-1, T))
        return address, np.ascontiguousarray(together[:, 2:].astype(np.intc).reshape(-1, T, 4))

    def apply_within(self, c: Array) -> Array:
        """As `apply`, but each slot by itself: the values on a node's samples of the function over those samples alone."""
        xp = aac.array_namespace(c)
        B, d, n, k = c.shape
        groups = [group for group in self.groups if group.pairs.diagonal]
        order = np.argsort(np.concatenate([to_numpy(group.pairs.first) for group in groups]))
        parts = self._products(_flat(c), groups, B * d)
        return xp.reshape(xp.take(parts, xp.asarray(order, device=aac.device(c)), axis=0), (B, d, n, k))

    def own(self, n: int) -> Array:
        """The blocks of slot 0 with itself: (B, n, n)."""
        xp = aac.array_namespace(self.order)
        place = np.empty(self.n_nodes, dtype=np.int64)
        blocks, start = [], 0
        for group in self.groups:
            if group.pairs.diagonal:
                a = min(n, group.blocks.shape[1])
                square = group.blocks.all()[:, :a, :a]
                blocks.append(transposed(_pad(transposed(_pad(square, n)), n)))
                uses = to_numpy(group.pairs.first).reshape(-1, group.pairs.n_uses)
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
            if group.pairs.diagonal:
                pool, rows = group.pairs.pools[0], group.pairs.rows[0]
                found = group.blocks.all() @ xp.take(directions[pool], rows, axis=0)[:, : group.blocks.shape[1], :]
                values.append(_pad(found, self.n_rows))
                place[pool][to_numpy(rows)] = start + np.arange(rows.shape[0])
                start += rows.shape[0]
        at_site = xp.concat(values)  # values of v_p on the site's own samples

        def one_side(pool: int, rows: Array, n: int) -> tuple[Array, Array]:
            at = xp.asarray(place[pool][to_numpy(rows)], device=aac.device(at_site))
            return xp.take(directions[pool], rows, axis=0)[:, :n, :], xp.take(at_site, at, axis=0)[:, :n, :]

        def without(group: Group) -> Group:
            (p, q), (p_rows, q_rows), (_, a, b) = group.pairs.pools, group.pairs.rows, group.blocks.shape

            def make(pairs: slice) -> Array:
                blocks = group.blocks.some(pairs)
                (v_p, g_p), (v_q, g_q) = one_side(p, p_rows[pairs], a), one_side(q, q_rows[pairs], b)
                half = blocks - g_p @ (transposed(v_p) @ blocks)
                return half - (half @ v_q) @ transposed(g_q)

            return replace(group, blocks=group.blocks.changed(make))

        return replace(self, groups=tuple(without(group) for group in self.groups))


def neighborhood_gram(
    pools: Sequence[Pool],
    pool_of: np.ndarray,
    row_of: np.ndarray,
    n_rows: int,
    kernel: Kernel,
    local_means: bool,
    keep: float = math.inf,
) -> NeighborhoodGram:
    """The Gram matrices of all neighborhoods: slot s of node b is row `row_of[b, s]` of `pools[pool_of[b, s]]`.

    `n_rows` is the padded number of samples a slot. The kernel is the rest; with `local_means` each block is
    double-centred by its own means. At most `keep` bytes of blocks are stored; the others are recomputed at each
    use.
    """
    n_nodes, n_slots = pool_of.shape
    filler = Filler.of(pools, n_rows, kernel, local_means)
    layout = Layout.of(pool_of, row_of, [pool.samples.shape[0] for pool in pools], filler.by_pair)
    like = pools[0].samples
    pairs = [group.on(like) for group in layout.groups]
    groups = map(Group, pairs, filler.fill(layout, pairs, keep))
    order = aac.array_namespace(like).asarray(layout.order, device=aac.device(like))
    return NeighborhoodGram(tuple(groups), order, n_nodes, n_slots, n_rows)


def _flat(c: Array) -> Array:
    """(B, d, n, k) as (B * d, n, k)."""
    return aac.array_namespace(c).reshape(c, (-1, *c.shape[2:]))


def _pad(blocks: Array, rows: int) -> Array:
    """Zeros below each matrix of a stack, up to `rows`."""
    xp = aac.array_namespace(blocks)
    count, have, columns = blocks.shape
    if have == rows:
        return blocks
    zeros = xp.zeros((count, rows - have, columns), dtype=blocks.dtype, device=aac.device(blocks))
    return xp.concat([blocks, zeros], axis=1)
