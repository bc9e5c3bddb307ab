"""Means of a node's own rows, to share instead of rows: k-means of many small groups of rows at once, on any array library."""

from __future__ import annotations

from typing import Any

import array_api_compat as aac
import numpy as np

from .chunks import by_nodes, row_bytes
from .spectrum import to_numpy

Array = Any

LEAST_CLUSTER = 5  # rows; the mean of fewer reveals too much about each
ROWS_A_CLUSTER = 16  # more rows do not improve the means as landmarks
GROUP = 16  # clusters of a group at most: a node with many rows clusters them in groups, so that the work is linear in its rows
ITERATIONS = 3  # of Lloyd's algorithm: more do not improve the means as landmarks


def cluster_means(rows: Array, sizes: np.ndarray, counts: np.ndarray) -> tuple[Array, np.ndarray]:
    """Means (total, M) of disjoint clusters of the rows of each group, and how many each group has: at most `counts`.

    `rows` (G, n, M) are in random order; the first `sizes` of a group are real. Lloyd's algorithm starts from the
    first ones. Clusters of fewer than `LEAST_CLUSTER` rows are dropped.

    Examples
    --------
    >>> rows = np.array([[[0.0], [9.0], [0.1], [0.2], [0.1], [0.0], [9.1], [9.2], [9.1], [9.0]]])
    >>> means, found = cluster_means(rows, np.array([10]), np.array([2]))
    >>> means.round(2).ravel().tolist(), found.tolist()
    ([0.08, 9.08], [2])
    """
    xp = aac.array_namespace(rows)
    G, n, M = rows.shape
    counts = np.minimum(counts, sizes // LEAST_CLUSTER)
    most = int(counts.max(initial=0))
    if not most:
        return rows[0, :0, :], counts
    like = {"dtype": rows.dtype, "device": aac.device(rows)}
    real = xp.asarray(np.arange(n) < sizes[:, None], device=aac.device(rows))
    unused = xp.asarray(np.where(np.arange(most) < counts[:, None], 0.0, np.inf), **like)
    numbers = xp.asarray(np.arange(most), device=aac.device(rows))

    def some(g: slice) -> tuple[Array, Array]:
        mine, means = rows[g, ...], rows[g, :most, :]
        count = xp.zeros(means.shape[:2], **like)
        for _ in range(ITERATIONS):
            distance = xp.vecdot(means, means)[:, None, :] - 2.0 * (mine @ xp.matrix_transpose(means))
            nearest = xp.argmin(distance + unused[g, None, :], axis=2)
            member = xp.astype((nearest[..., None] == numbers) & real[g, :, None], rows.dtype)
            count = xp.sum(member, axis=1)
            filled = count > 0
            total = xp.matrix_transpose(member) @ mine
            means = xp.where(filled[..., None], total / xp.where(filled, count, xp.ones_like(count))[..., None], means)
        return means, count

    means, count = by_nodes(some, G, 2 * row_bytes(rows), rows)
    kept = to_numpy(count) >= LEAST_CLUSTER
    places = xp.asarray(np.flatnonzero(kept.ravel()), device=aac.device(rows))
    return xp.take(xp.reshape(means, (-1, M)), places, axis=0), kept.sum(axis=1)


def grouped(counts: np.ndarray, taken: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Node, number of clusters and number of rows of each group, for nodes with so many clusters and rows."""
    groups = -(-counts // GROUP)
    node = np.repeat(np.arange(len(counts)), groups)
    number = np.arange(len(node)) - np.repeat(np.cumsum(groups) - groups, groups)

    def share(whole: np.ndarray) -> np.ndarray:
        return whole[node] * (number + 1) // groups[node] - whole[node] * number // groups[node]

    return node, share(counts), share(taken)
