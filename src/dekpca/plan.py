"""Plan and Outcome: the interface between the caller of a fit and the engine that runs it.

    plan = plan_parts(parameters, parts)      validate, deal, settle
    outcome = engine.run(plan, observer)      run

An engine is a function `run(plan, observer=None) -> Outcome`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Integral
from pathlib import Path
from typing import Any

import array_api_compat as aac
import numpy as np

from .answer import Answer
from .block import Block, make_blocks, part_sizes
from .columns import Features, Samples, check_all_named
from .deal import make_network, named_network
from .memory import parse_size
from .messages import Checkpoint
from .network import Network
from .options import Options, Settings, settle
from .parameters import Parameters
from .samples import check_alike, check_part, placed

Array = Any
Observer = Callable[[list[Block], list[Checkpoint]], None]  # called with every checkpoint


@dataclass(frozen=True, eq=False)
class Plan:
    """The input of an engine: the samples of the nodes that this process hosts, and data about all nodes."""

    network: Network
    sizes: np.ndarray  # (nodes,) rows of every node of the network
    parts: Sequence[Array]  # samples (n_j, columns) of the nodes hosted here, of one dtype on one device
    options: Options
    nodes: np.ndarray  # their numbers
    features: Features  # the columns, in the user's order
    memory_limit: int | None = None  # bytes in addition to the data
    resume: Any = None  # (known, state) of each block, from a checkpoint; None: from the start
    checkpoint: Path | None = (
        None  # folder for checkpoints; the run resumes from one if it exists (engines/checkpoints.py)
    )

    @classmethod
    def of(cls, parts: Sequence[Array], network: Network, options: Options, **more: Any) -> Plan:
        """For all nodes of a network in one process."""
        features = Features(int(parts[0].shape[1]))
        return cls(network, part_sizes(parts), parts, options, np.arange(len(parts)), **{"features": features} | more)

    def hosting(self, nodes: Sequence[int]) -> Plan:
        """The same plan for some of the nodes; other processes host the others."""
        at = {int(j): i for i, j in enumerate(self.nodes)}
        return replace(self, parts=[self.parts[at[j]] for j in nodes], nodes=np.asarray(nodes))

    def blocks(self, apart: bool = False) -> list[Block]:
        """`apart`: a block for each node."""
        return make_blocks(self.parts, self.network, self.nodes.tolist(), self.sizes, apart)


@dataclass
class Traffic:
    """Traffic of each node to its neighbors, in any process, by phase: (J,) messages and bytes; and bytes along each edge."""

    edges: np.ndarray  # (E, 2) the network's directed edges
    n_nodes: int
    messages: dict[str, np.ndarray] = field(default_factory=dict)
    bytes: dict[str, np.ndarray] = field(default_factory=dict)
    edge_bytes: np.ndarray = field(init=False)  # (E,) of all phases

    def __post_init__(self) -> None:
        self.edge_bytes = np.zeros(len(self.edges), dtype=np.int64)

    def add(self, kind: str, edges: np.ndarray, sizes: np.ndarray) -> None:
        """Count one message along each of these edges (distinct numbers); `sizes` are bytes."""
        if kind not in self.messages:
            self.messages[kind] = np.zeros(self.n_nodes, dtype=np.int64)
            self.bytes[kind] = np.zeros(self.n_nodes, dtype=np.int64)
        senders = self.edges[edges, 0]
        self.messages[kind] += np.bincount(senders, minlength=self.n_nodes)
        self.bytes[kind] += np.bincount(senders, sizes, self.n_nodes).astype(np.int64)  # exact below 2^53 bytes
        self.edge_bytes[edges] += sizes


@dataclass
class Outcome:
    """The answers of the blocks, the traffic, and the times."""

    answers: list[Answer]
    traffic: Traffic
    seconds: dict[str, float] = field(default_factory=dict)  # by part of the program


Engine = Callable[[Plan, Observer | None], Outcome]


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
    options = settle(settings, network, sizes)
    if parameters.expansion == "landmarks" and not options.n_landmarks:
        why = "on a network of one node" if len(network) == 1 else "with landmarks=0"
        raise ValueError(
            f"expansion='landmarks' {why}: there are no landmarks to expand in; use solver='landmarks', or expansion='node'"
        )
    limit = parse_size(parameters.memory_limit)
    return Plan(network, np.asarray(sizes), parts, options, np.asarray(nodes), features, limit)


def plan_parts(parameters: Parameters, parts: Sequence[Array] | Mapping[Any, Array]) -> Plan:
    """A plan for data that is already split, all of it in this process."""
    parameters.check()
    refuse_one_array(parts)
    if len(parts) == 0:
        raise ValueError("fit_parts needs at least one part")
    seed = parameters.seed()
    if isinstance(parts, Mapping):
        named = {str(name): part for name, part in parts.items()}
        network = named_network(parameters.network, list(named), seed)
        parts = [named[name] for name in network.names]
    else:
        network = make_network(parameters.network, len(parts), seed)
    if len(network) != len(parts):
        raise ValueError(f"{len(parts)} parts for a network of {len(network)} nodes; give one part for each node")
    features, checked = check_parts(parameters, parts, network.names)
    checked = [placed(part, parameters.device) for part in checked]
    return make_plan(parameters, parameters.settings(features, seed), network, checked, features)


def with_checkpoint(plan: Plan, parameters: Parameters, folder: str | os.PathLike[str] | None) -> Plan:
    """The same plan with a folder for checkpoints, if one is given."""
    if folder is None:
        return plan
    if not isinstance(parameters.random_state, Integral):
        raise ValueError(
            f"checkpoint= with random_state={parameters.random_state!r}: the next start would draw other numbers; give an integer"
        )
    return replace(plan, checkpoint=Path(folder).absolute())


def check_parts(parameters: Parameters, parts: Sequence[Array], names: Sequence[str]) -> tuple[Features, list[Array]]:
    """The columns of the samples of nodes with these names; and the samples as matrices of numbers, columns in internal order."""
    owners = [f"node {name}" for name in names]
    given = [Samples.of(part, owner) for part, owner in zip(parts, owners, strict=True)]
    given = [
        Samples(check_part(samples.X, owner, parameters.float_types, parameters.dtype), samples.names)
        for samples, owner in zip(given, owners, strict=True)
    ]
    check_all_named(given, owners)
    check_alike([samples.X for samples in given], names, parameters.allow_nan)
    features = Features(int(given[0].X.shape[1]), given[0].names)
    return features, [features.arrange(samples, owner, owners[0]) for samples, owner in zip(given, owners, strict=True)]


def refuse_one_array(parts: Any) -> None:
    """Refuse one array: parts are a sequence or a mapping of arrays."""
    if aac.is_array_api_obj(parts):
        raise ValueError("fit_parts takes one array for each node, but got one array; use fit(X)")
