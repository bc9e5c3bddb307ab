"""What the totals of `moments` and `judge` tell of single rows, and the limits that follow: how many landmarks, new rows, and rows in a sample."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from scipy.optimize import least_squares
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.exceptions import ConvergenceWarning
from sklearn.preprocessing import scale

from conftest import make_options
from dekpca import DecentralizedKernelPCA, Network
from dekpca.draws import row_keys
from dekpca.kernels import make_kernel
from dekpca.landmarks import Landmarks
from dekpca.rounds import BadConclusion
from dekpca.settings import LandmarkSource
from dekpca.solvers.features import Power, draw_features
from dekpca.solvers.sums import SumsOptions, sample_size
from dekpca.solvers.sums.judge import JudgingRows, Sketch
from dekpca.solvers.sums.moments import EXTRA, Moments, Principal, Seen
from dekpca.solvers.sums.rows import SiteRows
from dekpca.solvers.sums.stream import SummedMoments

RBF = make_kernel("rbf", gamma=1e-3)


def site_rows(X, nodes=3):
    return SiteRows(X, row_keys(0, ["a"], np.array([len(X)])), np.zeros(len(X), np.int64), len(X), nodes, least=5)


# ---------------------------------------------------------------------- rows from the products of their coordinates
def products(X, marks):
    """The sum of psi psi' that a root sees."""
    m, found = marks.size, np.zeros((marks.size, marks.size))
    found[np.triu_indices(m)] = Moments(Seen(site_rows(X), marks, RBF), True, 4, 1.0).term()["second"]
    return found + np.triu(found, 1).T


def rows_found(second, marks, about, tries):
    """Points that fit to a sum of psi psi': of fewer rows than landmarks, psi is in its span and has leverage 1. `about`: other rows."""
    m, P, rng = marks.size, marks.points, np.random.default_rng(0)
    values, vectors = np.linalg.eigh(second)
    there = values > 1e-11
    outside, scaled, low, high = (
        vectors[:, ~there],
        vectors[:, there] / values[there] ** 0.5,
        about.min(0),
        about.max(0),
    )

    def psi(x):
        k = np.exp(-RBF.gamma * ((P - x) ** 2).sum(axis=1))
        return k @ marks.root, (marks.root.T * k) @ (2 * RBF.gamma * (P - x))

    def misfit(x):
        p = psi(x)[0]
        return np.append(p @ outside / np.linalg.norm(p), 0.03 * (((p @ scaled) ** 2).sum() - 1))

    def slope(x):
        p, J = psi(x)
        size, along = np.linalg.norm(p), p @ J
        lean = outside.T @ J / size - np.outer(p @ outside, along) / size**3
        return np.vstack([lean, 0.06 * (p @ scaled) @ (scaled.T @ J)])

    found = []
    for _ in range(tries):
        start = np.clip(P[rng.integers(m)] + 0.5 * about.std(0) * rng.normal(size=P.shape[1]), low, high)
        box, exact = (low - 0.5, high + 0.5), dict.fromkeys(("xtol", "ftol", "gtol"), 1e-14)
        found.append(
            least_squares(misfit, start, slope, bounds=box, x_scale=about.std(0) + 0.1, max_nfev=200, **exact).x
        )
    return np.array(found)


@pytest.fixture(scope="module")
def digits():
    X = np.random.default_rng(0).permutation(load_digits().data)
    return X[:600], X[600:], Landmarks.of(X[600:1400:7], RBF)  # 115 landmarks, 64 columns


def nearest(found, rows):
    return np.abs(found[:, None] - rows).max(axis=2).min(axis=1)


def test_each_row_follows_from_the_products_of_more_coordinates_than_rows_and_columns(digits):
    """Before, an honest root read each of 40 rows that an owner had added in the difference of the totals of two honest runs, to 1e-4 of entries from
    0 to 16, if the others told it what they had added. The nearest other row is 11 to 22 away in most cases."""
    rows, others, marks = digits
    before, after = (products(np.concatenate([others, new]), marks) for new in (rows[:0], rows[:40]))
    off = nearest(rows_found(after - before, marks, others, 8), rows[:40])
    assert (off < 1e-3).sum() >= 5


def test_products_of_many_runs_make_those_of_more_landmarks(digits):
    """A root that lies tells, in 55 runs, each two of eleven sets of 15 landmarks together: of 80 rows, for which 31 landmarks are allowed."""
    rows, others, _ = digits
    points, part = others[:1155:7], np.split(np.arange(165), 11)
    whole, seen = Landmarks.of(points, RBF), np.zeros((165, 165))
    for i, j in combinations(range(11), 2):
        both = np.concatenate([part[i], part[j]])
        marks = Landmarks.of(points[both], RBF)
        back = np.linalg.inv(marks.root)
        seen[np.ix_(both, both)] = back.T @ products(rows[:80], marks) @ back  # of kernel values
    found = rows_found(whole.root.T @ seen @ whole.root, whole, others, 6)
    assert (nearest(found, rows[:80]) < 1e-2).sum() >= 3


def test_no_row_follows_from_the_products_of_half_as_many_coordinates_as_rows(digits):
    """Not in this way; it is no bound on what they determine. A guess at a mean of rows is as near."""
    rows, others, marks = digits
    twice = rows[: 2 * marks.size]
    off = nearest(rows_found(products(twice, marks), marks, others, 8), twice)
    assert off.min() > 0.5 * nearest(marks.points, twice).min()


def test_each_judging_row_follows_from_the_features_of_a_group_times_more_functions_than_rows():
    """Of 120 rows of others, where the root has so many that each judges in one of eight groups."""
    X, kernel = (
        scale(load_breast_cancer().data)[np.random.default_rng(0).permutation(569)],
        make_kernel("rbf", gamma=0.01),
    )
    rows, others, marks = X[:120], X[120:], Landmarks.of(X[120:220], kernel)
    basis = np.linalg.qr(np.random.default_rng(1).normal(size=(100, 36)))[0]
    principal = Principal(basis, np.ones(36), np.ones(36), np.zeros(100), 1e4, 1e4, 500.0, False, 4)
    options = SumsOptions(4, kernel, 0, sealed=True, share_rows=False)
    judges = JudgingRows(Seen(site_rows(rows), marks, kernel), principal, options, "last")
    image = Sketch(judges, lambda: judges.functions, 36).term()["image"][0]
    vectors, size, _ = np.linalg.svd(image)
    outside = vectors[:, (size > 1e-6 * size[0]).sum() :]

    def misfit(x):  # a root draws features as all nodes do
        one = Seen(replace(site_rows(x[None]), least=1), marks, kernel)
        alone = JudgingRows(one, replace(principal, count=1.0), options, "last")
        sums = alone.back(alone.random_features[0], slice(0, 1), np.ones((1, 1)))
        own = alone.of_rest(*sums)[: len(image), 0]
        return own @ outside / np.linalg.norm(own)

    box = others.min(0) - 0.5, others.max(0) + 0.5
    found = [least_squares(misfit, start, bounds=box, max_nfev=40).x for start in others[100:104]]
    assert (nearest(np.array(found), rows) < 0.05).sum() >= 2
    assert np.median(nearest(others, rows)) > 0.5


def test_each_row_follows_from_the_products_of_random_features_that_a_root_asks_for(digits):
    """In each round of the power iteration it tells any basis, and sees the products with it. Of fewer rows than columns in all, each follows."""
    rows, others, _ = digits
    features, rng = draw_features(rows, RBF, 400, 0), np.random.default_rng(0)
    psi, bases = features.coordinates(RBF, rows[:60]), [rng.normal(size=(400, 8)) / 20 for _ in range(10)]
    span = np.linalg.svd(np.hstack([Power(psi, np.zeros(400), V, 4, 0.0, 1, 180).term()["image"] for V in bases]))[0][
        :, :60
    ]

    def misfit(x):
        own = features.coordinates(RBF, x[None])[0]
        return own - span @ (span.T @ own)

    found = [least_squares(misfit, start, bounds=(-0.5, 16.5), max_nfev=60).x for start in others[:4]]
    assert (nearest(np.array(found), rows[:60]) < 1e-3).sum() >= 2


# ---------------------------------------------------------------------- the limits
def test_there_are_twice_as_many_rows_as_columns_of_products_of_random_features():
    with pytest.raises(
        ValueError, match=r"2500 random features, .* 80 rows besides .*; set max_landmarks to at most 31"
    ):
        lopsided(landmarks="random-features")
    assert lopsided(landmarks="random-features", max_landmarks=30).n_landmarks_ == 30
    parts = np.split(np.zeros((3000 + 2 * 809, 1)), [3000, 3809])  # 100 rounds of 8 columns, and 9
    asked = {
        "landmarks": LandmarkSource("random-features"),
        "secure_sums": True,
        "share_rows": False,
        "n_components": 4,
    }
    assert make_options(parts, Network.path(3), n_landmarks=2500, **asked).n_landmarks == 2500
    with pytest.raises(ValueError, match="1617 rows besides"):
        make_options([*parts[:2], parts[2][1:]], Network.path(3), n_landmarks=2500, **asked)


def lopsided(**settings):
    parts = np.split(load_digits().data[:680] / 16, [600, 640])
    asked = {"gamma": 0.5, "share_rows": False, "privacy": "secure-sums", "random_state": 0, "tol": 1e-3}
    return DecentralizedKernelPCA(3, network=3, **asked | settings).fit_parts(parts)


def test_there_are_half_as_many_landmarks_as_rows_of_all_nodes_but_the_largest():
    """Else the root, if its own are most of the rows, computes all others from the products of landmark coordinates."""
    limit = "as many as the rows of all nodes but the largest allow; raise tol, or use share_rows=True"  # and not: more landmarks
    for given in ("auto", 70):
        with pytest.warns(ConvergenceWarning, match=limit):
            model = lopsided(landmarks=given)
        assert model.n_landmarks_ <= 31
    with pytest.raises(ValueError, match=r"32 points, .* 80 rows besides those of the largest node.* give at most 31"):
        lopsided(landmarks=load_digits().data[700:732] / 16)
    parts, asked = np.split(np.zeros((680, 2)), [600, 640]), {"secure_sums": True, "share_rows": False}
    options = make_options(parts, Network.path(3), **asked)
    assert options.solver_options.max_landmarks == 31  # a root that tells more is refused
    limit = "n_components=32, but the rows of all nodes but the largest, .* allow at most 31; lower n_components, or use share_rows=True"
    for given in ("auto", 70):
        with pytest.raises(ValueError, match=limit):
            make_options(parts, Network.path(3), n_components=32, n_landmarks=given, **asked)


def test_so_few_rows_of_others_that_the_sums_of_features_tell_each_are_refused():
    """Eight groups of 96 features are summed with nine numbers a row besides the functions: each of nine rows would follow from these alone."""
    sizes = [np.zeros((n, 2)) for n in (600, 10, 9)]
    with pytest.raises(
        ValueError, match="19 rows besides those of the largest node: the root could compute each; join"
    ):
        make_options(sizes, Network.path(3), n_components=1, secure_sums=True, share_rows=False)
    sizes[2] = sizes[1]
    assert make_options(sizes, Network.path(3), n_components=1, secure_sums=True, share_rows=False).max_landmarks == 1


@pytest.mark.parametrize("k", [4, 0.9])
def test_of_many_rows_each_group_that_judges_has_twice_as_many_rows_of_others_as_functions(k):
    """Else the root, if its own are most of the rows, computes those of a group from their features times the values of the functions: each of 240
    breast cancers of 30 columns that was looked for came out to 1e-5 of a standard deviation, and the features are float32."""
    for others in (240, 560, 600, 3000):
        parts = np.split(np.zeros((9000 + others, 2)), [9000, 9000 + others // 2])
        options = make_options(parts, Network.path(3), n_components=k, secure_sums=True, share_rows=False)
        m = options.solver_options.max_landmarks
        assert others / 8 >= 2 * (m if k < 1 else min(m, k + EXTRA))
        assert m > others / 20


def test_a_root_cannot_make_few_rows_judge_in_groups(digits):
    """It tells how many rows a stream had at the most, of which so many judge, each in one of eight groups if they are more than 8,192."""
    rows, _, marks = digits
    round_ = SummedMoments(Seen(site_rows(rows), marks, RBF), True, 4, 1.0, {}, (600.0, 300.0))
    total = Moments.term(round_) | {"most": np.array([600.0, 300.0])}
    honest = round_.conclude(total)
    round_.check(honest)
    with pytest.raises(BadConclusion, match=r"1e\+06 rows, .* at the most so far, where there are 600"):
        round_.check(honest | {"most": np.array([1e6, 300.0])})


def test_rows_are_added_where_the_kernel_has_no_bound(digits):
    """Sums in clear have no bound on k(x, x): what is missed of 600 rows may be far above 600."""
    rows, kernel = digits[0], make_kernel("poly", gamma=0.1, degree=2)
    seen = Seen(site_rows(rows), Landmarks.of(rows[:20], kernel), kernel)
    options = SumsOptions(3, kernel, 0, owners_apart=True, share_rows=False, stream=True)
    total = Moments(seen, True, 3, options.largest).term()
    missed = float(total["trace"][1])
    assert missed > 1000 * len(rows)
    round_ = SummedMoments(seen, True, 3, options.largest, total, (float(len(rows)), missed))
    round_.check(round_.conclude(round_.term()))


def test_samples_of_two_runs_are_the_same_or_differ_by_many_rows():
    """Before, a root that told one landmark less in a second run saw the moments of 5 to 40 rows, by which two samples differed."""
    rows, options = (
        site_rows(np.random.default_rng(0).normal(size=(40_000, 2))),
        SumsOptions(3, RBF, 0, sealed=True, share_rows=False),
    )
    before = np.zeros(len(rows), dtype=bool)
    for m in range(100, 500, 7):
        drawn = np.isin(rows.keys, rows.sampled(sample_size(m, options), "stage 1").keys)
        few = (drawn ^ before).sum()
        assert not few or few > 8 * m
        before = drawn


@pytest.mark.parametrize("told", ["what is missed", "landmarks"])
def test_which_rows_judge_depends_on_nothing_that_is_told(told):
    """Before, each judging row had a chance of its own: two runs in which a root told slightly different things differed by the rows whose chance had
    passed their draw, one at a time, and in the sums of a judgement this row was alone."""
    rng = np.random.default_rng(0)
    X = rng.standard_t(2, size=(20_000, 3))
    points, options = (
        rng.normal(size=(20, 3)),
        SumsOptions(3, make_kernel("rbf", gamma=0.1), 0, sealed=True, share_rows=False),
    )

    def judging(missed, scale):
        seen = Seen(site_rows(X), Landmarks.of(scale * points, options.kernel), options.kernel)
        none = np.zeros((20, 0))
        principal = Principal(none, none[0], none[0], np.zeros(20), 1.0, len(X), missed * seen.missed, True, 3)
        rows = JudgingRows(seen, principal, replace(options), "last")
        return rows.places, rows.weights

    for places, weights in (
        [judging(m, 1.0) for m in (0.1, 0.9, 1.1)] if "missed" in told else [judging(1.0, s) for s in (0.9, 1.1)]
    ):
        np.testing.assert_array_equal(places, judging(1.0, 1.0)[0])
        np.testing.assert_array_equal(weights, weights[0])
        assert len(places) > 1800
