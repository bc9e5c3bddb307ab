from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import clusters, make_options
from dekpca import Network
from dekpca.core.landmarks import allot, draw, pack_triangle, unpack_triangle
from dekpca.engines import local


@given(st.lists(st.integers(1, 500), min_size=1, max_size=60), st.integers(0, 700), st.integers(0, 1000))
@settings(max_examples=200, deadline=None)
def test_allotment_is_exact_and_proportional(sizes, count, seed):
    sizes = np.array(sizes)
    given_ = allot(sizes, tuple(map(str, range(len(sizes)))), count, seed)
    assert given_.sum() == min(count, sizes.sum())
    share = sizes * min(count, sizes.sum()) / sizes.sum()
    assert (given_ >= np.floor(share - 1e-6)).all()
    assert (given_ <= np.ceil(share + 1e-6)).all()
    assert (given_ <= sizes).all()


def test_allotment_has_no_favorites():
    sizes = np.array([1] * 50 + [2] * 25)
    names = tuple(map(str, range(75)))
    mean = np.mean([allot(sizes, names, 10, seed) for seed in range(3000)], axis=0)
    np.testing.assert_allclose(mean, sizes / 10, atol=0.03)  # 5 standard deviations of a mean of 3000 draws


def test_draw_depends_on_the_name_alone():
    assert draw(3, "rome", 40, 5).tolist() == draw(3, "rome", 40, 5).tolist() != draw(3, "oslo", 40, 5).tolist()
    assert sorted(set(draw(0, "a", 12, 12))) == list(range(12))


def test_triangles():
    A = np.random.default_rng(0).normal(size=(2, 5, 5))
    A = A + A.swapaxes(1, 2)
    np.testing.assert_array_equal(unpack_triangle(pack_triangle(A)[1], 5), A[1])


def test_landmarks_reach_everybody_in_order_of_names():
    names = ["n10", "n9", "n1", "n2", "n3"]
    network = Network({a: [b for b in names if abs(names.index(a) - names.index(b)) == 1] for a in names})
    parts = clusters([20, 1, 33, 7, 12])
    options = make_options(parts, network, 30)
    outcome = local.run(parts, network, options)
    counts = allot(np.array([len(p) for p in parts]), network.names, 30, 0)
    expected = np.concatenate([parts[j][draw(0, names[j], len(parts[j]), counts[j])] for j in network.by_name])
    for answer in outcome.answers:
        np.testing.assert_array_equal(answer.known.points, expected)
