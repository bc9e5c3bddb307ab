"""Means of a node's own rows, to be shown to all nodes instead of rows."""

from __future__ import annotations

import numpy as np

LEAST_CLUSTER = 5  # rows; the mean of fewer says too much about each
ROWS_A_CLUSTER = 32  # more make the means no better
ITERATIONS = 3  # of Lloyd's algorithm: as landmarks the means are then as good as after many


def cluster_means(rows: np.ndarray, count: int, random: np.random.Generator) -> np.ndarray:
    """At most `count` means of disjoint clusters of the rows (n, M), each of at least `LEAST_CLUSTER` rows.

    Lloyd's algorithm from random rows; clusters that come out smaller are given up.

    Examples
    --------
    >>> rows = np.array([[0.0], [0.1], [0.2], [0.1], [0.0], [9.0], [9.1], [9.2], [9.1], [9.0]])
    >>> np.sort(cluster_means(rows, 2, np.random.default_rng(0)), axis=0).round(2).ravel().tolist()
    [0.08, 9.08]
    """
    count = min(count, len(rows) // LEAST_CLUSTER)
    if count == 0:
        return rows[:0]
    means = rows[random.permutation(len(rows))[:count]].astype(np.float64)
    sizes = np.zeros(count, dtype=np.int64)
    for _ in range(ITERATIONS):
        distance = (means * means).sum(axis=1) - 2.0 * (rows @ means.T)
        nearest = distance.argmin(axis=1)
        sizes = np.bincount(nearest, minlength=count)
        order = np.argsort(nearest, kind="stable")
        starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
        filled = sizes > 0
        means[filled] = np.add.reduceat(rows[order].astype(np.float64), starts[filled], axis=0) / sizes[filled, None]
    return means[sizes >= LEAST_CLUSTER].astype(rows.dtype)
