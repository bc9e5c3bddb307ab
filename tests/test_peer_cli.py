"""`dekpca node`: configs are checked, nothing leaves before somebody has agreed, and simulated nodes are real ones."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
import urllib.request

import numpy as np
import pytest
from typer.testing import CliRunner

from dekpca import DecentralizedKernelPCA, Network
from dekpca.cli import app
from dekpca.columns import Features
from dekpca.engines.peer import status
from dekpca.engines.peer.config import ConfigError, check_loopback, read
from dekpca.engines.peer.disclosure import disclosure, leaves_rows
from dekpca.node_model import NodeModel
from peer_nodes import PATIENCE, Nodes, join, problem

GOOD = """name = "oslo"
run = "r"
listen = "127.0.0.1:7070"
data = "oslo.npy"
folder = "oslo-run"
[neighbors]
rome = "127.0.0.1:7071"
[model]
n_components = 2
"""


@pytest.fixture
def config(tmp_path):
    np.save(tmp_path / "oslo.npy", np.random.default_rng(0).normal(size=(30, 4)))

    def write(text=GOOD):
        path = tmp_path / "node.toml"
        path.write_text(text)
        return path

    return write


def test_a_good_config(config):
    path = config()
    settings = read(path)
    assert settings.data == path.parent / "oslo.npy"
    assert settings.model_file == path.parent / "oslo-run" / "oslo.npz"
    assert settings.estimator().landmarks == "kmeans"  # the careful default


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("name", "nmae"), "no setting 'nmae'; did you mean 'name'?"),
        (('run = "r"\n', ""), "run missing"),
        (('"r"', "7"), "run = 7; it must be a text"),
        (("127.0.0.1:7070", "127.0.0.1"), "'127.0.0.1' is no address; write host:port"),
        (("127.0.0.1:7071", "127.0.0.1:99999"), "no address"),
        (("rome =", "oslo ="), "lists itself as a neighbor"),
        (('rome = "127.0.0.1:7071"\n', ""), "no neighbors"),
        (("n_components = 2", "n_component = 2"), "no setting 'n_component'; did you mean 'n_components'?"),
        (("n_components = 2", 'engine = "local"'), "[model] engine cannot be set here"),
        (("n_components = 2", 'random_state = "x"'), "random_state='x'; it must be a whole number"),
        (("[neighbors]", "peer_timeout = -1\n[neighbors]"), "peer_timeout=-1; it must be above 0"),
        (("[neighbors]", "checkpoint_apart = -1\n[neighbors]"), "checkpoint_apart=-1; it must not be below 0"),
        (("[neighbors]", "[neighbors"), "not TOML"),
    ],
)
def test_a_bad_config_says_what_to_do(config, change, says):
    with pytest.raises(ConfigError) as caught:
        read(config(GOOD.replace(*change, 1)))
    assert says in str(caught.value)
    assert "node.toml" in str(caught.value)


@pytest.mark.parametrize("address", ["0.0.0.0:7070", "192.0.2.1:7070", "localhost:7070", "[::1]:7070"])
def test_without_certificates_only_loopback(config, address):
    for before in ("127.0.0.1:7070", "127.0.0.1:7071"):
        with pytest.raises(ConfigError, match=r"127\.0\.0\.0/8 only"):
            check_loopback(read(config(GOOD.replace(before, address))))
    check_loopback(read(config(GOOD.replace("127.0.0.1:7070", "127.9.9.9:7070"))))


def test_no_certificates_no_run(config):
    done = CliRunner().invoke(app, ["node", "run", str(config()), "--yes"])
    assert done.exit_code == 2
    assert "certificate, key, ca not given" in done.output


def test_nothing_leaves_before_somebody_has_agreed(config):
    done = CliRunner().invoke(app, ["node", "run", str(config()), "--insecure-loopback"])
    assert done.exit_code == 2
    assert "all 30 rows of 4 columns" in done.output
    assert "to your neighbors: rome" in done.output
    assert "give --yes" in done.output
    assert not (config().parent / "oslo-run").exists()


# docs/privacy.md, "In one table": does a row of a node's data leave it?
@pytest.mark.parametrize(
    ("settings", "rows"),
    [
        ({}, True),
        ({"landmarks": "kmeans"}, True),
        ({"solver": "landmarks"}, True),
        ({"solver": "landmarks", "landmarks": "kmeans"}, False),
        ({"solver": "landmarks", "landmarks": np.eye(4)}, False),
        ({"solver": "landmarks", "landmarks": "random-features"}, False),
    ],
)
def test_what_is_said_to_leave(settings, rows):
    model = DecentralizedKernelPCA(2, gamma=0.1, standardize=True, **settings)
    options = model._options(Features(4), 0)
    said = disclosure(options, model.n_landmarks, 30, 4, ["rome"])
    assert leaves_rows(options, model.n_landmarks) == rows
    text = " | ".join(what for what, _ in said)
    assert ("rows of 4 columns" in text or "of the rows, drawn as landmarks" in text) == rows
    assert ("means of clusters" in text) == (isinstance(model.landmarks, str) and model.landmarks == "kmeans")
    assert "sums of each column" in text
    assert all(whom.startswith(("to every node", "to your neighbors", "in sums")) for _, whom in said)


def test_simulated_nodes_are_real_ones(tmp_path):
    out = tmp_path / "peers"
    done = CliRunner().invoke(app, ["node", "simulate", "--nodes", "3", "--out", str(out), "--json", "-k", "3"])
    assert done.exit_code == 0, done.output
    result = json.loads(done.output)
    assert result["failed"] == {}
    models = {name: NodeModel.load(said["model"]) for name, said in result["nodes"].items()}
    assert sorted(models) == ["node-0", "node-1", "node-2"]
    parts = {name: np.load(out / f"{name}.npy") for name in models}
    ring = Network.from_edges([("node-0", "node-1"), ("node-1", "node-2"), ("node-2", "node-0")])
    local = DecentralizedKernelPCA(3, gamma="scale", landmarks="kmeans", random_state=0, network=ring).fit_parts(parts)
    for name, model in models.items():
        np.testing.assert_allclose(model.eigenvalues_, local.eigenvalues_, rtol=1e-9)
        np.testing.assert_allclose(
            model.transform(parts["node-0"][:9]), local.node_models_[name].transform(parts["node-0"][:9]), atol=1e-6
        )
    log = [json.loads(line) for line in (out / "node-0.log").read_text().splitlines() if line.startswith("{")]
    assert [entry["message"] for entry in log][-1] == "finished"
    again = CliRunner().invoke(app, ["node", "run", str(out / "node-0.toml"), "--yes"])
    assert again.exit_code == 0
    assert "was finished before" in again.output
    assert CliRunner().invoke(app, ["node", "simulate", "--out", str(out)]).exit_code == 2  # not empty


def test_nodes_that_disagree_say_so_also_to_who_comes_late_until_their_owner_has_enough(tmp_path):
    out = tmp_path / "peers"
    made = CliRunner().invoke(
        app, ["node", "simulate", "--nodes", "3", "--network", "path:3", "--out", str(out), "--write-only"]
    )
    assert made.exit_code == 0, made.output
    config = out / "node-0.toml"
    config.write_text(re.sub(r'"tol" = .*', '"tol" = 0.5', config.read_text()))
    command = [sys.executable, "-m", "dekpca.cli", "node", "run", "--yes"]
    first, middle = (
        subprocess.Popen([*command, out / f"node-{j}.toml"], stderr=subprocess.PIPE, text=True) for j in (0, 1)
    )
    try:
        said = first.communicate(timeout=PATIENCE)[1]
        assert first.returncode == 2, said  # correct the config; nothing is gained by starting again as it is
        assert "tol: node" in said.splitlines()[-1]
        line = next(line for line in middle.stderr if re.search("waiting up to 60 s to tell node .*node-2 why", line))
        assert "tol: node" in json.loads(line)["why"]
        since = time.monotonic()
        middle.send_signal(signal.SIGINT)
        said = middle.communicate(timeout=PATIENCE)[1]
        assert time.monotonic() - since < 30
        assert middle.returncode == 2
        assert "tol: node" in said.splitlines()[-1]
    finally:
        for process in (first, middle):
            process.kill()
            process.communicate()


def test_metrics_and_the_page(tmp_path):
    network = Network.path(2)
    parts, options = problem(network)
    nodes = Nodes(tmp_path, network, parts, options, run="<run>")
    join([nodes.start(name) for name in network.names])
    assert not nodes.errors
    station = nodes.sessions["0"].station
    with status.served(station, "127.0.0.1:0") as address:
        page = urllib.request.urlopen(f"http://{address}/", timeout=30).read().decode()
        metrics = urllib.request.urlopen(f"http://{address}/metrics", timeout=30).read().decode()
        with pytest.raises(urllib.error.HTTPError):
            urllib.request.urlopen(f"http://{address}/other", timeout=30)
    assert "Node 0" in page
    assert "&lt;run&gt;" in page
    assert "<script" not in page
    assert "http" not in page.replace("http-equiv", "")  # nothing from elsewhere
    values = dict(line.rsplit(" ", 1) for line in metrics.splitlines() if not line.startswith("#"))
    assert float(values["dekpca_iteration"]) == options.max_iter
    assert float(values['dekpca_peer_sent_bytes_total{peer="1"}']) > 20 * 5 * 8
    assert "iteration" in status.line(station) or "done" in status.line(station)
