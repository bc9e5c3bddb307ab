"""The HTML report as text: what is in it, that nothing in it comes from elsewhere, that names cannot run. Its looks: test_report_browser.py."""

from __future__ import annotations

import html
import json
import re
import subprocess
import sys
from html.parser import HTMLParser

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

import dekpca
from dekpca import baselines
from dekpca.report import charts, experiment_report, fit_report, measures
from dekpca.report.page import LIMIT

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


def fitted(network=None, sizes=(40, 30, 20, 35), k=3, **settings):
    """By the projection solver, unless they say otherwise: it has residuals to show."""
    settings = {"solver": "projection", "landmarks": 40, **settings}
    rng = np.random.default_rng(0)
    parts = [rng.normal(size=(n, 5)) * np.geomspace(2, 0.5, 5) + rng.normal(size=5) for n in sizes]
    network = network or dekpca.Network.ring(len(sizes))
    model = dekpca.DecentralizedKernelPCA(k, gamma=0.05, network=network, random_state=0, **settings).fit_parts(parts)
    return model, parts


@pytest.fixture(scope="module")
def full(tmp_path_factory):
    """A page with every section filled, by nodes with names that must not run."""
    network = dekpca.Network.from_edges([(NASTY, "rome"), ("rome", "oslo"), ("oslo", "bonn"), ("bonn", NASTY)])
    model, parts = fitted(network)
    model.history_ |= {
        "edges": network.directed_edges,
        "edge_bytes": np.arange(1, 9) * 1000,
        "seconds": {"data": 0.25, "share": 1.0},
    }
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


def test_everything_is_there_and_small(full):
    page, model = full
    assert page.stat().st_size < LIMIT
    seen = Seen(page.read_text(encoding="utf-8"))
    for heading in ("The network", "Convergence", "How close", "The embedding", "Eigenvalues", "What was sent", "Time", "Settings"):  # fmt: skip
        assert any(heading in h for h in seen.headings), heading
    figures = data_of(page)["figures"]
    assert list(figures) == ["network", "convergence", "similarity", "embedding", "eigenvalues", "variance", "bytes", "edges", "time"]  # fmt: skip
    assert "Give " not in seen.text
    assert "Converged." in seen.text
    assert f"After {model.n_iter_} iterations" in seen.text
    names = [trace["name"] for trace in figures["similarity"]["data"]]
    assert names == ["dekpca", "local", "neighborhood", "oracle"]
    for name in ("numpy", "scipy", "scikit-learn", "Python", dekpca.__version__):
        assert name in seen.text


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
    network = data_of(page)["figures"]["network"]
    nodes = next(t for t in network["data"] if t.get("name") == "nodes")
    assert (
        html.escape(f"node {NASTY}", quote=False) in nodes["hovertext"][0] + nodes["hovertext"][1]
    )  # plotly reads tags
    assert any(f"node {NASTY}" in lines for lines in network["details"])  # the page's script sets it as text


def test_figures_have_words_and_controls_have_labels(full):
    seen = Seen(full[0].read_text(encoding="utf-8"))
    plots = [a for t, a in seen.tags if a.get("class") == "plot"]
    assert len(plots) == 9
    assert all(a["role"] == "img" and len(a["aria-label"]) > 20 for a in plots)
    assert sum(t == "figcaption" for t, _ in seen.tags) == 9
    labelled = {a.get("for") for t, a in seen.tags if t == "label"}
    assert all(a["id"] in labelled for t, a in seen.tags if t == "select")
    ids = [a["id"] for _, a in seen.tags if "id" in a]
    assert len(ids) == len(set(ids))
    anchors = {a["href"][1:] for t, a in seen.tags if t == "a"}
    assert anchors <= set(ids)


def test_a_fit_without_iterations(tmp_path):
    model, parts = fitted(solver="auto", landmarks="auto")
    central = baselines.central(parts, 3, gamma=0.05)
    page = fit_report(tmp_path / "x.html", model, np.concatenate(parts), central=central)
    assert list(data_of(page)["figures"]) == ["network", "similarity", "embedding", "eigenvalues", "variance", "bytes", "edges", "time"]  # fmt: skip
    text = Seen(page.read_text(encoding="utf-8")).text
    assert "Converged. No iterations were needed: the answer comes in one shot." in text
    assert "This solver answers in one shot" in text
    assert len(model.history_["landmarks"]) > 0
    for m, error in zip(model.history_["landmarks"], model.history_["error"], strict=True):
        assert f"{m} landmarks {error:.2g}" in text
    least = np.floor(model.span_accuracy_bound_ * 1e4) / 1e4
    assert f"of the span of all components with central, at least {least:.4f}; {model.n_landmarks_} landmarks" in text
    assert "residual at the end" not in text
    for component in model.accuracy_:
        assert f"{np.floor(component * 1e4) / 1e4:.4f}" in text


def test_what_is_missing_is_said(tmp_path):
    model, _ = fitted()
    for key in ("seconds", "edges", "edge_bytes"):  # a model of another version may lack them
        del model.history_[key]
    page = fit_report(tmp_path / "bare.html", model)
    seen = Seen(page.read_text(encoding="utf-8"))
    for sentence in (
        "Give central=",
        "Give X to see its rows",
        "Give central to compare",
        "has seconds",
        "edges and edge_bytes",
        "give central and X to see it",
    ):
        assert sentence in seen.text, sentence
    assert list(data_of(page)["figures"]) == ["network", "convergence", "eigenvalues", "variance", "bytes"]


def test_without_labels_or_owners_the_embedding_is_plain(tmp_path):
    model, parts = fitted()
    page = fit_report(tmp_path / "x.html", model, np.concatenate(parts))
    embedding = data_of(page)["figures"]["embedding"]
    assert [c["label"] for c in embedding["colorings"]] == ["nothing"]
    assert embedding["owner"] is None
    assert "Give labels" in Seen(page.read_text(encoding="utf-8")).text


def test_the_embedding_holds_the_values_of_every_view(full):
    import base64

    page, model = full
    spec = data_of(page)["figures"]["embedding"]
    raw = np.frombuffer(base64.b64decode(spec["values"]), "<i2").reshape(len(spec["views"]), 3, spec["points"])
    low, high = np.array(spec["ranges"]).T
    values = low[:, None] + (raw.astype(float) + 32767) / 65534 * (high - low)[:, None]
    assert len(spec["views"]) == 5
    node = spec["views"][2]["node"]
    sizes = model.node_sizes_
    rng = np.random.default_rng(0)
    parts = [rng.normal(size=(n, 5)) * np.geomspace(2, 0.5, 5) + rng.normal(size=5) for n in sizes]
    mine = model.node_models_[node].transform(np.concatenate(parts))
    signs = np.sign((mine * values[2].T).sum(axis=0))
    step = (high - low).max() / 65534  # a quarter of a pixel on no screen
    np.testing.assert_allclose(values[2].T, mine * signs, atol=step)
    assert ((values[0] * values[2]).sum(axis=1) > 0).all()  # the central signs


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
    coloring = data_of(page)["figures"]["embedding"]["colorings"][0]
    assert len(coloring.get("classes", [])) == (expected or 0)
    assert len(coloring["of"]) == 125
    if expected == 20:
        assert coloring["classes"][-1] == "others"


def test_not_converged_says_why(tmp_path):
    with pytest.warns(match="not converged"):
        model, _ = fitted(max_iter=2, tol=1e-12)
    text = Seen(fit_report(tmp_path / "x.html", model).read_text(encoding="utf-8")).text
    assert "Not converged. It ran into max_iter=2" in text


@pytest.mark.parametrize(
    "settings", [{"solver": "auto", "landmarks": 6}, {"landmarks": 5}], ids=["one shot", "iterated"]
)
def test_an_answer_that_is_not_good_enough_says_so(tmp_path, settings):
    """Also where the iteration itself has ended as it should."""
    with pytest.warns(ConvergenceWarning, match="less accurate than tol=0.001 asks for"):
        model, _ = fitted(**settings)
    text = Seen(fit_report(tmp_path / "x.html", model).read_text(encoding="utf-8")).text
    assert "Not converged. The components are estimated to be less accurate than tol=0.001 asks for" in text
    assert f"span_accuracy_ is {model.span_accuracy_:.4f}" in text
    assert "interrupted or diverged" not in text


@pytest.mark.parametrize(
    "settings",
    [
        {"solver": "auto", "landmarks": "auto"},
        {"solver": "auto", "landmarks": "auto", "share_rows": False},
        {"solver": "auto", "landmarks": 25},
        {"solver": "landmarks", "landmarks": "random-features", "max_landmarks": 300},
        {"expansion": "landmarks"},
        {"exchange_noise": 0.01},
        {"share_rows": False, "solver": "auto", "landmarks": "auto", "kernel": "linear"},
        {"solver": "auto", "kernel": "linear"},
        {"kernel": lambda A, B: A @ B.T},
    ],
)
def test_every_kind_of_model(tmp_path, settings):
    model, parts = fitted(**settings)
    kernel = settings.get("kernel", "rbf")
    central = baselines.central(parts, 3, kernel=kernel, gamma=0.05)
    page = fit_report(tmp_path / "x.html", model, np.concatenate(parts), central=central)
    figures = data_of(page)["figures"]
    assert {"network", "similarity", "embedding", "eigenvalues"} <= set(figures)
    assert "agreement" in Seen(page.read_text(encoding="utf-8")).text


def test_one_node(tmp_path):
    X = np.random.default_rng(0).normal(size=(30, 4))
    model = dekpca.DecentralizedKernelPCA(1, gamma=0.1, random_state=0).fit(X)
    page = fit_report(tmp_path / "x.html", model, X, central=baselines.central(X, 1, gamma=0.1))
    assert "a single node has no neighbors" in Seen(page.read_text(encoding="utf-8")).text


def test_a_process_that_hosts_some_of_the_nodes(tmp_path):
    """A peer, or an MPI rank: the other nodes' models and residuals are elsewhere."""
    model, parts = fitted(dekpca.Network.star(4))
    mine = [answer for answer in model.node_models_._answers if 0 not in answer.block.nodes]
    numbers = np.concatenate([answer.block.nodes for answer in mine])
    model.history_["residual_by_node"] = model.history_["residual_by_node"][:, np.sort(numbers)]
    model.node_models_ = dekpca.node_model.NodeModels(
        mine, model.expansion, model.node_models_._options, model._features
    )
    model.answering_node_ = int(numbers[0])
    page = fit_report(tmp_path / "mine.html", model, np.concatenate(parts)).read_text()
    worst = int(np.sort(numbers)[np.argmax(model.history_["residual_by_node"][-1])])
    assert f"worst node&#x27;s ({worst})" in page
    assert not any("residual at the end" in s for s in re.findall(r"<select.*?</select>", page, re.DOTALL))


def test_large_networks_are_drawn_in_part(tmp_path, monkeypatch):
    monkeypatch.setattr(measures, "WHOLE", 30)
    monkeypatch.setattr(measures, "PART", 12)
    monkeypatch.setattr(measures, "MEASURED", 7)
    network = dekpca.Network.random(40, degree=4, seed=0)
    model, parts = fitted(network, [5] * 40, k=2)
    central = baselines.central(parts, 2, gamma=0.05)
    page = fit_report(tmp_path / "x.html", model, np.concatenate(parts), central=central)
    text = Seen(page.read_text(encoding="utf-8")).text
    worst = network.names[int(np.argmax(model.history_["residual_by_node"][-1]))]
    assert f"Of 40 nodes, 12 are drawn: those nearest to node {worst}" in text
    assert "7 measured" in text
    assert "of 40 nodes, evenly picked" in text
    assert len(data_of(page)["figures"]["network"]["details"]) == 12


def test_two_thousand_nodes_and_many_edges_stay_below_the_limit(tmp_path):
    network = dekpca.Network.random(2000, degree=6, seed=0)
    drawn, patches, all_edges = charts.network_figure(
        network, range(2000), [charts.Quantity("q", np.arange(2000.0), True)], ["x"] * 2000
    )
    assert not all_edges
    assert len(drawn.to_json()) < 500_000
    assert len(patches) == 1


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
    parts = [rng.normal(size=(n, 5)) * np.geomspace(2, 0.5, 5) + rng.normal(size=5) for n in (40, 30, 20, 35)]
    names = {"X": np.concatenate(parts), "node_of": np.repeat(np.arange(4), [len(p) for p in parts])}
    exec(code, names)
    np.testing.assert_array_equal(names["model"].eigenvalues_, model.eigenvalues_)


@pytest.mark.parametrize(
    ("network", "code"),
    [
        (dekpca.Network.ring(7), "dekpca.Network.ring(7, neighbors=2)"),
        (dekpca.Network.grid(3, 4), "dekpca.Network.grid(3, 4)"),
        (dekpca.Network.path(3), "dekpca.Network.path(3)"),
        (dekpca.Network.complete(4), "dekpca.Network.complete(4)"),
        (dekpca.Network.random(100, degree=4, seed=1), "...  # your network of 100 nodes and 200 edges"),
    ],
)
def test_networks_are_written_as_code(network, code):
    from dekpca.report.reproduce import network_code

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
    assert list(data_of(page)["figures"]) == ["figure-1"]


def test_experiment_without_rows(tmp_path):
    page = experiment_report(tmp_path / "e.html", "Nothing", [], [])
    assert "gave no rows" in Seen(page.read_text(encoding="utf-8")).text


def test_too_large_a_page_warns(tmp_path):
    import plotly.graph_objects as go

    figure = go.Figure(go.Scatter(y=np.random.default_rng(0).random(200_000)))
    with pytest.warns(UserWarning, match="more than 6; draw fewer points"):
        experiment_report(tmp_path / "e.html", "Large", [("Much", "Too much.", figure)], [])


def test_without_plotly_the_extra_is_named():
    code = (
        "import sys; sys.modules['plotly'] = None\nimport dekpca.report.figures\nfrom dekpca.report import fit_report"
    )
    result = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert "pip install 'dekpca[report]'" in result.stderr
