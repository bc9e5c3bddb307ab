"""The nodes of a site that run the projection solver, and how they send each other arrays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...landmarks import Landmarks
from ...messages import Exchange, Script
from ...rounds import Transcript
from ...site import Site
from ..sums.columns import PreparedRows
from ..sums.moments import Principal
from . import Projection, ProjectionOptions
from .node import Link, Node, Progress
from .penalties import of_iteration

Messages = dict[int, dict[int, np.ndarray]]  # by sender and receiver
Shape = Callable[[int, int], tuple[int, ...]]  # of the message of a sender to a receiver


@dataclass(eq=False)
class Run:
    """The nodes of this site, and what was recorded of their iterations."""

    site: Site
    options: ProjectionOptions
    nodes: list[Node]
    heard_rho: dict[int, Link]  # by node: the penalties of the nodes around on its z; empty with a schedule
    prepared: PreparedRows
    marks: Landmarks | None
    principal: Principal | None  # principal directions of all rows in landmark coordinates, and the network's mean
    transcript: Transcript
    history: list[list[Progress]] = field(default_factory=list)  # by iteration and node
    runs: list[tuple[str, int]] = field(default_factory=list)  # verdict and iterations, of each component or of all

    @property
    def asked(self) -> Projection:
        return self.options.asked

    def on_w(self, node: Node, t: int) -> Link:
        """The penalties of a node on the z of the nodes around."""
        if node.number in self.heard_rho:
            return dict.fromkeys(node.around, self.heard_rho[node.number][node.number])
        return {q: of_iteration(self.asked.rho, t, own=q == node.number) for q in node.around}

    def on_z(self, node: Node, t: int) -> Link:
        """The penalties of the nodes around on a node's z. (A schedule is the same at all nodes, so both directions of an edge have the same.)"""
        return self.heard_rho.get(node.number) or self.on_w(node, t)

    def each(self, step: Callable[[Node], Any]) -> dict[int, Any]:
        """A step of every node, by its number."""
        return {node.number: step(node) for node in self.nodes}


def exchange(site: Site, kind: str, messages: Messages, shape: Shape, dtype: Any) -> Script:
    """Send `messages[j][q]` from each node j here to the nodes q around it; returns by node what came from each node around, itself included.
    `shape(q, j)` is the shape of a message from q to j."""
    edges = [(j, q) for j, own in messages.items() for q in own if q != j]
    sent, expected = {(j, q): messages[j][q] for j, q in edges}, {(q, j): shape(q, j) for j, q in edges}
    arrived = yield Exchange(kind, sent, expected, np.dtype(dtype))
    arrived = {**arrived, **{(j, j): own[j] for j, own in messages.items()}}
    return {j: {q: arrived[q, j] for q in own} for j, own in messages.items()}


def by_sender(site: Site, shared: int, width: int) -> Shape:
    """Messages have `shared` rows, and then one for each sample of their sender."""
    return lambda q, j: (shared + int(site.sizes[q]), width)
