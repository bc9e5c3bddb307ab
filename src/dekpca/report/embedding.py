"""The embedding: component values of the rows by a few nodes, by the same nodes alone, and by the central answer."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..arrays import on_host
from ..data.columns import Samples
from ..node_model import NodeModel
from ..plot import aligned
from . import charts
from .measures import spread
from .page import Chart, select_html

POINTS = 3000
NODES = 12
COMPONENTS = 8  # more cannot be compared by eye
CLASSES = 20  # ten colours, with two symbols
BUDGET = 150_000  # numbers in all, four bytes each: the file stays well below its limit


def embedding_chart(
    model: Any, X: Samples, labels: Any, central: NodeModel | None, node_of: Any, alone: Sequence[NodeModel] | None
) -> Chart:
    """Component values of the rows of X; signs are those of the first view."""
    names, here = model.network_.names, model.node_models_.names  # other processes host other nodes
    even = {here[i] for i in np.linspace(0, len(here) - 1, min(len(here), NODES)).round().astype(int)}
    nodes = sorted(model.network_.number[name] for name in even | {names[model.answering_node_]})
    views: list[tuple[str, NodeModel, int | None]] = []
    if central is not None:
        views.append(("central: sees all rows", central, None))
    for j in nodes:
        views.append((f"node {names[j]}", model.node_models_[names[j]], j))
        if alone is not None:
            views.append((f"node {names[j]} alone, before it heard from others", alone[j], j))
    start = next(i for i, (*_, node) in enumerate(views) if node == model.answering_node_)
    k = min(len(model.eigenvalues_), COMPONENTS)
    rows = spread(len(X), min(POINTS, BUDGET // (len(views) * k)))
    values = [on_host(view.transform(X[rows]))[:, :k] for _, view, _ in views]
    packed = [[base64.b64encode(c.astype("<f4").tobytes()).decode() for c in aligned(v, values[0]).T] for v in values]
    owner = None if node_of is None else node_of[rows]
    own = [[] if owner is None or j is None else np.flatnonzero(owner == j).tolist() for *_, j in views]
    controls = select_html("embedding-view", "Values from", [name for name, *_ in views], start)
    for axis, chosen in (("x", 0), ("y", min(1, k - 1))):
        controls += select_html(f"embedding-{axis}", axis, [str(c + 1) for c in range(k)], chosen)
    caption = "Kernel PCA leaves the signs of components open: all views have those of the first."
    if owner is not None:
        caption += " The chosen node's own rows are ringed."
    if len(rows) < len(X):
        caption += f" This is a seeded sample of {len(rows):,} of {len(X):,} rows."
    if len(nodes) < len(here):
        caption += f" There are {len(nodes)} of {len(names):,} nodes to choose from, evenly picked."
    if k < len(model.eigenvalues_):
        caption += f" The first {k} of {len(model.eigenvalues_)} components can be chosen."
    label = f"Scatter plot of {len(rows)} rows by two components, as the chosen node values them."
    drawn, extra = _points(labels, owner, rows, names), {"values": packed, "own": own}
    return Chart("embedding", drawn, label, caption, height=520, controls=controls, extra=extra)


def _points(labels: np.ndarray | None, owner: np.ndarray | None, rows: np.ndarray, names: Sequence[str]) -> Any:
    """A trace without places for each class of rows, and a last one for rings; `customdata` are places among the rows drawn."""
    drawn = charts.figure(" ", " ", hovermode="closest")
    nodes = None if owner is None else np.array([f"node {names[j]}" for j in owner])
    of = labels[rows] if labels is not None else nodes if nodes is not None else np.full(len(rows), "rows")
    found, which, counts = np.unique(of, return_inverse=True, return_counts=True)
    size = 5 if len(rows) > 1500 else 6
    says = np.array([charts.plain(f"{of[i]}, row {r}" + ("" if nodes is None else f", {nodes[i]}")) for i, r in enumerate(rows)])  # fmt: skip

    def add(name: Any, at: np.ndarray, **marker: Any) -> None:
        marker = {"size": size, "opacity": 0.8, "line": {"width": 0}} | marker
        drawn.add_scatter(customdata=at.tolist(), mode="markers", name=charts.plain(name), marker=marker)
        drawn.data[-1].update(hovertext=says[at], hoverinfo="text", showlegend=len(found) > 1)

    if len(found) > CLASSES and np.issubdtype(of.dtype, np.number):
        add("rows", np.arange(len(rows)), color=of, coloraxis="coloraxis")
        drawn.update_layout(showlegend=False)  # there is a colour bar
    else:
        common = np.sort(np.argsort(-counts, kind="stable")[: CLASSES - (len(found) > CLASSES)])
        for i, c in enumerate(common):
            symbol = "circle" if i < len(charts.SERIES) else "diamond"
            add(found[c], np.flatnonzero(which == c), color=charts.SERIES[i % len(charts.SERIES)], symbol=symbol)
        if len(common) < len(found):
            add("others", np.flatnonzero(~np.isin(which, common)), color=charts.GREY)
    ring = {"size": size + 3, "color": charts.CLEAR, "line": {"color": charts.GREY, "width": 1.2}}
    style = {"marker": ring, "hoverinfo": "skip", "showlegend": owner is not None}
    return drawn.add_scatter(customdata=[], mode="markers", name="its own rows", **style)
