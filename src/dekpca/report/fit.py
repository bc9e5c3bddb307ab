"""`fit_report`: what a fit found, how accurate it is, and what it took."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from ..arrays import on_host, to_numpy
from ..data.columns import Samples
from ..network import listing
from ..node_model import NodeModel
from ..plot import residuals, tolerance
from ..results import FLAT
from . import charts
from .embedding import embedding_chart
from .measures import Findings, measure
from .page import Chart, Section, cards_html, escape, folded_html, table_html, write_page
from .settings import settings_section
from .traffic import in_bytes, network_section

ITERATIONS_LISTED = 60
BEYOND_LISTED = 20  # rows with the largest reconstruction errors


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
        Where to write; an existing file is replaced. It is returned.
    model : DecentralizedKernelPCA
        Fitted.
    X : array (rows, columns), optional
        Rows to show in the embedding and to measure agreement on. With all rows of the fit, `node_of` and `central`,
        the report also has the true error of each stage.
    labels : sequence, optional
        The class (or a number) of each row of X.
    central : NodeModel, optional
        `baselines.central` of all the data, with the same kernel.
    baselines : mapping of name to node models, optional
        Other models to compare with, such as {"local": ..., "neighborhood": ...}: one for each node. "local" is what
        a node has before it hears from others, and is shown in the embedding too.
    node_of : sequence of int, optional
        The number of the node that owns each row of X.
    settings : mapping, optional
        Further settings that reproduce the run; "command" is shown as code to copy.
    title : str, optional

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
    baselines = baselines or {}
    found = measure(model, X, central, baselines, node_of)
    count = f"{len(model.network_):,} {'node' if len(model.network_) == 1 else 'nodes'}"
    title = title or f"Decentralized kernel PCA: {count}, {model.node_sizes_.sum():,} rows"
    sections = []
    if len(model.history_["landmarks"]):
        sections.append(_stages(model, found))
    if len(model.history_["residual"]):
        sections.append(_convergence(model))
    sections.append(_components(model, found, central))
    if X is not None:
        text = "The rows by two of their components, as a node values them by itself."
        chart = embedding_chart(model, X, labels, central, node_of, baselines.get("local"))
        sections.append(Section("embedding", "Embedding", text, [chart]))
    if hasattr(model, "offset_"):
        sections.append(_scores(model, X, node_of))
    sections.append(network_section(model, found))
    sections.append(settings_section(model, settings, node_of is not None))
    lead = "How close the nodes came to kernel PCA of all the data, which none of them sees, and what it took."
    return write_page(path, title, lead, sections, _summary(model, found))


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
    if node_of is not None and not (node_of.dtype.kind in "iu" and np.isin(node_of, range(len(model.network_))).all()):
        needed = f"whole numbers from 0 to {len(model.network_) - 1}, the places of the nodes in network_.names"
        raise ValueError(f"node_of: {needed}, are needed")
    return X, labels, node_of


# ---------------------------------------------------------------------- the summary
def _summary(model: Any, found: Findings) -> str:
    network, stages, ratio = model.network_, len(model.history_["landmarks"]), on_host(model.explained_variance_ratio_)
    cards = [
        ("Nodes", f"{len(network):,}", f"{network.n_edges:,} edges, {network.degrees.mean():.3g} neighbors on average"),
        ("Rows", f"{model.node_sizes_.sum():,}", f"of {model.n_features_in_:,} columns"),
        ("Components", str(len(ratio)), f"which explain {ratio.sum():.1%} of the variance"),
    ]
    if np.isfinite(model.span_accuracy_):
        stated, least = (_rounded_down(v) for v in (model.span_accuracy_, model.span_accuracy_bound_))
        cards.append(("Stated agreement", stated, f"of the span with central, at least {least}"))
    if found.methods:
        worst = found.methods["dekpca"].min(axis=0)
        says = f"with central: the worst node, component {np.argmin(worst) + 1}"
        cards.append(("Measured agreement", _rounded_down(worst.min()), says))
    if model.n_landmarks_:
        cards.append(("Landmarks", f"{model.n_landmarks_:,}", f"in {stages} stages" if stages > 1 else ""))
    if found.rounds:
        cards.append(("Rounds", str(sum(found.rounds.values())), "in each, the network adds a term of every node"))
    if len(model.history_["residual"]):
        cards.append(("Iterations", f"{model.n_iter_:,}", ""))
    if found.sent.any():
        most = f"on average; at most {in_bytes(found.sent.max())}" if len(found.sent) > 1 else ""
        cards.append(("Sent by a node", in_bytes(found.sent.mean()), most))
    (kind, head, why), texts = verdict(model), warnings_of(model)
    items = "".join(f"<li>{escape(text)}</li>" for text in texts)
    warned = f'<ul class="verdict bad" aria-label="Warnings">{items}</ul>' if texts else ""
    said = f"<strong>{escape(head)}</strong> {escape(why)}"
    return f'<p class="verdict {kind}" role="status">{said}</p>{warned}{cards_html(cards)}'


def verdict(model: Any) -> tuple[str, str, str]:
    """Whether the answer is as good as was asked for: the kind of news, a headline, and numbers."""
    history = model.history_
    head = "As asked for." if model.converged_ else "Not as asked for."
    said = ["One node computed kernel PCA of all rows."] if len(model.network_) == 1 else []
    if len(history["residual"]):
        residual, allowed = history["residual"][-1], tolerance(model)
        last = max([residual, *history["since_check"][-1:]])
        head = "Converged." if model.converged_ or last <= allowed else "Not converged."
        said.append(f"After {model.n_iter_} iterations the residual is {residual:.2g}; {allowed:.2g} is allowed.")
    if np.isfinite(model.span_accuracy_):
        error, bound = 1 - model.span_accuracy_**2, 1 - model.span_accuracy_bound_**2
        if model.converged_ or (bound > model.tol and head != "Not converged."):
            head = "As accurate as asked for." if model.converged_ else "Less accurate than asked for."
        said.append(f"The stated error is {error:.2g}, at most {bound:.2g}, where tol={model.tol:g} is asked for.")
    return "good" if model.converged_ else "bad", head, " ".join(said)


def warnings_of(model: Any) -> list[str]:
    """What a reader should know before using the components."""
    found = [
        f"Components {listing(c + 1 for c in group)} cannot be told apart: their span is right, but each may be any mixture of them."
        for group in model.mixed_components_
    ]
    zero, first = np.flatnonzero(on_host(model.eigenvalues_) <= 0), on_host(model.explained_variance_ratio_)[0]
    if len(zero):
        why = ": the landmarks see no more dimensions of the rows" if model.n_landmarks_ else ""
        found.append(f"Components from {zero[0] + 1} on are zero{why}.")
    elif first < FLAT:
        found.append(f"The first component explains {first:.2%} of the variance: the kernel may be too narrow.")
    return found


def _rounded_down(value: float) -> str:
    """Four digits, so as not to overstate an agreement."""
    return f"{np.floor(value * 1e4) / 1e4:.4f}"


# ---------------------------------------------------------------------- the sections
def _stages(model: Any, found: Findings) -> Section:
    m, error, bound = (model.history_[name] for name in ("landmarks", "error", "bound"))
    columns = {"landmarks": m, "stated error": error, "bound": bound}
    caption = "Thin lines reach from the stated error to its bound."
    if np.isfinite(found.error).any():
        columns["true error"] = found.error
        caption += " The true error is that against central kernel PCA of all rows"
        caption += "; before the last stage, of a fit with the landmarks of that stage." if len(m) > 1 else "."
    figure = charts.error_figure(m, error, bound, found.error, float(model.tol))
    label = f"The error by landmarks: with {m[-1]:,} it is stated as {error[-1]:.2g}, at most {bound[-1]:.2g}."
    text = (
        "Landmarks are points that all nodes share; components are functions over them. The nodes estimate their error, sin² of the largest angle "
        f"between the span of the components and that of central kernel PCA, and add landmarks until its bound is at most tol={model.tol:g}."
    )
    text += " One stage was enough." if len(m) == 1 and model.converged_ else ""
    chart = Chart("error", figure, label, caption, table_html(columns, "Error by stage"), 360)
    return Section("error", "Error by landmarks", text, [chart])


def _convergence(model: Any) -> Section:
    history, curves, allowed = model.history_, residuals(model), tolerance(model)
    steps = len(history["residual"])
    listed = np.unique(np.linspace(0, steps - 1, ITERATIONS_LISTED).round().astype(int))
    columns = {"iteration": listed + 1} | {name: values[listed] for name, values in curves.items()}
    table = table_html(columns, "Residual and change by iteration")
    label = f"Residual and change over {steps} iterations; the last residual is {history['residual'][-1]:.2g}."
    text = "The residual of the power iterations, relative to the components."
    if len(history["since_check"]):
        text = "How far nodes are from agreeing with their neighbors (residual), and how much they still move (change), relative to the components."
    text += f" All stop together when they are below the tolerance, {allowed:.2g}."
    figure, caption = charts.convergence_figure(curves, allowed), "Of the worst node, on a logarithmic scale."
    chart = Chart("convergence", figure, label, caption, table)
    return Section("convergence", "Convergence", text, [chart])


def _components(model: Any, found: Findings, central: NodeModel | None) -> Section:
    ours, ratio, stated = (on_host(v) for v in (model.eigenvalues_, model.explained_variance_ratio_, model.accuracy_))
    labels = [str(c + 1) for c in range(len(ours))]
    mixed = {c: listing(other + 1 for other in group if other != c) for group in model.mixed_components_ for c in group}
    groups: dict[str, Any] = {"dekpca": ours}
    columns: dict[str, Any] = {"component": labels, "eigenvalue": ours}
    if central is not None:
        groups["central"] = columns["central eigenvalue"] = on_host(central.eigenvalues_)[: len(ours)]
    columns["explained variance"] = [f"{r:.2%}" for r in ratio]
    columns["stated agreement"] = ["–" if np.isnan(a) else _rounded_down(a) for a in stated]
    for name, values in found.methods.items():
        columns[f"{name}: mean"], columns[f"{name}: worst"] = values.mean(axis=0), values.min(axis=0)
    if mixed:
        columns["mixed with"] = [mixed.get(c, "") for c in range(len(ours))]
    table = table_html(columns, "Eigenvalues and agreement with central kernel PCA")
    figure = charts.bar_figure(groups, labels, "component", "eigenvalue")
    caption = f"Of the centred kernel matrix of all data. Together they explain {ratio.sum():.1%} of its trace."
    label = "Bars of eigenvalues; the numbers are in the table."
    bars = Chart("eigenvalues", figure, label, caption, table, 340, "Eigenvalues")
    if not (found.methods or np.isfinite(stated).any()):
        return Section("components", "Components", "How much each component explains.", [bars])
    figure = charts.agreement_figure(found.methods, stated, list(mixed))
    caption = "A dot is a node." if found.methods else "As the nodes state it."
    if "local" in found.methods:
        caption += " Local is what a node knows alone: from there to dekpca is what it learned from the others."
    if mixed:
        caption += " Crosses: components that cannot be told apart from others; their span is right."
    shown = [np.asarray(trace.y, dtype=float) for trace in figure.data]
    usual, far = [v.tolist() for v in shown], [np.maximum(1 - v, charts.ROUNDING).tolist() for v in shown]
    options = {
        "agreement": [{"y": usual}, {"yaxis.type": "linear", "yaxis.title.text": "agreement"}],
        "1 − agreement, logarithmic": [{"y": far}, {"yaxis.type": "log", "yaxis.title.text": "1 − agreement"}],
    }
    label = "Agreement with central kernel PCA by component; the numbers are in the table of eigenvalues."
    agreement = Chart("agreement", figure, label, caption, "", 340, "Agreement with central", "Scale", options)
    text = "Agreement is the correlation of a component's values with those of central kernel PCA, over all rows."
    text += " The nodes state it, though none of them has all rows."
    if not found.methods and len(found.sent) == len(model.network_):
        text += " Who has all rows can measure it too (central=, or dekpca fit --compare)."
    return Section("components", "Components", text, [bars, agreement])


def _scores(model: Any, X: Samples | None, node_of: Any) -> Section:
    histogram, threshold = model.node_models_[0].histogram, -model.offset_
    fine = np.where(histogram.edges[1:] <= threshold, 1, 0) * histogram.counts, histogram.counts
    within, counts = (v.reshape(-1, 4).sum(axis=1) for v in fine)  # eight bars for each factor of two
    middle = np.sqrt(histogram.edges[:-1:4] * histogram.edges[4::4])
    shown = slice(np.flatnonzero(counts)[0], np.flatnonzero(counts)[-1] + 1)
    within, beyond, middle = within[shown], (counts - within)[shown], middle[shown]
    figure = charts.histogram_figure(middle, within, beyond, threshold)
    out, rows = int(beyond.sum()), int(counts.sum())
    columns = {"error, about": middle, "rows within": within.astype(int), "rows beyond": beyond.astype(int)}
    caption = f"Of the {rows:,} rows of the fit, {out:,} are beyond {threshold:.3g}."
    table = table_html(columns, "Reconstruction errors of all rows")
    chart = Chart("scores", figure, f"A histogram: {caption}", caption, table, 340)
    text = (
        "The reconstruction error of a row is what the components leave of it in feature space. One sum of a histogram over all nodes gives every "
        f"node the same threshold, beyond which at most {model.contamination:.3g} of the rows are (contamination)."
    )
    below = ""
    if X is not None:
        errors = on_host(model.node_models_[0].reconstruction_error(X))
        first = [
            int(i) for i in np.argsort(-np.nan_to_num(errors), kind="stable")[:BEYOND_LISTED] if errors[i] > threshold
        ]
        named = {} if node_of is None else {"node": [model.network_.names[node_of[i]] for i in first]}
        says = "Rows of X beyond the threshold, with the largest errors"
        below = folded_html(says, table_html({"row": first} | named | {"error": errors[first]}, says)) if first else ""
    return Section("scores", "Scores", text, [chart], below)
