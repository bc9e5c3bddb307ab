"""The conformance suite must notice a wrong engine."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dekpca.block import make_blocks
from dekpca.engines import local
from dekpca.testing import check_engine


def one_node_a_block(parts, network, options):
    sizes = [len(p) for p in parts]
    return local.drive([b for j, p in enumerate(parts) for b in make_blocks([p], network, [j], sizes)], options)


def test_accepts_other_blocks():
    check_engine(one_node_a_block)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda o: replace(o, max_iter=4), "iterations"),
        (lambda o: replace(o, seed=o.seed + 1), "bit-equal|eigenvalues|iterations"),
    ],
)
def test_refuses_other_answers(wrong, says):
    with pytest.raises(AssertionError, match=says):
        check_engine(lambda parts, network, options: local.run(parts, network, wrong(options)))


def test_refuses_missing_nodes():
    def partial(parts, network, options):
        outcome = one_node_a_block(parts, network, options)
        return local.Outcome(outcome.answers[1:], outcome.traffic)

    with pytest.raises(AssertionError, match="answers for nodes"):
        check_engine(partial)
