"""`fit_report`: results, accuracy and cost of a fit, section by section.

A section without data says how to provide it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from ..columns import Samples
from ..core.spectrum import to_numpy
from ..node_model import NodeModel
from . import charts
from .costs import in_bytes, time_section, traffic_section
from .embedding import embedding_chart
from .measures import Findings, hosted, measure
from .page import Chart, Pair, Section, Switch, Table, cards_html, escape, select_html, write_page
from .reproduce import settings_section, snippet

DIAMETER = 5000  # nodes up to which the diameter is computed fast; the tree bounds it in any network
NODES_LISTED = 300  # rows of the table of nodes
ITERATIONS_LISTED = 60


def fit_report(
    path: str | PathLike[str],
    model: Any,
    X: Any = None,
    labels: Any = None,
    central: NodeModel | None = None,
    baselines: Mapping[str, Sequence[NodeModel]] | None = None,
    node_of: Any = None,
    settings: Mapping[str, Any] | None = None,
    title: str | None = None,
) -> Path:
    """Write the results of a fit to one self-contained HTML file.

    Parameters
    ----------
    path : path
        Where to write; an existing file is replaced.
    model : DecentralizedKernelPCA
        Fitted.
    X : array (rows, columns), optional
        Rows to show in the embedding and to measure agreement on.
    labels : sequence, optional
        The class (or a number) of each row of X.
    central : NodeModel, optional
        `baselines.central` of all the data, with the same kernel.
    baselines : mapping of name to node models, optional
        Other models to compare with, such as {"local": ..., "neighborhood": ...}: one for each node.
    node_of : sequence of int, optional
        The number of the node that owns each row of X.
    settings : mapping, optional
        Further settings that reproduce the run; "command" is shown with a button to copy it.
    title : str, optional

    Returns
    -------
    Path

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> import dekpca
    >>> from dekpca.report import fit_report
    >>> X = np.random.default_rng(0).normal(size=(120, 4))
    >>> model = dekpca.DecentralizedKernelPCA(2, gamma=0.1, network=4, random_state=0).fit(X)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     page = fit_report(f"{folder}/fit.html", model, X, central=dekpca.baselines.central(X, 2, gamma=0.1))
    ...     page.stat().st_size < 6e6
    True
    """
    check_is_fitted(model)
    X, labels, node_of = _checked(model, X, labels, node_of)
    found = measure(model, X, central, baselines or {})
    count, total = len(model.network_), int(model.node_sizes_.sum())
    title = title or f"Decentralized kernel PCA: {count:,} {'node' if count == 1 else 'nodes'}, {total:,} rows"
    sections = [
        _network(model, found),
        _convergence(model),
        _similarity(model, found, central, bool(baselines)),
        _embedding(model, X, labels, central, node_of, found),
        _eigenvalues(model, central),
        traffic_section(model),
        time_section(model),
        settings_section(
            model.get_params(), settings, snippet(model, node_of is not None), "What gives the same answer again."
        ),
    ]
    lead = (
        "Every node ends with the components that kernel PCA would find on all the data, though none sees it all. "
        "This page says how close each came, and what it took."
    )
    return write_page(path, title, lead, sections, _summary(model, found, total, central))


def _checked(model: Any, X: Any, labels: Any, node_of: Any) -> tuple[Any, Any, Any]:
    """The rows with their labels and nodes, as NumPy arrays of one length."""
    if X is None:
        given = [name for name, value in (("labels", labels), ("node_of", node_of)) if value is not None]
        if given:
            raise ValueError(f"{given[0]} without X: there are no rows to colour; give X too")
        return None, None, None
    rows = Samples.of(X, "X")
    X = Samples(np.asarray(to_numpy(rows.X)), rows.names or model.node_models_[0].features.names)
    if X.X.ndim != 2 or X.X.shape[1] != model.n_features_in_:
        raise ValueError(f"X has shape {X.X.shape}, but the model was fitted on {model.n_features_in_} columns")
    labels, node_of = (None if v is None else np.asarray(to_numpy(v)).ravel() for v in (labels, node_of))
    for name, value in (("labels", labels), ("node_of", node_of)):
        if value is not None and len(value) != len(X):
            raise ValueError(f"{name} has {len(value)} entries for {len(X)} rows; give one for each row")
    if node_of is not None:
        inside = np.issubdtype(node_of.dtype, np.integer) and 0 <= node_of.min() <= node_of.max() < len(model.network_)
        if not inside:
            raise ValueError(
                f"node_of: whole numbers from 0 to {len(model.network_) - 1} are needed, the places of the nodes in network_.names"
            )
    return X, labels, node_of


# ---------------------------------------------------------------------- the sections
def _hosts_all(model: Any) -> bool:
    """Whether this process has all nodes. A peer has one node, and no central answer."""
    return len(model.node_models_) == len(model.network_)


def _summary(model: Any, found: Findings, total: int, central: NodeModel | None) -> str:
    network = model.network_
    good, why = verdict(model)
    worst = "–", "give central and X to see it" if _hosts_all(model) else "no process has all rows to compare with"
    if found.agreement is not None:
        j, c = np.unravel_index(np.nanargmin(found.agreement), found.agreement.shape)
        least = np.floor(found.agreement[j, c] * 1e4) / 1e4  # rounded down, so as not to overstate it
        worst = f"{least:.4f}", f"of a node with central: node {network.names[j]}, component {c + 1}"
    elif central is not None:
        worst = "–", "give X to see it"
    cards = [
        ("Nodes", f"{len(network):,}", f"{network.n_edges:,} edges, {network.degrees.mean():.3g} neighbors a node"),
        ("Rows", f"{total:,}", f"of {model.n_features_in_:,} columns"),
        ("Components", str(model.n_components), f"explain {hosted(model.explained_variance_ratio_).sum():.1%}"),
        ("Iterations", f"{model.n_iter_:,}", f"of at most {model.max_iter:,}"),
        ("Worst agreement", *worst),
        ("Estimated agreement", *_estimated(model)),
    ]
    if found.sent is not None:
        most = int(np.argmax(found.sent))
        cards.append(
            ("Sent by a node", in_bytes(found.sent.mean()), f"at most {in_bytes(found.sent[most])} (node {network.names[most]})")
        )  # fmt: skip
    kind, word = ("good", "Converged.") if good else ("bad", "Not converged.")
    return f'<p class="verdict {kind}" role="status"><strong>{word}</strong> <span>{escape(why)}</span></p>{cards_html(cards)}'


def _estimated(model: Any) -> tuple[str, str]:
    """The estimated agreement with the central answer, which no node has."""
    if np.isnan(model.span_accuracy_):
        return "–", "this solver and kernel have no estimate"
    return (
        f"{np.floor(model.span_accuracy_ * 1e4) / 1e4:.4f}",
        f"of the span of all components with central, at least {np.floor(model.span_accuracy_bound_ * 1e4) / 1e4:.4f}; "
        f"{model.n_landmarks_:,} landmarks" + _mixed(model),
    )


def _mixed(model: Any) -> str:
    """Which components cannot be told apart, in words."""
    groups = [" and ".join(str(i + 1) for i in group) for group in model.mixed_components_]
    return "".join(f"; components {group} cannot be told apart" for group in groups)


def _stages(model: Any) -> str:
    """How the landmarks grew, in words."""
    errors = model.history_.get("error", ())
    if not len(errors):
        return ""
    steps = ", ".join(
        f"{m:,} landmarks {error:.2g}" for m, error in zip(model.history_["landmarks"], errors, strict=True)
    )
    return f"The estimated error, sin² of the angle between the span of the components and the central one: {steps}; tol={model.tol:g} is asked for."


def verdict(model: Any) -> tuple[bool, str]:
    """Whether the nodes stopped because they converged, with numbers."""
    history, allowed = model.history_, float(model.tol) ** 0.5
    residual = np.asarray(history.get("residual", ()), dtype=float)
    change = np.asarray(history.get("since_check", ()), dtype=float)
    agreed = not len(residual) or (residual[-1] <= allowed and (not len(change) or change[-1] <= allowed))
    if agreed and not model.converged_ and not np.isnan(model.span_accuracy_):
        why = f"The components are estimated to be less accurate than tol={model.tol:g} asks for"
        return False, f"{why}; span_accuracy_ is {model.span_accuracy_:.4f}."
    if len(residual) == 0:
        return bool(model.converged_), "No iterations were needed: the answer comes in one shot."
    state = f"the worst node's disagreement with its neighbors is {residual[-1]:.2g}"
    by_node = history.get("residual_by_node")
    if by_node is not None and len(by_node):
        state = state.replace("worst node's", f"worst node's ({model.node_models_.names[int(np.argmax(by_node[-1]))]})")
    if len(change):
        state += f" and its change since the check before {change[-1]:.2g}"
    state += f"; tol={model.tol:g} allows {allowed:.2g} of each"
    if model.converged_:
        return True, f"After {model.n_iter_} iterations {state}."
    if model.n_iter_ >= model.max_iter:
        each = " for a component" if model.update == "paper" else ""
        return False, f"It ran into max_iter={model.max_iter}{each}: after {model.n_iter_} iterations {state}. The last iterate is kept."  # fmt: skip
    return (
        False,
        f"It was interrupted or diverged after {model.n_iter_} iterations: {state}. The last good iterate is kept.",
    )


def _network(model: Any, found: Findings) -> Section:
    network, nodes = model.network_, found.drawn
    quantities = []
    if found.similarity is not None:
        quantities.append(charts.Quantity("similarity to central, component 1", found.similarity[:, 0], True))
    if found.agreement is not None:
        quantities.append(charts.Quantity("agreement with central, worst component", found.agreement.min(axis=1), True))
    if (
        found.residual is not None and np.isfinite(found.residual[nodes]).all()
    ):  # false if other processes host other nodes
        quantities.append(charts.Quantity("residual at the end", found.residual, False, logarithmic=True))
    if found.sent is not None and len(model.node_models_) == len(network):
        quantities.append(charts.Quantity("kB sent", found.sent / 1e3, False))
    quantities.append(charts.Quantity("rows", found.rows.astype(float), True))
    facts = [_facts(model, found, int(j)) for j in nodes]
    details = ["<br>".join(charts.plain(line) for line in lines) for lines in facts]
    figure, patches, all_edges = charts.network_figure(
        network, nodes.tolist(), quantities, details, model.answering_node_
    )
    at = str(next(i for i, trace in enumerate(figure.data) if trace.name == "nodes"))
    switch = Switch(
        "Colour by", [(q.label, {"data": {at: patch}}) for q, patch in zip(quantities, patches, strict=True)]
    )
    names = ["choose one", *(f"node {network.names[j]}" for j in nodes)]
    controls = select_html("network-node", "Details of", names, "node")
    controls += '<output class="details" aria-live="polite"></output>'
    caption = (
        f"Each dot is a node, each line a pair that talks. Ringed: node {network.names[model.answering_node_]}, through "
        "which transform answers. Point at a node, or choose it, for its details."
    )
    if found.centre is not None:
        caption += (
            f" Of {len(network):,} nodes, {len(nodes):,} are drawn: those nearest to node {network.names[found.centre]}"
        )
        caption += ", whose residual is the largest." if found.residual is not None else "."
    if not all_edges:
        caption += f" Of the edges, a sample of {charts.MOST_EDGES:,} is drawn."
    chart = Chart(
        "network",
        figure,
        f"The network: {len(network)} nodes and {network.n_edges} edges. The table below has each node's numbers.",
        caption,
        [switch],
        _node_table(model, found),
        520,
        {"kind": "network", "details": facts, "square": True},
        controls,
    )
    steps = network.diameter if len(network) <= DIAMETER else 2 * network.depth
    text = f"Who talks to whom: {len(network):,} nodes, {network.n_edges:,} edges, at most {steps} steps between two nodes."
    return Section("network", "The network", text, [chart])


def _facts(model: Any, found: Findings, j: int) -> list[str]:
    network = model.network_
    around = [network.names[q] for q in network.neighbors(j)]
    more = f" and {len(around) - charts.LISTED} more" if len(around) > charts.LISTED else ""
    lines = [f"node {network.names[j]}", f"neighbors: {', '.join(around[: charts.LISTED]) or 'none'}{more}"]
    lines.append(f"rows: {int(found.rows[j]):,}")
    for what, values in (("similarity", found.similarity), ("agreement", found.agreement)):
        if values is not None and np.isfinite(values[j]).all():
            shown = ", ".join(f"{v:.4f}" for v in values[j][:6])
            lines.append(f"{what}: {shown}{' ...' if values.shape[1] > 6 else ''}")
    if found.residual is not None and np.isfinite(found.residual[j]):
        lines.append(f"residual: {found.residual[j]:.2g}")
    if found.sent is not None:
        lines.append(f"sent: {in_bytes(found.sent[j])}")
    return lines


def _node_table(model: Any, found: Findings) -> Table:
    """The nodes, those that need attention first."""
    network = model.network_
    order = np.arange(len(network))
    if found.residual is not None:
        order = np.argsort(-found.residual, kind="stable")
    listed = order[:NODES_LISTED]
    columns: list[tuple[str, Any]] = [("node", [network.names[j] for j in listed]), ("neighbors", network.degrees[listed])]  # fmt: skip
    columns.append(("rows", [int(r) for r in found.rows[listed]]))
    if found.similarity is not None:
        columns.append(("similarity, component 1", found.similarity[listed, 0]))
    if found.agreement is not None:
        columns.append(("agreement, worst component", found.agreement[listed].min(axis=1)))
    if found.residual is not None:
        columns.append(("residual at the end", found.residual[listed]))
    if found.sent is not None:
        columns.append(("kB sent", found.sent[listed] / 1e3))
    says = "All nodes" if len(listed) == len(network) else f"{len(listed)} of {len(network):,} nodes"
    caption = f"{says}, the largest residual first" if found.residual is not None else says
    return Table([name for name, _ in columns], list(zip(*(c for _, c in columns), strict=True)), caption)


def _convergence(model: Any) -> Section:
    history = model.history_
    curves = {
        "residual, worst": history.get("residual", ()),
        "change since check": history.get("since_check", ()),
        "change, one step": history.get("change", ()),
    }
    curves = {name: np.asarray(v, dtype=float) for name, v in curves.items() if len(v)}
    if not curves:
        return Section(
            "convergence",
            "Convergence",
            f'This solver answers in one shot; with solver="projection" the residual of every iteration stands here. {_stages(model)}',
        )
    by_node = history.get("residual_by_node")
    allowed = float(model.tol) ** 0.5
    steps = len(next(iter(curves.values())))
    listed = np.unique(np.linspace(0, steps - 1, ITERATIONS_LISTED).round().astype(int))
    columns = [curves[name][listed] for name in curves]
    head = ["iteration", *curves]
    if by_node is not None and len(by_node):
        columns.append(np.median(by_node, axis=1)[listed])
        head.append("residual, median")
    table = Table(head, [(int(i) + 1, *(c[n] for c in columns)) for n, i in enumerate(listed)], "Residual and change by iteration")  # fmt: skip
    chart = Chart(
        "convergence",
        charts.convergence_figure(curves, None if by_node is None else np.asarray(by_node), allowed),
        f"Residual and change over {steps} iterations on a logarithmic scale; the last residual is {curves['residual, worst'][-1]:.2g}."
        if "residual, worst" in curves
        else f"Change over {steps} iterations.",
        "Both are relative to the size of the components. The worst and the median are over the nodes, and the band holds the middle 80 % of them.",
        table=table,
        height=400,
    )
    text = (
        "How far nodes are from agreeing with their neighbors (residual), and how much the worst of them still moves (change). "
        f"All stop together when residual and change since the last check are below the tolerance, the square root of tol: {allowed:.2g}."
    )
    return Section("convergence", "Convergence", text, [chart])


def _similarity(model: Any, found: Findings, central: NodeModel | None, compared: bool) -> Section:
    title = "How close to the central answer"
    if central is None:
        says = (
            "Give central=dekpca.baselines.central(...) to see how close each node came to kernel PCA of all the data."
        )
        if not _hosts_all(model):
            says = "No process holds the rows of all nodes, so there is no central answer to compare with."
        return Section("similarity", title, says)
    if not found.methods:
        says = "Random features have no angle to the central answer; give X to see the agreement of the nodes' values with it."
        return Section("similarity", title, says)
    figure, (usual, near) = charts.distribution_figure(found.methods, found.measure)
    far = charts.axis(f"1 − {found.measure} (lower is better)", type="log", exponentformat="power")
    switch = Switch(
        "Scale",
        [
            (found.measure, {"data": _keyed(usual), "layout": {"yaxis": {"type": "linear"}}}),
            (f"1 − {found.measure}, logarithmic", {"data": _keyed(near), "layout": {"yaxis": far}}),
        ],
    )  # fmt: skip
    k = next(iter(found.methods.values())).shape[1]
    head = ["method", *(f"component {c + 1}: {what}" for c in range(k) for what in ("mean", "worst"))]
    rows = [
        (name, *(float(v) for c in range(v_.shape[1]) for v in (v_[:, c].mean(), v_[:, c].min())))
        for name, v_ in found.methods.items()
    ]
    caption = f"A dot is a node ({found.n_measured:,} measured)."
    if "oracle" in found.methods:
        caption += (
            " The oracle is the best that a node could express with its samples and the landmarks: no node does better."
        )
    if not compared:
        caption += " Give baselines={\"local\": ..., \"neighborhood\": ...} to see what nodes get alone or from their neighbors only."  # fmt: skip
    measure_says = (
        "Similarity is the cosine between a node's function and the central component: 1 is the same."
        if found.measure == "similarity"
        else "Agreement is the correlation of a node's values with the central ones: 1 is the same."
    )
    label = f"Box plots of {found.measure} by method and component; means and worst nodes are in the table."
    chart = Chart("similarity", figure, label, caption, [switch], Table(head, rows, f"Mean and worst {found.measure}"), 420)  # fmt: skip
    return Section("similarity", title, measure_says, [chart])


def _keyed(patch: Mapping[int, Any]) -> dict[str, Any]:
    return {str(i): value for i, value in patch.items()}


def _embedding(model: Any, X: Any, labels: Any, central: NodeModel | None, node_of: Any, found: Findings) -> Section:
    if X is None:
        return Section("embedding", "The embedding", "Give X to see its rows by their components, and labels or node_of to colour them.")  # fmt: skip
    text = "The rows by two of their components, as a node values them by itself: switch from node to node"
    text += (
        " and to the central answer."
        if central is not None
        else "."
        if not _hosts_all(model)
        else "; give central to compare with it."
    )
    if labels is None:
        text += " Give labels to colour the rows by class."
    chart = embedding_chart(model, X, labels, central, node_of, found.agreement)
    return Section("embedding", "The embedding", text, [chart])


def _eigenvalues(model: Any, central: NodeModel | None) -> Section:
    ours, ratio = hosted(model.eigenvalues_), hosted(model.explained_variance_ratio_)
    labels = [str(c + 1) for c in range(len(ours))]
    groups = {"dekpca": ours}
    head, columns = ["component", "eigenvalue"], [labels, ours]
    if central is not None:
        truth = hosted(central.eigenvalues_)[: len(ours)]
        groups["central"] = truth
        with np.errstate(divide="ignore", invalid="ignore"):
            columns += [truth, np.where(truth > 0, ours / truth, np.nan)]
        head += ["central", "ratio to central"]
    head += ["explained variance", "estimated agreement"]
    columns.append([f"{r:.2%}" for r in ratio])
    columns.append(["–" if np.isnan(a) else f"{np.floor(a * 1e4) / 1e4:.4f}" for a in model.accuracy_])
    table = Table(head, list(zip(*columns, strict=True)), "Eigenvalues and explained variance")
    share = charts.bar_figure({"each": ratio * 100}, labels, "component", "explained variance, %")
    share.data[0].marker.color = charts.BLUE
    share.add_scatter(
        x=labels, y=charts.numbers(np.cumsum(ratio) * 100), name="together", line={"color": charts.ORANGE, "width": 2}
    )
    one = Chart(
        "eigenvalues",
        charts.bar_figure(groups, labels, "component", "eigenvalue"),
        "Bars of eigenvalues; the numbers are in the table.",
        "Of the centred kernel matrix of all data.",
        table=table,
        height=340,
        heading="Against central" if central is not None else "As estimated",
    )
    two = Chart(
        "variance",
        share,
        "Bars of the share of the variance that each component explains.",
        "Eigenvalues over the trace of the centred kernel matrix, each and added up.",
        height=340,
        heading="Explained variance",
    )
    text = "How much each component explains, as the network estimates it without ever holding the kernel matrix."
    if central is None and _hosts_all(model):
        text += " Give central to compare."
    return Section("eigenvalues", "Eigenvalues", text, [Pair((one, two))])
