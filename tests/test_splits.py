from __future__ import annotations

import numpy as np
import pytest

from dekpca.experiments import splits

Y = np.random.default_rng(0).integers(0, 4, 2000)


@pytest.mark.parametrize("split", [splits.evenly, splits.one_class_a_node, splits.mostly_one_class])
def test_rows_are_dealt_once_and_sizes_hold(split):
    sizes = [100, 40, 75, 120, 9]
    hands = split(Y, sizes, seed=3)
    assert [len(h) for h in hands] == sizes
    dealt = np.concatenate(hands)
    assert len(np.unique(dealt)) == len(dealt)
    assert [h.tolist() for h in split(Y, sizes, seed=3)] == [h.tolist() for h in hands]
    assert [h.tolist() for h in split(Y, sizes, seed=4)] != [h.tolist() for h in hands]


def test_kinds_of_splits():
    sizes = np.full(8, 100)
    for hand in splits.evenly(Y, sizes):
        assert np.abs(np.bincount(Y[hand], minlength=4) / 100 - np.bincount(Y) / len(Y)).max() < 0.03
    for j, hand in enumerate(splits.one_class_a_node(Y, sizes)):
        assert set(Y[hand]) == {j % 4}
    for j, hand in enumerate(splits.mostly_one_class(Y, sizes, 0.8)):
        assert 80 <= (Y[hand] == j % 4).sum() < 100


def test_too_few_rows():
    with pytest.raises(ValueError, match="there are 2000"):
        splits.evenly(Y, [3000])
    with pytest.raises(ValueError, match="fewer than the nodes need"):
        splits.one_class_a_node(Y, [1500])
