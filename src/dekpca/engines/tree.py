"""Reductions, gathers and broadcasts built from messages between neighbors, for engines without them.

Partial results go up the spanning tree of the network, the total comes down. A message is sent in the round of its
level, so that all nodes have the same number of rounds. The order of additions depends only on the names of the
nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import cache
from typing import Any

import array_api_compat as aac
import numpy as np

from ..block import Block, take
from ..messages import Broadcast, Edges, Gather, Reduce, Send
from ..network import Network

Array = Any
Rounds = Generator[Send, Array, Array]


def over_tree(script: Callable[..., Generator[Any, Any, Any]]) -> Callable[..., Generator[Any, Any, Any]]:
    """The same program for an engine that only carries messages between neighbors; its blocks have one node each."""

    def expanded(block: Block, *args: Any) -> Generator[Any, Any, Any]:
        tree, inner, reply = Tree(block), script(block, *args), None
        protocols: dict[type, Callable[[Any], Rounds]] = {
            Reduce: tree.reduce,
            Gather: tree.gather,
            Broadcast: tree.broadcast,
        }
        while True:
            try:
                request = inner.send(reply)
            except StopIteration as end:
                return end.value
            protocol = protocols.get(type(request))
            reply = (yield request) if protocol is None else (yield from protocol(request))

    return expanded


class Tree:
    """A node's place in the spanning tree, and the messages that it sends from there. The root has level 0."""

    def __init__(self, block: Block):
        if block.n_nodes != 1:
            raise RuntimeError(f"a block of {block.n_nodes} nodes; messages along a tree need a block for each node")
        network, node = block.network, int(block.nodes[0])
        self.network, self.samples = network, block.samples
        self.level, self.depth = int(network.levels[node]), network.depth
        self.parent = [int(network.parents[node])] if self.level else []
        self.children = network.children[node].tolist()
        self._slot_of = {int(q): slot for slot, q in enumerate(block.slots[0])}
        self._edges = cache(self._make_edges)  # engines cache the route of an object

    def reduce(self, request: Reduce) -> Rounds:
        """The node's own value, plus its children's in order of names; the root's finished sum goes down."""

        def plus(value: Array, arrived: Array) -> Array:
            for i in range(len(self.children)):
                value = value + arrived[i, :]
            return value

        lengths = [request.value.shape[0]] * len(self.children)
        total = yield from self._up(request.kind, request.value, self.children, lengths, plus)
        told = Broadcast(request.kind, lambda: request.finish(total), (request.size,), request.dtype)
        return (yield from self.broadcast(told))

    def gather(self, request: Gather) -> Rounds:
        """A node whose subtree has no rows sends no message up."""
        xp, counts = aac.array_namespace(request.rows), request.counts
        below = rows_below(self.network, counts)
        giving = [child for child in self.children if below[child]]

        def append(rows: Array, arrived: Array) -> Array:
            return xp.concat([rows, *(arrived[i, : int(below[child]), ...] for i, child in enumerate(giving))])

        rows = yield from self._up(request.kind, request.rows, giving, below[giving], append)
        shape = (int(counts.sum()), *request.rows.shape[1:])
        by_name = Broadcast(request.kind, lambda: take(rows, _name_order(self.network, counts)), shape, rows.dtype)
        return (yield from self.broadcast(by_name))

    def broadcast(self, request: Broadcast) -> Rounds:
        """The root's array, from each node to its children."""
        xp = aac.array_namespace(self.samples)
        dtype = self.samples.dtype if request.dtype is None else request.dtype
        nothing = xp.zeros((), dtype=dtype, device=aac.device(self.samples))
        value = xp.broadcast_to(nothing, request.shape) if self.level else request.make()
        for level in range(self.depth):
            to = self.children if level == self.level else []
            hear = self.parent if level == self.level - 1 else []
            arrived = yield self._send(request.kind, value, to, hear, [request.shape[0]])
            if hear:
                value = arrived[0, ...]
        return value

    def _up(
        self, kind: str, value: Array, children: list[int], lengths: Any, join: Callable[[Array, Array], Array]
    ) -> Rounds:
        """Send `value`, joined with the messages of the `children`, to the parent unless it is empty; returns it."""
        for level in range(self.depth, 0, -1):
            to = self.parent if level == self.level and value.shape[0] else []
            hear = children if level == self.level + 1 else []
            arrived = yield self._send(kind, value, to, hear, lengths)
            if hear:
                value = join(value, arrived)
        return value

    def _send(self, kind: str, value: Array, to: list[int], hear: list[int], lengths: Any) -> Send:
        """`value` to each node of `to`; messages of `lengths` rows are expected from the nodes of `hear`."""
        payload = aac.array_namespace(value).broadcast_to(value[None, ...], (len(to), *value.shape))
        edges = self._edges(tuple(to)), self._edges(tuple(hear))
        arriving = np.array(lengths if hear else [], dtype=np.int64)
        return Send(kind, payload, *edges, np.full(len(to), value.shape[0]), arriving, int(arriving.max(initial=0)))

    def _make_edges(self, nodes: tuple[int, ...]) -> Edges:
        slots = np.array([self._slot_of[node] for node in nodes], dtype=np.int64)
        return Edges(np.zeros_like(slots), slots)


def rows_below(network: Network, counts: np.ndarray) -> np.ndarray:
    """The number of rows of each node's subtree."""
    below = counts.copy()
    for node in network.by_name[np.argsort(-network.levels[network.by_name], kind="stable")]:
        if network.parents[node] >= 0:
            below[network.parents[node]] += below[node]
    return below


def _name_order(network: Network, counts: np.ndarray) -> np.ndarray:
    """Positions of the rows by name of their node, in the order that the root gathers: each node's own rows before its children's."""
    stack, start, at = [network.root], {}, 0
    while stack:
        node = stack.pop()
        start[node] = at
        at += int(counts[node])
        stack.extend(int(c) for c in network.children[node][::-1])
    return np.concatenate([start[int(j)] + np.arange(counts[j]) for j in network.by_name]).astype(np.int64)
