"""What all nodes come to know together, made of nothing but messages to neighbors.

Generators to be used with `yield from` inside a node's program. All go along the spanning tree: partial results up, the
whole down, in an order fixed by the names of the nodes, so that every node gets the same bits on every engine.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import array_api_compat as aac
import numpy as np

from .block import Block, pad_rows, take
from .messages import Edges, Rows, Say, Total
from .network import Network

Array = Any


def network_sum(
    block: Block,
    kind: str,
    value: Array,
    finish: Callable[[Array], Array] | None = None,
    size: int | None = None,
    bound: Any = None,
) -> Generator[Any, Any, Array]:
    """The sum over all blocks of the network of `value` (length,), known to everybody: an array (length,).

    With `finish` the root alone turns the sum into what goes down instead, an array (size,): one answer for all, where
    each node's own might differ in signs or rounding. `bound` is a public bound on the entries of the sum of sizes, by which sealed sums are scaled.
    """
    sealer, size = block.sealer, value.shape[0] if size is None else size
    integers = aac.array_namespace(value).isdtype(value.dtype, "integral")
    if sealer is not None:
        value = sealer.seal(kind, value, bound)
    xp = aac.array_namespace(value)
    length = value.shape[0]
    found = None if sealer is not None else (yield Total(kind, value, finish, size))
    if found is not None:
        return found
    tree = block.tree
    values = value[None, :]  # the first node speaks for all of the block
    if block.n_nodes > 1:
        silent = xp.zeros((block.n_nodes - 1, length), dtype=value.dtype, device=aac.device(value))
        values = xp.concat([values, silent])
    below: Array = None
    total: Array | None = None
    for level in range(tree.depth, -1, -1):
        here = take(values, tree.rows[level])
        start = 0
        for count in tree.child_counts[level]:  # own value, then the children by name
            added = here[:count, :] + below[start : start + count, :]
            here = xp.concat([added, here[count:, :]]) if count < here.shape[0] else added
            start += count
        if level:
            below = yield Say(kind, here, tree.up[level], tree.from_children[level - 1], (length,))
        elif tree.hosts_root:
            total = here[0, :]
    if sealer is not None and total is not None:
        total = sealer.open(kind, total, bound, integers)
        total = total if integers else block.array(total)
    if finish is not None and total is not None:
        total = finish(total)
    return (yield from pass_down(block, kind, total, (size,)))


def pass_down(block: Block, kind: str, value: Array | None, shape: tuple[int, ...]) -> Generator[Say, Any, Array]:
    """The root's `value` (None elsewhere), known to everybody."""
    tree = block.tree
    for level in range(tree.depth):
        arrived = yield Say(kind, value, tree.down[level], tree.from_parent[level + 1], shape, common=True)
        if value is None:
            value = arrived
    return value


def collect_rows(block: Block, kind: str, rows: Array, counts: np.ndarray) -> Generator[Any, Any, Array]:
    """Rows from many nodes, known to everybody: `rows` are those of the block, node by node, `counts` how many each node of the network gives.

    The result is ordered by the names of the nodes. A node whose subtree gives nothing is silent on the way up.
    """
    found = yield Rows(kind, rows, counts)
    if found is not None:
        return found
    network, tree = block.network, block.tree
    below = rows_below(network, counts)
    xp = aac.array_namespace(block.samples)
    width = block.samples.shape[2]
    ends = np.concatenate([[0], np.cumsum(counts[block.nodes])])
    held = {int(j): [rows[int(ends[b]) : int(ends[b + 1]), :]] for b, j in enumerate(block.nodes)}
    for level in range(tree.depth, 0, -1):
        to = _where(tree.up[level], lambda b, s: below[block.nodes[b]] > 0)
        hear = _where(tree.from_children[level - 1], lambda b, s: below[block.slots[b, s]] > 0)
        arriving = below[block.slots[hear.rows, hear.slots]]
        longest = int(arriving.max(initial=0))
        spoken = [xp.concat(held[int(block.nodes[b])]) for b in to.rows]
        most = max((s.shape[0] for s in spoken), default=0)
        payload = xp.stack([pad_rows(s, most) for s in spoken]) if spoken else None
        lengths = np.array([s.shape[0] for s in spoken], dtype=np.int64)
        arrived = yield Say(kind, payload, to, hear, (longest, width), lengths, arriving)
        order = sorted(range(len(hear)), key=lambda i: (hear.rows[i], hear.slots[i]))  # slots are in order of names
        for i in order:
            child = block.slots[hear.rows[i], hear.slots[i]]
            held[int(block.nodes[hear.rows[i]])].append(arrived[i, : int(below[child]), :])
    everything = None
    if tree.hosts_root:
        gathered = xp.concat(held[network.root])
        everything = take(gathered, _name_order(network, counts))
    return (yield from pass_down(block, kind, everything, (int(counts.sum()), width)))


def _where(edges: Edges, wanted: Callable[[int, int], bool]) -> Edges:
    keep = np.array([bool(wanted(b, s)) for b, s in zip(edges.rows, edges.slots, strict=True)], dtype=bool)
    return Edges(edges.rows[keep], edges.slots[keep])


def rows_below(network: Network, counts: np.ndarray) -> np.ndarray:
    """How many rows each node's subtree gives."""
    below = counts.copy()
    for node in network.by_name[np.argsort(-network.levels[network.by_name], kind="stable")]:
        if network.parents[node] >= 0:
            below[network.parents[node]] += below[node]
    return below


def _name_order(network: Network, counts: np.ndarray) -> np.ndarray:
    """Positions of the rows by name of their node, in what the root gathers: each node's own rows before its children's."""
    stack, start, at = [network.root], {}, 0
    while stack:
        node = stack.pop()
        start[node] = at
        at += int(counts[node])
        stack.extend(int(c) for c in network.children[node][::-1])
    return np.concatenate([start[int(j)] + np.arange(counts[j]) for j in network.by_name]).astype(np.int64)
