"""The protocol under the simulator, a few seeds; `make test-faults` has 10,000. tests/simulator says what happens to the nodes."""

from __future__ import annotations

import random

import pytest

from dekpca.peers.errors import PeerLost
from simulator import cases
from simulator.world import World

BLOCK = 20


@pytest.mark.parametrize("first", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in range(BLOCK, 200, BLOCK))])
def test_every_seed_ends_as_it_must(first):
    for seed in range(first, first + BLOCK):
        cases.play(seed)


def test_nodes_stay_until_those_beyond_a_lost_one_have_found_them():
    """Seed 10273: a node that connects two others to the rest is lost when all but these know that the answer is final."""
    assert cases.play_in_clear(10273, lies=[(cases.Case.forge, 1)]) == "answer (forge)"  # a member forges statuses too


def test_a_seed_is_played_the_same_every_time(capsys):
    """Else a failure could not be seen again."""
    traces = []
    for _ in range(2):
        cases.play(8, show=True)
        traces.append(capsys.readouterr().out)
    assert traces[0] == traces[1]
    assert len(traces[0].splitlines()) > 20


def test_a_run_that_ends_wrongly_says_its_seed_and_its_story(monkeypatch):
    monkeypatch.setattr(cases, "undisturbed", lambda edges, rows, rounds: dict.fromkeys(edges, -1))
    with pytest.raises(cases.Failure, match=r"seed 8: node \w has a WRONG ANSWER(.|\n)*network"):
        cases.play(8)


def test_an_error_that_names_an_innocent_node_is_a_failure():
    world = World(1, {"a": ["b"], "b": ["a", "c"], "c": ["b"]})
    case = cases.Case(world, random.Random(0), named={"c"}, lasting=True)
    node = world.nodes["a"]
    node.starts, node.error = 1, PeerLost("node c was not heard from for 9 s")
    cases.check_error(node, case)
    node.error = PeerLost("node b was not heard from for 9 s")
    with pytest.raises(cases.Failure, match="node a names none of"):
        cases.check_error(node, case)
