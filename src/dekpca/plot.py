"""Pictures of a fit, by matplotlib: axes in, axes out.

Each function draws into the axes `ax`, or into new ones, and returns them: change titles and limits there, and save with
`ax.figure.savefig("name.png")`. They need matplotlib: pip install 'dekpca[plot]'. `dekpca.report` makes a whole page.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from . import metrics
from .arrays import on_host, to_numpy
from .network import Network
from .node_model import NodeModel

__all__ = ["accuracy", "convergence", "embedding", "network", "scree", "traffic"]

Array = Any

PALETTE = "tab10"
STATED, BOUND, TRUE, TARGET = "tab:blue", "tab:cyan", "tab:green", "0.5"
CLASSES = 20  # ten colours, with two marks
CIRCLE = 400  # nodes; a larger circle is a line
SETTLED = 300  # nodes up to which a layout by distances is faster than a second
NAMED = 40  # nodes up to which names can be read
ROUNDING = 1e-12  # the smallest error on a logarithmic axis
RESIDUALS = {"residual": "residual", "since_check": "change since the last check", "change": "change"}


def scree(model: Any, central: NodeModel | None = None, ax: Any = None) -> Any:
    """How much each component explains: bars, and dots for the central answer.

    Parameters
    ----------
    model : DecentralizedKernelPCA
        Fitted. Components that cannot be told apart (`mixed_components_`) are hatched.
    central : NodeModel, optional
        `baselines.central` of all the data, with the same kernel.
    ax : matplotlib axes, optional

    Returns
    -------
    matplotlib axes
        Its `patches` are the bars.

    Examples
    --------
    >>> import dekpca
    >>> from sklearn.datasets import load_wine
    >>> model = dekpca.DecentralizedKernelPCA(4, standardize=True, random_state=0).fit(load_wine().data)
    >>> ax = dekpca.plot.scree(model)
    >>> ax.get_xlabel(), len(ax.patches)
    ('component', 4)
    """
    check_is_fitted(model)
    ax, ratio, values = _axes(ax), on_host(model.explained_variance_ratio_), on_host(model.eigenvalues_)
    x = np.arange(1, len(ratio) + 1)
    bars = ax.bar(x, ratio, 0.7, color=STATED, label="dekpca")
    for c in _mixed(model):
        bars[c].set(hatch="///", edgecolor="white")
    if central is not None:  # of the same trace
        trace = (values[0] / ratio[0]) if ratio[0] > 0 else np.inf
        theirs = on_host(central.eigenvalues_)[: len(x)] / trace
        ax.plot(x[: len(theirs)], theirs, "o", color=TRUE, label="central kernel PCA")
        ax.legend(frameon=False)
    ax.set(xlabel="component", ylabel="explained variance", title=f"{len(x)} components explain {ratio.sum():.1%}")
    ax.set_xticks(x if len(x) <= CLASSES else x[:: len(x) // 10])
    ax.yaxis.set_major_formatter(lambda share, _: f"{share:.3g}" if share < 0.01 else f"{share:.0%}")
    return ax


def embedding(
    model: Any,
    X: Array,
    by: Any = None,
    node: int | str | None = None,
    components: tuple[int, int] = (0, 1),
    reference: NodeModel | None = None,
    own: Array | None = None,
    legend: bool = True,
    ax: Any = None,
) -> Any:
    """The rows by two of their components, coloured by class, by node, or by a number.

    Parameters
    ----------
    model : DecentralizedKernelPCA or NodeModel
    X : array (rows, columns)
    by : sequence, optional
        A class, a node or a number for each row. More than 20 different numbers get a colour bar.
    node : int or str, optional
        Whose components to show; by default those of the node that `transform` uses.
    components : (int, int)
        Counted from 0, as in the columns of `transform`.
    reference : NodeModel, optional
        The signs of components are made those of this model, to compare pictures.
    own : boolean array (rows,), optional
        Rows to ring, such as those of the node.
    legend : bool
        Whether to draw a legend (or a colour bar).
    ax : matplotlib axes, optional

    Returns
    -------
    matplotlib axes
        Its `collections` are the rows of each class.

    Examples
    --------
    >>> import dekpca
    >>> from sklearn.datasets import load_wine
    >>> X, y = load_wine(return_X_y=True)
    >>> model = dekpca.DecentralizedKernelPCA(2, network=3, standardize=True, random_state=0).fit(X)
    >>> ax = dekpca.plot.embedding(model, X, by=y, node=1)
    >>> [text.get_text() for text in ax.get_legend().get_texts()]
    ['0', '1', '2']
    """
    try:
        ax, view = _axes(ax), model if node is None else model.node_models_[node]
    except ValueError as error:
        if isinstance(node, str):
            raise
        what = f"embedding: node={node} may be the node of that name or the place of another"
        raise ValueError(f"{what}; give a name: node='{node}', or that of the other") from error
    values = on_host(view.transform(X))
    if reference is not None:
        values = aligned(values, on_host(reference.transform(X))[:, : values.shape[1]])
    if max(components) >= values.shape[1]:
        has = f"the model has {values.shape[1]} component(s)"
        raise ValueError(f"embedding: components={tuple(components)}, but {has}; name two of them, or fit with more")
    x, y = values[:, components[0]], values[:, components[1]]
    of = np.zeros(len(x), dtype=int) if by is None else np.asarray(to_numpy(by))
    if len(of) != len(x):
        raise ValueError(f"by has {len(of)} entries for {len(x)} rows; give one for each row")
    style, found = {"s": 9, "alpha": 0.75, "linewidths": 0}, np.unique(of)
    if len(found) > CLASSES and np.issubdtype(of.dtype, np.number):
        dots = ax.scatter(x, y, c=of, cmap="viridis", **style)
        if legend:
            ax.figure.colorbar(dots, ax=ax)
    elif len(found) > CLASSES:
        raise ValueError(
            f"by has {len(found)} different texts, and there are marks for {CLASSES}; join some, or give numbers"
        )
    else:
        for i, value in enumerate(found):
            marker = "o" if i < CLASSES // 2 else "D"
            ax.scatter(x[of == value], y[of == value], color=f"C{i % 10}", marker=marker, label=str(value), **style)
        if legend and len(found) > 1:
            ax.legend(frameon=False, markerscale=2, fontsize="small")
    if own is not None:
        ax.scatter(x[own], y[own], s=18, facecolors="none", edgecolors="black", linewidths=0.5)
    first, second = (f"component {c + 1}" for c in components)
    ax.set(xlabel=first, ylabel=second, xticks=[], yticks=[])
    return ax


def network(model: Any, by: Any = None, highlighted: int | str | None = None, ax: Any = None) -> Any:
    """The network. Of a fitted model, edges are as wide as the bytes that were sent along them.

    Parameters
    ----------
    model : Network or DecentralizedKernelPCA
    by : sequence, optional
        A colour group, or a number, for each node, in the order of `network.names`.
    highlighted : int or str, optional
        A node to ring.
    ax : matplotlib axes, optional

    Returns
    -------
    matplotlib axes
        Its `lines` are the edges, its first collection the nodes.

    Examples
    --------
    >>> import dekpca
    >>> ring = dekpca.Network.ring(12, neighbors=4)
    >>> ax = dekpca.plot.network(ring, highlighted=3)
    >>> ax.get_title()
    '12 nodes, 24 edges'
    """
    ax, net = _axes(ax), model if isinstance(model, Network) else model.network_
    sent = 0.0 if isinstance(model, Network) else model.history_["edge_bytes"]
    place, (edges, sent) = positions(net, range(len(net))), inner_edges(net, range(len(net)), sent)
    widths = 0.8 + 4 * sent / max(sent.max(initial=0), 1)
    for (a, b), width in zip(edges, widths, strict=True):
        ax.plot(*place[[a, b]].T, color="0.6", linewidth=width, zorder=1, solid_capstyle="round")
    of = np.zeros(len(net)) if by is None else np.asarray(to_numpy(by))
    found, which = np.unique(of, return_inverse=True)
    few = len(found) <= CLASSES // 2 or not np.issubdtype(of.dtype, np.number)
    colors = {"c": which % 10, "cmap": PALETTE, "vmin": 0, "vmax": 9} if few else {"c": of, "cmap": "viridis"}
    size = float(np.clip(5000 / len(net), 12, 260))
    ringed = np.arange(len(net)) == (net.number[highlighted] if isinstance(highlighted, str) else highlighted)
    rings = np.where(ringed, "black", "none")
    dots = ax.scatter(*place.T, s=size, edgecolors=rings.tolist(), linewidths=2, zorder=2, **colors)
    if not few:
        ax.figure.colorbar(dots, ax=ax)
    if len(net) <= NAMED:
        inside = max(map(len, net.names)) <= 3
        style = (
            {"color": "white", "va": "center"}
            if inside
            else {"va": "bottom", "xytext": (0, 11), "textcoords": "offset points"}
        )
        for name, xy in zip(net.names, place, strict=True):
            ax.annotate(name, xy, ha="center", fontsize=7 if inside else 9, zorder=3, **style)
    ax.set(title=f"{len(net):,} nodes, {net.n_edges:,} edges", aspect="equal")
    ax.set_axis_off()
    ax.margins(0.15)
    return ax


def accuracy(model: Any, central: NodeModel, X: Array, ax: Any = None) -> Any:
    """Stated against true accuracy: how far each component is from that of central kernel PCA.

    The nodes state it without knowing the central answer (`accuracy_`). The true one, a dot for each node, needs all rows.

    Parameters
    ----------
    model : DecentralizedKernelPCA
        Fitted.
    central : NodeModel
        `baselines.central` of all the data, with the same kernel.
    X : array (rows, columns)
        Rows on which the two are compared.
    ax : matplotlib axes, optional

    Returns
    -------
    matplotlib axes
        Logarithmic in 1 - agreement.

    Examples
    --------
    >>> import dekpca
    >>> from sklearn.datasets import load_wine
    >>> X = load_wine().data
    >>> model = dekpca.DecentralizedKernelPCA(3, network=3, standardize=True, random_state=0).fit(X)
    >>> central = dekpca.baselines.central(X, 3, standardize=True)
    >>> ax = dekpca.plot.accuracy(model, central, X)
    >>> ax.get_yscale(), [text.get_text() for text in ax.get_legend().get_texts()]
    ('log', ['true, every node', 'stated'])
    """
    check_is_fitted(model)
    ax, true = _axes(ax), metrics.agreement(model, central, X)
    stated, mixed = on_host(model.accuracy_)[: true.shape[1]], _mixed(model)
    x = np.arange(1, true.shape[1] + 1)
    known, far = np.isfinite(stated), np.maximum(1 - true, ROUNDING)
    ax.plot(np.tile(x, len(true)), far.ravel(), ".", color=TRUE, alpha=0.6, label="true, every node")
    for name, marker, chosen in (
        ("stated", "D", [c for c in range(len(x)) if known[c] and c not in mixed]),
        ("stated, mixed with another", "x", [c for c in mixed if c < len(x) and known[c]]),
    ):
        if chosen:
            drawn = np.maximum(1 - stated[chosen], ROUNDING)
            ax.plot(x[chosen], drawn, marker, color=STATED, markerfacecolor="none", markersize=9, label=name)
    ax.set(xlabel="component", ylabel="1 - agreement with central", yscale="log", xticks=x)
    ax.legend(frameon=False)
    return ax


def convergence(model: Any, true: Sequence[float] | None = None, ax: Any = None) -> Any:
    """How the fit came to its answer.

    Of the default solver: the error that the nodes state, and its bound, by number of landmarks. Of `Projection`:
    residual and change of the worst node by iteration. The dashed line is what was asked for.

    Parameters
    ----------
    model : DecentralizedKernelPCA
        Fitted, with more than one node.
    true : sequence of float, optional
        The true error of each stage, where it is known (nan: not known).
    ax : matplotlib axes, optional

    Returns
    -------
    matplotlib axes
        Logarithmic, by landmarks or by iterations.

    Examples
    --------
    >>> import dekpca
    >>> from sklearn.datasets import load_digits
    >>> X = load_digits().data[:600]
    >>> model = dekpca.DecentralizedKernelPCA(3, tol=1e-5, network=6, random_state=0).fit(X)
    >>> dekpca.plot.convergence(model).get_xlabel()
    'landmarks'
    >>> solver = dekpca.Projection(n_landmarks=20, max_iter=200)
    >>> model = dekpca.DecentralizedKernelPCA(2, network=6, solver=solver, random_state=0).fit(X)
    >>> dekpca.plot.convergence(model).get_xlabel()
    'iteration'
    """
    check_is_fitted(model)
    history, curves = model.history_, residuals(model)
    if curves:
        ax, target = _axes(ax), tolerance(model)
        for name, values in curves.items():
            ax.plot(np.arange(1, len(values) + 1), np.where(values > 0, values, np.nan), label=name)
        ax.set(xlabel="iteration", ylabel="relative size, worst node", yscale="log")
    elif len(history["landmarks"]):
        ax, target = _axes(ax), float(model.tol)
        lines = [("stated by the nodes", history["error"], STATED, "o-"), ("its bound", history["bound"], BOUND, "v--")]
        if true is not None and np.isfinite(true).any():
            lines.append(("true", true, TRUE, "D:"))
        for name, values, color, style in lines:
            shown = np.maximum(np.asarray(values, dtype=float), ROUNDING)
            ax.plot(history["landmarks"], shown, style, color=color, label=name)
        ax.set(xlabel="landmarks", ylabel="error: sin² of the angle to central", yscale="log")
    else:
        raise ValueError(
            "this fit has neither stages nor iterations to draw; a single node computes central kernel PCA"
        )
    ax.axhline(target, color=TARGET, linestyle="--", label=f"asked for: {target:.2g}")
    ax.legend(frameon=False)
    return ax


def traffic(model: Any, ax: Any = None) -> Any:
    """What a node sent on average, by phase of the fit, in kB.

    Parameters
    ----------
    model : DecentralizedKernelPCA
        Fitted.
    ax : matplotlib axes, optional

    Returns
    -------
    matplotlib axes
        A bar for each phase, the first on top.

    Examples
    --------
    >>> import dekpca
    >>> from sklearn.datasets import load_wine
    >>> model = dekpca.DecentralizedKernelPCA(2, network=3, random_state=0).fit(load_wine().data)
    >>> "moments" in [text.get_text() for text in dekpca.plot.traffic(model).get_yticklabels()]
    True
    """
    check_is_fitted(model)
    ax, sent = _axes(ax), {phase: np.mean(v) / 1e3 for phase, v in model.history_["bytes"].items()}
    ax.bar_label(
        ax.barh([*sent], [*sent.values()], color=STATED), fmt=lambda kb: f" {kb:,.0f}" if kb >= 10 else f" {kb:.2g}"
    )
    ax.invert_yaxis()
    ax.margins(x=0.2)
    ax.set(xlabel="kB sent by a node")
    return ax


# ---------------------------------------------------------------------- what the pages of dekpca.report need too
def residuals(model: Any) -> dict[str, np.ndarray]:
    """Curves by iteration, of a solver that iterates."""
    history = model.history_
    return {name: np.asarray(history[key]) for key, name in RESIDUALS.items() if len(history.get(key, ()))}


def tolerance(model: Any) -> float:
    """Of residual and change in an iteration, whose squares `tol` bounds."""
    return float(getattr(model.solver, "tol", model.tol)) ** 0.5


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
    import networkx as nx

    graph = nx.empty_graph(len(nodes))
    graph.add_edges_from(inner_edges(network, nodes, 0.0)[0].tolist())
    if len(nodes) <= CIRCLE and len({degree for _, degree in graph.degree}) == 1:
        place = nx.circular_layout(graph)
    elif len(nodes) <= SETTLED:
        place = nx.kamada_kawai_layout(graph)
    else:  # a few steps from the lowest eigenvectors of the graph Laplacian: seconds for 2000 nodes
        place = nx.spring_layout(graph, pos=nx.spectral_layout(graph), iterations=12, seed=0)
    return np.array([place[i] for i in range(len(nodes))])


def aligned(values: Any, reference: Any) -> np.ndarray:
    """Values with the signs of the reference's components, since signs of eigenvectors are arbitrary."""
    values, reference = np.asarray(values), np.asarray(reference)
    signs = np.sign((values * reference).sum(axis=0))
    return values * np.where(signs == 0, 1, signs)


def pyplot() -> Any:
    try:
        import matplotlib.pyplot
    except ImportError as error:
        raise ImportError("matplotlib is not installed; pip install 'dekpca[plot]'") from error
    return matplotlib.pyplot


def _axes(ax: Any) -> Any:
    found = pyplot()  # also says that it is missing
    return found.subplots(layout="constrained")[1] if ax is None else ax


def _mixed(model: Any) -> list[int]:
    return sorted({c for group in model.mixed_components_ for c in group})
