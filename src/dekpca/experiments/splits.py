"""Ways to deal labelled rows to nodes, from even to one class per node. Each returns a list of row numbers for each node."""

from __future__ import annotations

from typing import Any

import numpy as np


def evenly(y: Any, sizes: Any, seed: int = 0) -> list[np.ndarray]:
    """Every node gets its share of every class (the paper's split); `sizes` are the numbers of rows of the nodes.

    Examples
    --------
    >>> from dekpca.experiments.splits import evenly
    >>> [len(rows) for rows in evenly([0, 1] * 30, [20, 10])]
    [20, 10]
    """
    y, sizes = np.asarray(y), np.asarray(sizes)
    rng = np.random.default_rng(seed)
    shuffled = rng.permutation(len(y))
    shuffled = shuffled[np.argsort(y[shuffled], kind="stable")]
    _check(len(y), sizes)
    # spread each class evenly over the order, then cut: every interval of the order has every class in proportion
    within = np.concatenate([(np.arange(n) + rng.random()) / n for n in np.unique(y, return_counts=True)[1]])
    order = shuffled[np.argsort(within, kind="stable")]
    return np.split(order[: sizes.sum()], np.cumsum(sizes)[:-1])


def one_class_a_node(y: Any, sizes: Any, seed: int = 0) -> list[np.ndarray]:
    """The hardest heterogeneity: each node has one class only; classes alternate from node to node.

    Examples
    --------
    >>> from dekpca.experiments.splits import one_class_a_node
    >>> y = [0, 1] * 30
    >>> [{y[i] for i in rows} for rows in one_class_a_node(y, [20, 10, 5])]
    [{0}, {1}, {0}]
    """
    classes = np.unique(y)
    return _from_pools(y, [{classes[j % len(classes)]: int(size)} for j, size in enumerate(sizes)], seed)


def mostly_one_class(y: Any, sizes: Any, share: float = 0.8, seed: int = 0) -> list[np.ndarray]:
    """Each node has one main class, which makes up `share` of its rows; the others come from all classes.

    Examples
    --------
    >>> from dekpca.experiments.splits import mostly_one_class
    >>> y = [0, 1] * 50
    >>> [sum(y[i] for i in rows) <= 10 for rows in mostly_one_class(y, [40, 40], share=0.8)]
    [True, False]
    """
    classes = np.unique(y)
    rng = np.random.default_rng(seed)
    wanted = []
    for j, size in enumerate(sizes):
        others = rng.choice(classes, round(size * (1 - share)))
        main, many = classes[j % len(classes)], int(size) - len(others)
        wanted.append({c: int((others == c).sum()) + many * (c == main) for c in classes})
    return _from_pools(y, wanted, seed)


def dirichlet(y: Any, sizes: Any, alpha: float, seed: int = 0) -> list[np.ndarray]:
    """Class shares of each node drawn from a Dirichlet distribution: alpha = inf is `evenly`, 0 one class a node.

    Exhausted classes are replaced by the remaining ones, in proportion.

    Examples
    --------
    >>> from dekpca.experiments.splits import dirichlet
    >>> [len(rows) for rows in dirichlet([0, 1] * 50, [30, 20], alpha=0.5)]
    [30, 20]
    """
    y, sizes = np.asarray(y), np.asarray(sizes)
    if alpha == 0:
        return one_class_a_node(y, sizes, seed)
    if np.isinf(alpha):
        return evenly(y, sizes, seed)
    _check(len(y), sizes)
    classes, counts = np.unique(y, return_counts=True)
    rng = np.random.default_rng(seed)
    left = counts.copy()
    wanted = []
    for size in sizes:
        share, hand = rng.dirichlet(np.full(len(classes), alpha)), np.zeros(len(classes), dtype=np.int64)
        while hand.sum() < size:
            open_share = np.where(left > hand, share, 0.0)
            if open_share.sum() <= 1e-12:
                open_share = (left > hand).astype(float)
            more = rng.multinomial(size - hand.sum(), open_share / open_share.sum())
            hand = np.minimum(hand + more, left)
        left = left - hand
        wanted.append({c: int(h) for c, h in zip(classes, hand, strict=True)})
    return _from_pools(y, wanted, seed)


def _from_pools(y: Any, wanted: list[dict[Any, int]], seed: int) -> list[np.ndarray]:
    """The next rows of each class, in a seeded order."""
    y, rng = np.asarray(y), np.random.default_rng(seed)
    pools = {c: rng.permutation(np.flatnonzero(y == c)) for c in np.unique(y)}
    used = dict.fromkeys(pools, 0)
    hands = []
    for counts in wanted:
        hand = []
        for c, count in counts.items():
            if used[c] + count > len(pools[c]):
                raise ValueError(f"class {c} has {len(pools[c])} rows, fewer than the nodes need; use smaller nodes")
            hand.append(pools[c][used[c] : used[c] + count])
            used[c] += count
        hands.append(np.concatenate(hand))
    return hands


def _check(rows: int, sizes: np.ndarray) -> None:
    if sizes.sum() > rows:
        raise ValueError(f"{sizes.sum()} rows wanted for {len(sizes)} nodes, but there are {rows}")
