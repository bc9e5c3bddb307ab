"""Faults of peers, a few of each; `make test-faults` has all of them with many seeds. What they do is in faults/scenarios.py.

Each ends with every node's model bit for bit that of the undisturbed run, or is an AssertionError that says how the nodes stood.
"""

from __future__ import annotations

import pytest

from faults import scenarios
from faults.cluster import Problem

pytest.importorskip("grpc", reason="peers need gRPC: make .venv/installed")

FEW = {
    "kill-flooding": scenarios.SAME,
    "kill-view": scenarios.SAME,
    "kill-after-its-end": scenarios.SAME,
    "reset-mid-message": scenarios.SAME,
    "never-comes-back": scenarios.NAMED,
    "file-limit": scenarios.SAME,
}
SHORT = {"kill-view"}  # a killed node
SMALL = Problem(edges=(("a", "b"), ("b", "c")))  # three nodes, for the sake of time


@pytest.fixture(scope="module")
def truth(nursery, tmp_path_factory):
    return scenarios.Truth(nursery, tmp_path_factory.mktemp("faults") / "undisturbed", SMALL)


@pytest.mark.parametrize("name", [n if n in SHORT else pytest.param(n, marks=pytest.mark.slow) for n in FEW])
def test_the_answer_is_that_of_an_undisturbed_run(name, nursery, truth, tmp_path, monkeypatch):
    monkeypatch.setattr(
        scenarios, "GRACE", 30.0
    )  # seconds; other tests run at the same time, make test-faults takes it to the letter
    assert scenarios.play(name, 0, nursery, truth, tmp_path / name) == FEW[name]
