"""The embedding for the report's script: component values of a few nodes and the central answer, compressed."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..columns import Samples
from ..node_model import NodeModel
from . import charts
from .figures import aligned
from .measures import hosted, spread
from .page import Chart, select_html

POINTS = 3000
NODES = 12
COMPONENTS = 8  # more cannot be compared by eye
CLASSES = 20  # colours that can be distinguished
BUDGET = 220_000  # numbers in all, two bytes each: the file stays well below its limit


def embedding_chart(
    model: Any,
    X: Samples,
    labels: np.ndarray | None,
    central: NodeModel | None,
    node_of: np.ndarray | None,
    agreement: np.ndarray | None,
) -> Chart:
    """Component values of the rows of X at several nodes; signs are those of the first view."""
    names = model.network_.names
    here = set(model.node_models_.names)  # models of other nodes are in other processes
    nodes = [j for j in shown_nodes(len(names), int(model.answering_node_)) if names[j] in here]
    k = min(int(model.n_components), COMPONENTS)
    views = len(nodes) + (central is not None)
    rows = spread(len(X), min(POINTS, BUDGET // (views * k)))
    points = X[rows]
    values = [] if central is None else [hosted(central.transform(points))[:, :k]]
    for j in nodes:
        mine = hosted(model.node_models_[names[j]].transform(points))[:, :k]
        values.append(aligned(mine, values[0]) if values else mine)
    ranges, packed = _packed(np.array(values))
    entries: list[dict[str, Any]] = (
        [] if central is None else [{"node": None, "says": "Central kernel PCA, which sees all rows."}]
    )
    options = [] if central is None else ["central answer"]
    for j in nodes:
        entries.append({"node": j, "says": _says(names[j], j, agreement, node_of)})
        options.append(f"node {names[j]}" + (" (answers transform)" if j == model.answering_node_ else ""))
    colorings = _colorings(labels, node_of, rows, names)
    empty = charts.figure(hovermode="closest", xaxis=charts.axis(), yaxis=charts.axis())
    extra = {
        "kind": "embedding", "values": packed, "ranges": ranges, "points": len(rows), "rows": rows.tolist(), "views": entries,
        "owner": None if node_of is None else node_of[rows].tolist(), "names": [charts.plain(n) for n in names] if node_of is not None else [],
        "colorings": colorings, "ink": charts.INK,
    }  # fmt: skip
    components = [str(c + 1) for c in range(k)]
    start = list(nodes).index(model.answering_node_) + (central is not None)
    controls = select_html("embedding-view", "Values from", options, "view", chosen=start)
    if len(colorings) > 1:
        controls += select_html("embedding-color", "Colour by", [c["label"] for c in colorings], "color")
    controls += select_html("embedding-x", "x", components, "x")
    controls += select_html("embedding-y", "y", components, "y", chosen=min(1, k - 1))
    controls += '<output class="details" aria-live="polite"></output>'
    return Chart(
        "embedding",
        empty,
        f"Scatter plot of {len(rows)} rows by two components, as the chosen node values them.",
        _caption(len(X), rows, len(names), nodes, k, int(model.n_components), node_of is not None),
        height=520,
        extra=extra,
        controls=controls,
    )


def shown_nodes(count: int, answering: int) -> list[int]:
    """A dozen evenly spaced nodes, and the answering node.

    Examples
    --------
    >>> from dekpca.report.embedding import shown_nodes
    >>> shown_nodes(5, 2), len(shown_nodes(100, 37))
    ([0, 1, 2, 3, 4], 13)
    """
    chosen = np.linspace(0, count - 1, min(count, NODES)).round().astype(int)
    return sorted({*chosen.tolist(), answering})


def _packed(values: np.ndarray) -> tuple[list[list[float]], str]:
    """(views, points, components) as 16-bit numbers: views, then components, then points; scales are common to all views."""
    low, high = values.min(axis=(0, 1)), values.max(axis=(0, 1))
    width = np.where(high > low, high - low, 1.0)
    whole = np.rint((values - low) / width * 65534 - 32767).astype("<i2")
    return [[float(a), float(b)] for a, b in zip(low, high, strict=True)], base64.b64encode(
        np.ascontiguousarray(whole.transpose(0, 2, 1)).tobytes()
    ).decode()


def _says(name: str, node: int, agreement: np.ndarray | None, node_of: np.ndarray | None) -> str:
    says = f"Node {name}."
    if agreement is not None and np.isfinite(agreement[node]).all():
        says += f" Agreement with the central answer: {', '.join(f'{a:.4f}' for a in agreement[node])}."
    if node_of is not None:
        says += f" It owns {int((node_of == node).sum()):,} rows, which are ringed."
    return says


def _colorings(
    labels: np.ndarray | None, node_of: np.ndarray | None, rows: np.ndarray, names: Sequence[str]
) -> list[dict[str, Any]]:
    """Ways to colour the points: by label, by node, or one colour."""
    ways = []
    if labels is not None:
        ways.append(_by_label(labels, rows))
    if node_of is not None:
        if len(names) <= len(charts.SERIES) // 2:
            ways.append(_classes("node", [f"node {n}" for n in names], node_of[rows]))
        else:
            ways.append(
                {"label": "node", "of": node_of[rows].tolist(), "scale": "Portland", "bar": False}
            )  # many hues; the hover text names the node
    return ways or [_classes("nothing", ["rows"], np.zeros(len(rows), dtype=int))]


def _by_label(labels: np.ndarray, rows: np.ndarray) -> dict[str, Any]:
    found, of, counts = np.unique(labels, return_inverse=True, return_counts=True)
    if len(found) <= CLASSES:
        return _classes("label", [str(c) for c in found], of[rows])
    if np.issubdtype(labels.dtype, np.number):
        color = charts.numbers(labels[rows])
        return {"label": "label", "of": color, "scale": charts.scale(), "bar": True}
    common = np.argsort(-counts, kind="stable")[: CLASSES - 1]
    place = np.full(len(found), CLASSES - 1)
    place[common] = np.arange(CLASSES - 1)
    return _classes("label", [*(str(found[c]) for c in common), "others"], place[of[rows]])


def _classes(label: str, names: Sequence[str], of: np.ndarray) -> dict[str, Any]:
    shown = [charts.plain(n) for n in names]
    colors = [charts.SERIES[i % len(charts.SERIES)] for i in range(len(names))]
    return {"label": label, "classes": shown, "says": shown, "colors": colors, "of": of.tolist()}


def _caption(
    total: int, rows: np.ndarray, count: int, nodes: Sequence[int], k: int, components: int, owned: bool
) -> str:
    text = "Signs, which kernel PCA leaves open, and the scales of the axes are the same in all views."
    if owned:
        text += " The chosen node's own rows are ringed."
    if len(rows) < total:
        text += f" Drawn is a seeded sample of {len(rows):,} of {total:,} rows."
    if len(nodes) < count:
        text += (
            f" To choose from are {len(nodes)} of {count:,} nodes, evenly picked, with the one that answers transform."
        )
    if k < components:
        text += f" The first {k} of {components} components are held."
    return text
