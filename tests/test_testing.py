"""The conformance suite must notice a wrong engine."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest

from dekpca import Network
from dekpca.answer import Expansion
from dekpca.engines import local
from dekpca.plan import Outcome
from dekpca.rounds import Round, run_round
from dekpca.site import apart
from dekpca.testing import check_engine


def nodes_apart(plan, delivery=local.Delivery):
    sites = apart(plan.parts, plan.network)
    return local.drive(sites, plan.options, delivery(sites))


def test_accepts_nodes_apart():
    check_engine(nodes_apart)


def altered(alter):
    """An engine whose answers are altered after a good run of nodes apart: those of the last node alone."""

    def run(plan):
        outcome = nodes_apart(plan)
        return Outcome([*outcome.answers[:-1], alter(outcome.answers[-1])], outcome.traffic)

    return run


def with_other_terms(answer, expansion):
    """The functions of the node changed by 1e-7 of their size, in one of its expansions."""
    (node,) = answer.site.nodes.tolist()
    if expansion == "landmarks":
        return replace(answer, terms=Expansion(answer.terms.shared * (1 + 1e-7)))
    if isinstance(answer.terms, Expansion):  # not of the projection solver
        return answer
    terms = answer.terms[node][expansion]
    wrong = replace(terms, coefficients=tuple(c * (1 + 1e-7) for c in terms.coefficients))
    return replace(answer, terms={node: answer.terms[node] | {expansion: wrong}})


@pytest.mark.parametrize(
    ("alter", "says"),
    [
        (lambda a: replace(a, eigenvalues=a.eigenvalues * (1 + 1e-9)), "landmarks that grow, node 3: eigenvalues"),
        (lambda a: replace(a, n_iter=1), "landmarks that grow, node 3: 1 iterations, expected 0"),
        (lambda a: replace(a, mean=np.nextafter(a.mean, 1)), "landmarks that grow: a network sum differs between nodes"),
        (lambda a: replace(a, accuracy=None), "landmarks that grow: nodes differ in how good the answer is"),
        (lambda a: replace(a, terms={3: {"node": a.terms}}), r"landmarks that grow, node 3: expansions \['node'\]"),
        (lambda a: with_other_terms(a, "landmarks"), "landmarks that grow, node 3: function over landmarks"),
        (lambda a: with_other_terms(a, "neighborhood"), "projection, equal nodes on a ring, node 5: function over neighborhood"),
    ],
    ids=["eigenvalues", "iterations", "mean", "accuracy", "expansions", "functions", "neighborhood"],
)  # fmt: skip
def test_refuses_an_answer_that_is_a_little_wrong_at_one_node(alter, says):
    with pytest.raises(AssertionError, match=says):
        check_engine(altered(alter))


def all_wrong(alter):
    """An engine whose answers are altered at all nodes alike."""

    def run(plan):
        outcome = local.run(plan)
        return Outcome([alter(answer) for answer in outcome.answers], outcome.traffic)

    return run


@pytest.mark.parametrize(
    ("alter", "says"),
    [
        (lambda a: replace(a, mean=a.mean * (1 + 1e-11)), "landmarks that grow, node 0: the network's mean"),
        (lambda a: replace(a, accuracy=replace(a.accuracy, error=2 * a.accuracy.error)), "no row leaves, node 0: accuracy"),
    ],
    ids=["mean", "accuracy"],
)  # fmt: skip
def test_refuses_an_answer_that_is_wrong_at_all_nodes(alter, says):
    with pytest.raises(AssertionError, match=says):
        check_engine(all_wrong(alter))


def test_refuses_another_seed():
    with pytest.raises(
        AssertionError, match=r"(landmarks that grow|no row leaves), node 0: (accuracy|the network's mean)"
    ):
        check_engine(lambda plan: local.run(replace(plan, options=replace(plan.options, seed=1))))


def test_refuses_fewer_iterations():
    def run(plan):
        asked = plan.options.projection
        fewer = asked if asked is None else replace(asked, max_iter=4)
        return local.run(replace(plan, options=replace(plan.options, projection=fewer)))

    with pytest.raises(AssertionError, match="equal nodes on a ring, node 0: 4 iterations, expected"):
        check_engine(run)


class Forgetful(local.Delivery):
    """Leaves the term of one site out of every sum of moments."""

    def total(self, requests):
        return super().total(requests[1:] if requests[0].kind == "moments" else requests)


class Deaf(local.Delivery):
    """The first message of the first iteration arrives as zeros."""

    heard = False

    def exchange(self, requests):
        arrived = super().exchange(requests)
        if requests[0].kind == "share" and not self.heard:
            self.heard, edge = True, min(arrived)
            arrived[edge] = np.zeros_like(arrived[edge])
        return arrived


@pytest.mark.parametrize(
    ("delivery", "says"),
    [(Forgetful, "landmarks that grow, node 0"), (Deaf, "projection, equal nodes on a ring, node 0")],
)
def test_refuses_messages_that_are_lost(delivery, says):
    with pytest.raises(AssertionError, match=says):
        check_engine(lambda plan: nodes_apart(plan, delivery))


def test_refuses_missing_nodes():
    def partial(plan):
        outcome = nodes_apart(plan)
        return Outcome(outcome.answers[1:], outcome.traffic)

    with pytest.raises(AssertionError, match="answers for nodes"):
        check_engine(partial)


# ---------------------------------------------------------------------- the loop of every engine
class Named(Round):
    """A round whose root concludes in another order than its shapes have."""

    kind = "moments"

    def term(self):
        time.sleep(0.2)
        return {"one": np.ones(1)}

    def told(self):
        return {"first": (2,), "second": (1,)}

    def conclude(self, total):
        return {"second": np.array([3.0]), "first": np.array([1.0, 2.0])}


class Slow(Named):
    """A round of another part, whose conclusion takes long."""

    kind = "judge"

    def term(self):
        return {"one": np.ones(1)}

    def conclude(self, total):
        time.sleep(0.2)
        return super().conclude(total)


def driven(*rounds):
    """What one node is told in the last round, and the seconds of the parts."""
    (site,) = apart([np.ones((4, 2))], Network({"a": []}))

    def script(site, options):
        for round_ in rounds:
            told = yield from run_round(site, round_)
        return told

    outcome = local.drive([site], None, local.Delivery([site]), script=script)
    return outcome.answers[0], outcome.seconds


def test_conclusions_are_told_by_name_whatever_their_order():
    told, _ = driven(Named())
    assert told["first"].tolist() == [1.0, 2.0]
    assert told["second"].tolist() == [3.0]


def test_the_time_of_terms_and_conclusions_belongs_to_the_part_of_their_sum():
    _, seconds = driven(Slow(), Named())
    assert 0.2 <= seconds["moments"] < 0.3
    assert 0.2 <= seconds["judging"] < 0.3
    assert seconds.get("meeting", 0.0) < 0.1
