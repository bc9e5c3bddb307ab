"""dekpca.plot draws what the model says: every number in a picture is read back and compared."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.datasets import load_digits

from dekpca import DecentralizedKernelPCA, Network, Projection, baselines, plot
from dekpca.report.panels import pyplot


@pytest.fixture(autouse=True)
def closed():
    pyplot()
    yield
    pyplot().close("all")


@pytest.fixture(scope="module")
def fitted():
    X, y = load_digits(return_X_y=True)
    X, y = X[:600], y[:600]
    network = Network.ring(6, 4)
    model = DecentralizedKernelPCA(4, tol=1e-5, network=network, random_state=0).fit(X)
    return model, X, y, baselines.central(X, 4, gamma=model.gamma_)


def line(ax, label):
    return next(drawn for drawn in ax.lines if drawn.get_label() == label)


def test_scree(fitted):
    model, _, _, central = fitted
    ax = plot.scree(model, central)
    assert [bar.get_height() for bar in ax.patches] == pytest.approx(model.explained_variance_ratio_)
    dots = line(ax, "central kernel PCA").get_ydata()
    assert dots == pytest.approx(model.explained_variance_ratio_, rel=0.01)  # the fit's error is 1e-5
    assert [bool(bar.get_hatch()) for bar in ax.patches] == [
        any(c in g for g in model.mixed_components_) for c in range(4)
    ]


def test_embedding_has_every_row_once_in_the_colour_of_its_class(fitted):
    model, X, y, central = fitted
    given = pyplot().subplots()[1]
    ax = plot.embedding(model, X, y, node=2, components=(1, 3), reference=central, ax=given)
    assert ax is given
    truth = central.transform(X)
    for digit, dots in enumerate(ax.collections):
        np.testing.assert_allclose(dots.get_offsets(), truth[y == digit][:, [1, 3]], atol=0.02)  # signs are central's
    assert ax.get_ylabel() == "component 4"


def test_embedding_of_a_number_that_names_another_node(fitted):
    parts = {name: fitted[1][:30] + int(name) for name in ("2", "1")}
    model = DecentralizedKernelPCA(2, gamma=0.01, random_state=0).fit_parts(parts)
    with pytest.raises(ValueError, match=r"embedding: node=1 may be .* give a name: node='1'"):
        plot.embedding(model, parts["1"], node=1)


def test_embedding_by_a_number_and_rings(fitted):
    model, X, _, _ = fitted
    own = model.nodes_ == 1
    ax = plot.embedding(model.node_models_[1], X, X.sum(axis=1), own=own)
    assert len(ax.figure.axes) == 2  # a colour bar
    assert [len(dots.get_offsets()) for dots in ax.collections] == [len(X), own.sum()]
    with pytest.raises(ValueError, match="by has 3 entries for 600 rows"):
        plot.embedding(model, X, [1, 2, 3])
    with pytest.raises(ValueError, match=r"components=\(0, 4\), but the model has 4 component"):
        plot.embedding(model, X, components=(0, 4))
    with pytest.raises(ValueError, match="600 different texts"):
        plot.embedding(model, X, [f"row {i}" for i in range(600)])


def test_network_edges_are_as_wide_as_their_traffic(fitted):
    model = fitted[0]
    ax = plot.network(model, by=["a", "b"] * 3, highlighted="2")
    edges, sent = plot.inner_edges(model.network_, range(6), model.history_["edge_bytes"])
    widths = np.array([drawn.get_linewidth() for drawn in ax.lines])
    assert len(widths) == len(edges) == model.network_.n_edges
    assert (np.argsort(widths, kind="stable") == np.argsort(sent, kind="stable")).all()
    assert widths[sent == 0].max() < widths[sent > 0].min()
    assert sorted(text.get_text() for text in ax.texts) == sorted(model.network_.names)
    plain = plot.network(Network.path(3))
    assert {drawn.get_linewidth() for drawn in plain.lines} == {0.8}
    assert len(plot.network(Network.ring(60)).texts) == 0


def test_accuracy_has_stated_and_true(fitted):
    model, X, _, central = fitted
    ax = plot.accuracy(model, central, X)
    from dekpca import metrics

    true = metrics.agreement(model, central, X)
    assert line(ax, "true, every node").get_ydata() == pytest.approx(np.maximum(1 - true.ravel(), plot.ROUNDING))
    stated = np.concatenate([drawn.get_ydata() for drawn in ax.lines if drawn.get_label().startswith("stated")])
    assert sorted(stated) == pytest.approx(sorted(1 - model.accuracy_))


def test_convergence_of_the_default_and_of_projection(fitted):
    model, X, _, _ = fitted
    history = model.history_
    ax = plot.convergence(model, true=[np.nan] * (len(history["error"]) - 1) + [3e-6])
    assert len(history["landmarks"]) > 1
    for label, key in (("stated by the nodes", "error"), ("its bound", "bound")):
        np.testing.assert_array_equal(line(ax, label).get_xydata(), np.c_[history["landmarks"], history[key]])
    assert line(ax, "true").get_ydata()[-1] == 3e-6
    assert line(ax, "asked for: 1e-05").get_ydata()[0] == model.tol

    solver = Projection(n_landmarks=30, tol=1e-2)
    model = DecentralizedKernelPCA(2, network=6, solver=solver, random_state=0).fit(X)
    ax = plot.convergence(model)
    assert line(ax, "residual").get_ydata() == pytest.approx(model.history_["residual"])
    assert line(ax, "asked for: 0.1").get_ydata()[0] == pytest.approx(0.1)  # residuals are squared for tol
    with pytest.raises(ValueError, match="neither stages nor iterations"):
        plot.convergence(DecentralizedKernelPCA(2, network=1).fit(X))


def test_traffic(fitted):
    model = fitted[0]
    ax = plot.traffic(model)
    sent = {name.get_text(): bar.get_width() for name, bar in zip(ax.get_yticklabels(), ax.patches, strict=True)}
    assert sent == pytest.approx({phase: v.mean() / 1e3 for phase, v in model.history_["bytes"].items()})
