"""Sums built from messages between neighbors, for engines that carry nothing else.

Partial sums go up the spanning tree of the network, the conclusion comes down. A message is sent in the round of its level, so that all nodes have
the same number of rounds. The order of additions depends only on the names of the nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import numpy as np

from ..messages import Exchange, Sum
from ..site import Site


def over_tree(script: Callable[..., Generator[Any, Any, Any]]) -> Callable[..., Generator[Any, Any, Any]]:
    """The same program, of a site of one node, with exchanges in the place of sums."""

    def expanded(site: Site, *args: Any) -> Generator[Any, Any, Any]:
        if len(site.nodes) != 1:
            raise RuntimeError(f"sums over a tree are between nodes, not with a site of {len(site.nodes)} nodes")
        inner, reply = script(site, *args), None
        while True:
            try:
                request = inner.send(reply)
            except StopIteration as end:
                return end.value
            reply = (yield from sum_over_tree(site, request)) if isinstance(request, Sum) else (yield request)

    return expanded


def sum_over_tree(site: Site, request: Sum) -> Generator[Exchange, Any, np.ndarray]:
    """The node's own value, plus its children's in order of names; the root's conclusion goes down."""
    network, node = site.network, int(site.nodes[0])
    level, children, value = int(network.levels[node]), network.children[node].tolist(), request.value
    up, down = (node, int(network.parents[node])), (int(network.parents[node]), node)
    if len(value):
        for round_ in range(network.depth, 0, -1):
            sent = {up: value} if round_ == level else {}
            expected = {(child, node): value.shape for child in children} if round_ == level + 1 else {}
            arrived = yield Exchange(request.kind, sent, expected, value.dtype)
            for child in children if expected else ():
                below = network.below(child)
                who = f"node {network.names[child]}" + (", or a node below it," if len(below) > 1 else "")
                request.refuse(arrived[child, node], int(site.sizes[below].sum()), who)
                value = value + arrived[child, node]
    told = np.empty(0) if level else request.conclude(value).astype(request.dtype, copy=False)
    for round_ in range(network.depth):
        sent = {(node, child): told for child in children} if round_ == level else {}
        expected = {down: (request.size,)} if round_ == level - 1 else {}
        arrived = yield Exchange(request.kind, sent, expected, request.dtype)
        if expected:
            told = arrived[down]
    return told
