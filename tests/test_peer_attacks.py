"""Attacks on a run of three real peers with 1,024 file descriptors each, a short version of each; `make attacks` has the whole.

What they do is in faults/attacks.py. At c6f9cc8 no neighbor got in any more ("File descriptor limit reached": idle, hello, loris), invented neighbors
were believed (greetings), and there was no limit for a node that is stuck. `stranger` and `calls` did no harm then either.
"""

from __future__ import annotations

import pytest

from faults import attacks, scenarios

pytest.importorskip("grpc", reason="peers need gRPC: make .venv/installed")


@pytest.fixture(scope="module")
def truth(nursery, tmp_path_factory):
    return scenarios.Truth(nursery, tmp_path_factory.mktemp("attacks") / "undisturbed", attacks.PROBLEM)


@pytest.mark.slow
@pytest.mark.parametrize("how", [*attacks.CONNECTIONS, "greetings"])
def test_the_answer_is_that_of_an_undisturbed_run(how, nursery, truth, tmp_path):
    attacks.attack(how, nursery, truth, tmp_path / how, quick=True)


@pytest.mark.slow
@pytest.mark.parametrize("claim", ["honest", "waits"])
def test_a_node_that_is_stuck_is_named_by_all_and_nobody_else_is(claim, nursery, tmp_path):
    attacks.get_stuck(claim, nursery, tmp_path / claim)
