"""Reductions, gathers and broadcasts made of messages between neighbors, for engines that have none of their own.

They go along the spanning tree of the network: partial results up, the whole down. A message goes in the round of its level, so that
all nodes make the same number of rounds. Sums are in an order fixed by the names of the nodes: every node gets the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
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
        self.children = network.children[node]
        slot_of = {int(q): slot for slot, q in enumerate(block.slots[0])}
        # an engine remembers the route of edges it has seen: the same object for the same edges
        self._edges = cache(
            lambda nodes: Edges(
                np.zeros(len(nodes), dtype=np.int64), np.array([slot_of[q] for q in nodes], dtype=np.int64)
            )
        )
        self.parent = [int(network.parents[node])] if self.level else []

    def reduce(self, request: Reduce) -> Rounds:
        """The node's own value, plus its children's by name; the root's sum, finished, goes down."""

        def plus(value: Array, arrived: Array) -> Array:
            for i in range(arrived.shape[0]):
                value = value + arrived[i, :]
            return value

        lengths = np.full(len(self.children), request.value.shape[0])
        total = yield from self._up(request.kind, request.value, self.children.tolist(), lengths, plus)
        return (yield from self.broadcast(Broadcast(request.kind, lambda: request.finish(total), (request.size,))))

    def gather(self, request: Gather) -> Rounds:
        """A node whose subtree gives no rows sends nothing up."""
        xp, counts, width = aac.array_namespace(request.rows), request.counts, request.rows.shape[1:]
        below = rows_below(self.network, counts)
        giving = [c for c in self.children.tolist() if below[c]]

        def append(rows: Array, arrived: Array) -> Array:
            return xp.concat([rows, *(arrived[i, : int(below[c]), ...] for i, c in enumerate(giving))])

        rows = yield from self._up(request.kind, request.rows, giving, below[giving], append)
        shape = (int(counts.sum()), *width)
        return (
            yield from self.broadcast(
                Broadcast(request.kind, lambda: take(rows, _name_order(self.network, counts)), shape)
            )
        )

    def broadcast(self, request: Broadcast) -> Rounds:
        xp = aac.array_namespace(self.samples)
        value = xp.broadcast_to(xp.zeros((), dtype=self.samples.dtype, device=aac.device(self.samples)), request.shape)
        if self.level == 0:
            value = request.make()
        length = request.shape[0]
        for level in range(self.depth):
            to = self.children.tolist() if level == self.level else []
            hear = self.parent if level == self.level - 1 else []
            arrived = yield self._send(request.kind, value, to, hear, [length] * len(hear))
            if hear:
                value = arrived[0, ...]
        return value

    def _up(
        self,
        kind: str,
        value: Array,
        children: Sequence[int],
        lengths: np.ndarray,
        join: Callable[[Array, Array], Array],
    ) -> Rounds:
        """`value` joined with what the `children` send goes to the parent, unless it is empty; returns it."""
        for level in range(self.depth, 0, -1):
            to = self.parent if level == self.level and value.shape[0] else []
            hear = children if level == self.level + 1 else []
            arrived = yield self._send(kind, value, to, hear, lengths if hear else [])
            if hear:
                value = join(value, arrived)
        return value

    def _send(self, kind: str, value: Array, to: Sequence[int], hear: Sequence[int], arriving: Any) -> Send:
        """`value` to each node of `to`."""
        payload = aac.array_namespace(value).broadcast_to(value[None, ...], (len(to), *value.shape))
        lengths, arriving = np.full(len(to), value.shape[0]), np.array(arriving, dtype=np.int64)
        edges = self._edges(tuple(to)), self._edges(tuple(hear))
        return Send(kind, payload, *edges, lengths, arriving, int(arriving.max(initial=0)))


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
