"""`dekpca node`: configs are checked, nothing leaves before somebody has agreed, and simulated nodes are real ones."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from dekpca import PAPER, DecentralizedKernelPCA, Network, Projection
from dekpca.cli import app
from dekpca.data.columns import Features
from dekpca.node_model import NodeModel
from dekpca.parameters import Parameters, check, settings_of
from dekpca.peers.app import status
from dekpca.peers.app.config import Config, ConfigError, check_loopback, read
from dekpca.peers.app.disclosure import disclosure, too_few
from dekpca.peers.app.node import prepare
from dekpca.peers.errors import Disagreement
from dekpca.peers.protocol.handshake import HandshakeSettings
from dekpca.peers.protocol.node import Timeouts
from faults.supervisor import until
from peer_nodes import PATIENCE, Nodes, change, join, problem, protocol
from test_file_modes import open_to_others

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
    assert settings.parameters().share_rows is False  # the careful default
    assert settings.parameters().landmarks == settings.parameters().solver == "auto"
    assert read(config(GOOD + "share_rows = true\n")).parameters().share_rows is True


CERTIFIED = 'certificate = "oslo.crt"\nkey = "oslo.key"\nca = "ca.crt"\n' + GOOD


@pytest.mark.parametrize(
    ("text", "secure"),
    [
        (CERTIFIED, True),
        (CERTIFIED + "landmarks = 40\n", True),
        (CERTIFIED + 'landmarks = "random-features"\n', True),
        (CERTIFIED + 'privacy = "none"\n', False),
        (GOOD, False),  # --insecure-loopback: there are no keys to sign with
        (GOOD + 'privacy = "secure-sums"\n', True),
        (CERTIFIED + 'solver = "projection"\nshare_rows = true\n', False),
        (CERTIFIED + 'solver = "paper"\nshare_rows = true\n', False),
        (CERTIFIED + "solver.diagnostics = true\nshare_rows = true\n", False),
    ],
)
def test_between_owners_sums_are_secure_unless_they_cannot_be(config, text, secure):
    found = read(config(text)).parameters()
    assert (found.privacy == "secure-sums") is secure
    check(found)
    prepared = prepare(read(config(text)))
    assert prepared.settings.sealed is secure
    assert prepared.settings.owners_apart is not secure


def test_two_members_without_secure_sums_are_refused_before_anybody_is_called(config):
    def prepared(more):
        return prepare(read(config(CERTIFIED.replace("[neighbors]", f"{more}\n[neighbors]"))))

    with pytest.raises(ConfigError, match=r"secure sums of 2 nodes: 3 nodes are needed; .*allow_two = true"):
        prepared('members = ["oslo", "rome"]')
    for more in ('members = ["oslo", "rome"]\nallow_two = true', 'members = ["oslo", "rome", "bonn"]', ""):
        here = prepared(more)
        assert bool(too_few(True, here.config)) is (not more)  # without members there may be others
    assert "secure sums, if only 2 nodes take part" in too_few(True, here.config)
    prepare(read(config(GOOD.replace("[neighbors]", 'members = ["oslo", "rome"]\n[neighbors]'))))  # sums in clear


def test_a_difference_in_missing_values_has_the_name_that_owners_write(config):
    compared = [
        HandshakeSettings(prepare(read(config(f'missing = "{missing}"\n{GOOD}'))).facts)
        for missing in ("mean", "error", "drop")
    ]
    with pytest.raises(
        Disagreement, match=r"^missing: node oslo has 'mean', node rome has 'error, or drop'; give both"
    ):
        compared[0].compare("oslo", "rome", compared[1])
    compared[1].compare("oslo", "rome", compared[2])


def test_every_setting_is_in_the_docs():
    text = (Path(__file__).parent.parent / "docs" / "reference" / "node-toml.md").read_text(encoding="utf-8")
    for field in fields(Config):
        assert field.name == "path" or re.search(rf"(`|^    |\[){field.name}(`|\]| =)", text, re.MULTILINE), field.name


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
        (
            ("[neighbors]\nrome", 'members = ["bonn", "oslo", "rome"]\n[neighbors]\nbonn = "127.0.0.1:1"\nrmoe'),
            "members lacks rmoe (did you mean 'rome'?); correct the name",
        ),
        (
            ("oslo", 'olso"\nmembers = ["oslo", "rome"]\n# "'),
            "members lacks olso (did you mean 'oslo'?); correct the name",
        ),
        (
            ("[neighbors]", 'members = ["oslo", "bonn"]\n[neighbors]'),
            "members lacks rome; correct the name, or name all",
        ),
        (("n_components = 2", "n_component = 2"), "no setting 'n_component'; did you mean 'n_components'?"),
        (("n_components = 2", 'engine = "local"'), "[model] engine cannot be set here"),
        (
            ("n_components = 2", 'memory_limit = "1GB"'),
            "[model] memory_limit cannot be set here: it is for engine='local'",
        ),
        (("n_components = 2", 'device = "cuda"'), "[model] device cannot be set here: it is for engine='local'"),
        (("n_components = 2", 'random_state = "x"'), "random_state='x'; it must be a whole number"),
        (("[neighbors]", "peer_timeout = -1\n[neighbors]"), "peer_timeout=-1; it must be above 0"),
        (("[neighbors]", "checkpoint_every = 5\n[neighbors]"), "no setting 'checkpoint_every'"),
        (("[neighbors]", "[neighbors"), "not TOML"),
        (("[neighbors]", "progress_timeout = 0\n[neighbors]"), "progress_timeout=0; it must be above 0"),
        (("[neighbors]", "secret_columns = 1\n[neighbors]"), "secret_columns = 1; it must be true or false"),
    ],
)
def test_a_bad_config_says_what_to_do(config, change, says):
    with pytest.raises(ConfigError) as caught:
        read(config(GOOD.replace(*change, 1)))
    assert says in str(caught.value)
    assert "node.toml" in str(caught.value)


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ('out = "oslo.npy"', r"out = .*oslo\.npy: would overwrite data, which is read; choose another path"),
        ('report = "./oslo-run/../oslo.npy"', "report = .*: would overwrite data"),
        ('add = "oslo-run/oslo.npz"', "out = .*: would overwrite add"),
        ('add = "new.stream.npz"\nout = "new.npz"', "the stream beside out = .*: would overwrite add"),
        ('add = "new.adding.json"\nout = "new.npz"', "the note beside out = .*: would overwrite add"),
        *((f'{key} = "x"\nout = "x"', f"out = .*: would overwrite {key}") for key in ("certificate", "key", "ca")),
    ],
)
def test_what_a_node_reads_is_not_overwritten(config, more, says):
    with pytest.raises(ConfigError, match=says):
        read(config(GOOD.replace("[neighbors]", f"{more}\n[neighbors]")))


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
    assert "means of clusters of at least 5 rows" in done.output
    assert "of the rows, as landmarks" not in done.output
    assert "rows of 4 columns" not in done.output
    assert "give --yes" in done.output
    iterating = config(GOOD + 'solver = "projection"\nshare_rows = true\n')
    done = CliRunner().invoke(app, ["node", "run", str(iterating), "--insecure-loopback"])
    assert done.exit_code == 2
    assert "all 30 rows of 4 columns" in done.output
    assert "to your neighbors: rome" in done.output
    assert "give --yes" in done.output
    assert not (config().parent / "oslo-run").exists()


@pytest.mark.parametrize(("end", "code"), [("n\n", 2), ("\x04", 2), (signal.SIGINT, 130)])
def test_who_is_asked_and_does_not_agree_reads_that_nothing_was_sent(config, end, code):
    """On a terminal: a refusal, Ctrl-D and Ctrl-C."""
    ours, its = os.openpty()
    command = [sys.executable, "-m", "dekpca.cli", "node", "run", str(config()), "--insecure-loopback"]
    asked = subprocess.Popen(command, stdin=its, stdout=its, stderr=its)
    said = b""
    try:
        while b"[y/N]: " not in said:
            said += os.read(ours, 1 << 16)
        if isinstance(end, str):
            os.write(ours, end.encode())
        else:
            time.sleep(0.2)  # until it reads
            asked.send_signal(end)
        assert asked.wait(PATIENCE) == code
        said = os.read(ours, 1 << 16)
    finally:
        asked.kill()
        asked.wait()
        os.close(ours)
        os.close(its)
    assert said.endswith(b"error: nothing was sent\r\n")
    assert b"Aborted" not in said


def test_rows_do_not_go_to_neighbors_unasked(config):
    path = config("start_timeout = 2\n" + GOOD + 'solver = "projection"\n')
    done = CliRunner().invoke(app, ["node", "run", str(path), "--insecure-loopback", "--yes"])
    assert done.exit_code == 2
    assert "share_rows=False: its nodes exchange rows" in done.output
    assert not (path.parent / "oslo-run").exists()


# docs/explanation/privacy.md, "In one table": does a row of a node's data leave it?
@pytest.mark.parametrize(
    ("settings", "rows"),
    [
        ({}, True),
        ({"share_rows": False}, False),
        ({"privacy": "secure-sums"}, True),
        ({"privacy": "secure-sums", "share_rows": False}, False),
        ({"landmarks": 20}, True),
        ({"landmarks": 20, "share_rows": False}, False),
        ({"solver": Projection()}, True),
        ({"solver": Projection(), "landmarks": np.eye(4)}, True),
        ({"solver": PAPER}, True),
        ({"landmarks": np.eye(4)}, False),
        ({"landmarks": "random-features"}, False),
    ],
)
def test_what_is_said_to_leave(settings, rows):
    model = DecentralizedKernelPCA(2, gamma=0.1, standardize=True, **settings)
    asked = settings_of(model, Features(4), 0)
    said = list(disclosure(asked, 30, 4, ["rome"]))
    text = " | ".join(what for what, _ in said)
    assert ("rows of 4 columns" in text or "of the rows, as landmarks" in text) == rows
    clusters = isinstance(model.landmarks, int) or (isinstance(model.landmarks, str) and model.landmarks == "auto")
    clusters, iterating, secure = clusters and model.solver != PAPER, model.solver != "auto", model.privacy is not None
    assert ("means of clusters" in text) == clusters
    assert ("the sum of the rows" in text) == clusters
    grouped = "each row as the mean of a group of at least 5 of them" in text
    assert grouped == (clusters and not model.share_rows)
    assert any("only their totals over all nodes" in whom for _, whom in said) == secure
    assert ("estimates of the components at your rows" in text) == iterating
    assert "sums of each column" in text
    assert all(whom.startswith(("to every node", "to your neighbors", "in sums")) for _, whom in said)


def test_how_few_rows_the_sums_may_tell_is_said_before_anything_leaves():
    """768 features at each of four efforts, times 34 functions and 9 sums more; and 5 numbers a row of 4 columns with its weight."""
    model = DecentralizedKernelPCA(2, gamma=0.1, privacy="secure-sums", share_rows=False)
    said = [what for what, _ in disclosure(settings_of(model, Features(4), 0), 30, 4, ["rome"])]
    few = "by these sums, perhaps each row, if all nodes but the largest have fewer than 26,420 rows in all"
    assert few in said
    clear = settings_of(DecentralizedKernelPCA(2, gamma=0.1), Features(4), 0)
    assert few not in [what for what, _ in disclosure(clear, 30, 4, ["rome"])]


@pytest.mark.parametrize(
    ("named", "says"), [("names", "the names of the 4 columns"), ("fingerprint", "a fingerprint of the columns' names")]
)
def test_what_is_said_of_columns_and_missing_values(named, says):
    """At c6f9cc8 neighbors were told of columns only how many there are."""
    asked = settings_of(Parameters(2, gamma=0.1, missing="mean"), Features(4), 0)
    said = dict(disclosure(asked, 30, 4, ["rome"], named))
    assert said[says] == "to your neighbors: rome"
    assert said["sums of each column, and how many values it has"].startswith("in sums")
    assert not any("column" in what for what in dict(disclosure(asked, 30, 4, ["rome"])) if "names" in what)
    text = (Path(__file__).parent.parent / "docs" / "explanation" / "privacy.md").read_text(encoding="utf-8")
    assert "| column names |" in text
    assert "`secret_columns`" in text


def rows(noise=0.05):
    """Along a curve, so that a few landmarks suffice."""
    rng = np.random.default_rng(0)
    t = rng.uniform(high=3, size=300)
    return np.column_stack([np.cos(t), np.sin(t), t / 3]) + noise * rng.normal(size=(300, 3))


def test_simulated_nodes_are_real_ones(tmp_path):
    out = tmp_path / "peers"
    # so much noise that landmarks miss more than rounding, which differs under other masks, and else chooses landmarks
    np.save(tmp_path / "rows.npy", rows(noise=0.3))
    options = ["--data", str(tmp_path / "rows.npy"), "--json", "-k", "3"]
    done = CliRunner().invoke(app, ["node", "simulate", "--nodes", "3", "--out", str(out), *options])
    assert done.exit_code == 0, done.output
    result = json.loads(done.output)
    assert result["failed"] == {}
    models = {name: NodeModel.load(said["model"]) for name, said in result["nodes"].items()}
    assert sorted(models) == ["node-0", "node-1", "node-2"]
    parts = {name: np.load(out / f"{name}.npy") for name in models}
    ring = Network.from_edges([("node-0", "node-1"), ("node-1", "node-2"), ("node-2", "node-0")])
    asked = {"gamma": "scale", "share_rows": False, "privacy": "secure-sums", "random_state": 0}
    local = DecentralizedKernelPCA(3, network=ring, **asked).fit_parts(parts)
    assert not any(held.samples for model in models.values() for held in model.contents)
    for name, model in models.items():
        np.testing.assert_allclose(model.eigenvalues_, local.eigenvalues_, rtol=1e-9)
        np.testing.assert_allclose(
            model.transform(parts["node-0"][:9]), local.node_models_[name].transform(parts["node-0"][:9]), atol=1e-6
        )
    assert open_to_others(out) == set()
    log = [json.loads(line) for line in (out / "node-0.log").read_text().splitlines() if line.startswith("{")]
    assert "finished" in [entry["message"] for entry in log]
    again = CliRunner().invoke(app, ["node", "run", str(out / "node-0.toml"), "--yes"])
    assert again.exit_code == 0
    assert "was finished before" in again.output
    assert CliRunner().invoke(app, ["node", "simulate", "--out", str(out)]).exit_code == 2  # not empty


@pytest.mark.slow
def test_nodes_that_disagree_say_so_also_to_who_comes_late_until_their_owner_has_enough(nursery, tmp_path):
    out = tmp_path / "peers"
    made = CliRunner().invoke(
        app, ["node", "simulate", "--nodes", "3", "--network", "path:3", "--out", str(out), "--write-only"]
    )
    assert made.exit_code == 0, made.output
    config = out / "node-0.toml"
    config.write_text(re.sub(r'"tol" = .*', '"tol" = 0.5', config.read_text()))
    logs = [out / f"node-{j}.said" for j in (0, 1)]
    first, middle = keys = [nursery.start(["node", "run", "--yes", log.with_suffix(".toml")], log) for log in logs]

    def ended(key):
        until(lambda: key in nursery.ended, "the node ends", PATIENCE)
        return nursery.ended[key][0]

    try:
        assert ended(first) == 2, logs[
            0
        ].read_text()  # correct the config; nothing is gained by starting again as it is
        assert "tol: node" in logs[0].read_text().splitlines()[-1]
        waits = re.compile("^.*waiting up to 60 s to tell node .*node-2 why.*$", re.MULTILINE)
        line = until(lambda: waits.search(logs[1].read_text()), "it waits", PATIENCE)[0]
        assert "tol: node" in json.loads(line)["why"]
        since = time.monotonic()
        nursery.signal(middle, signal.SIGINT)
        assert ended(middle) == 2
        assert time.monotonic() - since < 30
        assert "tol: node" in logs[1].read_text().splitlines()[-1]
    finally:
        for key in keys:
            nursery.signal(key, signal.SIGKILL)


def test_metrics_and_the_page(tmp_path):
    network = Network.path(2)
    parts, options = problem(network)
    nodes = Nodes(tmp_path, network, parts, options, run="<run>")
    join([nodes.start(name) for name in network.names])
    assert not nodes.errors
    node = nodes.sessions["0"].protocol
    with status.served(node, "127.0.0.1:0") as address:
        page = urllib.request.urlopen(f"http://{address}/", timeout=30).read().decode()
        metrics = urllib.request.urlopen(f"http://{address}/metrics", timeout=30).read().decode()
        with pytest.raises(urllib.error.HTTPError):
            urllib.request.urlopen(f"http://{address}/other", timeout=30)
    assert "Node 0" in page
    assert "&lt;run&gt;" in page
    assert "<script" not in page
    assert "http" not in page.replace("http-equiv", "")  # nothing from elsewhere
    values = dict(line.rsplit(" ", 1) for line in metrics.splitlines() if not line.startswith("#"))
    assert float(values["dekpca_iteration"]) == options.projection.max_iter - 1
    assert float(values['dekpca_peer_sent_bytes_total{peer="1"}']) > 20 * 5 * 8
    assert status.line(node).startswith("done | 1 ")


# ---------------------------------------------------------------------- how a command ends, and what it says then (issue 17, points 10 and 14)
def run_node(nursery, path):
    """Exit code and output of a process of its own, since a node changes the log and the signals of its process."""
    log = path.with_suffix(".again")
    key = nursery.start(["node", "run", path, "--yes"], log)
    until(lambda: key in nursery.ended, "the node ends", PATIENCE)
    return nursery.ended[key][0], log.read_text()


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Two nodes that have finished without convergence; alone they wait for nobody longer than 1 s."""
    out = tmp_path_factory.mktemp("finished") / "peers"
    np.save(out.parent / "rows.npy", rows())
    options = [
        "--data",
        str(out.parent / "rows.npy"),
        "--nodes",
        "2",
        "--solver",
        "projection,max_iter=3,tol=0",
        "--share-rows",
        "--tol",
        "0",
        "--json",
    ]
    done = CliRunner().invoke(app, ["node", "simulate", "--out", str(out), *options])
    assert done.exit_code == 0, done.output
    assert not any(said["converged"] for said in json.loads(done.output)["nodes"].values())
    for config in out.glob("*.toml"):
        config.write_text("start_timeout = 1\n" + config.read_text())
    return out


@pytest.fixture
def unfinished(finished, tmp_path):
    """The same before they have said that they are done: they could go on."""
    out = tmp_path / "peers"
    shutil.copytree(finished, out)
    for config in out.glob("*.toml"):
        (out / config.stem / "finished.json").unlink()
        change(out / config.stem, "DELETE FROM fact WHERE name = 'finished'")
    return out


def test_a_finished_node_ends_again_as_it_did(nursery, finished):
    """At c6f9cc8 it ended with 0, whether it had converged or not."""
    code, said = run_node(nursery, finished / "node-0.toml")
    assert code == 3, said
    assert "was finished before" in said
    assert "3 iterations, not converged; estimated error" in said
    assert "differs" not in said


def test_a_finished_node_whose_data_has_changed_says_whose_answer_it_gives(finished, tmp_path):
    out = tmp_path / "peers"
    shutil.copytree(finished, out)
    np.save(out / "node-0.npy", np.load(out / "node-0.npy") + 1)
    done = CliRunner().invoke(app, ["node", "run", str(out / "node-0.toml"), "--yes", "--json"])
    assert done.exit_code == 3, done.output
    assert "the data file differs from the data of run" in done.stderr
    assert "data" not in json.loads(done.stdout)
    (out / "node-0.npy").unlink()  # the answer is given without it
    done = CliRunner().invoke(app, ["node", "run", str(out / "node-0.toml"), "--yes"])
    assert (done.exit_code, "differs" in done.stderr) == (3, False)


@pytest.mark.parametrize("what", ["data", "options"])
def test_a_node_that_was_changed_is_not_told_to_start_again(nursery, unfinished, what):
    """This held at c6f9cc8, too; nobody else was told there (test_peer.py)."""
    if what == "data":
        np.save(unfinished / "node-0.npy", np.load(unfinished / "node-0.npy") + 1)
    else:
        config = unfinished / "node-0.toml"
        config.write_text(config.read_text().replace('"max_iter" = 3', '"max_iter" = 4'))
    code, said = run_node(nursery, unfinished / "node-0.toml")
    last = said.splitlines()[-1]
    assert code == 2, said
    assert "begun with other settings: " in last
    assert ("data was" if what == "data" else "max_iter was 3 and is 4") in last
    assert "start this node again" not in last
    assert "keeps what is needed to go on" not in last


def test_a_damaged_database_is_named_with_a_remedy(nursery, unfinished):
    """At c6f9cc8 the exit code was 4, with the advice to start this node again."""
    (unfinished / "node-0" / "run.db").write_bytes(b"SQLite format 3, or not")
    code, said = run_node(nursery, unfinished / "node-0.toml")
    last = said.splitlines()[-1]
    assert code == 1, said
    assert last.startswith("error: ")
    assert re.search("run.db: damaged .*; start all nodes anew, with another run id and other folders", last)
    assert "start this node again" not in last


def test_a_deep_config_is_wrong_input(config):
    """At c6f9cc8 the exit code was 1."""
    path = config("deep = " + 100_000 * "[")
    done = CliRunner().invoke(app, ["node", "run", str(path)])
    assert done.exit_code == 2, done.output
    assert "too deep to be read" in done.output


@pytest.mark.parametrize("run", [r"a\u001b[31m", r"a\nb", r"a\u202eb", "", "x" * 201])
def test_a_run_id_is_a_line_of_text(config, run):
    """At c6f9cc8 the first three were accepted, and printed as they were."""
    path = config(GOOD.replace('run = "r"', f'run = "{run}"'))
    done = CliRunner().invoke(app, ["node", "run", str(path), "--insecure-loopback"])
    assert done.exit_code == 2
    assert "a run id has 1 to 200 printable characters" in done.output
    assert all(c.isprintable() or c == "\n" for c in done.output)


@pytest.mark.parametrize("name", ["x\x1b[31mred", "two\nlines"])
def test_a_name_in_a_model_file_does_not_reach_the_terminal_as_it_is(tmp_path, name, monkeypatch):
    """At c6f9cc8 it did, with exit code 0."""
    X = np.random.default_rng(0).normal(size=(40, 3))
    model = DecentralizedKernelPCA(1, network=2, random_state=0).fit(X).node_models_[0]
    model.name = name
    with monkeypatch.context() as patch:
        patch.setattr("dekpca.model_file._model", lambda *header_and_arrays: None)  # else it is not saved
        model.save(tmp_path / "model.npz")
    np.save(tmp_path / "rows.npy", X)
    command = ["transform", str(tmp_path / "model.npz"), str(tmp_path / "rows.npy"), "--out", str(tmp_path / "out.csv")]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 2, done.output
    assert "not a node model: name in the header is no name" in done.output
    assert name not in done.output
    assert "\x1b" not in done.output


def test_a_column_name_does_not_reach_the_terminal_as_it_is(tmp_path):
    """It did not at c6f9cc8 either; it did since errors name the column in an option to try."""
    (tmp_path / "rows.csv").write_text("a\x1b[31mge,b\nx,1\n2,3\n")
    done = CliRunner().invoke(app, ["fit", str(tmp_path / "rows.csv"), "--nodes", "2", "--out", str(tmp_path / "m")])
    assert done.exit_code == 2
    assert "rename it" in done.output
    assert "\x1b" not in done.output


def test_health():
    """200 while a node waits as it should; 503, with the reason, while it stops, hangs, or has lost a neighbor that it waits for."""
    node = protocol("a", "b", now=time.monotonic(), timeouts=Timeouts(peer=60, start=60, beat=1, progress=100))
    with status.served(node, "127.0.0.1:0") as address:

        def asked():
            try:
                with urllib.request.urlopen(f"http://{address}/healthz", timeout=30) as page:
                    return page.status, page.read().decode()
            except urllib.error.HTTPError as error:
                return error.code, error.read().decode()

        node.live.waits_for = {"b"}
        assert asked() == (200, "meeting, waits for node b\n")
        node.live.waits_for, node.live.moved_at = set(), time.monotonic() - 101
        assert asked() == (503, "no progress for 101 s (limit progress_timeout 100 s)\n")
        node.live.waits_for, node.live.moved_at = {"b"}, time.monotonic()
        node.rounds.limits, node.neighbors["b"].answered_at = object(), time.monotonic() - 40
        assert asked() == (503, "node b was not heard from for 40 s (it counts as lost after 60 s)\n")
        node.fail(ValueError("wrong"))
        assert asked() == (503, "stopping: wrong\n")
