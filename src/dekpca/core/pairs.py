"""The Gram matrices of all neighborhoods of a block, each pair of nodes stored once.

A neighborhood's Gram matrix consists of blocks rest(X_p, X_q) for pairs p, q of its nodes, and most pairs lie in
several neighborhoods: on a ring with 4 neighbors each is needed by up to 5 nodes, in both orders. Here each unordered
pair of *sites* (distinct sets of samples) is one block, grouped with the pairs of the same shape that serve equally
many neighborhoods, so that a product with all neighborhoods is a few batched matrix products.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import array_api_compat as aac
import numpy as np

from ..kernels import Kernel, row_tiles
from .centering import center_blocks
from .spectrum import to_numpy, transposed

Array = Any

CHUNK_BYTES = 16 * 2**20  # of samples gathered at a time while Gram blocks are computed: about a last-level cache


@dataclass(frozen=True, eq=False)
class Pool:
    """Sites of one padded shape: samples (S, n, M), their landmark coordinates (S, n, m), 1 for real rows (S, n)."""

    samples: Array
    psi: Array
    mask: Array


@dataclass(frozen=True, eq=False)
class Group:
    """P pairs of sites; each serves u neighborhoods. `first` and `second` (P * u) say where: node * d + slot."""

    blocks: Array  # (P, a, b)
    n_uses: int
    first: Array
    second: Array | None  # None: pairs of a site with itself
    sites: tuple[tuple[int, Array], tuple[int, Array]]  # (pool, rows) of either side

    def apply(self, flat: Array) -> list[Array]:
        """What the pairs add to the values at `first` and at `second`, each (P * u, k, n); `flat` (B * d, k, n) are coefficients.

        Samples are the last axis here, so that the columns of all u neighborhoods lie below each other: one wide
        product reads a pair's block once.
        """
        other = self.first if self.second is None else self.second
        out = [self._product(flat, other, transposed(self.blocks))]
        if self.second is not None:
            out.append(self._product(flat, self.first, self.blocks))
        return out

    def _product(self, flat: Array, source: Array, blocks: Array) -> Array:
        xp = aac.array_namespace(flat)
        P, b, a = blocks.shape
        k, rows = flat.shape[1:]
        x = xp.reshape(xp.take(flat[..., :b] if b < rows else flat, source, axis=0), (P, self.n_uses * k, b))
        y = xp.reshape(x @ blocks, (P * self.n_uses, k, a))
        return y if a == rows else transposed(_pad(transposed(y), rows))


@dataclass(frozen=True, eq=False)
class NeighborhoodGram:
    """The operator c -> G c for all neighborhoods of a block, c being (B, d, n, k)."""

    groups: tuple[Group, ...]
    order: Array  # (d, B * d): for each source slot, which contribution goes to (node, target slot)
    n_nodes: int
    n_slots: int
    n_rows: int

    def apply(self, c: Array, weights: Array | None = None) -> Array:
        """The values of the functions with coefficients c on the samples of their neighborhoods: (B, d, n, k).

        `weights` (B, d, d) scale what each slot (last axis) adds to the values at another.
        """
        xp = aac.array_namespace(c)
        B, d, n, k = c.shape
        flat = _samples_last(c)
        parts = [part for group in self.groups for part in group.apply(flat)]
        together = xp.concat(parts) if len(parts) > 1 else parts[0]
        summed = None
        for source in range(d):  # one slot's contributions at a time stay in the cache
            added = xp.take(together, self.order[source, :], axis=0)
            if weights is not None:
                added = added * xp.reshape(weights[:, :, source], (B * d, 1, 1))
            summed = added if summed is None else summed + added
        return xp.permute_dims(xp.reshape(summed, (B, d, k, n)), (0, 1, 3, 2))

    def apply_within(self, c: Array) -> Array:
        """As `apply`, but each slot by itself: the values on a node's samples of the function over those samples alone."""
        xp = aac.array_namespace(c)
        B, d, n, k = c.shape
        flat = _samples_last(c)
        groups = [group for group in self.groups if group.second is None]
        order = np.argsort(np.concatenate([to_numpy(group.first) for group in groups]))
        parts = xp.concat([part for group in groups for part in group.apply(flat)])
        values = xp.reshape(xp.take(parts, xp.asarray(order, device=aac.device(c)), axis=0), (B, d, k, n))
        return xp.permute_dims(values, (0, 1, 3, 2))

    def own(self, n: int) -> Array:
        """The blocks of slot 0 with itself: (B, n, n)."""
        xp = aac.array_namespace(self.groups[0].blocks)
        first: list[np.ndarray] = []
        blocks = []
        for group in self.groups:
            if group.second is None:
                a = min(n, group.blocks.shape[1])
                square = group.blocks[:, :a, :a]
                blocks.append(transposed(_pad(transposed(_pad(square, n)), n)))
                first.append(to_numpy(group.first).reshape(-1, group.n_uses))
        place = np.empty(self.n_nodes, dtype=np.int64)
        start = 0
        for uses in first:
            pairs, at = np.nonzero(uses % self.n_slots == 0)
            place[uses[pairs, at] // self.n_slots] = start + pairs
            start += len(uses)
        stacked = xp.concat(blocks) if len(blocks) > 1 else blocks[0]
        return xp.take(stacked, xp.asarray(place, device=aac.device(stacked)), axis=0)

    def deflated(self, directions: Sequence[Array]) -> NeighborhoodGram:
        """Every site p has removed its direction from its samples: phi(x) <- phi(x) - <phi(x), v_p> v_p.

        `directions[pool]` (S, n, 1) are the coefficients of the unit functions v_p over the site's own samples.
        """
        xp = aac.array_namespace(self.order)
        values, place, start = [], [np.zeros(p.shape[0], dtype=np.int64) for p in directions], 0
        for group in self.groups:
            if group.second is None:
                (pool, rows), _ = group.sites
                a = group.blocks.shape[1]
                found = group.blocks @ xp.take(directions[pool], rows, axis=0)[:, :a, :]
                values.append(_pad(found, self.n_rows))
                place[pool][to_numpy(rows)] = start + np.arange(rows.shape[0])
                start += rows.shape[0]
        at_site = xp.concat(values)  # values of v_p on the site's own samples

        def one_side(side: tuple[int, Array], n: int) -> tuple[Array, Array]:
            pool, rows = side
            at = xp.asarray(place[pool][to_numpy(rows)], device=aac.device(at_site))
            return xp.take(directions[pool], rows, axis=0)[:, :n, :], xp.take(at_site, at, axis=0)[:, :n, :]

        groups = []
        for group in self.groups:
            (v_p, g_p), (v_q, g_q) = (
                one_side(side, n) for side, n in zip(group.sites, group.blocks.shape[1:], strict=True)
            )
            half = group.blocks - g_p @ (transposed(v_p) @ group.blocks)
            groups.append(replace(group, blocks=half - (half @ v_q) @ transposed(g_q)))
        return replace(self, groups=tuple(groups))


def _samples_last(c: Array) -> Array:
    """(B, d, n, k) as (B * d, k, n)."""
    xp = aac.array_namespace(c)
    B, d, n, k = c.shape
    return xp.reshape(xp.permute_dims(c, (0, 1, 3, 2)), (B * d, k, n))


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
    pools: Sequence[Pool], pool_of: np.ndarray, row_of: np.ndarray, n_rows: int, kernel: Kernel, local_means: bool
) -> NeighborhoodGram:
    """Compute the Gram blocks of all neighborhoods: slot s of node b is row `row_of[b, s]` of `pools[pool_of[b, s]]`.

    `n_rows` is the padded number of samples a slot. The kernel is what the landmarks leave of it; with `local_means`
    each block is double-centred by its own means.
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
    alike = np.stack([pool_1, pool_2, uses, site_1 == site_2], axis=1)

    xp = aac.array_namespace(pools[0].samples)
    device = aac.device(pools[0].samples)
    groups: list[Group] = []
    order = np.empty((B * d, d), dtype=np.int64)
    start = 0
    for kind in np.unique(alike, axis=0):
        members = np.flatnonzero((alike == kind).all(axis=1))
        p, q, n_uses, diagonal = (int(v) for v in kind)
        used = by_pair[starts[members][:, None] + np.arange(n_uses)].ravel()
        rows = tuple(
            xp.asarray(site[members] - offsets[pool], device=device) for site, pool in ((site_1, p), (site_2, q))
        )
        first, second = at_1[used], at_2[used]
        order[first, second % d] = start + np.arange(len(used))
        start += len(used)
        if not diagonal:
            order[second, first % d] = start + np.arange(len(used))
            start += len(used)
        groups.append(
            Group(
                blocks=_blocks(pools[p], rows[0], pools[q], rows[1], n_rows, kernel, local_means),
                n_uses=n_uses,
                first=xp.asarray(first, device=device),
                second=None if diagonal else xp.asarray(second, device=device),
                sites=((p, rows[0]), (q, rows[1])),
            )
        )
    return NeighborhoodGram(tuple(groups), xp.asarray(np.ascontiguousarray(order.T), device=device), B, d, n_rows)


def _blocks(p: Pool, p_rows: Array, q: Pool, q_rows: Array, n_rows: int, kernel: Kernel, local_means: bool) -> Array:
    """rest(X_p, X_q) for a list of pairs of sites: (P, a, b)."""
    xp = aac.array_namespace(p.samples)
    a, b = (min(pool.samples.shape[1], n_rows) for pool in (p, q))
    count = p_rows.shape[0]
    out = xp.empty((count, a, b), dtype=p.samples.dtype, device=aac.device(p.samples))
    step = max(1, CHUNK_BYTES // (8 * (a + b) * max(1, p.samples.shape[2])))
    for chunk in row_tiles(count, step):
        at_p, at_q = p_rows[chunk], q_rows[chunk]
        block = kernel.gram(
            *(xp.take(x, at, axis=0)[:, :n, :] for x, at, n in ((p.samples, at_p, a), (q.samples, at_q, b)))
        )
        if p.psi.shape[2]:
            psi_p, psi_q = (xp.take(x, at, axis=0)[:, :n, :] for x, at, n in ((p.psi, at_p, a), (q.psi, at_q, b)))
            block -= psi_p @ transposed(psi_q)
        mask_p, mask_q = (xp.take(x, at, axis=0)[:, :n] for x, at, n in ((p.mask, at_p, a), (q.mask, at_q, b)))
        block *= mask_p[:, :, None]
        block *= mask_q[:, None, :]
        out[chunk, ...] = center_blocks(block, mask_p, mask_q) if local_means else block
    return out
