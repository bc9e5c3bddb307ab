"""Experiments: interrupted runs go on, cells are compared alike, and the toy shows what it should."""

from __future__ import annotations

import csv
import os
import signal
from dataclasses import replace

import numpy as np
import pytest
from sklearn.datasets import load_digits

from dekpca import PAPER, DecentralizedKernelPCA, Network, Projection, baselines, files, metrics
from dekpca.experiments import paper, runner, splits, toy
from dekpca.plan import plan_parts
from dekpca.report import panels

DIGITS = load_digits()
SOURCE = runner.Source(DIGITS.data, DIGITS.target, 1e-3, "digits")


def small(name="samples"):
    """Two cells of an experiment."""
    whole = paper.EXPERIMENTS[name]
    cells = {
        "samples": [{"nodes": 6, "rows": 10}, {"nodes": 6, "rows": 20}],
        "nodes": [{"nodes": 6, "rows": 20}],
        "neighbors": [{"nodes": 6, "rows": 20, "neighbors": 2}],
        "heterogeneity": [{"nodes": 6, "rows": 20, "alpha": a} for a in (np.inf, 0.3, 0.0)],
        "convergence": [{"nodes": 6, "rows": 20}],
    }
    return replace(whole, cells=lambda source: cells[name])


def test_an_interrupted_run_gives_the_same_file(tmp_path, monkeypatch):
    (tmp_path / "whole").mkdir()
    (tmp_path / "cut").mkdir()
    runner.run(small(), SOURCE, 2, tmp_path / "whole")
    killed = small()
    calls = []

    def measure(source, cell, seed):
        if len(calls) == 3:
            raise KeyboardInterrupt
        calls.append(cell)
        return small().measure(source, cell, seed)

    with pytest.raises(KeyboardInterrupt):
        runner.run(replace(killed, measure=measure), SOURCE, 2, tmp_path / "cut")
    path = tmp_path / "cut" / "samples.csv"
    before = path.read_bytes()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts what runs in the background without it
    with monkeypatch.context() as patched:  # killed while it writes
        patched.setattr(files.os, "replace", lambda *paths: signal.raise_signal(signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):
            runner.run(small(), SOURCE, 2, tmp_path / "cut")
    assert path.read_bytes() == before
    measured = []

    def count(source, cell, seed):
        measured.append((seed, cell["rows"]))
        return small().measure(source, cell, seed)

    runner.run(replace(small(), measure=count), SOURCE, 2, tmp_path / "cut")
    assert path.read_bytes() == (tmp_path / "whole" / "samples.csv").read_bytes()
    assert (1, 20) in measured
    assert (0, 10) not in measured


def test_numbers_of_numpy_are_the_same_after_a_resumption(tmp_path):
    """A whole number was 3 in the first table, and 3.000000 in a resumed one; a float32 had other digits."""
    value = dict.fromkeys(small().columns, np.int64(3))

    def measure(source, cell, seed):
        return [value | {small().columns[-1]: np.float32(0.1)}], []

    for repeats in (1, 1, 2):
        rows, _ = runner.run(replace(small(), measure=measure), SOURCE, repeats, tmp_path)
        text = (tmp_path / "samples.csv").read_text()
        assert "3.0" not in text
        assert text.splitlines()[1].endswith("0.100000")
        assert type(rows[0][small().columns[0]]) is int


def test_ctrl_c_within_a_fit_measures_nothing(tmp_path):
    """A fit by itself would keep its last iterate; an experiment must not take that for a result."""

    def measure(source, cell, seed):
        problem = paper.Problem.of(source, {"nodes": 6, "rows": 20}, seed)

        def interrupt(about):
            os.kill(os.getpid(), signal.SIGINT)

        paper.local.run(plan_parts(problem.estimator("dekpca", tol=0.0), problem.parts), interrupt)
        raise AssertionError("not interrupted")

    with pytest.raises(KeyboardInterrupt):
        runner.run(replace(small(), measure=measure), SOURCE, 1, tmp_path)
    assert not (tmp_path / "samples.csv").exists()


def test_the_papers_settings_run_twenty_iterations():
    """As the legends of the figures say, also where the stop rule of `PAPER` would end the iteration before (here after 15)."""
    problem = paper.Problem.of(SOURCE, {"nodes": 5, "rows": 200}, 0)
    assert problem.fit("paper").n_iter_ == paper.PAPER_ITERATIONS == 20


def test_fewer_repeats_than_were_measured(tmp_path):
    runner.run(small(), SOURCE, 2, tmp_path)
    rows, _ = runner.run(small(), SOURCE, 1, tmp_path)
    assert {row["repeat"] for row in rows} == {0}


def test_other_data_is_not_mixed_in(tmp_path):
    runner.run(small(), SOURCE, 1, tmp_path)
    with pytest.raises(ValueError, match="made from other data or settings"):
        runner.run(small(), replace(SOURCE, gamma=2e-3), 1, tmp_path)


def check_measurements(name, rows):
    """What each experiment is there to show, on 6 nodes of 10 or 20 digits."""
    by = {
        method: [row for row in rows if row["method"] == method] for method in dict.fromkeys(r["method"] for r in rows)
    }
    similar = {method: [row["similarity"] for row in found] for method, found in by.items()}
    assert all(row["worst"] <= row["similarity"] <= 1 + 1e-6 for row in rows)
    if name == "convergence":  # the paper's update gets worse in the end, the proximal one never
        assert [row["iteration"] for row in by["dekpca"]] == [1, 2, 3, 4, *range(5, 31, 5)]
        assert similar["paper"][-1] < similar["paper"][0] < max(similar["paper"])
        assert similar["proximal, no landmarks"] == sorted(similar["proximal, no landmarks"])
        assert similar["dekpca"][0] > max(similar["proximal, no landmarks"])
        return
    assert set(by) == set(paper.NAMES)
    for local, ours in zip(by["local"], by["dekpca"], strict=False):
        assert local["agreement"] < 0.5
        assert ours["agreement"] > 0.99
        assert ours["worst"] > local["similarity"] + 0.3
    if name == "samples":
        assert all(found == sorted(found) for found in similar.values())
    if name == "neighbors":
        assert [row["iteration"] for row in by["paper"]] == list(range(9))
        assert similar["paper"][1] < similar["paper"][8]
    if name == "heterogeneity":  # from alike to one class a node
        assert similar["paper"] == sorted(similar["paper"], reverse=True)
        assert similar["paper"][-1] < 0.2 < 0.95 < min(similar["dekpca"])


@pytest.mark.parametrize("name", paper.EXPERIMENTS)
def test_every_experiment_measures_and_draws(name, tmp_path, monkeypatch):
    monkeypatch.setattr(paper, "LONG", 30)
    experiment = small(name)
    rows, times = runner.run(experiment, SOURCE, 1, tmp_path)
    with (tmp_path / f"{name}.csv").open() as file:
        written = list(csv.DictReader(file))
    assert len(written) == len(rows)
    check_measurements(name, rows)
    found = panels.save(experiment.draw(rows, times), experiment.title, tmp_path / name)
    assert all(path.stat().st_size > 5_000 for path in found)
    for panel in experiment.draw(rows, times):
        assert len(panels.plotly_figure(panel).data) == len(panel.series)


@pytest.mark.parametrize(
    "settings",
    [{"solver": PAPER, "normalize": True}, {"solver": Projection(n_landmarks=30, n_oversamples=0)}],
    ids=["paper", "landmarks"],
)
def test_similarity_by_iteration_is_that_of_a_fit_stopped_there(settings, monkeypatch):
    """Against metrics.similarity; without extra columns, so that the last separation has nothing to turn."""

    def iterate_of(run, principal, answer, *more):
        """Not the landmarks' answer, which is better than the first iterate."""
        yield from ()
        return answer

    monkeypatch.setattr("dekpca.solvers.projection.solve.better_of", iterate_of)
    problem = paper.Problem.of(SOURCE, {"nodes": 6, "rows": 30, "neighbors": 2}, 0)

    def stopped(t):
        solver = replace(settings["solver"], max_iter=t, tol=0.0)
        return DecentralizedKernelPCA(
            1, gamma=1e-3, network=problem.network, random_state=0, **settings | {"solver": solver}
        )

    steps = paper.by_iteration(stopped(20), problem, range(1, 21))
    assert [step["iteration"] for step in steps] == list(range(1, 21))
    for t in (1, 7, 20):
        with pytest.warns(match="not converged"):
            similar = metrics.similarity(stopped(t).fit_parts(problem.parts), problem.central)
        np.testing.assert_allclose(steps[t - 1]["similarity"], similar.mean(), rtol=1e-6)
        np.testing.assert_allclose(steps[t - 1]["worst"], similar.min(), rtol=1e-6)


def test_node_seconds_are_those_of_each_node():
    parts = [DIGITS.data[:1000], DIGITS.data[1000:1010], DIGITS.data[1010:1020]]
    model = DecentralizedKernelPCA(1, solver=Projection(max_iter=5), gamma=1e-3, network=Network.path(3))
    # the best of three: a machine with other work to do may hold up any node, but not each time
    seconds = np.min([paper.node_seconds(parts, model) for _ in range(3)], axis=0)
    assert (seconds > 0).all()
    assert seconds[0] > seconds[2]  # node 0 has the large Gram matrix, and so has its neighbor


def test_plain_consensus_fails_where_projection_consensus_does_not():
    for poor in (False, True):
        parts = toy.plane(poor)
        found = toy.solutions(parts)
        truth = found["central"][0]
        for v in found["projection consensus"]:
            assert abs(v @ truth) > 0.999
        for v in found["plain consensus"]:
            if poor:  # dragged onto the third node's line, 45 degrees away
                assert abs(v @ np.array([np.cos(np.deg2rad(70)), np.sin(np.deg2rad(70))])) > 0.999
                assert abs(v @ truth) < 0.8
            else:
                assert abs(v @ truth) > 0.999


def test_plain_consensus_of_an_rbf_kernel_has_nothing_in_common():
    parts = [DIGITS.data[:20], DIGITS.data[20:40]]
    for model in baselines.plain_consensus(parts, 1, gamma=1e-3):
        np.testing.assert_array_equal(model.transform(DIGITS.data[:5]), 0)


def test_dirichlet_splits_lie_between_alike_and_one_class():
    sizes = np.full(8, 60)

    def purity(alpha):
        hands = splits.dirichlet(DIGITS.target, sizes, alpha, seed=1)
        assert [len(h) for h in hands] == sizes.tolist()
        dealt = np.concatenate(hands)
        assert len(np.unique(dealt)) == len(dealt)
        return np.mean([np.bincount(DIGITS.target[h]).max() / len(h) for h in hands])

    values = [purity(a) for a in (np.inf, 10.0, 1.0, 0.1, 0.0)]
    assert values == sorted(values)
    assert values[-1] == 1.0
