"""The cost of a fit: bytes by phase and by edge, time by phase."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import charts
from .page import Chart, Part, Section, Table

EDGES_LISTED = 20
CELLS = 100  # nodes up to which a table of sender and receiver is readable

PHASES = {
    "sizes": "sizes of terms, for secure sums", "columns": "means and variances of columns",
    "axes": "linear components, for k-means", "clusters": "k-means of all rows",
    "landmarks": "landmarks, as sums over all nodes", "moments": "moments in landmark coordinates", "judge": "the estimate of the error",
    "data": "samples, to neighbors", "fingerprint": "that all have the same landmarks", "mean": "the network's mean",
    "covariance": "landmark moments", "power": "power iterations", "check": "whether to stop", "spectrum": "eigenvalues",
    "rho": "penalties", "share": "every iteration, to neighbors", "view": "every iteration, back", "values": "component values on samples",
    "deflate": "the paper's deflation",
}  # fmt: skip


def traffic_section(model: Any) -> Section:
    sent = model.history_.get("bytes") or {}
    sent = {phase: np.asarray(v, dtype=float) for phase, v in sent.items() if np.any(np.asarray(v))}
    if not sent:
        return Section("traffic", "What was sent", "Nothing: a single node has no neighbors.")
    said = model.history_.get("messages", {})
    ranked = sorted(sent, key=lambda phase: -sent[phase].mean())
    means, lows, highs = ([f(sent[p]) / 1e3 for p in ranked] for f in (np.mean, np.min, np.max))
    rows = [
        (p, PHASES.get(p, ""), m, low, high, float(np.mean(said[p])) if p in said else None)
        for p, m, low, high in zip(ranked, means, lows, highs, strict=True)
    ]
    table = Table(("phase", "what", "kB, mean", "kB, least", "kB, most", "messages, mean"), rows, "What a node sent, by phase")  # fmt: skip
    chart = Chart(
        "bytes",
        charts.ranked_figure(ranked, means, lows, highs, "kB sent by a node"),
        f"Bars of kB sent by a node in each phase; most in {ranked[0]}, {means[0]:.3g} kB.",
        "Bars are the mean over the nodes; the thin lines reach from the node that sent least to the one that sent most.",
        table=table,
        height=90 + 30 * len(ranked),
        heading="By phase",
    )
    parts: list[Part] = [chart]
    text = f"A node sent {in_bytes(1e3 * sum(means))} on average, to its neighbors only."
    edges, by_edge = (model.history_.get(key) for key in ("edges", "edge_bytes"))
    if edges is not None and by_edge is not None and len(edges):
        parts.append(_edges(model, np.asarray(edges), np.asarray(by_edge, dtype=float)))
    else:
        text += " Bytes by edge stand here when the model's history_ has edges and edge_bytes."
    return Section("traffic", "What was sent", text, parts)


def _edges(model: Any, edges: np.ndarray, sent: np.ndarray) -> Chart:
    names = model.network_.names
    ranked = np.argsort(-sent, kind="stable")[:EDGES_LISTED]
    labels = [f"{names[a]} → {names[b]}" for a, b in edges[ranked]]
    says = f"The {len(ranked)} of {len(edges):,} directed edges that carried most"
    table = Table(("edge", "kB"), list(zip(labels, sent[ranked] / 1e3, strict=True)), says)
    if len(names) <= CELLS:
        figure = charts.edge_figure(names, edges, sent / 1e3, "kB")
        caption = "Rows are senders, columns receivers; empty cells are pairs that do not talk."
        height = 480
    else:
        kilo = sent[ranked] / 1e3
        figure = charts.ranked_figure(labels, kilo, kilo, kilo, "kB sent along an edge")
        caption = f"{says}."
        height = 90 + 24 * len(ranked)
    label = f"Bytes along each edge; most along {labels[0]}, {in_bytes(sent[ranked[0]])}."
    return Chart(
        "edges",
        figure,
        label,
        caption,
        table=table,
        height=height,
        extra={"square": len(names) <= CELLS},
        heading="By edge",
        most=640,
    )


def time_section(model: Any) -> Section:
    spent = model.history_.get("seconds") or {}
    spent = {phase: np.atleast_1d(np.asarray(v, dtype=float)) for phase, v in spent.items()}
    if not spent:
        return Section("time", "Time", "Time by phase stands here when the model's history_ has seconds.")
    ranked = sorted(spent, key=lambda phase: -spent[phase].mean())
    means, lows, highs = ([float(f(spent[p])) for p in ranked] for f in (np.mean, np.min, np.max))
    total = sum(means)
    rows = [(p, m, f"{m / total:.1%}" if total else None) for p, m in zip(ranked, means, strict=True)]
    chart = Chart(
        "time",
        charts.ranked_figure(ranked, means, lows, highs, "seconds"),
        f"Bars of seconds by phase; most in {ranked[0]}, {means[0]:.3g} s of {total:.3g} s.",
        "Wall time by phase; timings vary from run to run.",
        table=Table(("phase", "seconds", "share"), rows, "Time by phase"),
        height=90 + 30 * len(ranked),
    )
    return Section("time", "Time", f"{total:.3g} seconds in all.", [chart])


def in_bytes(count: float) -> str:
    """A number of bytes with a unit.

    Examples
    --------
    >>> from dekpca.report.costs import in_bytes
    >>> in_bytes(812), in_bytes(71_300), in_bytes(7.2e6)
    ('812 B', '71.3 kB', '7.2 MB')
    """
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count:.0f} B"
