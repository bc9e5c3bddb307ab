"""Pictures of networks and embeddings, each drawn into a matplotlib axes, and what plotly's need of them too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np

from ..files import PUBLIC, atomic_write
from ..network import Network

PALETTE = "tab10"
CIRCLE = 400  # nodes; a larger circle is a line
SETTLED = 300  # nodes up to which a layout by distances is faster than a second


def pyplot() -> Any:
    """matplotlib.pyplot, set up to write files."""
    try:
        import matplotlib
    except ImportError as error:
        raise ImportError("matplotlib is not installed; pip install 'dekpca[plot]'") from error
    matplotlib.use("Agg")
    import matplotlib.pyplot

    return matplotlib.pyplot


def save_figure(figure: Any, path: Path, **options: Any) -> None:
    """Write a figure in the format of the file's ending, and close it."""
    with atomic_write(path, PUBLIC) as file:
        figure.savefig(file, format=path.suffix[1:] or "png", **options)
    pyplot().close(figure)


def inner_edges(network: Network, nodes: Sequence[int], sent: Any) -> tuple[np.ndarray, np.ndarray]:
    """Undirected edges among these nodes, as places in `nodes`, and what was `sent` along each, in both directions together."""
    place = np.full(len(network), -1)
    place[np.asarray(nodes)] = np.arange(len(nodes))
    ends = np.sort(place[network.directed_edges], axis=1)
    inside = ends[:, 0] >= 0
    edges, which = np.unique(ends[inside], axis=0, return_inverse=True)
    return edges, np.bincount(which.ravel(), np.broadcast_to(sent, len(ends))[inside], len(edges))


def positions(network: Network, nodes: Sequence[int]) -> np.ndarray:
    """Places (nodes, 2) in the plane: a circle if all have the same number of neighbors, else by distances in the network."""
    graph = nx.empty_graph(len(nodes))
    graph.add_edges_from(inner_edges(network, nodes, 0.0)[0].tolist())
    if len(nodes) <= CIRCLE and len({degree for _, degree in graph.degree}) == 1:
        place = nx.circular_layout(graph)
    elif len(nodes) <= SETTLED:
        place = nx.kamada_kawai_layout(graph)
    else:  # a few steps from the lowest eigenvectors of the graph Laplacian: seconds for 2000 nodes
        place = nx.spring_layout(graph, pos=nx.spectral_layout(graph), iterations=12, seed=0)
    return np.array([place[i] for i in range(len(nodes))])


def draw_network(ax: Any, network: Network, groups: Any, title: str, highlighted: int | None = None) -> None:
    """The graph with nodes coloured by a small integer each; one may be ringed."""
    graph = network.to_networkx()
    place = dict(zip(network.names, positions(network, range(len(network))), strict=True))
    rings = ["black" if j == highlighted else "none" for j in range(len(network))]
    style = {"cmap": PALETTE, "vmin": 0, "vmax": 9, "node_size": 260, "edgecolors": rings, "linewidths": 2}
    nx.draw_networkx_edges(graph, place, ax=ax, edge_color="0.6", width=0.8)
    nx.draw_networkx_nodes(graph, place, network.names, ax=ax, node_color=np.asarray(groups), **style)
    nx.draw_networkx_labels(graph, place, ax=ax, font_size=7, font_color="white")
    ax.set_title(title)
    ax.set_aspect("equal")
    ax.set_axis_off()


def draw_bars(ax: Any, lengths: Mapping[str, float], title: str) -> None:
    """Horizontal bars, with their names and numbers."""
    ax.bar_label(ax.barh([*lengths], [*lengths.values()]), fmt=" %.0f")
    ax.invert_yaxis()
    ax.margins(x=0.2)
    ax.set_title(title)


def draw_embedding(ax: Any, values: Any, labels: Any, title: str, own: Any = None) -> Any:
    """The first two components, coloured by label; rows in `own` are ringed. Returns the scatter, for a legend."""
    style = {"cmap": PALETTE, "vmin": 0, "vmax": 9, "s": 7, "alpha": 0.75, "linewidths": 0}
    scatter = ax.scatter(values[:, 0], values[:, 1], c=np.asarray(labels), **style)
    if own is not None:
        ax.scatter(values[own, 0], values[own, 1], s=16, facecolors="none", edgecolors="black", linewidths=0.5)
    ax.set(title=title, xlabel="component 1", ylabel="component 2", xticks=[], yticks=[])
    return scatter


def aligned(values: Any, reference: Any) -> np.ndarray:
    """Values with the signs of the reference's components, since signs of eigenvectors are arbitrary."""
    values, reference = np.asarray(values), np.asarray(reference)
    signs = np.sign((values * reference).sum(axis=0))
    return values * np.where(signs == 0, 1, signs)
