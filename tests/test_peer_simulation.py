"""The protocol under the simulator, a few seeds; `make test-faults` has 10,000. tests/simulator says what happens to the nodes."""

from __future__ import annotations

import random

import pytest

from dekpca.peers.errors import PeerLost
from simulator import cases, rules, walks
from simulator.world import World

BLOCK = 20


@pytest.mark.parametrize("first", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in range(BLOCK, 200, BLOCK))])
def test_every_seed_ends_as_it_must(first):
    for seed in range(first, first + BLOCK):
        cases.play(seed)


def test_nodes_stay_until_those_beyond_a_lost_one_have_found_them():
    """Seed 10273: a node that connects two others to the rest is lost when all but these know that the answer is final."""
    assert cases.play_in_clear(10273, lies=[(cases.Case.forge, 1)]) == "answer (forge)"  # a member forges statuses too


def test_an_agreement_that_is_held_up_names_the_member_that_keeps_statuses_back():
    """Seed 9754: member c keeps back that node f is dead. Nodes beyond c named the one that should propose a view, and their own neighbors."""
    assert cases.play(9754) == "too few left, error names a node, then one answer (withhold)"


@pytest.mark.parametrize(
    "given", [{"nodes": 3, "copies": 1}, {"nodes": 4, "liars": 1}, {"nodes": 5, "quorum": 4, "liars": 2}]
)
def test_walks_of_the_agreement_have_one_answer_and_leave_out_nobody_without_a_reason(given):
    """Below the number of liars that it takes; with at least one final answer, or the walks show nothing."""
    assert sum(walks.walk(seed, **given) for seed in range(20)) > 0


@pytest.mark.parametrize("nodes", [3, 4, 5, 6, pytest.param(7, marks=pytest.mark.slow)])
def test_how_many_liars_it_takes_for_two_answers(nodes):
    """Each of two groups needs a quorum with the liars; there are nodes - liars others: liars >= 2 quorum - nodes."""
    for quorum in range(nodes // 2 + 1, nodes + 1):
        for liars in range(nodes - 1):
            answers = max(len(walks.double_vote(nodes, quorum, liars, first)) for first in range(1, nodes - liars))
            assert (answers > 1) == (liars >= 2 * quorum - nodes), (quorum, liars)


@pytest.mark.slow  # a minute; without a rule a run may hang, to its limit
@pytest.mark.parametrize("rule", rules.RULES)
def test_every_rule_is_needed(rule):
    _, case, seed = rules.RULES[rule]
    with rules.taken_away(rule):
        assert rules.goes_wrong(case, seed)
    case(seed)


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
