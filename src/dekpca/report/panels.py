"""Charts as data, drawn by matplotlib into files and by plotly into the report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from .. import plot
from ..files import PUBLIC, atomic_write

# Paul Tol's, safe for color-blind readers
COLORS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#bbbbbb")
LEVELS = ("#f2f2f2", *COLORS)  # of a matrix
MARKED = 20  # points of a line up to which each has a mark


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
    matrix_legend: Sequence[str] = ()

    @property
    def bars(self) -> list[Series]:
        return [s for s in self.series if s.mode == "bars"]

    @property
    def bar_range(self) -> tuple[float, float]:
        """Of y: from 0, except for similarities, which are all high: there only differences matter."""
        heights = [y for s in self.series for y in s.y]
        low, high = min(heights), max(heights)
        bottom = max(0.0, low - 0.15 * (high - low) - 0.02) if low > 0.3 else 0.0
        return bottom, high + 0.25 * (high - bottom)

    def colored(self) -> list[tuple[Series, str]]:
        return [(s, s.color or COLORS[i % len(COLORS)]) for i, s in enumerate(self.series)]


def pyplot() -> Any:
    """matplotlib.pyplot, set up to write files."""
    found = plot.pyplot()
    found.matplotlib.use("Agg")
    return found


def save_figure(figure: Any, path: Path, **options: Any) -> None:
    """Write a figure in the format of the file's ending, and close it."""
    with atomic_write(path, PUBLIC) as file:
        figure.savefig(file, format=path.suffix[1:] or "png", **options)
    pyplot().close(figure)


def save(panels: Sequence[Panel], title: str, stem: Path) -> list[Path]:
    """Draw the panels side by side into stem.png and stem.svg."""
    columns = min(3, len(panels))
    rows = -(-len(panels) // columns)
    figure, axes = pyplot().subplots(
        rows, columns, figsize=(5.2 * columns, 4.2 * rows), squeeze=False, layout="constrained"
    )
    for ax, panel in zip(axes.ravel(), panels, strict=False):
        draw(ax, panel)
    for ax in axes.ravel()[len(panels) :]:
        ax.set_axis_off()
    figure.suptitle(title)
    paths = [stem.with_suffix(".png"), stem.with_suffix(".svg")]
    for path in paths:
        save_figure(figure, path, dpi=120)
    return paths


def draw(ax: Any, panel: Panel) -> None:
    """Draw a panel into a matplotlib axes."""
    if panel.matrix is not None:
        from matplotlib.colors import ListedColormap
        from matplotlib.patches import Patch

        shades = LEVELS[: len(panel.matrix_legend)]
        ax.imshow(panel.matrix, ListedColormap(shades), vmin=-0.5, vmax=len(shades) - 0.5, interpolation="nearest")
        ax.set(xticks=[], yticks=[])
        handles = [Patch(color=c, label=text) for c, text in zip(shades, panel.matrix_legend, strict=True)]
        ax.legend(handles=handles, fontsize=7, frameon=False, loc="upper left", bbox_to_anchor=(0, -0.01), ncols=2)
    bars, ticks = panel.bars, sorted({x for s in panel.bars for x in s.x})
    for s, color in panel.colored():
        if s.mode == "bars":
            width = 0.8 / len(bars)
            at = [ticks.index(x) + (bars.index(s) - (len(bars) - 1) / 2) * width for x in s.x]
            ax.bar(at, s.y, width, yerr=s.spread, color=color, label=s.name)
        elif s.mode == "points":
            alpha = 0.5 if s.texts is None else 1.0
            ax.scatter(s.x, s.y, s=s.size, alpha=alpha, linewidths=0, zorder=3, color=color, label=s.name)
            for x, y, text in zip(s.x, s.y, s.texts or (), strict=False):
                ax.text(x, y, text, ha="center", va="center", color="white", zorder=4)
        else:
            at = [ticks.index(x) for x in s.x] if ticks and set(s.x) <= set(ticks) else list(s.x)
            style, marked = "--" if s.dashed else "-", len(s.x) < MARKED and not panel.square
            line = {"color": color, "linestyle": style, "marker": "o" if marked else None, "markersize": 3.5}
            ax.errorbar(at, s.y, yerr=s.spread, capsize=2, label=s.name or None, **line)
    if ticks:
        ax.set_xticks(range(len(ticks)), [f"{x:g}" for x in ticks])
        ax.set_ylim(*panel.bar_range)
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
        above_bars = {"loc": "upper center", "ncols": 2} if ticks else {}
        ax.legend(fontsize=7, frameon=False, handlelength=3, **above_bars)


def plotly_figure(panel: Panel) -> Any:
    """The panel as a plotly figure."""
    from . import charts

    figure = charts.figure(panel.x_label, panel.y_label, showlegend=not panel.bare)
    if panel.matrix is not None:
        names = panel.matrix_legend
        scale = [[edge / len(names), LEVELS[i]] for i in range(len(names)) for edge in (i, i + 1)]
        bar = {"tickvals": list(range(len(names))), "ticktext": list(names)}
        texts, limits = np.array(names)[panel.matrix], {"zmin": -0.5, "zmax": len(names) - 0.5}
        figure.add_heatmap(z=panel.matrix, colorscale=scale, colorbar=bar, text=texts, hoverinfo="text", **limits)
        figure.update_yaxes(autorange="reversed", scaleanchor="x")
    for s, color in panel.colored():
        spread = None if s.spread is None else {"type": "data", "array": list(s.spread), "thickness": 1}
        x = [f"{v:g}" for v in s.x] if panel.bars else list(s.x)
        tint = charts.GREY if color == "black" else color  # which is not seen on a dark page
        if s.mode == "bars":
            figure.add_bar(name=s.name, x=x, y=list(s.y), error_y=spread, marker_color=tint)
            continue
        marked = len(s.x) < MARKED and not panel.square
        mode = "markers" if s.mode == "points" else "lines+markers" if marked else "lines"
        figure.add_scatter(
            name=s.name, x=x, y=list(s.y), error_y=spread, mode="markers+text" if s.texts else mode, text=s.texts,
            textfont={"color": "white"}, marker={"size": max(6, s.size**0.5)}, line={"dash": "dash" if s.dashed else "solid"},
            marker_color=tint, line_color=tint, showlegend=bool(s.name),
        )  # fmt: skip
    if panel.x_ticks:
        figure.update_xaxes(tickvals=list(range(len(panel.x_ticks))), ticktext=list(panel.x_ticks))
    if panel.bars:
        figure.update_layout(xaxis_type="category", yaxis_range=list(panel.bar_range))
    figure.update_layout(xaxis_visible=not panel.bare, yaxis_visible=not panel.bare)
    return figure.update_yaxes(type="log" if panel.log_y else None, scaleanchor="x" if panel.square else None)
