"""A new run that begins with the landmarks of an earlier one, with an owner more or less: its answer is that of a fresh run of its owners."""

from __future__ import annotations

import json
import threading
from dataclasses import replace

import numpy as np
import pytest

from dekpca import DecentralizedKernelPCA, NodeModel, baselines
from dekpca.data.checks import check_parts
from dekpca.engines.local import run as run_local
from dekpca.network import Network
from dekpca.parameters import Parameters, settings_of
from dekpca.peers.app import node
from dekpca.peers.app.config import ConfigError, free_addresses, read, write_toml
from dekpca.plan import make_plan
from peer_nodes import PATIENCE

TOL = 1e-3
OWNERS = ("oslo", "rome", "bonn", "bern")
NETWORK = Network({name: [other for other in OWNERS if other != name] for name in OWNERS})
MODEL = {"n_components": 2, "standardize": True, "tol": TOL}


def rows_of(name: str) -> np.ndarray:
    """Rows along a curve, a piece of it for each owner: without one of them the components differ."""
    rng = np.random.default_rng(OWNERS.index(name))
    t = rng.uniform(size=300) + OWNERS.index(name)
    return np.column_stack([np.cos(t), np.sin(t), t / 3]) + 0.05 * rng.normal(size=(300, 3))


def config_of(folder, name, names, run, addresses, model=None, **settings):
    np.save(folder / f"{name}.npy", rows_of(name))
    own = {"name": name, "run": run, "listen": addresses[name], "data": f"{name}.npy", "folder": f"{name}-{run}"}
    own |= {"out": f"{name}.npz", "heartbeat": 0.2} | settings
    path = folder / f"{name}-{run}.toml"
    neighbors = {other: addresses[other] for other in names if other != name}
    write_toml(path, own, {"neighbors": neighbors, "model": MODEL | (model or {})})
    return read(path)


def run_all(folder, names, run, **settings):
    """Threads of one process, as `dekpca node run` starts them; returns what each said at its end, or its error."""
    kept = folder / f"{run}.json"  # a restart has the same addresses
    if not kept.exists():
        kept.write_text(json.dumps(dict(zip(names, free_addresses(len(names)), strict=True))))
    addresses = json.loads(kept.read_text())
    said: dict = {}

    def one(name):
        try:
            said[name] = node.run(node.prepare(config_of(folder, name, names, run, addresses, **settings)), None)
        except BaseException as error:
            said[name] = error

    threads = [threading.Thread(target=one, args=(name,), daemon=True) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert said.keys() == set(names), f"a node hangs; the others: {said}"
    return said


def agreement(folder, names):
    """Of the worst node with central kernel PCA of the rows of these owners."""
    parts = [rows_of(name) for name in names]
    X = np.vstack(parts)
    central = baselines.central((X - X.mean(axis=0)) / X.std(axis=0), 2, gamma=1 / 3).transform(
        (X - X.mean(axis=0)) / X.std(axis=0)
    )
    values = [NodeModel.load(folder / f"{name}.npz").transform(X) for name in names]
    return min(abs(np.corrcoef(v[:, i], central[:, i])[0, 1]) for v in values for i in range(2))


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    folder = tmp_path_factory.mktemp("study")
    said = run_all(folder, OWNERS[:3], "study-7")
    assert all(isinstance(s, dict) for s in said.values()), said
    return folder


@pytest.fixture
def finished(study, tmp_path):
    """The models of a run of three owners, for one test."""
    for name in OWNERS[:3]:
        (tmp_path / f"{name}.npz").write_bytes((study / f"{name}.npz").read_bytes())
    return tmp_path


@pytest.mark.parametrize("names", [OWNERS, OWNERS[1:3]], ids=["one more", "one less"])
def test_the_answer_is_that_of_a_fresh_run(finished, names):
    before = NodeModel.load(finished / "rome.npz")
    assert before.run == "study-7"
    assert agreement(finished, OWNERS[:3]) > 1 - TOL
    said = run_all(finished, names, "study-8", resume="study-7")
    assert all(isinstance(s, dict) and s["converged"] for s in said.values()), said
    assert agreement(finished, names) > 1 - TOL
    after = NodeModel.load(finished / f"{names[-1]}.npz")
    assert after.run == "study-8"
    kept = after.contents[0]
    assert kept.what == "landmarks (of the earlier run that was resumed)"
    assert not kept.samples  # share_rows = false
    assert kept.rows <= sum(held.rows for held in before.contents)


def test_without_the_model_anywhere_nobody_resumes(tmp_path):
    said = run_all(tmp_path, OWNERS[:2], "study-8", resume="study-7")
    assert all("no node has the model of that run" in str(s) for s in said.values()), said


def test_other_landmarks_of_the_same_run_are_refused(finished):
    """Oslo's file is that of a run of the same name with other rows."""
    model = NodeModel.load(finished / "oslo.npz")
    model.functions["landmarks"].points[0][0, 0] += 1e-9
    model.save(finished / "oslo.npz")
    said = run_all(finished, OWNERS[:2], "study-8", resume="study-7")
    assert any("has other landmarks of that run" in str(s) for s in said.values()), said
    assert all(isinstance(s, Exception) for s in said.values()), said


def prepare(folder, name="oslo", model=None, **settings):
    addresses = dict.fromkeys(OWNERS, "127.0.0.1:7070")
    return node.prepare(config_of(folder, name, OWNERS[:2], "study-8", addresses, model, **settings))


@pytest.mark.parametrize(
    ("model", "settings", "says"),
    [
        ({}, {"resume": "study-6"}, "the model of run 'study-7', and resume = 'study-6'"),
        ({}, {"resume": "study-8"}, "resume names an earlier run"),
        ({}, {"resume": "study\n7"}, "a run id has 1 to 200 printable characters"),
        ({"landmarks": 50}, {"resume": "study-7"}, "with landmarks=50"),
        ({"landmarks": "random-features"}, {"resume": "study-7"}, "with landmarks='random-features'"),
        ({"solver": "projection", "share_rows": True}, {"resume": "study-7"}, r"with solver=Projection\(\.\.\.\)"),
    ],
)
def test_what_cannot_be_resumed_is_said_before_anybody_is_called(finished, model, settings, says):
    with pytest.raises(ValueError, match=says):
        prepare(finished, model=model, **settings)
    assert not (finished / "oslo-study-8").exists()


def test_rows_in_the_earlier_model_do_not_leave_where_rows_may_not(finished):
    model = NodeModel.load(finished / "oslo.npz")
    model.contents = (replace(model.contents[0], samples=True), *model.contents[1:])
    model.save(finished / "oslo.npz")
    with pytest.raises(ConfigError, match=r"it holds rows of nodes .* and share_rows is false"):
        prepare(finished, resume="study-7")
    assert prepare(finished, model={"share_rows": True}, resume="study-7").earlier is not None


def test_a_node_that_was_killed_when_its_model_was_saved_goes_on(finished, monkeypatch):
    """`out` is written over then; a restart needs the same landmarks, and a new node (bern) does not take its own model for an earlier one."""
    names = ("oslo", "bern")
    both = threading.Barrier(2)  # if one were killed earlier, the other might wait for its last message

    def killed(session):
        both.wait(PATIENCE)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(node.Session, "finish", killed)
        assert all(
            isinstance(s, KeyboardInterrupt) for s in run_all(finished, names, "study-8", resume="study-7").values()
        )
    models = [(finished / f"{name}.npz").read_bytes() for name in names]
    assert all(NodeModel.load(finished / f"{name}.npz").run == "study-8" for name in names)
    assert (finished / "oslo-study-8" / node.EARLIER).exists()
    said = run_all(finished, names, "study-8", resume="study-7")
    assert all(isinstance(s, dict) for s in said.values()), said
    assert [(finished / f"{name}.npz").read_bytes() for name in names] == models
    assert not (finished / "oslo-study-8" / node.EARLIER).exists()


@pytest.mark.parametrize("privacy", [None, "secure-sums"])
def test_a_resumed_run_has_no_more_stages_than_a_fresh_one(privacy):
    """What the warm start is for: no stages of growth where the landmarks are enough."""
    parts = [rows_of(name) for name in OWNERS]
    parameters = Parameters(
        n_components=2, standardize=True, tol=TOL, share_rows=False, random_state=0, privacy=privacy
    )
    features, samples = check_parts(parts, OWNERS, None, "error")
    settings = settings_of(parameters, features, 0)
    asked = {
        **MODEL,
        "share_rows": False,
        "random_state": 1,
        "privacy": privacy,
    }  # of all owners: the landmarks are enough
    points = node.landmarks_of(DecentralizedKernelPCA(network=NETWORK, **asked).fit_parts(parts).node_models_[0])
    stages = []
    for given in (settings, replace(settings, resume="study-7")):
        plan = make_plan(parameters, given, NETWORK, samples, features)
        plan = replace(plan, options=replace(plan.options, earlier=points))
        stages.append(run_local(plan).answers[0].stages)
    fresh, resumed = stages
    assert resumed[0][0] <= len(points)
    assert len(resumed) <= len(fresh)
    assert resumed[-1][1] <= TOL


@pytest.mark.parametrize("privacy", [None, "secure-sums"])
def test_landmarks_of_an_earlier_run_may_be_far_from_the_rows_of_this_one(privacy):
    """Their owner is gone: no bound on the rows of this run is one on them."""
    parts = [rows_of(name) for name in OWNERS]
    parameters = Parameters(n_components=2, tol=TOL, share_rows=False, random_state=0, privacy=privacy)
    features, samples = check_parts(parts, OWNERS, None, "error")
    settings = replace(settings_of(parameters, features, 0), resume="study-7")
    points = np.concatenate([parts[0][:20], 1e4 * parts[0][:20]])
    plan = make_plan(parameters, settings, NETWORK, samples, features)
    plan = replace(plan, options=replace(plan.options, earlier=points))
    answer = run_local(plan).answers[0]
    assert answer.marks.kinds[0] == ("earlier", len(points))
    np.testing.assert_allclose(
        np.sort(answer.marks.points[: len(points)], axis=0), np.sort(points, axis=0), atol=1e-9, rtol=1e-12
    )
