"""Faults of peers, a few of each; `make test-faults` has all of them with many seeds. What they do is in faults/scenarios.py.

Each ends with every node's model bit for bit that of the undisturbed run, or is an AssertionError that says how the nodes stood.
"""

from __future__ import annotations

import pytest

from faults import scenarios
from faults.supervisor import Nursery

pytest.importorskip("grpc", reason="peers need gRPC: make .venv/installed")

FEW = {
    "kill-flooding": scenarios.SAME,
    "kill-data": scenarios.SAME,
    "kill-view": scenarios.SAME,
    "kill-after-its-end": scenarios.SAME,
    "kill-all": scenarios.SAME,
    "reset-mid-message": scenarios.SAME,
    "duplicate-connections": scenarios.SAME,
    "never-comes-back": scenarios.NAMED,
    "file-limit": scenarios.SAME,
    "damaged-checkpoint": scenarios.SAME,
}


@pytest.fixture(scope="module")
def nursery():
    with Nursery() as nursery:
        yield nursery


@pytest.fixture(scope="module")
def truth(nursery, tmp_path_factory):
    return scenarios.Truth(nursery, tmp_path_factory.mktemp("faults") / "undisturbed")


@pytest.mark.xdist_group("peer-faults")
@pytest.mark.parametrize("name", FEW)
def test_the_answer_is_that_of_an_undisturbed_run(name, nursery, truth, tmp_path, monkeypatch):
    monkeypatch.setattr(
        scenarios, "GRACE", 30.0
    )  # seconds; other tests run at the same time, make test-faults takes it to the letter
    assert scenarios.play(name, 0, nursery, truth, tmp_path / name) == FEW[name]
