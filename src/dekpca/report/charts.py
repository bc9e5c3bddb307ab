"""The report's plotly figures, each made from arrays, independent of models, pages and files.

Figures have the light colours of the page; in dark mode the page replaces each by its entry in `DARK`. So a figure
with these colours follows the reader's scheme.
"""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import networkx as nx
import numpy as np

from ..network import Network

try:
    import plotly.graph_objects as go
except ImportError as error:
    raise ImportError("the HTML report needs plotly: pip install 'dekpca[report]'") from error

INK, MUTED, FAINT, PAPER = "#1d2731", "#66717d", "#c3cad2", "#ffffff"
BLUE, ORANGE, GREEN, GREY = "#2f6db3", "#c8702a", "#3d8f6e", "#8a94a0"
BAND = "rgba(47,109,179,0.16)"
LOW, MIDDLE, HIGH = "#eebb45", "#4f9d8f", "#2d5591"  # amber needs attention, blue is good
SERIES = (
    BLUE, ORANGE, GREEN, "#8363a8", "#c0504d", "#2a9db0", "#b5892b", "#c2608f", "#6f7f3a", "#7a6255",
    "#7fa8d9", "#e3ad7d", "#86c3ab", "#b9a3d1", "#dd9a98", "#85c8d4", "#d9c07f", "#dda3c1", "#b0bd82", "#b5a399",
)  # fmt: skip
DARK = {
    INK: "#e6eaee", MUTED: "#a0abb6", FAINT: "#45505c", PAPER: "#10151a", GREY: "#97a1ac",
    BLUE: "#78aeea", ORANGE: "#eda063", GREEN: "#6cc3a0", BAND: "rgba(120,174,234,0.20)",
    LOW: "#f2c862", MIDDLE: "#58b3a3", HIGH: "#5f90d8",
    "#8363a8": "#b598dd", "#c0504d": "#ec8683", "#2a9db0": "#5fc6d8", "#b5892b": "#dcb658", "#c2608f": "#e58fb8",
    "#6f7f3a": "#a9bb68", "#7a6255": "#bfa497",
}  # fmt: skip
METHODS = {"dekpca": BLUE, "neighborhood": GREEN, "local": ORANGE, "oracle": GREY}

CIRCLE = 400  # nodes; a larger circle is a line
SETTLED = 300  # nodes up to which a layout by distances is faster than a second
MOST_EDGES = 4000  # drawn; more are unreadable, and make a large file
LABELLED = 40  # nodes up to which names fit beside them
LISTED = 8  # neighbors in a node's details


def figure(**layout: Any) -> go.Figure:
    """An empty figure in the report's style: small margins, no title (the page has headings)."""
    return go.Figure(
        layout={
            "template": "none",
            "margin": {"l": 8, "r": 8, "t": 8, "b": 8},
            "legend": {"orientation": "h", "x": 0, "xanchor": "left", "y": 1.02, "yanchor": "bottom"},
            "hoverlabel": {"align": "left"},
            "colorway": list(SERIES),
        }
        | layout
    )


def axis(title: str | None = None, **more: Any) -> dict[str, Any]:
    """An axis with automatic margins for its labels."""
    return {"title": {"text": title, "standoff": 8} if title else None, "automargin": True, "zeroline": False} | more


def plain(text: object) -> str:
    """Text for plotly, which reads tags in it."""
    return html.escape(str(text), quote=False)


def short(name: str, most: int = 9) -> str:
    """A name that fits beside a node or an axis, as text for plotly.

    Examples
    --------
    >>> from dekpca.report.charts import short
    >>> short("oslo"), short("a hospital far away")
    ('oslo', 'a hospit…')
    """
    return plain(name if len(name) <= most else name[: most - 1] + "…")


def numbers(values: Any, digits: int = 5) -> list[float | None]:
    """Numbers for JSON: few digits, null for missing ones."""
    return [float(f"{v:.{digits}g}") if np.isfinite(v) else None for v in np.asarray(values, dtype=float).ravel()]


def scale(high_is_good: bool = True) -> list[list[Any]]:
    """The colour scale from amber (needs attention) to blue (good), or reversed."""
    colors = (LOW, MIDDLE, HIGH) if high_is_good else (HIGH, MIDDLE, LOW)
    return [[i / 2, color] for i, color in enumerate(colors)]


# ---------------------------------------------------------------------- the network
@dataclass(frozen=True)
class Quantity:
    """A value for each node, to colour it by."""

    label: str
    values: np.ndarray  # of all nodes; nan if unknown
    high_is_good: bool
    logarithmic: bool = False


def layout_of(network: Network, nodes: Sequence[int]) -> np.ndarray:
    """Positions (nodes, 2) of these nodes in the plane; a ring is a circle, other networks are laid out by distances."""
    graph = nx.Graph()
    graph.add_nodes_from(range(len(nodes)))
    graph.add_edges_from(inner_edges(network, nodes))
    n = len(nodes)
    if n == 1:
        return np.zeros((1, 2))
    everything = n == len(network)
    if everything and n <= CIRCLE and (_is_ring(network) or network.n_edges == n * (n - 1) // 2):
        angle = np.pi / 2 - 2 * np.pi * np.arange(n) / n  # clockwise from the top
        return np.stack([np.cos(angle), np.sin(angle)], axis=1)
    place = nx.kamada_kawai_layout(graph) if n <= SETTLED else _springs(graph)
    return np.array([place[i] for i in range(n)])


def _springs(graph: nx.Graph) -> dict[int, np.ndarray]:
    """A few steps from the lowest eigenvectors of the graph Laplacian: seconds for 2000 nodes."""
    return nx.spring_layout(graph, pos=nx.spectral_layout(graph), iterations=12, seed=0)


def _is_ring(network: Network) -> bool:
    degree = int(network.degrees[0])
    n = len(network)
    return n > 2 and degree % 2 == 0 and 2 <= degree < n and Network.ring(n, degree).edges == _by_number(network)


def _by_number(network: Network) -> tuple[tuple[str, str], ...]:
    """The edges, with numbers instead of names."""
    return tuple((str(network.number[a]), str(network.number[b])) for a, b in network.edges)


def inner_edges(network: Network, nodes: Sequence[int]) -> np.ndarray:
    """Undirected edges among these nodes, as indices into `nodes`."""
    place = np.full(len(network), -1)
    place[np.asarray(nodes)] = np.arange(len(nodes))
    pairs = network.directed_edges
    pairs = place[pairs[pairs[:, 0] < pairs[:, 1]]]
    return pairs[(pairs >= 0).all(axis=1)]


def network_figure(
    network: Network,
    nodes: Sequence[int],
    quantities: Sequence[Quantity],
    details: Sequence[str],
    ringed: int | None = None,
) -> tuple[go.Figure, list[dict[str, Any]], bool]:
    """The graph, coloured by the first quantity; one patch of the figure for each quantity; whether all edges are drawn."""
    place = layout_of(network, nodes)
    edges = inner_edges(network, nodes)
    all_edges = len(edges) <= MOST_EDGES
    if not all_edges:
        edges = edges[np.sort(np.random.default_rng(0).choice(len(edges), MOST_EDGES, replace=False))]
    ends = np.full((len(edges), 3, 2), np.nan, dtype=np.float32)
    ends[:, 0], ends[:, 1] = place[edges[:, 0]], place[edges[:, 1]]
    line = {"x": ends[..., 0].ravel(), "y": ends[..., 1].ravel()}
    drawn = figure(
        showlegend=False,
        hovermode="closest",
        margin={"l": 16, "r": 16, "t": 24, "b": 4},
        xaxis={"visible": False},
        yaxis={"visible": False, "scaleanchor": "x"},
    )
    width = 1.2 if len(edges) < 300 else 0.5
    drawn.add_scatter(**line, mode="lines", line={"color": FAINT, "width": width}, hoverinfo="skip", name="edges")
    size = float(np.clip(150 / np.sqrt(len(nodes)), 6, 26))
    if len(nodes) <= LABELLED:
        names = [network.names[j] for j in nodes]
        side = 12 + 6 * min(9, max(map(len, names)))  # room for names to the left and right, at 11 px
        drawn.update_layout(margin={"l": side, "r": side})
        drawn.add_scatter(
            x=place[:, 0],
            y=place[:, 1],
            mode="markers+text",
            marker={"size": size + 8, "color": "rgba(0,0,0,0)", "line": {"width": 0}},  # keeps the text off the node
            text=[short(name) for name in names],
            textposition=_outward(place),
            textfont={"size": 11, "color": MUTED},
            hoverinfo="skip",
            cliponaxis=False,
        )
    if ringed is not None and ringed in nodes:
        at = list(nodes).index(ringed)
        ring = {"size": size + 9, "color": "rgba(0,0,0,0)", "line": {"color": INK, "width": 1.8}}
        drawn.add_scatter(x=place[[at], 0], y=place[[at], 1], mode="markers", marker=ring, hoverinfo="skip")
    patches = [_coloured(q, nodes) for q in quantities]
    drawn.add_scatter(
        x=place[:, 0],
        y=place[:, 1],
        mode="markers",
        marker={"size": size, "opacity": 1, "line": {"color": MUTED, "width": 0.8}} | patches[0]["marker"],
        hovertext=list(details),
        hoverinfo="text",
        name="nodes",
    )
    return drawn, patches, all_edges


def _outward(place: np.ndarray) -> list[str]:
    """The side of each node that is away from the network, for its name."""
    x, y = (place - place.mean(axis=0)).T
    eighth = np.rint(np.arctan2(y, x) / (np.pi / 4)).astype(int) % 8
    sides = ("middle right", "top right", "top center", "top left", "middle left", "bottom left", "bottom center", "bottom right")  # fmt: skip
    return [sides[e] for e in eighth]


def _coloured(quantity: Quantity, nodes: Sequence[int]) -> dict[str, Any]:
    """The part of the nodes' trace that depends on the quantity."""
    values = np.asarray(quantity.values, dtype=float)[np.asarray(nodes)]
    bar: dict[str, Any] = {
        "orientation": "h", "thickness": 9, "len": 0.8, "x": 0.5, "y": -0.02, "yanchor": "top", "outlinewidth": 0, "nticks": 5,
        "title": {"text": plain(quantity.label), "side": "top"},
    }  # fmt: skip
    if quantity.logarithmic:
        values = np.log10(np.where(values > 0, values, np.nan))
        finite = values[np.isfinite(values)]
        if len(finite):
            ticks = np.linspace(finite.min(), finite.max(), 4) if np.ptp(finite) > 0 else finite[:1]
            bar |= {"tickmode": "array", "tickvals": numbers(ticks), "ticktext": [f"{10**t:.2g}" for t in ticks]}
    finite = values[np.isfinite(values)]
    low, high = (finite.min(), finite.max()) if len(finite) else (0.0, 1.0)
    if high - low < 1e-12:  # all equal: the colour bar needs a range
        low, high = low - 0.5 * max(abs(low), 1e-3), high + 0.5 * max(abs(high), 1e-3)
    marker = {"color": numbers(values), "cmin": float(low), "cmax": float(high)}
    return {"marker": marker | {"colorscale": scale(quantity.high_is_good), "showscale": True, "colorbar": bar}}


# ---------------------------------------------------------------------- over the iterations
def convergence_figure(curves: Mapping[str, Any], by_node: Any, threshold: float | None) -> go.Figure:
    """Residual and change on a log scale; `by_node` (iterations, nodes) gives the median and the band."""
    drawn = figure(
        hovermode="x unified",
        xaxis=axis("iteration"),
        yaxis=axis("relative size", type="log", exponentformat="power", dtick=1),
    )
    steps = np.arange(1, max(map(len, curves.values())) + 1)
    kept = np.unique(np.linspace(0, len(steps) - 1, 1500).round().astype(int))  # as many as a screen has pixels
    if by_node is not None and by_node.shape[1] > 1:
        low, middle, high = np.quantile(by_node, [0.1, 0.5, 0.9], axis=0 if by_node.ndim == 1 else 1)
        shade = {"mode": "lines", "line": {"width": 0}, "hoverinfo": "skip", "legendgroup": "band"}
        drawn.add_scatter(x=steps[kept], y=numbers(_positive(low)[kept]), showlegend=False, **shade)
        drawn.add_scatter(
            x=steps[kept],
            y=numbers(_positive(high)[kept]),
            fill="tonexty",
            fillcolor=BAND,
            name="middle 80 %",
            **shade,
        )
        line = {"color": BLUE, "width": 1.4, "dash": "dot"}
        drawn.add_scatter(
            x=steps[kept], y=numbers(_positive(middle)[kept]), name="residual, median", line=line, mode="lines"
        )
    styles = [{"color": BLUE, "width": 2.4}, {"color": ORANGE, "width": 2}, {"color": GREY, "width": 1.2}]
    for (name, values), style in zip(curves.items(), styles, strict=False):
        y = numbers(_positive(np.asarray(values, dtype=float))[kept])
        drawn.add_scatter(x=steps[kept], y=y, name=name, mode="lines" if len(kept) > 1 else "markers", line=style)
    if threshold:
        drawn.add_scatter(
            x=[1, len(steps)],
            y=[threshold] * 2,
            mode="lines",
            name=f"tolerance {threshold:.2g}",
            line={"color": INK, "width": 1.2, "dash": "dash"},
            hoverinfo="skip",
        )
    return drawn


def _positive(values: np.ndarray) -> np.ndarray:
    return np.where(values > 0, values, np.nan)


# ---------------------------------------------------------------------- distributions and bars
def distribution_figure(
    methods: Mapping[str, np.ndarray], what: str
) -> tuple[go.Figure, list[dict[int, dict[str, Any]]]]:
    """A box for each method and component; patches for the plain scale and for the distance to 1 on a log scale."""
    drawn = figure(
        boxmode="group", boxgap=0.25, boxgroupgap=0.15, xaxis=axis("component", type="category"), yaxis=axis(what)
    )
    near: dict[int, dict[str, Any]] = {}
    usual: dict[int, dict[str, Any]] = {}
    for i, (name, values) in enumerate(methods.items()):
        values = np.asarray(values, dtype=float)
        component = np.tile([str(c + 1) for c in range(values.shape[1])], len(values))
        color = METHODS.get(name, SERIES[(3 + i) % len(SERIES)])
        y = numbers(values)
        drawn.add_box(
            x=component.tolist(),
            y=y,
            name=plain(name),
            marker={"color": color, "size": 4, "opacity": 0.8},
            line={"width": 1.4},
            boxpoints="outliers" if values.size > 400 else "all",
            jitter=0.4,
            pointpos=0,
        )
        usual[i] = {"y": y}
        near[i] = {"y": numbers(np.maximum(1 - values, 1e-8))}  # below is rounding
    return drawn, [usual, near]


def bar_figure(groups: Mapping[str, Any], labels: Sequence[str], xtitle: str, ytitle: str) -> go.Figure:
    """Vertical bars, a group for each label."""
    drawn = figure(
        barmode="group",
        bargap=0.25,
        xaxis=axis(xtitle, type="category"),
        yaxis=axis(ytitle, rangemode="tozero"),
        uniformtext={"mode": "hide", "minsize": 10},  # hide numbers that would be unreadable
    )
    colors = {"central": MUTED, "dekpca": BLUE}
    for i, (name, values) in enumerate(groups.items()):
        color = colors.get(name, SERIES[i % len(SERIES)])
        text = [f"{v:.3g}" for v in np.asarray(values, dtype=float)] if len(labels) * len(groups) <= 12 else None
        drawn.add_bar(
            x=list(labels),
            y=numbers(values),
            name=plain(name),
            marker={"color": color},
            text=text,
            textposition="inside",
            insidetextanchor="end",
            insidetextfont={"color": PAPER},
            textangle=0,
        )
    return drawn


def ranked_figure(labels: Sequence[str], mean: Any, low: Any, high: Any, title: str) -> go.Figure:
    """Horizontal bars, the largest on top, with a line from minimum to maximum."""
    mean, low, high = (np.asarray(v, dtype=float) for v in (mean, low, high))
    drawn = figure(
        showlegend=False,
        bargap=0.35,
        xaxis=axis(title, rangemode="tozero", nticks=6),
        yaxis=axis(type="category", autorange="reversed"),
    )
    reach = {"type": "data", "symmetric": False, "array": numbers(high - mean), "arrayminus": numbers(mean - low)}
    drawn.add_bar(
        y=[plain(label) for label in labels],
        x=numbers(mean),
        orientation="h",
        marker={"color": BLUE},
        error_x=reach | {"color": MUTED, "thickness": 1.2, "width": 3} if (high > low).any() else None,
        hovertemplate="%{y}: %{x:.4g}<extra></extra>",
    )
    return drawn


def edge_figure(names: Sequence[str], edges: np.ndarray, sent: np.ndarray, unit: str) -> go.Figure:
    """Bytes from each node to each node, as a heat map."""
    n = len(names)
    z = np.full((n, n), np.nan)
    z[edges[:, 0], edges[:, 1]] = sent
    says = [[""] * n for _ in names]
    for (a, b), value in zip(edges.tolist(), sent, strict=True):
        says[a][b] = f"{plain(names[a])} to {plain(names[b])}: {value:.4g} {unit}"
    marked = list(range(0, n, -(-n // 14)))  # 14 fit on a phone
    ticks: dict[str, Any] = {
        "tickvals": marked,
        "ticktext": [short(names[j]) for j in marked],
        "showgrid": False,
        "ticks": "",
    }
    drawn = figure(xaxis=axis(**ticks), yaxis=axis(**ticks, autorange="reversed"))
    drawn.add_heatmap(
        z=[numbers(row) for row in z],
        colorscale=scale(high_is_good=False),
        xgap=1,
        ygap=1,
        hoverongaps=False,
        colorbar={
            "title": {"text": unit, "side": "top"}, "thickness": 9, "outlinewidth": 0, "orientation": "h", "y": 1.02, "yanchor": "bottom",
            "nticks": 5,
        },
        hovertext=says,
        hoverinfo="text",
    )  # fmt: skip
    return drawn
