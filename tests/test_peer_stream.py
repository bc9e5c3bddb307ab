"""Rows that are added to those of an earlier run of the same owners: the answer is that of one stream, and of all rows."""

from __future__ import annotations

import json
import stat
import threading
from dataclasses import replace

import numpy as np
import pytest

from dekpca import DecentralizedKernelPCA, Network, NodeModel
from dekpca.model_file import ModelFileError
from dekpca.peers.app import node
from dekpca.peers.app.config import ConfigError, free_addresses, read, write_toml
from dekpca.peers.app.disclosure import disclosure
from dekpca.peers.net.authority import init_ca
from dekpca.peers.storage.stream import NodeStream
from dekpca.solvers.sums.judging_rows import least_new
from dekpca.solvers.sums.moments import Moments
from peer_nodes import PATIENCE, certified

OWNERS = ("bonn", "oslo", "rome")
MODEL = {"n_components": 2, "gamma": 0.5, "tol": 1e-2}
FIRST, SECOND, THIRD = slice(0, 300), slice(300, 500), slice(500, 620)


def rows_of(name):
    rng = np.random.default_rng(OWNERS.index(name))
    t = rng.uniform(size=620) + OWNERS.index(name)
    return np.column_stack([np.cos(t), np.sin(t), t / 3]) + 0.05 * rng.normal(size=(620, 3))


@pytest.fixture(scope="module")
def certs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("certs")
    init_ca(folder)
    certified(folder, OWNERS)
    return folder


def config_of(folder, name, run, addresses, certs, add=None, model=None, **settings):
    if not (folder / f"{name}.npy").exists():
        np.save(folder / f"{name}.npy", rows_of(name)[FIRST])
    own = {"name": name, "run": run, "listen": addresses[name], "data": f"{name}.npy", "folder": f"{name}-{run}"}
    own |= {"out": f"{name}.npz", "heartbeat": 0.2} | settings
    own |= {"certificate": f"{certs}/{name}.crt", "key": f"{certs}/{name}.key", "ca": f"{certs}/ca.crt"}
    path = folder / f"{name}-{run}.toml"
    write_toml(path, own, {"neighbors": {o: addresses[o] for o in OWNERS if o != name}, "model": MODEL | (model or {})})
    return read(path, add=add)


def run_all(folder, run, certs, rows=None, **settings):
    """Nodes with TLS, each in a thread; `rows` are those that they add, None: this is a first run. Returns what each said, or its error."""
    kept = folder / f"{run}.json"  # a restart has the same addresses
    if not kept.exists():
        kept.write_text(json.dumps(dict(zip(OWNERS, free_addresses(len(OWNERS)), strict=True))))
    addresses, said = json.loads(kept.read_text()), {}

    def one(name):
        add = None
        if rows is not None:
            new = rows_of(name)[rows[name]] if name in rows else []
            add = folder / (f"{name}-{run}.npy" if len(new) else "none")
            if len(new):
                np.save(add, new)
        try:
            config = config_of(folder, name, run, addresses, certs, add, **settings)
            said[name] = node.run(node.prepare(config), config.identity())
        except BaseException as error:
            said[name] = error

    threads = [threading.Thread(target=one, args=(name,), daemon=True) for name in OWNERS]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert said.keys() == set(OWNERS), f"a node hangs; the others: {said}"
    return said


def streamed(folder, calls, **model):
    """The same calls in one process, with the landmarks and gamma that the nodes have."""
    points = NodeStream.load(folder / "oslo.stream.npz").marks.points
    settings = MODEL | model | {"landmarks": points, "random_state": 0}
    network = Network({name: [other for other in OWNERS if other != name] for name in OWNERS})
    found = DecentralizedKernelPCA(**settings | {"network": network})
    for rows in calls:
        X = np.concatenate([rows_of(name)[some] for name, some in rows.items()])
        labels = np.concatenate([[name] * len(rows_of(name)[some]) for name, some in rows.items()])
        found.partial_fit(X, nodes=labels)
    return found


def assert_same(folder, said, expected, within=1e-10):
    """Up to the order of additions, and the fixed point of sums under masks."""
    X = np.concatenate([rows_of(name)[:100] for name in OWNERS])
    values = expected.transform(X)
    for name in OWNERS:
        np.testing.assert_allclose(said[name]["eigenvalues"], expected.eigenvalues_, rtol=within)
        model = NodeModel.load(folder / f"{name}.npz")
        np.testing.assert_allclose(model.transform(X), values, rtol=0, atol=within * np.abs(values).max())
        assert said[name]["rows"] == expected.n_samples_seen_


CLEAR = {"privacy": "none", "share_rows": True}


@pytest.mark.parametrize("model", [CLEAR, {}], ids=["sums in clear", "secure sums"])
def test_the_answer_is_that_of_one_stream(tmp_path, certs, model):
    """In clear also where one owner adds few rows and one none."""
    calls = [dict.fromkeys(OWNERS, FIRST), dict.fromkeys(OWNERS, SECOND), {"oslo": THIRD, "rome": slice(500, 507)}]
    calls = calls if model else calls[:2]
    said = run_all(tmp_path, "study-1", certs, model=model, stream=True)
    assert all(isinstance(s, dict) for s in said.values()), said
    for number, rows in enumerate(calls[1:], start=2):
        said = run_all(tmp_path, f"study-{number}", certs, rows, model=model)
        assert all(isinstance(s, dict) for s in said.values()), said
        assert_same(tmp_path, said, streamed(tmp_path, calls[:number], share_rows=bool(model)))
        assert NodeStream.load(tmp_path / "oslo.stream.npz").run == f"study-{number}"
        assert not (tmp_path / f"oslo-study-{number}" / node.EARLIER_STREAM).exists()
    assert len({NodeModel.load(tmp_path / f"{name}.npz").transcript for name in OWNERS}) == 1


@pytest.fixture(scope="module")
def study(tmp_path_factory, certs):
    folder = tmp_path_factory.mktemp("study")
    said = run_all(folder, "study-1", certs, stream=True)
    assert all(isinstance(s, dict) for s in said.values()), said
    return folder


@pytest.fixture
def finished(study, tmp_path):
    """Models and streams of a run with secure sums, for one test."""
    for name in OWNERS:
        for ending in (".npz", ".stream.npz"):
            (tmp_path / f"{name}{ending}").write_bytes((study / f"{name}{ending}").read_bytes())
    return tmp_path


def test_under_masks_the_rows_of_few_owners_are_not_added(finished, certs):
    """The totals of two runs would tell the sums of these rows; nothing is sent."""
    said = run_all(finished, "study-2", certs, {"oslo": SECOND, "rome": SECOND})
    assert all("only node oslo, rome adds rows, where at least 3 must" in str(s) for s in said.values()), said
    said = run_all(finished, "study-3", certs, {})
    assert all("no node adds rows" in str(s) for s in said.values()), said


@pytest.fixture
def without_rome(monkeypatch):
    """It is lost after the nodes have met."""
    run = node.Session.run

    def lost(self, *args):
        if self.config.name == "rome":
            raise KeyboardInterrupt
        return run(self, *args)

    monkeypatch.setattr(node.Session, "run", lost)


@pytest.mark.usefixtures("without_rome")
def test_rows_of_few_owners_are_not_added_either_where_a_node_was_lost(finished, certs):
    """Before, the others went on without it, and the two totals told the sums of two owners' new rows."""
    said = run_all(finished, "study-2", certs, dict.fromkeys(OWNERS, SECOND), on_loss="continue", peer_timeout=2)
    assert isinstance(said.pop("rome"), KeyboardInterrupt)
    assert all("only node bonn, oslo adds rows, where at least 3 must" in str(s) for s in said.values()), said


@pytest.mark.usefixtures("without_rome")
def test_a_node_that_was_lost_when_rows_were_added_can_be_told(finished, certs, monkeypatch):
    """Before, the others, started again, refused their own settings: the stream has the rows by then."""
    monkeypatch.setattr("dekpca.peers.net.endpoint.LATE", 0.1)  # it does not come back
    more = {"on_loss": "continue", "peer_timeout": 2, "allow_two": True}
    said = run_all(finished, "study-2", certs, dict.fromkeys(OWNERS, SECOND), **more)
    assert said["oslo"]["missing"][0]["node"] == "rome", said
    addresses = json.loads((finished / "study-2.json").read_text())
    config = config_of(finished, "oslo", "study-2", addresses, certs, finished / "oslo-study-2.npy", **more)
    node.tell_lost(config, config.identity(), ["rome"])


def test_a_node_that_was_killed_when_its_stream_was_saved_goes_on(finished, certs, monkeypatch):
    rows, both = dict.fromkeys(OWNERS, SECOND), threading.Barrier(3)

    def killed(session):
        both.wait(PATIENCE)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(node.Session, "finish", killed)
        said = run_all(finished, "study-2", certs, rows)
        assert all(isinstance(s, KeyboardInterrupt) for s in said.values()), said
    models = [(finished / f"{name}.npz").read_bytes() for name in OWNERS]
    assert NodeStream.load(finished / "oslo.stream.npz").rows == 500
    said = run_all(finished, "study-2", certs, rows)
    assert all(isinstance(s, dict) for s in said.values()), said
    assert [(finished / f"{name}.npz").read_bytes() for name in OWNERS] == models
    assert NodeStream.load(finished / "oslo.stream.npz").rows == 500  # they are not added twice


def prepare(folder, certs, add="new.npy", rows=SECOND, name="oslo", model=None, run="study-2", **settings):
    if add != "none":
        np.save(folder / "new.npy", rows_of(name)[rows] if isinstance(rows, slice) else rows)
    addresses = dict.fromkeys(OWNERS, "127.0.0.1:7070")
    return node.prepare(config_of(folder, name, run, addresses, certs, folder / add, model, **settings))


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"out": "other.npz"}, "there is nothing to add rows to; set stream = true at all nodes"),
        ({"name": "rome", "out": "oslo.npz"}, "the stream of node oslo, and this is node rome"),
        ({"run": "study-1"}, "its rows are those of run 'study-1' already"),
        ({"model": {"n_components": 1}}, "n_components: changed since run 'study-1'"),
        ({"model": {"gamma": 0.4}}, "kernel gamma: changed since run 'study-1'"),
        ({"model": {"privacy": "none"}}, "secure_sums, owners_apart: changed since run 'study-1'"),
        ({"rows": np.ones((20, 4))}, "its columns are not those of run 'study-1'"),
        ({"rows": np.full((20, 3), np.nan)}, "has no value"),
        ({"resume": "study-1"}, "add and resume"),
        ({"model": {"landmarks": "random-features"}}, "stream and add with landmarks='random-features'"),
        (
            {"model": {"privacy": {"epsilon": 1, "delta": 1e-6, "norm": 1}, "landmarks": 9}},
            "stream and add with privacy",
        ),
    ],
)
def test_what_cannot_be_added_is_said_before_anybody_is_called(finished, certs, given, says):
    with pytest.raises(ValueError, match=says):
        prepare(finished, certs, **given)
    assert not (finished / "oslo-study-2").exists()


def test_after_a_run_that_broke_off_only_the_same_rows_are_added(finished, certs, monkeypatch):
    """Before, one member that broke a run off read the rows that another owner added the next time; the difference of the totals was theirs."""
    rows = dict.fromkeys(OWNERS, SECOND)

    def leave(self, told):
        raise RuntimeError("a member leaves when it was told")

    with monkeypatch.context() as patched:
        patched.setattr(Moments, "check", leave)
        said = run_all(finished, "study-2", certs, rows)
    assert all("a member leaves" in str(s) for s in said.values()), said
    note = finished / "oslo.adding.json"
    assert stat.S_IMODE(note.stat().st_mode) == 0o600
    for add in ({"rows": slice(300, 501)}, {"add": "none"}):
        with pytest.raises(
            ConfigError, match=r"oslo\.adding\.json: run 'study-2' broke off .* add the same rows again"
        ):
            prepare(finished, certs, run="study-3", **add)
    said = run_all(finished, "study-3", certs, rows)
    assert all(isinstance(s, dict) for s in said.values()), said
    assert not note.exists()
    note.write_text("{")
    with pytest.raises(ConfigError, match=r"oslo\.adding\.json: damaged"):
        prepare(finished, certs, run="study-4", rows=THIRD)


def added_or_refused(folder, certs, says, **settings):
    """Twice as many rows as landmarks are added, and not one fewer: from their sums each of few could be computed (test_peer_totals.py)."""
    least = 2 * len(NodeStream.load(folder / "oslo.stream.npz").marks.points)
    with pytest.raises(ConfigError, match=f"{least - 1} rows: {says} .* add at least {least}, or none"):
        prepare(folder, certs, rows=slice(300, 300 + least - 1), **settings)
    assert prepare(folder, certs, rows=slice(300, 300 + least), **settings).rows == 300 + least


def test_few_rows_are_not_added(finished, certs):
    """Under masks one of an owner was the difference to what the others, who colluded, had added. With shared rows it is told anyway."""
    added_or_refused(finished, certs, "members that collude would see, from two runs,")
    assert (least_new(300, 9), least_new(2048, 20), least_new(300, 21)) == (40, 40, 42)
    assert least_new(100_000, 900) == 49 * 40  # of these about 40 judge


def test_few_rows_are_not_added_where_a_neighbor_would_see_their_sums(tmp_path, certs):
    clear = {"privacy": "none"}
    said = run_all(tmp_path, "study-1", certs, model=clear, stream=True)
    assert all(isinstance(s, dict) for s in said.values()), said
    added_or_refused(tmp_path, certs, "a neighbor would see, from two runs,", model=clear)
    assert prepare(tmp_path, certs, add="none", model=clear).rows == 300


def test_rows_that_are_added_twice_are_counted(finished, certs):
    assert prepare(finished, certs).twice == 0
    assert prepare(finished, certs, rows=slice(250, 350)).twice == 50


def test_the_consent_says_what_the_difference_of_two_runs_tells(finished, certs):
    prepared = prepare(finished, certs)
    lines = disclosure(prepared.settings, prepared.rows, 3, ["rome"], "", ("study-1", 200))
    said = dict(lines)
    assert "a hash of all that was told in run study-1" in said
    assert any("difference to run study-1: the same sums over the new rows of all nodes" in what for what in said)
    assert not any("clusters" in what or "each column" in what for what in said)  # landmarks and scales are known
    assert any("its number of rows, 500" in what for what in said)


def test_the_file_is_for_its_owner_and_a_damaged_one_is_refused(finished):
    path = finished / "oslo.stream.npz"
    stream = NodeStream.load(path)
    stream.save(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    whole = path.read_bytes()
    for place in np.random.default_rng(0).integers(len(whole), size=60):
        damaged = bytearray(whole)
        damaged[place] ^= 0x5A
        path.write_bytes(bytes(damaged))
        try:
            again = NodeStream.load(path)
        except ModelFileError as error:
            assert "not the stream of a node" in str(error)  # noqa: PT017
        else:  # in what a zip file says about itself: times, systems, permissions
            assert again.transcript == stream.transcript
            assert again.arrays.keys() == stream.arrays.keys()
            assert all((again.arrays[name] == value).all() for name, value in stream.arrays.items())
    for members, change in (
        ({"oslo": 7}, {}),
        (stream.members, {"prints": stream.arrays["prints"][:-1]}),
        (stream.members, {"most": np.ones(3)}),
        (stream.members, {"column_mean": np.zeros(3)}),  # without scales
    ):
        replace(stream, members=members, arrays={**stream.arrays, **change}).save(path)
        with pytest.raises(ModelFileError, match="not the stream of a node"):
            NodeStream.load(path)
