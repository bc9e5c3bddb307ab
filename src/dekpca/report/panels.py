"""Charts as data, drawn by matplotlib into files and by plotly into the report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ..files import PUBLIC, atomic_write

COLORS = (
    "#4477aa",
    "#ee6677",
    "#228833",
    "#ccbb44",
    "#66ccee",
    "#aa3377",
    "#bbbbbb",
)  # Paul Tol's, safe for color-blind readers


@dataclass(frozen=True)
class Series:
    """Points (x, y); `spread` is a standard deviation to show around them. Colors follow the order unless given."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    spread: Sequence[float] | None = None
    mode: Literal["line", "bars", "points"] = "line"
    color: str | None = None
    dashed: bool = False
    size: float = 9  # of points
    texts: Sequence[str] | None = None  # written at the points


@dataclass(frozen=True)
class Panel:
    """One pair of axes."""

    title: str
    x_label: str = ""
    y_label: str = ""
    series: Sequence[Series] = ()
    log_y: bool = False
    square: bool = False  # equal units on both axes
    bare: bool = False  # no axes and no legend
    x_ticks: Sequence[str] = ()  # names of x = 0, 1, 2, ...
    matrix: np.ndarray | None = None  # small integers, drawn as a grid, instead of series
    matrix_legend: Sequence[str] = field(default=())


def color(series: Series, place: int) -> str:
    return series.color or COLORS[place % len(COLORS)]


def save(panels: Sequence[Panel], title: str, stem: Path, columns: int = 3) -> list[Path]:
    """Draw the panels side by side into stem.png and stem.svg."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    columns = min(columns, len(panels))
    rows = -(-len(panels) // columns)
    figure, axes = plt.subplots(rows, columns, figsize=(5.2 * columns, 4.2 * rows), squeeze=False, layout="constrained")
    for ax, panel in zip(axes.ravel(), panels, strict=False):
        _draw(ax, panel)
    for ax in axes.ravel()[len(panels) :]:
        ax.set_axis_off()
    figure.suptitle(title)
    paths = [stem.with_suffix(".png"), stem.with_suffix(".svg")]
    for path in paths:
        with atomic_write(path, PUBLIC) as file:
            figure.savefig(file, dpi=120, format=path.suffix[1:])
    plt.close(figure)
    return paths


def _draw(ax: Any, panel: Panel) -> None:
    if panel.matrix is not None:
        from matplotlib.colors import ListedColormap
        from matplotlib.patches import Patch

        levels = len(panel.matrix_legend)
        shades = ["#f2f2f2", *COLORS][:levels]
        ax.imshow(panel.matrix, cmap=ListedColormap(shades), vmin=-0.5, vmax=levels - 0.5, interpolation="nearest")
        ax.set_xticks([])
        ax.set_yticks([])
        handles = [Patch(color=c, label=text) for c, text in zip(shades, panel.matrix_legend, strict=True)]
        ax.legend(handles=handles, fontsize=7, frameon=False, loc="upper left", bbox_to_anchor=(0, -0.01), ncols=2)
    bars = [s for s in panel.series if s.mode == "bars"]
    ticks = sorted({x for s in bars for x in s.x})
    for place, s in enumerate(panel.series):
        style = {"color": color(s, place), "label": s.name or None}
        if s.mode == "bars":
            width = 0.8 / len(bars)
            at = [ticks.index(x) + (bars.index(s) - (len(bars) - 1) / 2) * width for x in s.x]
            ax.bar(at, s.y, width, yerr=s.spread, **style)
        elif s.mode == "points":
            ax.scatter(s.x, s.y, s=s.size, alpha=0.5 if s.texts is None else 1.0, linewidths=0, zorder=3, **style)
            for x, y, text in zip(s.x, s.y, s.texts or (), strict=False):
                ax.text(x, y, text, ha="center", va="center", color="white", zorder=4)
        else:
            at = [ticks.index(x) for x in s.x] if ticks and set(s.x) <= set(ticks) else list(s.x)
            ax.errorbar(at, s.y, yerr=s.spread, linestyle="--" if s.dashed else "-", marker="o" if len(s.x) < 20 and not panel.square else None,
                        markersize=3.5, capsize=2, **style)  # fmt: skip
    if ticks:
        ax.set_xticks(range(len(ticks)), [f"{x:g}" for x in ticks])
        ax.set_ylim(*_bar_range(panel))
    if panel.x_ticks:
        ax.set_xticks(range(len(panel.x_ticks)), panel.x_ticks)
    if panel.log_y:
        ax.set_yscale("log")
    if panel.square:
        ax.set_aspect("equal")
    ax.set(title=panel.title, xlabel=panel.x_label, ylabel=panel.y_label)
    if panel.bare:
        ax.set_axis_off()
        ax.margins(0.15)
    elif panel.series:
        ax.grid(alpha=0.3)
        above = {"loc": "upper center", "ncols": 3} if ticks else {}  # bars leave room there
        ax.legend(fontsize=7, frameon=False, **above)


def _bar_range(panel: Panel) -> tuple[float, float]:
    """From 0, except for similarities, which are all high: there only differences matter."""
    heights = [y for s in panel.series for y in s.y]
    low, high = min(heights), max(heights)
    bottom = low - 0.15 * (high - low) - 0.02 if low > 0.3 else 0.0
    return max(0.0, bottom), high + 0.25 * (high - bottom)


def plotly_figure(panel: Panel) -> Any:
    """The panel as a plotly figure."""
    import plotly.graph_objects as go

    figure = go.Figure()
    if panel.matrix is not None:
        levels = len(panel.matrix_legend)
        shades = ["#f2f2f2", *COLORS][:levels]
        scale = [[edge / levels, shades[i]] for i in range(levels) for edge in (i, i + 1)]
        texts = np.array(panel.matrix_legend)[panel.matrix]
        figure.add_heatmap(
            z=panel.matrix, colorscale=scale, zmin=-0.5, zmax=levels - 0.5, text=texts, hovertemplate="%{text}<extra></extra>",
            colorbar={"tickvals": list(range(levels)), "ticktext": list(panel.matrix_legend)},
        )  # fmt: skip
        figure.update_yaxes(autorange="reversed", scaleanchor="x")
    for place, s in enumerate(panel.series):
        spread = None if s.spread is None else {"type": "data", "array": list(s.spread), "thickness": 1}
        tint = color(s, place)
        if s.mode == "bars":
            figure.add_bar(name=s.name, x=[f"{x:g}" for x in s.x], y=list(s.y), error_y=spread, marker_color=tint)
        else:
            x = [f"{v:g}" for v in s.x] if any(t.mode == "bars" for t in panel.series) else list(s.x)
            line = {"dash": "dash" if s.dashed else "solid"}
            mode = (
                "markers" if s.mode == "points" else "lines+markers" if len(s.x) < 20 and not panel.square else "lines"
            )
            if s.texts is not None:
                mode = "markers+text"
            marker = {"color": tint, "size": max(4, s.size**0.5) if s.mode == "points" else 6}
            figure.add_scatter(
                name=s.name,
                x=x,
                y=list(s.y),
                error_y=spread,
                mode=mode,
                line=line,
                marker=marker,
                showlegend=bool(s.name),
            )
    figure.update_layout(xaxis_title=panel.x_label, yaxis_title=panel.y_label, barmode="group")
    if panel.x_ticks:
        figure.update_xaxes(tickvals=list(range(len(panel.x_ticks))), ticktext=list(panel.x_ticks))
    if any(s.mode == "bars" for s in panel.series):
        figure.update_xaxes(type="category")
        figure.update_yaxes(range=list(_bar_range(panel)))
    if panel.log_y:
        figure.update_yaxes(type="log")
    if panel.square:
        figure.update_yaxes(scaleanchor="x")
    if panel.bare:
        figure.update_xaxes(visible=False)
        figure.update_yaxes(visible=False)
    return figure
