"""The HTML report as text: what is in it, that nothing in it comes from elsewhere, that names cannot run. Its looks: test_report_browser.py."""

from __future__ import annotations

import base64
import html
import json
import re
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

import dekpca
from dekpca import baselines
from dekpca.data.columns import Samples
from dekpca.report import charts, experiment_report, fit_report, measures
from dekpca.report.page import LIMIT, cell_text
from dekpca.report.traffic import in_bytes

NASTY = "<script>alert('x')</script>&<b>"


class Seen(HTMLParser):
    """Elements with their attributes, the headings, and the text outside scripts and styles."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.headings, self.text, self.scripts, self._inside = [], [], [], [], []
        self.feed(text)
        self.text = " ".join(" ".join(self.text).split())

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "input", "link", "br", "path", "circle"):
            self._inside.append(tag)

    def handle_endtag(self, tag):
        if tag in self._inside:
            while self._inside.pop() != tag:
                pass

    def handle_data(self, data):
        if "script" in self._inside:
            self.scripts.append(data)
        elif "style" not in self._inside:
            self.text.append(data)
            if {"h1", "h2"} & set(self._inside):
                self.headings.append(data)


LARGER = (160, 120, 80, 140)  # so many rows that not all of them become landmarks


def fitted(network=None, sizes=(40, 30, 20, 35), k=3, **settings):
    rng = np.random.default_rng(0)
    parts = [rng.normal(size=(n, 5)) * np.geomspace(2, 0.5, 5) + rng.normal(size=5) for n in sizes]
    network = network or dekpca.Network.ring(len(sizes))
    model = dekpca.DecentralizedKernelPCA(k, gamma=0.05, network=network, random_state=0, **settings).fit_parts(parts)
    return model, parts


def projection(**options):
    """Settings of a fit that iterates."""
    return {"solver": dekpca.Projection(**{"n_landmarks": 40} | options)}


@pytest.fixture(scope="module")
def full(tmp_path_factory):
    """A page with every section filled and several stages, by nodes with names that must not run."""
    network = dekpca.Network.from_edges([(NASTY, "rome"), ("rome", "oslo"), ("oslo", "bonn"), ("bonn", NASTY)])
    model, parts = fitted(network, LARGER, tol=1e-6)
    assert len(model.history_["landmarks"]) > 1
    X = np.concatenate(parts)
    owner = np.repeat(np.arange(4), [len(p) for p in parts])
    labels = np.where(X[:, 0] > 0, NASTY, "right")
    page = fit_report(
        tmp_path_factory.mktemp("report") / "fit.html",
        model,
        X,
        labels,
        baselines.central(parts, 3, gamma=0.05),
        {
            "local": baselines.local(parts, 3, gamma=0.05),
            "neighborhood": baselines.neighborhood(parts, network, 3, gamma=0.05),
        },
        owner,
        {"command": "dekpca demo", "data": NASTY},
        f"A title with {NASTY}",
    )
    return page, model


def data_of(page):
    text = page.read_text(encoding="utf-8")
    return json.loads(re.search(r'id="report-data">(.*?)</script>', text, re.DOTALL)[1])


def numbers(spec):
    """An array as plotly writes it: a list, or bytes in base64."""
    return np.frombuffer(base64.b64decode(spec["bdata"]), spec["dtype"]) if isinstance(spec, dict) else np.array(spec)


def text_of(page):
    return Seen(page.read_text(encoding="utf-8")).text


def test_everything_is_there_and_small(full):
    page, _ = full
    assert page.stat().st_size < LIMIT
    seen = Seen(page.read_text(encoding="utf-8"))
    headings = ["Error by landmarks", "Components", "Embedding", "Network and traffic", "Settings"]
    assert [h for h in seen.headings if NASTY not in h] == headings
    figures = data_of(page)
    assert list(figures) == ["error", "eigenvalues", "agreement", "embedding", "network", "bytes"]
    assert "As accurate as asked for." in seen.text
    assert "iteration" not in seen.text.partition("Settings")[0]  # nothing iterates
    assert [trace["name"] for trace in figures["agreement"]["data"]] == ["dekpca", "local", "neighborhood", "stated"]
    for name in ("numpy", "scipy", "scikit-learn", "Python", dekpca.__version__):
        assert name in seen.text


def test_the_error_is_shown_stage_by_stage(full):
    page, model = full
    stated, true = data_of(page)["error"]["data"]
    history = model.history_
    np.testing.assert_array_equal(numbers(stated["x"]), history["landmarks"])
    np.testing.assert_allclose(numbers(stated["y"]), np.maximum(history["error"], 1e-12))
    np.testing.assert_allclose(numbers(stated["error_y"]["array"]), np.maximum(history["bound"], 1e-12) - numbers(stated["y"]))  # fmt: skip
    assert f"{len(history['landmarks'])} stages" in text_of(page)
    # The nodes estimate it: within a factor of three here, and what they state as the bound holds.
    known, error = numbers(true["y"]), numbers(stated["y"])
    large = error > 1e-9  # below, both are rounding
    assert large.any()
    assert (known[large] < np.maximum(history["bound"], 1e-12)[large]).all()
    assert (np.abs(np.log(known[large] / error[large])) < np.log(3)).all()


def test_true_errors_of_earlier_stages_are_those_of_fits_that_stop_there(full):
    """A fit whose landmarks may not grow further has the same error as the stage of a longer one."""
    _, model = full
    parts = fitted(sizes=LARGER)[1]
    X = np.concatenate(parts)
    central = baselines.central(parts, 3, gamma=0.05)
    errors = measures.true_errors(model, Samples(X), model.nodes_, central)
    first = int(model.history_["landmarks"][0])
    with pytest.warns(ConvergenceWarning):
        short = fitted(model.network_, LARGER, tol=1e-6, max_landmarks=first)[0]
    assert short.n_landmarks_ == first
    alone = measures.true_errors(short, Samples(X), short.nodes_, central)
    assert 0.5 < errors[0] / alone[-1] < 2  # the noise of judging, which is another one, turns the components a little
    assert errors[-1] < errors[0] / 3


def test_stages_before_all_rows_were_landmarks_have_no_true_error():
    """Their landmarks are not in the model."""
    model, parts = fitted(tol=1e-9)
    assert model.history_["landmarks"][-1] == 125 > model.history_["landmarks"][0]
    central = baselines.central(parts, 3, gamma=0.05)
    errors = measures.true_errors(model, Samples(np.concatenate(parts)), model.nodes_, central)
    assert np.isnan(errors[:-1]).all()
    assert errors[-1] < 1e-12


def test_rounds_are_those_of_the_tree(full):
    page, model = full
    counted = measures.rounds(model)
    edges = len(model.network_) - 1
    for phase, messages in model.history_["messages"].items():
        assert counted[phase] * 2 * edges == messages.sum()  # up and down each edge of the tree
    assert f"in {sum(counted.values())} rounds" in text_of(page)


def test_the_projection_solver_has_its_curves(tmp_path):
    model, parts = fitted(**projection())
    central = baselines.central(parts, 3, gamma=0.05)
    page = fit_report(tmp_path / "x.html", model, np.concatenate(parts), central=central)
    figures = data_of(page)
    assert list(figures) == ["convergence", "eigenvalues", "agreement", "embedding", "network", "bytes"]
    curves = {trace["name"]: numbers(trace["y"]) for trace in figures["convergence"]["data"]}
    np.testing.assert_array_equal(curves["residual"], model.history_["residual"])
    text = text_of(page)
    assert f"After {model.n_iter_} iterations" in text
    assert "rounds" not in text


def test_the_papers_algorithm_has_curves_and_no_estimate(tmp_path):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(120, 4))
    paper = replace(dekpca.PAPER, max_iter=5)
    model = dekpca.DecentralizedKernelPCA(2, gamma=0.1, network=4, solver=paper, normalize=True, random_state=0)
    with pytest.warns(ConvergenceWarning):
        model.fit(X)
    page = fit_report(tmp_path / "x.html", model)
    assert list(data_of(page)) == ["convergence", "eigenvalues", "network", "bytes"]
    text = text_of(page)
    assert "Not converged." in text
    assert "Stated agreement" not in text


def test_mixed_components_are_marked(tmp_path):
    model, _ = fitted()
    model.mixed_components_ = [(1, 2)]
    page = fit_report(tmp_path / "x.html", model)
    alone, mixed = data_of(page)["agreement"]["data"]
    assert numbers(alone["x"]).tolist() == [1]
    assert numbers(mixed["x"]).tolist() == [2, 3]
    assert alone["marker"]["symbol"] != mixed["marker"]["symbol"]
    assert "Components 2, 3 cannot be told apart" in text_of(page)


def test_numbers_that_are_the_same_at_all_nodes_have_no_colour_scale(tmp_path):
    """All nodes have the same components, so their agreement with central kernel PCA is the same."""
    model, parts = fitted()
    X = np.concatenate(parts)
    page = fit_report(tmp_path / "x.html", model, X, central=baselines.central(X, 3, gamma=0.05))
    choices = re.search(r'<select id="network-choice".*?</select>', page.read_text(encoding="utf-8"), re.DOTALL)[0]
    assert re.findall(r"<option.*?>(.*?)</option>", choices) == ["kB sent", "rows"]


def test_one_library_and_nothing_from_elsewhere(full):
    text = full[0].read_text(encoding="utf-8")
    assert text.count("plotly.js v") == 1
    seen = Seen(text)
    for tag, attributes in seen.tags:
        assert not {"src", "srcset", "data", "action", "poster"} & set(attributes), tag
        assert attributes.get("href", "#").startswith("#")
    own = re.sub(
        r"<script>/\*\*.*?</script>", "", text, count=1, flags=re.DOTALL
    )  # plotly.js speaks of addresses it never asks
    assert len(own) < 600_000
    assert not re.search(r"https?://", own)
    assert not re.search(r"@import|url\(", own)
    policy = next(a["content"] for t, a in seen.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert "default-src 'none'" in policy
    assert "connect-src" not in policy  # falls to default: none
    assert "unsafe-inline" not in policy.partition("script-src")[2].partition(";")[0]  # scripts by their hash only
    assert "unsafe-eval" not in policy


def test_names_are_text(full):
    page, _ = full
    text = page.read_text(encoding="utf-8")
    assert NASTY not in text
    assert html.escape(NASTY, quote=True) in text
    assert len(re.findall(r"<script", text.partition("<body>")[2].partition("plotly.js v")[0])) == 2  # data, library
    nodes = data_of(page)["network"]["data"][-1]
    assert any(html.escape(f"node: {NASTY}", quote=False) in text for text in nodes["hovertext"])  # plotly reads tags


def test_figures_have_words_and_controls_have_labels(full):
    seen = Seen(full[0].read_text(encoding="utf-8"))
    plots = [a for t, a in seen.tags if a.get("class") == "plot"]
    assert len(plots) == 6
    assert all(a["role"] == "img" and len(a["aria-label"]) > 20 for a in plots)
    assert sum(t == "figcaption" for t, _ in seen.tags) == 6
    labelled = {a.get("for") for t, a in seen.tags if t == "label"}
    assert all(a["id"] in labelled for t, a in seen.tags if t == "select")
    ids = [a["id"] for _, a in seen.tags if "id" in a]
    assert len(ids) == len(set(ids))
    anchors = {a["href"][1:] for t, a in seen.tags if t == "a"}
    assert anchors <= set(ids)


def test_one_stage_is_enough(tmp_path):
    model, _ = fitted(sizes=(120, 90), network=dekpca.Network.path(2))
    assert len(model.history_["landmarks"]) == 1
    page = fit_report(tmp_path / "x.html", model)
    text = text_of(page)
    least = np.floor(model.span_accuracy_bound_ * 1e4) / 1e4
    assert f"of the span with central, at least {least:.4f}" in text
    assert "One stage was enough." in text
    for component in model.accuracy_:
        assert f"{np.floor(component * 1e4) / 1e4:.4f}" in text
    assert list(data_of(page)) == ["error", "eigenvalues", "agreement", "network", "bytes"]  # no X: no embedding
    assert "dekpca fit --compare" in text


def test_without_labels_rows_are_coloured_by_node_if_that_is_known(tmp_path):
    model, parts = fitted()
    X = np.concatenate(parts)
    for given, names in (({}, ["rows"]), ({"node_of": model.nodes_}, [f"node {j}" for j in range(4)])):
        traces = data_of(fit_report(tmp_path / "x.html", model, X, **given))["embedding"]["data"]
        assert [trace["name"] for trace in traces] == [*names, "its own rows"]


def test_the_embedding_holds_the_values_of_every_view(full):
    page, model = full
    spec = data_of(page)["embedding"]
    assert len(spec["values"]) == 9  # central, and each node with and without the others
    values = [np.array([np.frombuffer(base64.b64decode(c), "<f4") for c in view]).T for view in spec["values"]]
    X = np.concatenate(fitted(sizes=LARGER)[1])
    mine = model.node_models_[1].transform(X)
    signs = np.sign((mine * values[3]).sum(axis=0))
    np.testing.assert_allclose(values[3], mine * signs, rtol=1e-5, atol=1e-6)
    assert ((values[0] * values[3]).sum(axis=0) > 0).all()  # the central signs
    assert spec["own"][0] == []
    assert spec["own"][3] == spec["own"][4] == np.flatnonzero(model.nodes_ == 1).tolist()
    classes = [trace["customdata"] for trace in spec["data"][:-1]]
    assert sorted(i for rows in classes for i in rows) == list(range(len(X)))


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        (np.arange(125) % 3, 3),
        (np.linspace(0, 1, 125), None),
        (np.array([f"class {i % 30}" for i in range(125)]), 20),
    ],
)
def test_labels_few_many_and_numbers(tmp_path, labels, expected):
    model, parts = fitted()
    page = fit_report(tmp_path / "x.html", model, np.concatenate(parts), labels)
    *classes, _ = data_of(page)["embedding"]["data"]
    assert len(classes) == (expected or 1)
    assert sum(len(trace["customdata"]) for trace in classes) == 125
    assert ("coloraxis" in classes[0]["marker"]) == (expected is None)
    if expected == 20:
        assert classes[-1]["name"] == "others"


def test_not_converged_says_why(tmp_path):
    with pytest.warns(match="not converged"):
        model, _ = fitted(**projection(max_iter=2, tol=1e-12))
    text = text_of(fit_report(tmp_path / "x.html", model))
    assert "Not converged. After 2 iterations" in text


@pytest.mark.parametrize("settings", [{"landmarks": 6}, projection(n_landmarks=5)], ids=["rounds of sums", "iterated"])
def test_an_answer_that_is_not_good_enough_says_so(tmp_path, settings):
    """Also where the iteration itself has ended as it should."""
    with pytest.warns(ConvergenceWarning, match="less accurate than tol=0.001 asks for"):
        model, _ = fitted(**settings)
    text = text_of(fit_report(tmp_path / "x.html", model))
    assert "Less accurate than asked for." in text
    error, bound = 1 - model.span_accuracy_**2, 1 - model.span_accuracy_bound_**2
    assert f"The stated error is {error:.2g}, at most {bound:.2g}, where tol=0.001 is asked for." in text


def test_components_that_are_missing_are_said(tmp_path):
    X = np.random.default_rng(0).normal(size=(120, 2))
    with pytest.warns(ConvergenceWarning, match="are zero"):
        model = dekpca.DecentralizedKernelPCA(4, kernel="linear", network=4, random_state=0).fit(X)
    assert "Components from 3 on are zero: the landmarks see no more" in text_of(fit_report(tmp_path / "x.html", model))
    with pytest.warns(ConvergenceWarning, match="are zero"):
        model = dekpca.DecentralizedKernelPCA(4, kernel="linear", network=4, solver=dekpca.PAPER).fit(X)
    assert "Components from 3 on are zero." in text_of(fit_report(tmp_path / "x.html", model))


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"share_rows": False},
        {"landmarks": 25},
        {"standardize": True, "tol": 1e-6},
        {"landmarks": "random-features", "max_landmarks": 300},
        projection(expansion="landmarks"),
        projection(exchange_noise=0.01),
        {"share_rows": False, "kernel": "linear"},
        {"kernel": "linear"},
        projection() | {"kernel": lambda A, B: A @ B.T},
    ],
)
def test_every_kind_of_model(tmp_path, settings):
    model, parts = fitted(**settings)
    given = {name: value for name, value in settings.items() if name in ("kernel", "standardize")}
    central = baselines.central(parts, 3, gamma=0.05, **given)
    X = np.concatenate(parts)
    page = fit_report(tmp_path / "x.html", model, X, central=central, node_of=model.nodes_)
    figures = data_of(page)
    assert {"network", "agreement", "embedding", "eigenvalues"} <= set(figures)
    if len(model.history_["landmarks"]):
        known = numbers(figures["error"]["data"][1]["y"])
        assert np.isfinite(known if model.n_landmarks_ < len(X) else known[-1:]).all()
        assert known[-1] <= 1.5 * max(model.history_["bound"][-1], 1e-9)


def test_one_node(tmp_path):
    X = np.random.default_rng(0).normal(size=(30, 4))
    model = dekpca.DecentralizedKernelPCA(1, gamma=0.1, random_state=0).fit(X)
    page = fit_report(tmp_path / "x.html", model, X, central=baselines.central(X, 1, gamma=0.1))
    assert "A single node has no neighbors" in text_of(page)


def test_a_process_that_hosts_some_of_the_nodes(tmp_path):
    """A peer, or an MPI rank: the other nodes' models and residuals are elsewhere."""
    model, parts = fitted(dekpca.Network.star(4), **projection())
    del model.node_models_._answers[0]
    here = model.node_models_._numbers = [1, 2, 3]
    if "residual_by_node" in model.history_:
        model.history_["residual_by_node"] = model.history_["residual_by_node"][:, here]
    model.answering_node_ = here[0]
    page = fit_report(tmp_path / "mine.html", model, np.concatenate(parts)).read_text()
    choices = "".join(re.findall(r"<select.*?</select>", page, re.DOTALL))
    assert "residual at the end" not in choices
    assert "kB sent" not in choices
    assert "node 0<" not in choices  # its model is elsewhere


def test_large_networks_are_drawn_in_part(tmp_path, monkeypatch):
    monkeypatch.setattr(measures, "WHOLE", 30)
    monkeypatch.setattr(measures, "PART", 12)
    monkeypatch.setattr(measures, "MEASURED", 7)
    network = dekpca.Network.random(40, degree=4, seed=0)
    model, parts = fitted(network, [5] * 40, k=2)
    central = baselines.central(parts, 2, gamma=0.05)
    page = fit_report(tmp_path / "x.html", model, np.concatenate(parts), central=central)
    text = text_of(page)
    assert f"Of 40 nodes, the 12 nearest to node {network.names[network.root]} are drawn" in text
    assert "of 40 nodes to choose from, evenly picked" in text
    figures = data_of(page)
    assert len(figures["network"]["data"][-1]["hovertext"]) == 12
    assert len(numbers(figures["agreement"]["data"][0]["y"])) == 7 * 2


def test_two_thousand_nodes_and_many_edges_stay_below_the_limit(tmp_path):
    network = dekpca.Network.random(2000, degree=6, seed=0)
    sent = np.ones(2 * network.n_edges)
    drawn = charts.network_figure(network, range(2000), sent, ["x"] * 2000, 0, np.arange(2000.0), "q")
    ends = sum(np.isnan(trace.x).sum() for trace in drawn.data if trace.mode == "lines")
    assert ends == charts.MOST_EDGES < network.n_edges
    assert len(drawn.to_json()) < 500_000


def test_edges_are_as_wide_as_their_traffic(tmp_path):
    network = dekpca.Network.path(4)
    sent = np.where(network.directed_edges.min(axis=1) == 0, 50, 0) + np.where(
        network.directed_edges.min(axis=1) == 1, 20, 0
    )
    drawn = charts.network_figure(network, range(4), sent, [""] * 4, 0, "#000000", "")
    widths = [trace.line.width for trace in drawn.data if trace.mode == "lines"]
    assert len(widths) == 3  # nothing, little and much
    assert widths == sorted(widths)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"labels": [1]}, "labels without X"),
        ({"X": np.ones((3, 2))}, "fitted on 5 columns"),
        ({"X": np.ones((3, 5)), "labels": [1, 2]}, "labels has 2 entries for 3 rows"),
        ({"X": np.ones((3, 5)), "node_of": [0, 1, 9]}, "from 0 to 3"),
    ],
)
def test_bad_input(tmp_path, arguments, message):
    model, _ = fitted()
    with pytest.raises(ValueError, match=message):
        fit_report(tmp_path / "x.html", model, **arguments)
    assert not list(tmp_path.iterdir())


def test_baselines_need_a_model_for_each_node(tmp_path):
    model, parts = fitted()
    central = baselines.central(parts, 3, gamma=0.05)
    with pytest.raises(ValueError, match=r"baselines\['local'\]: 1 models for 4 nodes"):
        fit_report(
            tmp_path / "x.html", model, central=central, baselines={"local": baselines.local(parts[:1], 3, gamma=0.05)}
        )


def test_the_snippet_fits_the_same_model(full):
    page, model = full
    code = html.unescape(re.search(r'aria-label="Python code"><code>(.*?)</code>', page.read_text(), re.DOTALL)[1])
    rng = np.random.default_rng(0)
    parts = [rng.normal(size=(n, 5)) * np.geomspace(2, 0.5, 5) + rng.normal(size=5) for n in LARGER]
    names = {"X": np.concatenate(parts), "node_of": np.repeat(np.arange(4), [len(p) for p in parts])}
    exec(code, names)
    np.testing.assert_array_equal(names["model"].eigenvalues_, model.eigenvalues_)


@pytest.mark.parametrize(
    ("network", "code"),
    [
        (dekpca.Network.ring(7), "dekpca.Network.ring(7, 2),"),
        (dekpca.Network.path(3), "dekpca.Network.path(3),"),
        (dekpca.Network.complete(4), "dekpca.Network.complete(4),"),
        (dekpca.Network.random(100, degree=4, seed=1), "...,  # your network of 100 nodes and 200 edges"),
    ],
)
def test_networks_are_written_as_code(network, code):
    from dekpca.report.settings import network_code

    assert network_code(network) == code


def test_experiment(tmp_path):
    rows = [{"nodes": j, "method": NASTY if j % 2 else "local", "similarity": 1 / (j + 1)} for j in range(700)]
    figure = charts.bar_figure({"dekpca": [1.0, 2.0], "local": [3.0, 4.0]}, ["10", "20"], "nodes", "similarity")
    page = experiment_report(
        tmp_path / "e.html", "Nodes", [("First", "What it shows.", figure)], rows, {"command": "dekpca reproduce nodes"}, "Text."
    )  # fmt: skip
    text = page.read_text(encoding="utf-8")
    assert page.stat().st_size < LIMIT
    assert NASTY not in text
    seen = Seen(text)
    assert "The first 500 of 700 rows" in seen.text
    assert sum(t == "tr" for t, _ in seen.tags) >= 501
    assert "dekpca reproduce nodes" in seen.text
    assert list(data_of(page)) == ["figure-1"]


def test_experiment_without_rows(tmp_path):
    page = experiment_report(tmp_path / "e.html", "Nothing", [], [])
    assert Seen(page.read_text(encoding="utf-8")).headings == ["Nothing", "Settings"]


def test_cells_and_sizes_are_short():
    assert [cell_text(c) for c in (12345, 0.999512345, 1.5e-9, None, np.nan, "a")] == ["12,345", "0.9995", "1.5e-09", "–", "–", "a"]  # fmt: skip
    assert [in_bytes(n) for n in (812, 71_300, 7.2e6)] == ["812 B", "71.3 kB", "7.2 MB"]


def test_too_large_a_page_warns(tmp_path):
    import plotly.graph_objects as go

    figure = go.Figure(go.Scatter(y=np.random.default_rng(0).random(200_000)))
    with pytest.warns(UserWarning, match="more than 6; draw fewer points"):
        experiment_report(tmp_path / "e.html", "Large", [("Much", "Too much.", figure)], [])


@pytest.mark.slow
def test_without_plotly_the_extra_is_named():
    code = "import sys; sys.modules['plotly'] = None\nimport dekpca.report.panels, dekpca.plot\nfrom dekpca.report import fit_report"
    result = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert "pip install 'dekpca[report]'" in result.stderr


def test_scores_of_all_rows(tmp_path):
    """As many rows beyond the threshold as scores say, and which they are."""
    model, parts = fitted(contamination=0.1)
    X = np.concatenate(parts)
    beyond = np.flatnonzero(model.score_samples(X) < model.offset_)
    assert 5 < len(beyond) < 20  # all of them are listed
    page = fit_report(tmp_path / "fit.html", model, X, node_of=model.nodes_)
    seen = Seen(page.read_text(encoding="utf-8"))
    assert "Scores" in seen.headings
    assert f"Of the {len(X)} rows of the fit, {len(beyond)} are beyond" in seen.text
    within, out = (numbers(trace["y"]) for trace in data_of(page)["scores"]["data"][:2])
    assert (within.sum(), out.sum()) == (len(X) - len(beyond), len(beyond))
    listed = seen.text.split("Rows of X beyond the threshold")[-1]
    assert all(re.search(rf"\b{row}\b", listed) for row in beyond)
    assert "Scores" not in Seen(fit_report(tmp_path / "no.html", fitted()[0]).read_text(encoding="utf-8")).headings
