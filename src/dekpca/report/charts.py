"""The report's plotly figures, each made from arrays, independent of models, pages and files.

Colours of marks are readable on white and on black. Margins, legends and axes are plotly's template in assets/page.js;
the style sheet colours text and lines by the reader's scheme.
"""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..network import Network
from ..plot import ROUNDING, inner_edges, positions

try:
    import plotly.graph_objects as go
except ImportError as error:
    raise ImportError("the HTML report needs plotly: pip install 'dekpca[report]'") from error

# Contrast of at least 3 to 1 with white and with the dark page: relative luminance from 0.14 to 0.30.
BLUE, ORANGE, GREEN, RED, GREY = "#3f7fc4", "#cf7428", "#3d9271", "#cc5f5b", "#848e99"
SERIES = (BLUE, ORANGE, GREEN, "#9172b8", RED, "#2b95a8", "#a8821f", "#c4669b", "#7a8a3d", "#96786a")
METHODS = {"dekpca": BLUE, "neighborhood": GREEN, "local": ORANGE, "central": GREY}
CLEAR = "rgba(0,0,0,0)"
SIDES = ["middle right", "top right", "top center", "top left"]  # from the right to the left, counterclockwise
SIDES += ["middle left", "bottom left", "bottom center", "bottom right"]

MOST_EDGES = 4000  # drawn; more are unreadable, and make a large file
LABELLED = 40  # nodes up to which names fit beside them
WIDTHS = 4  # of edges, by their traffic
CURVE = 1500  # points, as many as a screen has pixels
LOG_TICKS = {"tickformat": "~g", "dtick": "D2"}  # 1, 2, 5: plotly would write 2 for 0.02, between powers of ten


def figure(x: str = "", y: str = "", **layout: Any) -> go.Figure:
    """An empty figure with titles of its axes."""
    return go.Figure(layout={"xaxis_title_text": x, "yaxis_title_text": y} | layout)


def plain(text: object) -> str:
    """Text for plotly, which reads tags in it."""
    return html.escape(str(text), quote=False)


def network_figure(
    network: Network, nodes: Sequence[int], sent: np.ndarray, hover: Sequence[str], ringed: int, color: Any, title: str
) -> go.Figure:
    """The graph: edges as wide as the bytes along them (`sent`: those of `network.directed_edges`); nodes are the last trace."""
    place, (edges, sent) = positions(network, nodes), inner_edges(network, nodes, sent)
    drawn = figure(showlegend=False, hovermode="closest", margin={"l": 60, "r": 60, "t": 24, "b": 8})
    drawn.update_layout(xaxis_visible=False, yaxis_visible=False, yaxis_scaleanchor="x")
    if len(edges) > MOST_EDGES:
        kept = np.sort(np.random.default_rng(0).choice(len(edges), MOST_EDGES, replace=False))
        edges, sent = edges[kept], sent[kept]
    level = np.ceil(WIDTHS * sent / max(sent.max(initial=0), 1)).astype(int)  # 0: nothing was sent there
    for width in np.unique(level):
        ends = np.full((int((level == width).sum()), 3, 2), np.nan, dtype=np.float32)
        ends[:, :2] = place[edges[level == width]]
        x, y = ends.reshape(-1, 2).T
        line = {"color": BLUE, "width": 0.8 + 1.2 * width} if width else {"color": GREY, "width": 0.7}
        drawn.add_scatter(x=x, y=y, mode="lines", line=line, opacity=0.6, hoverinfo="skip")
    size = float(np.clip(150 / np.sqrt(len(nodes)), 6, 26))
    ring = {"size": size + 9, "color": CLEAR, "line": {"color": ORANGE, "width": 2}}
    x, y = place[np.asarray(nodes) == ringed].T
    drawn.add_scatter(x=x, y=y, mode="markers", marker=ring, hoverinfo="skip")
    x, y = place.astype(np.float32).T
    marker = {"size": size, "opacity": 1, "color": color} | ({"coloraxis": "coloraxis"} if title else {})
    drawn.add_scatter(x=x, y=y, mode="markers", marker=marker, hovertext=hover, hoverinfo="text", name="nodes")
    drawn.update_layout(coloraxis_colorbar={"title_text": title, "y": -0.02, "yanchor": "top"})
    if len(nodes) <= LABELLED:
        outward = np.rint(np.arctan2(y - y.mean(), x - x.mean()) / (np.pi / 4)).astype(int) % 8
        names = [name if len(name) < 10 else name[:8] + "…" for name in (network.names[j] for j in nodes)]
        style = {"mode": "markers+text", "textposition": np.array(SIDES)[outward], "textfont": {"size": 11}}
        drawn.data[-1].update(text=[plain(name) for name in names], cliponaxis=False, **style)
    return drawn


def error_figure(landmarks: Any, error: Any, bound: Any, true: Any, tol: float) -> go.Figure:
    """The error of each stage over its number of landmarks: as stated, with its bound, and as it is (nan: not known)."""
    error, bound, true = (np.maximum(np.asarray(v, dtype=float), ROUNDING) for v in (error, bound, true))
    drawn = figure("landmarks", "error: sin² of the angle", yaxis_type="log", yaxis_exponentformat="power")
    if np.nanmax([bound, true]) < 100 * np.nanmin([error, true]):  # beyond it powers of ten are enough
        drawn.update_yaxes(**LOG_TICKS)
    drawn.update_xaxes(type="log", tickvals=[int(m) for m in landmarks], ticktext=[f"{m:,}" for m in landmarks])
    reach = {"type": "data", "symmetric": False, "array": bound - error, "arrayminus": error * 0, "width": 6}
    name, line = "stated, up to its bound", {"color": BLUE}
    drawn.add_scatter(x=landmarks, y=error, error_y=reach, mode="lines+markers", name=name, line=line, marker_size=9)
    if np.isfinite(true).any():
        style = {"line": {"color": GREEN, "dash": "dot"}, "marker": {"size": 9, "symbol": "diamond"}}
        drawn.add_scatter(x=landmarks, y=true, mode="lines+markers", name="true", **style)
    if tol > 0:
        drawn.add_hline(tol, line={"color": ORANGE, "dash": "dash"}, name=f"asked for: {tol:g}", showlegend=True)
    return drawn


def convergence_figure(curves: Mapping[str, np.ndarray], threshold: float) -> go.Figure:
    """Residuals and changes by iteration on a log scale."""
    drawn = figure("iteration", "relative size", yaxis_type="log", hovermode="x unified")
    drawn.update_yaxes(**LOG_TICKS)
    steps = len(next(iter(curves.values())))
    kept = np.unique(np.linspace(0, steps - 1, CURVE).round().astype(int))
    for name, values in curves.items():
        positive = np.where(values[kept] > 0, values[kept], np.nan)
        drawn.add_scatter(x=kept + 1, y=positive, name=name, mode="lines" if steps > 1 else "markers")
    if threshold > 0:
        drawn.add_hline(threshold, line={"color": GREY, "dash": "dash"}, name="tolerance", showlegend=True)
    return drawn


def agreement_figure(methods: Mapping[str, np.ndarray], stated: np.ndarray, mixed: Sequence[int]) -> go.Figure:
    """By component, a box of all nodes for each method, and what the network states; mixed components have a mark of their own."""
    drawn = figure("component", "agreement", boxmode="group", xaxis_type="category", yaxis_rangemode="tozero")
    for i, (name, values) in enumerate(methods.items()):
        component = np.tile(np.arange(1, values.shape[1] + 1), len(values))
        marker = {"color": METHODS.get(name, SERIES[(3 + i) % len(SERIES)]), "size": 4, "opacity": 0.8}
        points = {"boxpoints": "outliers" if values.size > 400 else "all", "jitter": 0.4, "pointpos": 0}
        drawn.add_box(x=component, y=values.ravel(), name=plain(name), line_width=1.4, marker=marker, **points)
    alone = np.array([c not in mixed for c in range(len(stated))])
    marks = (("stated", alone, "diamond-open", GREY), ("stated, mixed with another", ~alone, "x", RED))
    for name, chosen, symbol, color in marks:
        if np.isfinite(stated[chosen]).any():
            marker = {"symbol": symbol, "size": 11, "color": color, "line": {"width": 2}}
            drawn.add_scatter(x=np.flatnonzero(chosen) + 1, y=stated[chosen], name=name, mode="markers", marker=marker)
    return drawn


def bar_figure(groups: Mapping[str, Any], labels: Sequence[str], xtitle: str, ytitle: str) -> go.Figure:
    """Vertical bars, a group for each label."""
    drawn = figure(xtitle, ytitle, xaxis_type="category")
    for i, (name, values) in enumerate(groups.items()):
        marker = {"color": METHODS.get(name, SERIES[i % len(SERIES)])}
        drawn.add_bar(x=list(labels), y=np.asarray(values, dtype=float), name=plain(name), marker=marker)
    return drawn


def histogram_figure(middle: np.ndarray, within: np.ndarray, beyond: np.ndarray, threshold: float) -> go.Figure:
    """Reconstruction errors of all rows on a log scale: how many are within and beyond the threshold."""
    drawn = figure("reconstruction error", "rows", barmode="stack", xaxis_type="log", bargap=0.02)
    for name, rows, color in (("within the threshold", within, BLUE), ("beyond it", beyond, RED)):
        drawn.add_bar(x=middle, y=rows, name=name, marker={"color": color})
    drawn.add_vline(
        threshold, line={"color": ORANGE, "dash": "dash"}, name=f"threshold: {threshold:.3g}", showlegend=True
    )
    return drawn
