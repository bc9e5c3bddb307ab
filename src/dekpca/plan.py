"""Plan and Outcome: the interface between the caller of a fit and the engine that runs it.

    plan = plan_parts(parameters, parts)      check, settle
    outcome = engine.run(plan, watch)         run

`DecentralizedKernelPCA.fit` deals the rows of one array to nodes instead, and calls `make_plan`. An engine is a
function `run(plan, watch=None) -> Outcome`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from .answer import Answer
from .data.blocks import Blocks, survey
from .data.checks import check_parts, placed
from .data.columns import Features
from .data.owners import list_parts, make_network, named_network
from .data.rows import Rows
from .memory import fitting, parse_size
from .messages import Iteration
from .network import Network, unique_names
from .parameters import Parameters, check, chosen, seed_of, settings_of
from .settings import Options, Settings, settle
from .site import Dealt, Site, apart, make_site, part_sizes
from .solvers.sums import SumsOptions, draws_ahead

Array = Any
Watch = Callable[[Iteration], None]  # told of every iteration


@dataclass(frozen=True, eq=False)
class Plan:
    """The input of an engine: the samples of the nodes that this process hosts, and data about all nodes."""

    network: Network
    sizes: np.ndarray  # (nodes,) rows of every node of the network
    # samples (n_j, columns) of the nodes hosted here, of one dtype on one device; or one `Blocks` with the rows of all nodes
    parts: Sequence[Array]
    options: Options
    nodes: np.ndarray  # their numbers
    features: Features  # the columns, in the user's order

    @classmethod
    def of(cls, parts: Sequence[Array], network: Network, options: Options, **more: Any) -> Plan:
        """For all nodes of a network in one process."""
        features = Features(int(parts[0].shape[1]))
        return cls(network, part_sizes(parts), parts, options, np.arange(len(parts)), **{"features": features} | more)

    def hosting(self, nodes: Sequence[int]) -> Plan:
        """The same plan for some of the nodes; other processes host the others."""
        at = {int(j): i for i, j in enumerate(self.nodes)}
        return replace(self, parts=[self.parts[at[j]] for j in nodes], nodes=np.asarray(nodes))

    def site(self) -> Site:
        """All nodes of this process together."""
        return make_site(self.parts, self.network, self.nodes.tolist(), self.sizes)

    def sites(self) -> list[Site]:
        """A site for each node, where terms of sums leave the nodes one by one, as between owners; else one."""
        if self.options.sealed or self.options.owners_apart:
            return apart(self.parts, self.network, self.nodes.tolist(), self.sizes)
        return [self.site()]


@dataclass
class Traffic:
    """What each node sends to its neighbors, in any process, by phase: (2, E) messages and bytes along the network's directed edges."""

    network: Network
    along: dict[str, np.ndarray] = field(default_factory=dict)

    @property
    def messages(self) -> dict[str, np.ndarray]:
        """(J,) the messages of each node, by phase."""
        return {kind: self._by_sender(count) for kind, (count, _) in self.along.items()}

    @property
    def bytes(self) -> dict[str, np.ndarray]:
        """(J,) the bytes of each node, by phase."""
        return {kind: self._by_sender(size) for kind, (_, size) in self.along.items()}

    @property
    def edge_bytes(self) -> np.ndarray:
        """(E,) the bytes of all phases."""
        return sum(
            (size for _, size in self.along.values()), np.zeros(len(self.network.directed_edges), dtype=np.int64)
        )

    def _by_sender(self, along: np.ndarray) -> np.ndarray:
        found = np.bincount(self.network.directed_edges[:, 0], along, len(self.network))
        return found.astype(np.int64)  # exact below 2^53

    @cached_property
    def _number(self) -> dict[tuple[int, int], int]:
        return {edge: i for i, edge in enumerate(map(tuple, self.network.directed_edges.tolist()))}

    @cached_property
    def _tree(self) -> tuple[np.ndarray, np.ndarray]:
        """The edges from each node but the root to its parent, and back."""
        count, parents = len(self.network), np.asarray(self.network.parents)
        child, code = np.flatnonzero(parents >= 0), self.network.directed_edges @ np.array([count, 1])
        order, parent = np.argsort(code), parents[child]
        both = np.searchsorted(code[order], [count * child + parent, count * parent + child])
        return order[both[0]], order[both[1]]

    def add_messages(self, kind: str, messages: Mapping[tuple[int, int], np.ndarray]) -> None:
        """Count one message along each of these edges."""
        edges = np.array([self._number[edge] for edge in messages], dtype=int)
        self._add(kind, edges, [x.nbytes for x in messages.values()])

    def add_sum(self, kind: str, up: int, down: int, nodes: np.ndarray) -> None:
        """Count what these nodes send in a sum along the tree: `up` bytes to the parent, `down` bytes back to each child."""
        senders = self.network.directed_edges[:, 0]
        for edges, size in zip(self._tree, (up, down), strict=True):
            mine = edges if len(nodes) == len(self.network) else edges[np.isin(senders[edges], nodes)]
            self._add(kind, mine if size else mine[:0], size)

    def _add(self, kind: str, edges: np.ndarray, sizes: Any) -> None:
        if kind not in self.along:
            self.along[kind] = np.zeros((2, len(self.network.directed_edges)), dtype=np.int64)
        self.along[kind][0, edges] += 1
        self.along[kind][1, edges] += np.asarray(sizes, dtype=np.int64)


@dataclass
class Outcome:
    """The answers of the sites, the traffic, and the times."""

    answers: list[Answer]
    traffic: Traffic
    seconds: dict[str, float] = field(default_factory=dict)  # by part of the program


Engine = Callable[[Plan, Watch | None], Outcome]


# ---------------------------------------------------------------------- from parameters and data
def make_plan(
    parameters: Parameters,
    settings: Settings,
    network: Network,
    parts: Sequence[Array],
    features: Features,
    nodes: Sequence[int] | None = None,
    sizes: np.ndarray | None = None,
) -> Plan:
    """A plan for checked samples. `parts` are those of `nodes`, `sizes` the rows of every node (default: all nodes are here)."""
    if nodes is None or sizes is None:
        nodes, sizes = range(len(parts)), part_sizes(parts)
    plan = Plan(network, np.asarray(sizes), parts, settle(settings, network, sizes), np.asarray(nodes), features)
    limit = parse_size(parameters.memory_limit)
    if limit is None:
        return plan
    joined = len(parts) > 1 and not isinstance(parts, Dealt)
    return replace(plan, options=fitting(plan.site(), plan.options, limit, joined))


def plan_rows(parameters: Parameters, rows: Rows, nodes: Any = None) -> tuple[Plan, Blocks]:
    """A plan for rows that are read in blocks, and these. The first pass over them is made here: it checks and counts them."""
    check(parameters)
    asked = chosen(parameters)
    for what in (asked[word] for word in ("engine", "device", "projection", "privacy", "features") if word in asked):
        remedy = "leave it at its default, or give an array if the rows fit into memory"
        raise ValueError(
            f"{what} with rows in blocks ({rows.who}), which only the default solver of one process takes; {remedy}"
        )
    if nodes is not None:
        if not isinstance(nodes, str):
            raise ValueError("nodes with rows in blocks: give the name of the column of owners, or leave it at None")
        rows = rows.owned_by(nodes)
    seed, limit, features = seed_of(parameters), parse_size(parameters.memory_limit), Features(rows.columns, rows.names)
    settings = settings_of(parameters, features, seed)
    ahead = settle(settings, Network.complete(1), np.array([2**60])).solver_options
    assert isinstance(ahead, SumsOptions)
    moments = settings.impute or settings.standardize or settings.gamma_by_variance
    given = parameters.network, seed, parameters.dtype, parameters.missing
    blocks, network, sizes = survey(rows, features, *given, draws_ahead(ahead), moments, limit)
    part = blocks.take(np.arange(len(blocks.keys))) if settle(settings, network, sizes).exact else blocks
    return make_plan(parameters, settings, network, [part], features, range(len(network)), sizes), blocks


def plan_parts(parameters: Parameters, parts: Sequence[Array] | Mapping[Any, Array]) -> Plan:
    """A plan for data that is already split, all of it in this process."""
    check(parameters)
    parts = list_parts(parts)
    if len(parts) == 0:
        raise ValueError("fit_parts needs at least one part")
    seed = seed_of(parameters)
    if isinstance(parts, Mapping):
        named = dict(zip(unique_names(parts), parts.values(), strict=True))
        network = named_network(parameters.network, list(named), seed)
        parts = [named[name] for name in network.names]
    else:
        network = make_network(parameters.network, len(parts), seed)
    if len(network) != len(parts):
        raise ValueError(f"{len(parts)} parts for a network of {len(network)} nodes; give one part for each node")
    features, checked = check_parts(parts, network.names, parameters.dtype, parameters.missing)
    checked = [placed(part, parameters.device) for part in checked]
    return make_plan(parameters, settings_of(parameters, features, seed), network, checked, features)
