"""Parts of figures, each drawn into a matplotlib axes: the network, the convergence, an embedding."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import networkx as nx
import numpy as np

from ..network import Network

Axes = Any

PALETTE = "tab10"
GREY = "0.6"


def draw_network(ax: Axes, network: Network, groups: Any, title: str, highlighted: int | None = None) -> None:
    """The graph with nodes coloured by a small integer each; one may be ringed."""
    graph = network.to_networkx()
    regular = set(network.degrees) == {int(network.degrees[0])}
    place = nx.circular_layout(graph) if regular else nx.kamada_kawai_layout(graph)
    nx.draw_networkx_edges(graph, place, ax=ax, edge_color=GREY, width=0.8)
    rings = ["black" if j == highlighted else "none" for j in range(len(network))]
    nx.draw_networkx_nodes(
        graph,
        place,
        ax=ax,
        node_color=np.asarray(groups),
        cmap=PALETTE,
        vmin=0,
        vmax=9,
        node_size=260,
        edgecolors=rings,
        linewidths=2,
    )
    nx.draw_networkx_labels(graph, place, ax=ax, font_size=7, font_color="white")
    ax.set_title(title)
    ax.set_axis_off()


def draw_convergence(
    ax: Axes, curves: Mapping[str, Any], title: str, ylabel: str, threshold: float | None = None
) -> None:
    """Curves over the iterations on a log scale; `threshold` is where a run stops."""
    for label, values in curves.items():
        ax.semilogy(np.arange(1, len(values) + 1), values, label=label, linewidth=1.6)
    if threshold is not None:
        ax.axhline(threshold, color=GREY, linestyle="--", linewidth=1, label="tolerance")
    ax.set(title=title, xlabel="iteration", ylabel=ylabel)
    ax.grid(alpha=0.3)
    ax.legend(fontsize=8, frameon=False)


def draw_embedding(ax: Axes, values: Any, labels: Any, title: str, own: Any = None) -> Any:
    """The first two components, coloured by label; rows in `own` are ringed. Returns the scatter, for a legend."""
    values = np.asarray(values)
    scatter = ax.scatter(
        values[:, 0], values[:, 1], c=np.asarray(labels), cmap=PALETTE, vmin=0, vmax=9, s=7, alpha=0.75, linewidths=0
    )
    if own is not None:
        ax.scatter(values[own, 0], values[own, 1], s=16, facecolors="none", edgecolors="black", linewidths=0.5)
    ax.set(title=title, xlabel="component 1", ylabel="component 2")
    ax.set_xticks([])
    ax.set_yticks([])
    return scatter


def aligned(values: Any, reference: Any) -> np.ndarray:
    """Values with the signs of the reference's components, since signs of eigenvectors are arbitrary."""
    values, reference = np.asarray(values), np.asarray(reference)
    signs = np.sign((values * reference).sum(axis=0))
    return values * np.where(signs == 0, 1, signs)
