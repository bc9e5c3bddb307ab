from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import clusters, make_options
from dekpca import Network
from dekpca.block import FlatRows, make_blocks
from dekpca.core.clusters import LEAST_CLUSTER
from dekpca.core.landmarks import REDUNDANT, Landmarks, allot, node_random, pack_triangle, unpack_triangle
from dekpca.engines import local
from dekpca.kernels import Kernel
from dekpca.landmark_supply import Supply
from dekpca.plan import Plan

NAMES = ["n10", "n9", "n1", "n2", "n3"]
PATH = Network({a: [b for b in NAMES if abs(NAMES.index(a) - NAMES.index(b)) == 1] for a in NAMES})
PARTS = clusters([20, 1, 33, 7, 12])
RBF = Kernel("rbf", gamma=0.05)


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


def test_random_numbers_depend_on_the_name_alone():
    rome, again, oslo = (
        node_random(3, name, "landmarks").permutation(40).tolist() for name in ("rome", "rome", "oslo")
    )
    assert rome == again != oslo
    assert rome != node_random(3, "rome", "clusters").permutation(40).tolist()


def test_triangles():
    A = np.random.default_rng(0).normal(size=(2, 5, 5))
    A = A + A.swapaxes(1, 2)
    np.testing.assert_array_equal(unpack_triangle(pack_triangle(A)[1], 5), A[1])


# ---------------------------------------------------------------------- where they come from
def supplied(parts, network, wanted, apart=False, **changes):
    """What each stage hands out, by kind, at every block; each node alone in its block, if `apart`."""
    options = make_options(parts, network, **{"solver": "landmarks", "landmarks": "auto", **changes})
    blocks = make_blocks(parts, network, apart=apart)

    def script(block, options, resume=None):
        rows, stages = FlatRows(block, block.samples), []
        supply = Supply(block, options, rows, rows)
        for count in wanted:
            stages.append((yield from supply.more(count)))
        return stages, supply

    return local.drive(blocks, options, script=script).answers


def test_samples_reach_everybody_in_order_of_names():
    answers = supplied(PARTS, PATH, [30], landmarks="samples", apart=True)
    counts = allot(np.array([len(p) for p in PARTS]), PATH.names, 30, 1)
    drawn = [np.sort(node_random(0, NAMES[j], "landmarks").permutation(len(PARTS[j]))[: counts[j]]) for j in range(5)]
    expected = np.concatenate([PARTS[j][drawn[j]] for j in PATH.by_name])
    for (stage,), supply in answers:
        np.testing.assert_array_equal(stage["samples"], expected)
        np.testing.assert_array_equal(supply.sampled, counts)


def test_no_row_is_given_twice_and_in_the_end_all_are():
    wanted = [10, 25, 100, 5]
    for stages, supply in supplied(PARTS, PATH, wanted, landmarks="samples"):
        rows = [stage["samples"] for stage in stages]
        assert [len(r) for r in rows] == [10, 25, 73 - 35, 0]
        given_ = np.concatenate(rows)
        together = np.concatenate(PARTS)
        np.testing.assert_array_equal(given_[np.lexsort(given_.T)], together[np.lexsort(together.T)])
        assert supply.spent
        assert not supply.has_rows


def test_means_are_of_other_rows_at_every_stage():
    """Every row has a column of its own, so that a mean says whose it is: those of all stages together weigh no row twice."""
    rng = np.random.default_rng(0)
    rows = np.concatenate([rng.normal(scale=20, size=(400, 3)), np.eye(400)], axis=1)
    parts = [rows[part] for part in np.array_split(rng.permutation(400), 3)]
    for stages, supply in supplied(parts, Network.path(3), [6, 6, 12, 50, 200], landmarks="kmeans"):
        assert len(stages[3]["kmeans"]) > 0
        owners = np.concatenate([stage["kmeans"] for stage in stages])[:, 3:]
        assert len(owners) > 15
        behind = (owners > 0).sum(axis=1)
        assert behind.min() >= LEAST_CLUSTER
        assert ((owners > 0).sum(axis=0) <= 1).all()
        np.testing.assert_allclose(owners.max(axis=1), 1 / behind)
        assert (supply.clustered <= [len(p) for p in parts]).all()


def test_means_rows_and_points_that_nobody_owns_follow_each_other():
    parts = clusters([60, 45, 3, 50, 30])
    everything = {row.tobytes() for p in parts for row in p}
    (stages, supply), *_ = supplied(parts, Network.ring(5), [10, 40, 400])
    assert [len(stage["kmeans"]) > 0 for stage in stages] == [
        False,
        True,
        False,
    ]  # too few of a node, enough, none left
    assert all(len(stage["samples"]) for stage in stages)
    assert not any(row.tobytes() in everything for stage in stages for row in stage["kmeans"])
    assert {row.tobytes() for stage in stages for row in stage["samples"]} <= everything
    assert not supply.has_rows
    (stages, supply), *_ = supplied(parts, Network.ring(5), [10, 60, 400], share_rows=False)
    assert list(stages[1]) == list(stages[2]) == ["kmeans", "gaussian"]
    assert not any(row.tobytes() in everything for stage in stages for points in stage.values() for row in points)
    assert not supply.has_rows


def test_points_that_nobody_owns_have_the_mean_and_the_spread_of_the_rows():
    rng = np.random.default_rng(3)
    turn = np.linalg.qr(rng.normal(size=(80, 80)))[0]
    parts = [
        5.0 + rng.normal(size=(n, 80)) * np.geomspace(20, 0.01, 80) @ turn for n in (200, 160, 90)
    ]  # most is in 50 directions
    X = np.concatenate(parts)
    for (stage,), _ in supplied(parts, Network.path(3), [40_000], landmarks="gaussian", max_landmarks=40_000):
        points = stage["gaussian"]
        assert points.shape == (40_000, 80)
        covariance = np.cov(X.T, bias=True)
        off = points.mean(axis=0) - X.mean(axis=0)
        assert np.abs(off).max() < 6 * np.sqrt(np.diagonal(covariance).max() / 40_000)
        assert np.linalg.norm(np.cov(points.T) - covariance, 2) < 0.05 * np.linalg.norm(covariance, 2)


@pytest.mark.parametrize("kind", ["auto", "samples", "kmeans", "gaussian"])
def test_every_block_is_handed_the_same(kind):
    together, apart = (supplied(PARTS, PATH, [8, 20], landmarks=kind, apart=apart) for apart in (False, True))
    first = together[0][0]
    for stages, _ in together + apart:
        for mine, theirs in zip(stages, first, strict=True):
            assert list(mine) == list(theirs)
            for name in mine:
                np.testing.assert_allclose(mine[name], theirs[name], rtol=1e-9, atol=1e-12)
    for stages, _ in apart[1:]:  # what went along the tree has the same bits everywhere
        for mine, theirs in zip(stages, apart[0][0], strict=True):
            for name in mine:
                np.testing.assert_array_equal(mine[name], theirs[name])


def test_landmarks_of_a_run_are_those_of_the_rows_that_add_something():
    options = make_options(PARTS, PATH, 30)
    answers = local.run(Plan.of(PARTS, PATH, options)).answers
    offered = supplied(PARTS, PATH, [30], landmarks="samples")[0][0][0]["samples"]
    kept = Landmarks.none(offered).offered(offered, RBF).independent(REDUNDANT)
    for answer in answers:
        np.testing.assert_array_equal(answer.known.points, offered[kept])
        assert answer.known.kinds == [("samples", len(kept))]


# ---------------------------------------------------------------------- which are kept, and the coordinates they give
def test_points_that_add_nothing_are_left_out():
    X = np.concatenate(clusters([30, 20]))
    none = Landmarks.none(X)
    assert sorted(none.offered(X, RBF).independent(REDUNDANT)) == list(range(50))
    twice = np.concatenate([X, X[::-1] + 1e-9])
    kept = none.offered(twice, RBF).independent(REDUNDANT)
    assert sorted(np.where(kept < 50, kept, 99 - kept)) == list(range(50))
    linear = Kernel("linear")
    kept = none.offered(X, linear).independent(REDUNDANT)
    assert len(kept) == 6  # as many as columns
    marks = Landmarks.of(X[kept], linear)
    assert len(marks.offered(X, linear).independent(REDUNDANT)) == 0
    np.testing.assert_allclose(marks.coordinates(linear, X) @ marks.coordinates(linear, X).T, X @ X.T, atol=1e-9)
    assert len(none.offered(np.zeros((3, 6)), linear).independent(REDUNDANT)) == 0
    assert len(none.offered(X[:0], RBF).independent(REDUNDANT)) == 0


def test_where_some_are_redundant_they_come_in_pivot_order():
    """The one of which the others leave the most comes first, so that the Cholesky factor's diagonal falls; where none is they stay as they are."""
    X = np.concatenate(clusters([30, 20]))
    for kernel in (RBF, Kernel("poly", gamma=0.1, degree=2)):
        kept = Landmarks.none(X).offered(np.concatenate([X, X[:3]]), kernel).independent(REDUNDANT)
        assert len(kept) <= len(X)
        points = np.concatenate([X, X[:3]])[kept]
        left = np.diagonal(np.linalg.cholesky(kernel.gram(points, points) + 1e-13 * np.eye(len(kept))))
        assert (np.diff(left) <= 1e-6 * left[0]).all()
    np.testing.assert_array_equal(
        Landmarks.none(X).offered(X, Kernel("rbf", gamma=5.0)).independent(REDUNDANT), np.arange(len(X))
    )


def test_more_landmarks_change_no_coordinate():
    X = np.concatenate(clusters([30, 20, 25]))
    some, more = X[Landmarks.none(X).offered(X[:15], RBF).independent(REDUNDANT)], X[15:40]
    marks = Landmarks.of(some, RBF)
    before = marks.coordinates(RBF, X)
    more = more[marks.offered(more, RBF).independent(REDUNDANT)]
    grown, growth = marks.grown(more, RBF)
    after = grown.coordinates(RBF, X)
    np.testing.assert_allclose(after[:, :15], before, atol=1e-9)
    np.testing.assert_allclose(after[:, 15:], growth.coordinates(X, before), atol=1e-8)
    np.testing.assert_array_equal(grown.root, np.triu(grown.root))
    points = np.concatenate([some, more])
    exact = RBF.gram(X, points) @ np.linalg.solve(RBF.gram(points, points), RBF.gram(points, X))
    np.testing.assert_allclose(after @ after.T, exact, atol=1e-8)


def test_a_bad_kernel_is_noticed_by_the_landmarks():
    X = np.concatenate(clusters([30]))
    kernel = Kernel("sigmoid", gamma=0.5, coef0=-1.0)
    with pytest.raises(
        ValueError, match=r"not positive semi-definite: smallest eigenvalue .* of the landmarks' kernel"
    ):
        Landmarks.none(X).offered(X, kernel).independent(REDUNDANT)
