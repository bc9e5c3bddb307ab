"""The pairs of sites of a block's neighborhoods, and where each is used: indices only, on the host."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import array_api_compat as aac
import numpy as np

Array = Any


@dataclass(frozen=True, eq=False)
class PairGroup:
    """P pairs of sites, of two pools; each serves u neighborhoods. `first` and `second` (P * u) are its positions: node * d + slot."""

    pools: tuple[int, int]
    rows: tuple[Array, Array]  # (P,): the sites of each pair, as rows of their pools
    n_uses: int
    first: Array
    second: Array
    diagonal: bool  # pairs of a site with itself

    def __len__(self) -> int:
        return int(self.rows[0].shape[0])

    def on(self, like: Array) -> PairGroup:
        """The same with indices for the library and device of `like`."""
        xp, device = aac.array_namespace(like), aac.device(like)
        p_rows, q_rows, first, second = (xp.asarray(x, device=device) for x in (*self.rows, self.first, self.second))
        return PairGroup(self.pools, (p_rows, q_rows), self.n_uses, first, second, self.diagonal)


@dataclass(frozen=True, eq=False)
class Layout:
    """All pairs, in groups; products with the groups in order give B * d * d parts.

    `patterns` (., groups): the number of pairs of each group in which a site is the first; `n_sites` (.,): the
    number of sites with that pattern. Within a group pairs are ordered by pattern, then by site, unless the group is
    one of `by_site`.
    """

    groups: tuple[PairGroup, ...]
    order: np.ndarray  # (d, B * d): for each source slot, which part goes to (node, target slot)
    patterns: np.ndarray
    n_sites: np.ndarray

    @classmethod
    def of(cls, pool_of: np.ndarray, row_of: np.ndarray, pool_sizes: Sequence[int], by_site: Sequence[bool]) -> Layout:
        """Slot s of node b is row `row_of[b, s]` of pool `pool_of[b, s]`. Groups of two pools that are `by_site` are ordered by site alone."""
        B, d = pool_of.shape
        offsets = np.concatenate([[0], np.cumsum(pool_sizes)])
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

        # Sites with the same pattern are computed together, so that their blocks are adjacent in each group.
        counts = np.zeros((n_sites, len(kinds)), dtype=np.int64)
        np.add.at(counts, (site_1, kind), 1)
        patterns, pattern = np.unique(counts, axis=0, return_inverse=True)
        pattern = pattern.ravel()
        sequence = np.lexsort((site_2, kind, site_1, pattern[site_1]))

        groups: list[PairGroup] = []
        order = np.empty((B * d, d), dtype=np.int64)
        start = 0
        for number, (p, q, n_uses, diagonal) in enumerate(kinds.tolist()):
            members = sequence[kind[sequence] == number]
            if by_site[p] and by_site[q]:
                members = np.sort(members)
            used = by_pair[starts[members][:, None] + np.arange(n_uses)].ravel()
            first, second = at_1[used], at_2[used]
            rows = site_1[members] - offsets[p], site_2[members] - offsets[q]
            groups.append(PairGroup((p, q), rows, n_uses, first, second, bool(diagonal)))
            order[first, second % d] = start + np.arange(len(used))
            start += len(used)
            if not diagonal:
                order[second, first % d] = start + np.arange(len(used))
                start += len(used)
        sites_of_pattern = np.bincount(pattern[np.unique(site_1)], minlength=len(patterns))
        return cls(tuple(groups), np.ascontiguousarray(order.T), patterns, sites_of_pattern)
