from __future__ import annotations

import numpy as np
import pytest

from conftest import clusters, make_options
from dekpca import Network, Projection
from dekpca.draws import node_random
from dekpca.engines import local
from dekpca.kernels import make_kernel
from dekpca.landmarks import REDUNDANT, Landmarks
from dekpca.site import apart as sites_apart
from dekpca.site import make_site
from dekpca.solvers.sums.clusters import LEAST_CLUSTER

NAMES = ["n10", "n9", "n1", "n2", "n3"]
PATH = Network({a: [b for b in NAMES if abs(NAMES.index(a) - NAMES.index(b)) == 1] for a in NAMES})
PARTS = clusters([20, 1, 33, 7, 12])
RBF = make_kernel("rbf", gamma=0.05)


def test_random_numbers_depend_on_the_name_alone():
    rome, again, oslo = (
        node_random(3, name, "landmarks").permutation(40).tolist() for name in ("rome", "rome", "oslo")
    )
    assert rome == again != oslo
    assert rome != node_random(3, "rome", "clusters").permutation(40).tolist()


# ---------------------------------------------------------------------- where they come from
def chosen(parts, network, apart=False, **changes):
    """The landmarks of a run and their kinds, at every site; each node is a site of its own, if `apart`."""
    options = make_options(parts, network, **changes)
    sites = sites_apart(parts, network) if apart else [make_site(parts, network)]
    return [(a.marks.points, a.marks.kinds) for a in local.drive(sites, options, local.Delivery(sites)).answers]


def test_every_site_is_told_the_same():
    for changes in ({}, {"n_landmarks": 20}, {"share_rows": False}, {"projection": Projection(n_landmarks=12)}):
        together, apart = (chosen(PARTS, PATH, apart, **changes) for apart in (False, True))
        first = together[0]
        for points, kinds in together + apart:
            assert kinds == first[1]
            np.testing.assert_allclose(points, first[0], rtol=1e-9, atol=1e-12)
        for points, _ in apart[1:]:  # what went along the tree has the same bits everywhere
            np.testing.assert_array_equal(points, apart[0][0])


def test_draws_do_not_depend_on_the_numbers_of_the_nodes():
    """Rows are drawn by the name of their node and their number there: the same nodes in another order give the same landmarks."""
    order = [3, 0, 4, 2, 1]
    names = [NAMES[j] for j in order]
    numbered_otherwise = Network({a: [b for b in NAMES if abs(NAMES.index(a) - NAMES.index(b)) == 1] for a in names})
    usual, other = (
        chosen(parts, network, n_landmarks=40)[0][0]
        for parts, network in ((PARTS, PATH), ([PARTS[j] for j in order], numbered_otherwise))
    )
    assert usual.shape == other.shape
    np.testing.assert_allclose(other[np.lexsort(other.T)], usual[np.lexsort(usual.T)], rtol=1e-6)


@pytest.mark.parametrize("wanted", [1, 5, 14, 40, 1000])
@pytest.mark.parametrize("share_rows", [True, False])
def test_a_number_of_landmarks_is_a_limit(wanted, share_rows):
    ((points, kinds), *_) = chosen(PARTS, PATH, n_landmarks=wanted, share_rows=share_rows, n_components=1)
    rows = {row.tobytes() for part in PARTS for row in part}
    assert 1 <= len(points) <= min(wanted, 73)
    assert len(points) == sum(count for _, count in kinds)
    assert {kind for kind, _ in kinds} <= ({"means", "rows"} if share_rows else {"means"})
    start = 0
    for kind, count in kinds:
        assert all((point.tobytes() in rows) == (kind == "rows") for point in points[start : start + count])
        start += count
    assert share_rows or len(points) <= 73 // LEAST_CLUSTER
    if share_rows and wanted >= 40:  # more than there are clusters of enough rows
        assert "rows" in dict(kinds)


def test_landmarks_are_means_of_at_least_five_rows_of_the_network():
    """Every row has a column of its own, so that a mean says of which rows it is."""
    rng = np.random.default_rng(0)
    rows = np.concatenate([rng.normal(scale=20, size=(400, 3)), np.eye(400)], axis=1)
    parts = [rows[part] for part in np.array_split(rng.permutation(400), 100)]  # four rows a node
    ((points, kinds), *_) = chosen(parts, Network.path(100), share_rows=False, n_components=2)
    assert {kind for kind, _ in kinds} == {"means"}
    behind = (points[:, 3:] > 1e-6).sum(axis=1)
    assert len(points) > 15
    assert behind.min() >= LEAST_CLUSTER
    np.testing.assert_allclose(points[:, 3:].sum(axis=1), 1.0, rtol=1e-5)  # weights of a mean


# ---------------------------------------------------------------------- which are kept, and the coordinates they give
def test_points_that_add_nothing_are_left_out():
    X = np.concatenate(clusters([30, 20]))
    none = Landmarks.none(X)
    assert sorted(none.offered(X, RBF).independent(REDUNDANT, 100)) == list(range(50))
    twice = np.concatenate([X, X[::-1] + 1e-9])
    kept = none.offered(twice, RBF).independent(REDUNDANT, 100)
    assert sorted(np.where(kept < 50, kept, 99 - kept)) == list(range(50))
    linear = make_kernel("linear")
    kept = none.offered(X, linear).independent(REDUNDANT, 100)
    assert len(kept) == 6  # as many as columns
    marks = Landmarks.none(X[kept]).plus(X[kept], "points", linear)
    assert len(marks.offered(X, linear).independent(REDUNDANT, 100)) == 0
    np.testing.assert_allclose(marks.coordinates(linear, X) @ marks.coordinates(linear, X).T, X @ X.T, atol=1e-9)
    assert len(none.offered(np.zeros((3, 6)), linear).independent(REDUNDANT, 100)) == 0
    assert len(none.offered(X[:0], RBF).independent(REDUNDANT, 100)) == 0


def test_where_some_are_redundant_they_come_in_pivot_order():
    """The one of which the others leave the most comes first, so that the Cholesky factor's diagonal falls; where none is they stay as they are."""
    X = np.concatenate(clusters([30, 20]))
    for kernel in (RBF, make_kernel("poly", gamma=0.1, degree=2)):
        kept = Landmarks.none(X).offered(np.concatenate([X, X[:3]]), kernel).independent(REDUNDANT, 100)
        assert len(kept) <= len(X)
        points = np.concatenate([X, X[:3]])[kept]
        left = np.diagonal(np.linalg.cholesky(kernel.gram(points, points) + 1e-13 * np.eye(len(kept))))
        assert (np.diff(left) <= 1e-6 * left[0]).all()
    np.testing.assert_array_equal(
        Landmarks.none(X).offered(X, make_kernel("rbf", gamma=5.0)).independent(REDUNDANT, 100), np.arange(len(X))
    )


def test_at_most_so_many_are_kept_and_the_first_of_equal_ones():
    X = np.concatenate(clusters([30, 20]))
    offered = Landmarks.none(X).offered(X, RBF)
    kept = offered.independent(REDUNDANT, 12)
    assert len(set(kept.tolist())) == 12
    np.testing.assert_array_equal(kept, offered.independent(REDUNDANT, 20)[:12])
    cosine = make_kernel("cosine")  # k(x, x) is 1 but for rounding
    scaled = X * np.random.default_rng(0).uniform(0.5, 2.0, len(X))[:, None]
    ones, others = (Landmarks.none(X).offered(Y, cosine).independent(REDUNDANT, 50) for Y in (X, scaled))
    np.testing.assert_array_equal(ones, others)


def test_more_landmarks_change_no_coordinate():
    X = np.concatenate(clusters([30, 20, 25]))
    some, more = X[Landmarks.none(X).offered(X[:15], RBF).independent(REDUNDANT, 100)], X[15:40]
    marks = Landmarks.none(some).plus(some, "points", RBF)
    before = marks.coordinates(RBF, X)
    more = more[marks.offered(more, RBF).independent(REDUNDANT, 100)]
    grown = marks.plus(more, "points", RBF)
    after = grown.coordinates(RBF, X)
    np.testing.assert_allclose(after[:, :15], before, atol=1e-9)
    np.testing.assert_array_equal(grown.root, np.triu(grown.root))
    points = np.concatenate([some, more])
    exact = RBF.gram(X, points) @ np.linalg.solve(RBF.gram(points, points), RBF.gram(points, X))
    np.testing.assert_allclose(after @ after.T, exact, atol=1e-8)


def test_a_bad_kernel_is_noticed_by_the_landmarks():
    X = np.concatenate(clusters([30]))
    kernel = make_kernel("sigmoid", gamma=0.5, coef0=-1.0)
    with pytest.raises(
        ValueError, match=r"not positive semi-definite: smallest eigenvalue .* of the landmarks' kernel"
    ):
        Landmarks.none(X).offered(X, kernel).independent(REDUNDANT, 100)
