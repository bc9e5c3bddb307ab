"""The conformance suite must notice a wrong engine."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dekpca.engines import local
from dekpca.plan import Outcome
from dekpca.testing import check_engine


def one_node_a_block(plan):
    return local.drive([block for j in plan.nodes for block in plan.hosting([j]).blocks()], plan.options)


def test_accepts_other_blocks():
    check_engine(one_node_a_block)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda o: replace(o, max_iter=4), "iterations"),
        (lambda o: replace(o, seed=o.seed + 1), "bit-equal|eigenvalues|iterations|mean"),
    ],
)
def test_refuses_other_answers(wrong, says):
    with pytest.raises(AssertionError, match=says):
        check_engine(lambda plan: local.run(replace(plan, options=wrong(plan.options))))


def test_refuses_missing_nodes():
    def partial(plan):
        outcome = one_node_a_block(plan)
        return Outcome(outcome.answers[1:], outcome.traffic)

    with pytest.raises(AssertionError, match="answers for nodes"):
        check_engine(partial)
