"""The numbers of a report on a fitted model: computed once, for a sample of the nodes if there are many."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import metrics
from ..columns import Samples
from ..core.spectrum import to_numpy
from ..network import Network
from ..node_model import NodeModel

WHOLE = 2000  # nodes; larger networks are drawn in part
PART = 400  # nodes drawn of a larger network
MEASURED = 200  # nodes in a distribution: enough for its shape, and the oracle solves an eigenproblem for each
POINTS = 2000  # rows on which agreement is measured


@dataclass(frozen=True)
class Findings:
    """Numbers by node; nan for nodes that were not measured, None if no node could be."""

    drawn: np.ndarray  # numbers of the nodes in the picture of the network
    centre: int | None  # the node at the centre, if not all are drawn
    rows: np.ndarray
    residual: np.ndarray | None
    sent: np.ndarray | None
    similarity: np.ndarray | None  # (nodes, components)
    agreement: np.ndarray | None  # (nodes, components)
    methods: dict[str, np.ndarray]  # similarities (nodes measured, components)
    measure: str  # the measure in `methods`: similarity, or agreement if similarity is undefined
    n_measured: int


def measure(
    model: Any,
    X: Samples | None,
    central: NodeModel | None,
    baselines: Mapping[str, Sequence[NodeModel]],
) -> Findings:
    """All numbers of the report that are not attributes of the model."""
    network: Network = model.network_
    count = len(network)
    residual = last_residual(model)
    sent = np.sum([np.asarray(v, dtype=float) for v in model.history_.get("bytes", {}).values()], axis=0)
    drawn, centre = part_to_draw(network, residual)
    sample = np.unique(np.linspace(0, count - 1, min(count, MEASURED)).round().astype(int))
    similarity = agreement = None
    methods: dict[str, np.ndarray] = {}
    kind = "similarity"
    if central is not None:
        wanted = np.union1d(drawn, sample)
        nodes = [model.node_models_[int(j)] for j in wanted]
        if X is not None:
            points = X[spread(len(X), POINTS)]
            agreement = _filled(count, wanted, metrics.agreement(nodes, central, points))
        chosen = {name: _chosen(name, models, sample, count) for name, models in baselines.items()}
        own = nodes[0].own_function()
        if own.fourier:  # not in the kernel's feature space: no angle to the central answer
            kind = "agreement"
            if agreement is not None:
                methods["dekpca"] = agreement[sample]
                methods |= {name: metrics.agreement(models, central, points) for name, models in chosen.items()}
        else:
            similarity = _filled(count, wanted, metrics.similarity(nodes, central))
            methods["dekpca"] = similarity[sample]
            methods |= {name: metrics.similarity(models, central) for name, models in chosen.items()}
            methods["oracle"] = metrics.oracle([model.node_models_[int(j)] for j in sample], central)
    return Findings(
        drawn, centre, model.node_sizes_, residual, sent if sent.shape == (count,) else None,
        similarity, agreement, methods, kind, len(sample),
    )  # fmt: skip


def last_residual(model: Any) -> np.ndarray | None:
    """Each node's residual at the end; NaN for nodes of other processes."""
    by_node = model.history_.get("residual_by_node")
    if by_node is None or len(by_node) == 0:
        return None
    residual = np.full(len(model.network_), np.nan)
    residual[[model.network_.number[name] for name in model.node_models_.names]] = by_node[-1]
    return residual


def part_to_draw(network: Network, residual: np.ndarray | None) -> tuple[np.ndarray, int | None]:
    """All nodes, or in a large network those nearest to the node with the largest residual, and that node."""
    if len(network) <= WHOLE:
        return np.arange(len(network)), None
    centre = int(np.nanargmax(residual)) if residual is not None else network.root
    found, seen = [centre], {centre}
    for node in found:  # grows during the loop: breadth first
        for other in network.neighbors(node):
            if int(other) not in seen and len(found) < PART:
                seen.add(int(other))
                found.append(int(other))
    return np.sort(np.array(found)), centre


def spread(count: int, most: int) -> np.ndarray:
    """Row numbers, rising: all, or a seeded sample.

    Examples
    --------
    >>> from dekpca.report.measures import spread
    >>> spread(4, 10).tolist(), len(spread(100, 10))
    ([0, 1, 2, 3], 10)
    """
    if count <= most:
        return np.arange(count)
    return np.sort(np.random.default_rng(0).choice(count, most, replace=False))


def hosted(x: Any) -> np.ndarray:
    """Any array library's array, as float64 on the host."""
    return np.asarray(to_numpy(x), dtype=float)


def _chosen(name: str, models: Sequence[NodeModel], sample: np.ndarray, count: int) -> list[NodeModel]:
    if len(models) != count:
        raise ValueError(f"baselines[{name!r}]: {len(models)} models for {count} nodes; give one for each node")
    return [models[int(j)] for j in sample]


def _filled(count: int, at: np.ndarray, values: np.ndarray) -> np.ndarray:
    out = np.full((count, values.shape[1]), np.nan)
    out[at] = values
    return out
