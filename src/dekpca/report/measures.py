"""The numbers of a report that are not attributes of the model: computed once, for a sample of the nodes if there are many."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.base import clone

from .. import metrics
from ..arrays import on_host
from ..data.columns import Samples
from ..node_model import LANDMARK_KINDS, NodeModel

WHOLE = 2000  # nodes; larger networks are drawn in part
PART = 400  # nodes drawn of a larger network
MEASURED = 200  # nodes whose agreement is measured
POINTS = 2000  # rows on which agreement is measured


@dataclass(frozen=True)
class Findings:
    """What is not among the attributes of the model."""

    drawn: np.ndarray  # numbers of the nodes in the picture of the network
    sent: np.ndarray  # bytes of each node hosted here
    rounds: dict[str, int]  # by phase; empty if a fit is not made of rounds, or there is one node
    by_node: dict[str, np.ndarray]  # numbers of each node of the network; nan if not known here
    methods: dict[str, np.ndarray]  # agreement with central (nodes, components), of the model and the baselines
    error: np.ndarray  # the true error of each stage; nan if unknown


def measure(model: Any, X: Samples | None, central: Any, baselines: Mapping[str, Any], node_of: Any) -> Findings:
    """Everything that the report computes; agreement for a sample of the nodes, if there are many."""
    history, count = model.history_, len(model.network_)
    for name, models in baselines.items():
        if len(models) != count:
            raise ValueError(f"baselines[{name!r}]: {len(models)} models for {count} nodes; give one for each node")
    here = [model.network_.number[name] for name in model.node_models_.names]
    sent = sum((np.asarray(v, dtype=float) for v in history["bytes"].values()), np.zeros(count))[here]
    by_node, methods = {"kB sent": _filled(count, here, sent / 1e3)}, {}
    if len(history.get("residual_by_node", ())):
        by_node["residual at the end"] = _filled(count, here, history["residual_by_node"][-1])
    if central is not None and X is not None:
        points = X[spread(len(X), POINTS)]
        sample = spread(count, MEASURED)
        for name, models in {"dekpca": model.node_models_, **baselines}.items():
            methods[name] = metrics.agreement([models[int(j)] for j in sample], central, points)
        by_node["agreement, worst component"] = _filled(count, sample, methods["dekpca"].min(axis=1))
    near = np.argsort(model.network_.levels, kind="stable")  # to the root of the tree
    drawn = np.sort(near[: PART if count > WHOLE else count])
    return Findings(drawn, sent, rounds(model), by_node, methods, true_errors(model, X, node_of, central))


def _filled(count: int, at: Any, values: np.ndarray) -> np.ndarray:
    out = np.full(count, np.nan)
    out[at] = values
    return out


def rounds(model: Any) -> dict[str, int]:
    """How many sums over the network each phase took: in each a node sends one message to each of its neighbors in the tree."""
    network, here = model.network_, model.network_.number[model.node_models_.names[0]]
    along = len(network.children[here]) + (here != network.root)
    if not along or len(model.history_["residual"]):
        return {}
    return {phase: int(sent[here]) // along for phase, sent in model.history_["messages"].items()}


def span_error(values: Any, truth: Any) -> float:
    """sin² of the largest angle between the spans of two sets of component values over the same rows."""
    bases = [np.linalg.qr(v - v.mean(axis=0))[0] for v in (on_host(values), on_host(truth))]
    return float(1 - min(1, np.linalg.svd(bases[0].T @ bases[1], compute_uv=False)[-1]) ** 2)


def true_errors(model: Any, X: Samples | None, node_of: Any, central: NodeModel | None) -> np.ndarray:
    """The error of each stage, for somebody with the rows of all nodes and the central answer; nan if that is not so.

    The last stage is the model. Those before it are fitted again, with the landmarks that they had; not if all rows took the place of these.
    """
    stages = model.history_["landmarks"]
    found = np.full(len(stages), np.nan)
    if central is None or X is None or not len(stages) or len(X) != model.node_sizes_.sum():
        return found
    k, node = len(model.eigenvalues_), model.node_models_[model.network_.names[model.answering_node_]]
    truth = on_host(central.transform(X))[:, :k]
    found[-1] = span_error(node.transform(X), truth)
    if node_of is None or model.privacy_ is not None or node.contents[0].what == LANDMARK_KINDS["rows"][0]:
        return found
    points = np.concatenate([on_host(p) for p in node.functions["landmarks"].points])
    points = node.features.from_sorted(points if node.scales is None else on_host(node.scales.restored(points)))
    rows, plain = (
        node.features.from_sorted(node.features.arrange(X, "X", "the model")),
        {"engine": "local", "privacy": None, "n_components": k, "contamination": None},
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it is not accurate enough yet is why there was a next stage
        for i, m in enumerate(stages[:-1]):
            earlier = clone(model).set_params(gamma=model.gamma_, landmarks=points[:m], network=model.network_, **plain)
            earlier.fit(rows, nodes=np.asarray(model.network_.names)[node_of])
            found[i] = span_error(earlier.transform(rows), truth)
    return found


def spread(count: int, most: int) -> np.ndarray:
    """Row numbers, rising: all, or a seeded sample."""
    if count <= most:
        return np.arange(count)
    return np.sort(np.random.default_rng(0).choice(count, most, replace=False))
