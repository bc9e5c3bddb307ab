"""The section on the network: who talks to whom, what was sent, and by whom."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import charts
from .measures import Findings
from .page import Chart, Section, cell_text, folded_html, table_html

NODES_LISTED = 300
EDGES_LISTED = 20
DIFFERENT = 1e-4  # relative: numbers of nodes that differ by less have no colour scale

PHASES = {
    "keys": "public keys, for secure sums", "sizes": "sizes of terms, for secure sums", "columns": "means and variances of columns",
    "axes": "linear components, for k-means", "clusters": "k-means of all rows",
    "landmarks": "landmarks, as sums over all nodes", "moments": "moments in landmark coordinates", "judge": "the estimate of the error",
    "data": "samples, to neighbors", "fingerprint": "that all have the same landmarks", "mean": "the network's mean",
    "power": "power iterations", "check": "whether to stop", "spectrum": "eigenvalues",
    "rho": "penalties", "share": "every iteration, to neighbors", "view": "every iteration, back", "values": "component values on samples",
    "deflate": "the paper's deflation", "scores": "the histogram of reconstruction errors",
}  # fmt: skip


def network_section(model: Any, found: Findings) -> Section:
    """The graph with its traffic, bytes by phase, and who sent what to whom."""
    network, history = model.network_, model.history_
    if len(network) == 1:
        return Section("network", "Network and traffic", "A single node has no neighbors: nothing was sent.")
    text = f"{len(network):,} nodes and {network.n_edges:,} edges."
    if found.rounds:
        text += f" Sums went along a tree of {len(network) - 1:,} of them, in {sum(found.rounds.values())} rounds."
    spent = sorted(history["seconds"].items(), key=lambda item: -item[1])
    if spent:
        text += f" It took {sum(s for _, s in spent):.2g} seconds: {', '.join(f'{part} {s:.2g}' for part, s in spent)}."
    sent = np.asarray(history["edge_bytes"], dtype=float)
    ranked = [e for e in np.argsort(-sent, kind="stable")[:EDGES_LISTED] if sent[e] > 0]
    ends = [[network.names[j] for j in history["edges"][ranked, side]] for side in (0, 1)]
    says = f"The {len(ranked)} of {len(sent):,} directed edges that carried most"
    columns = {"from": ends[0], "to": ends[1], "kB": sent[ranked] / 1e3}
    edges = folded_html("Who sent what to whom", table_html(columns, says))
    return Section("network", "Network and traffic", text, [_network(model, found, sent), _phases(model, found)], edges)


def _network(model: Any, found: Findings, sent: np.ndarray) -> Chart:
    network, nodes = model.network_, found.drawn
    columns: dict[str, Any] = {"node": [network.names[j] for j in nodes], "neighbors": network.degrees[nodes]}
    columns["rows"] = model.node_sizes_[nodes]
    columns |= {name: values[nodes] for name, values in found.by_node.items()}
    cells = [[f"{name}: {charts.plain(cell_text(cell))}" for cell in column] for name, column in columns.items()]
    hover = ["<br>".join(lines) for lines in zip(*cells, strict=True)]
    colors = {name: columns[name].tolist() for name in (*found.by_node, "rows") if _differ(columns[name])}
    title = next(iter(colors), "")
    root, answering, color = network.names[network.root], int(model.answering_node_), colors.get(title, charts.BLUE)
    figure = charts.network_figure(network, nodes.tolist(), sent, hover, answering, color, title)
    last, bar = [len(figure.data) - 1], "coloraxis.colorbar.title.text"
    options = {name: [{"marker.color": [v]}, {bar: name}, last] for name, v in colors.items()}
    caption = (
        "Each dot is a node, each line a pair that may talk, the wider the more bytes went along it (grey: none"
        f"{'' if len(found.sent) == len(network) else ' from here'}). Ringed: node "
        f"{network.names[answering]}, whose model transform uses. Point at a node for its numbers."
    )
    if len(nodes) < len(network):
        caption += f" Of {len(network):,} nodes, the {len(nodes):,} nearest to node {root} are drawn."
    if network.n_edges > charts.MOST_EDGES:
        caption += f" Of the edges, a sample of {charts.MOST_EDGES:,} is drawn."
    label = f"The network: {len(network)} nodes and {network.n_edges} edges. The table below has each node's numbers."
    listed = {name: column[:NODES_LISTED] for name, column in columns.items()}
    table = table_html(listed, f"{len(listed['node']):,} of {len(network):,} nodes")
    return Chart("network", figure, label, caption, table, 520, "", "Colour by", options)


def _differ(values: np.ndarray) -> bool:
    return bool(np.isfinite(values).all() and np.ptp(values) > DIFFERENT * np.abs(values).max())


def _phases(model: Any, found: Findings) -> Chart:
    here = [model.network_.number[name] for name in model.node_models_.names]
    kilo = np.array([v[here] for v in model.history_["bytes"].values()]) / 1e3
    phases = [*model.history_["bytes"]]
    columns = {"phase": phases, "what": [PHASES.get(phase, "") for phase in phases]}
    columns |= {"rounds": [found.rounds[phase] for phase in phases]} if found.rounds else {}
    columns["messages, mean"] = [float(model.history_["messages"][phase][here].mean()) for phase in phases]
    columns |= {"kB, mean": kilo.mean(axis=1), "kB, least": kilo.min(axis=1), "kB, most": kilo.max(axis=1)}
    most = int(np.argmax(columns["kB, mean"]))
    figure = charts.bar_figure({"kB": columns["kB, mean"]}, phases, "phase", "kB sent by a node")
    label = f"Bars of kB sent by a node in each phase; most in {phases[most]}."
    caption = "The mean over the nodes." if len(here) > 1 else f"What node {model.node_models_.names[0]} sent."
    table = table_html(columns, "What a node sent, by phase")
    return Chart("bytes", figure, label, caption, table, 320, "What was sent, by phase")


def in_bytes(count: float) -> str:
    """A number of bytes with a unit."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count:.0f} B"
