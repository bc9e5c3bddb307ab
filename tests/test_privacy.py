"""Differential privacy: noise, accounting, sensitivities, the private solver, the ledger, refusals, and an attack."""

from __future__ import annotations

import json
import math
import stat
import subprocess
import sys
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest
from scipy.stats import beta, chi2, norm
from sklearn.datasets import load_digits
from typer.testing import CliRunner

from conftest import clusters, make_options
from dekpca import DecentralizedKernelPCA, Network, Projection, baselines
from dekpca.data.columns import Features
from dekpca.engines import local
from dekpca.kernels import make_kernel
from dekpca.landmarks import Landmarks, RandomFeatures
from dekpca.plan import Plan
from dekpca.privacy import noise
from dekpca.privacy.accounting import composed, epsilon_of, multiplier_for
from dekpca.privacy.ledger import BudgetSpent, Entry, LedgerFile
from dekpca.privacy.masks import Sealer
from dekpca.privacy.releases import COUNT, SCALE, Release, releases
from dekpca.privacy.settings import Privacy, kernel_size, refuse_unaccounted
from dekpca.settings import LandmarkSource
from dekpca.solvers.private import REST, Coordinates, Cut, Embedding, expected, points_root


def run(parts, network, options):
    return local.run(Plan.of(parts, network, options))


# ---------------------------------------------------------------------- noise
@pytest.mark.parametrize("sigma", [1, 2, 3, 11])
def test_noise_has_the_probabilities_of_the_discrete_gaussian(sigma):
    n = 100_000
    drawn = noise.discrete_gaussian(sigma, n)
    at = np.arange(-8 * sigma, 8 * sigma + 1)
    p = np.exp(-(at**2) / (2 * sigma**2))
    p /= p.sum()
    enough = p * n > 10
    seen = np.array([(drawn == k).sum() for k in at[enough]])
    rest = n - seen.sum(), n * (1 - p[enough].sum())
    statistic = ((seen - n * p[enough]) ** 2 / (n * p[enough])).sum() + (rest[0] - rest[1]) ** 2 / max(rest[1], 1)
    assert chi2.sf(statistic, enough.sum()) > 1e-6  # one false alarm in a million


def test_large_noise_is_gaussian():
    sigma = 2**36 + 12345
    drawn = noise.discrete_gaussian(sigma, 50_000) / sigma
    assert abs(drawn.mean()) < 6 / math.sqrt(50_000)
    assert abs(drawn.var() - 1) < 6 * math.sqrt(2 / 50_000)
    cells = np.bincount((norm.cdf(drawn) * 64).astype(int).clip(0, 63), minlength=64)
    assert chi2.sf(((cells - 50_000 / 64) ** 2 / (50_000 / 64)).sum(), 63) > 1e-6
    assert len(np.unique(np.abs(noise.discrete_gaussian(sigma, 1000)) % 1024)) > 500  # the low digits are noise too


def test_coins_decide_in_integers_where_float64_cannot(monkeypatch):
    g = Fraction(1, 3)
    p = int(math.exp(-1 / 3) * 2**64)
    assert noise.exact_coin(p - 2**20, g)
    assert not noise.exact_coin(p + 2**20, g)
    # words in doubt: the float comparison must not decide them
    monkeypatch.setattr(noise, "random_words", lambda count: np.full(count, p, dtype=np.uint64))
    asked = []

    def exactly(i):
        asked.append(i)
        return g

    noise.coins(np.full(5, 1 / 3), exactly)
    assert asked == list(range(5))


def test_a_coin_goes_on_until_it_is_clear(monkeypatch):
    """A uniform number whose first bits are those of exp(-1) itself needs more of them."""
    from decimal import Decimal, localcontext

    with localcontext() as context:
        context.prec = 60
        bits = int(Decimal(-1).exp() * 2**128)
    drawn = [(bits % 2**64 + 3).to_bytes(8, "little"), (bits % 2**64 - 3).to_bytes(8, "little")]
    monkeypatch.setattr(noise.os, "urandom", lambda count: drawn.pop(0))
    assert not noise.exact_coin(bits >> 64, Fraction(1))
    assert noise.exact_coin(bits >> 64, Fraction(1))
    assert not drawn


def test_noise_does_not_come_from_a_seed():
    np.random.seed(0)
    first = noise.discrete_gaussian(1000, 50)
    np.random.seed(0)
    assert (noise.discrete_gaussian(1000, 50) != first).any()
    for sigma in (0, 1.5, 2**51, -3):
        with pytest.raises(ValueError, match="whole number"):
            noise.discrete_gaussian(sigma, 3)


# ---------------------------------------------------------------------- accounting
def test_epsilon_is_that_of_dp_accounting():
    """Its exact Gaussian figures against its two general accountants: the PLD one is tight, the Renyi one an upper bound."""
    dp = pytest.importorskip("dp_accounting")
    from dp_accounting.rdp import RdpAccountant

    for z, delta in ((4.2247, 1e-6), (1.1, 1e-5), (8.0, 1e-8)):
        ours = epsilon_of(z, delta)
        pld = dp.pld.PLDAccountant().compose(dp.GaussianDpEvent(z)).get_epsilon(delta)
        rdp = RdpAccountant().compose(dp.GaussianDpEvent(z)).get_epsilon(delta)
        assert ours == pytest.approx(pld, rel=1e-3)
        assert ours <= rdp
        assert multiplier_for(ours, delta) == pytest.approx(z, rel=1e-6)


def test_composition_is_that_of_dp_accounting():
    dp = pytest.importorskip("dp_accounting")
    zs = [3.0, 5.0, 9.0]
    together = dp.ComposedDpEvent([dp.GaussianDpEvent(z) for z in zs])
    pld = dp.pld.PLDAccountant().compose(together).get_epsilon(1e-6)
    assert epsilon_of(composed(zs), 1e-6) == pytest.approx(pld, rel=1e-3)
    (first, second) = releases(1.0, 1e-6, {"a": 5, "b": 7}, {"a": 0.3, "b": 0.7}, 4, 1)
    (whole,) = releases(1.0, 1e-6, {"a": 5}, {"a": 1.0}, 4, 1)
    assert composed([first.multiplier, second.multiplier]) == pytest.approx(whole.multiplier, rel=1e-6)


def test_the_gaussian_curve_by_its_formula():
    """Balle and Wang 2018, theorem 8: delta = Phi(1/(2z) - e z) - exp(e) Phi(-1/(2z) - e z)."""
    for epsilon in (0.5, 1.0, 4.0):
        z = multiplier_for(epsilon, 1e-6)
        delta = norm.cdf(1 / (2 * z) - epsilon * z) - math.exp(epsilon) * norm.cdf(-1 / (2 * z) - epsilon * z)
        assert delta == pytest.approx(1e-6, rel=1e-5)


# ---------------------------------------------------------------------- sensitivities
def weighted(release, sums):
    """Numbers in units of their noise's deviation times sqrt(2) off the diagonal."""
    rows, columns = np.triu_indices(release.width)
    weights = np.concatenate([np.ones(release.width), np.where(rows == columns, 1.0, math.sqrt(2)), [1.0]])
    return weights * sums


@pytest.mark.parametrize("width", [1, 2, 7, 60])
def test_no_row_changes_the_sums_by_more_than_the_sensitivity(width):
    release = Release("", width, 4.0, 3, 1)
    rng = np.random.default_rng(width)
    rows = [rng.normal(size=(200, width)), 1e6 * rng.normal(size=(50, width)), np.eye(width), np.ones((1, width))]
    rows += [(x / np.linalg.norm(x, axis=1, keepdims=True)) for x in rows[:1]]
    rows.append(rows[-1] * (1 + 1e-15))
    X = np.concatenate(rows)
    q = release.integers(X)
    assert (np.einsum("ij,ij->i", q, q) <= SCALE**2).all()
    before = release.sums(q)
    for i in range(len(X)):
        change = before - release.sums(np.delete(q, i, axis=0))
        assert np.linalg.norm(weighted(release, change.astype(float))) <= release.sensitivity * (1 + 1e-15)
    largest = max(np.linalg.norm(weighted(release, release.sums(q[i : i + 1]).astype(float))) for i in range(len(q)))
    assert largest > 0.99 * release.sensitivity  # the bound is reached


def test_sums_are_exact():
    release = Release("", 3, 4.0, 1, 0)
    q = release.integers(np.random.default_rng(0).normal(size=(1000, 3)))
    exact = [[int(a) for a in row] for row in q]
    second = [sum(row[i] * row[j] for row in exact) for i in range(3) for j in range(i, 3)]
    first = [SCALE // 2 * sum(row[i] for row in exact) for i in range(3)]
    assert release.sums(q).tolist() == [*first, *second, COUNT * 1000]
    mean, products, rows = release.moments(release.sums(q))
    assert rows == 1000
    np.testing.assert_allclose(products, q.T @ q / release.shrink**2)
    np.testing.assert_allclose(mean, q.sum(axis=0) / release.shrink)


def squared(A, B):
    return (A @ B.T + 1.0) ** 2


@pytest.mark.parametrize(
    ("kernel", "marks"),
    [("rbf", "points"), ("laplacian", "points"), ("cosine", "points"), ("linear", "points"), ("poly", "points"), ("poly normalized", "points"),
     ("callable", "points"), ("rbf", "random-features"), ("laplacian", "random-features")],
)  # fmt: skip
def test_the_integers_of_a_row_do_not_depend_on_the_other_rows(kernel, marks):
    """Bit for bit, wherever it stands, whatever rows are beside it and however many: so a row changes the sums by what it adds and nothing else."""
    rng = np.random.default_rng(3)
    rows = rng.normal(size=(1500, 41)) * rng.gamma(1.0, size=41) + 3.0
    rows[::50] *= 1e3  # rows for which kernels use another formula, if these are among others
    name, normalize = kernel.split()[0], kernel in ("poly normalized", "callable")
    kernel = make_kernel(squared if name == "callable" else name, gamma=0.03, normalize=normalize)
    if marks == "points":
        points = rows[:97] + rng.normal(size=(97, 41))
        root = points_root(kernel, points, 30)[2]
        embedding = Embedding.of(kernel, points, root, 0) if kernel.has_frequencies else None
        found = Landmarks(points, root)
    else:
        found, embedding = RandomFeatures(kernel.frequencies(41, 60, 0)), None
    norm = None if kernel.is_normal or kernel.normalize else 30.0
    coordinates = Coordinates(kernel, found, embedding, norm, kernel.largest(norm or np.inf))
    release = Release("", coordinates(rows[:1]).shape[1], 4.0, 3, 1)

    def numbers(which):
        found = coordinates(np.asarray(rows[which]))
        return np.concatenate([found, release.integers(found)], axis=1)

    alone = np.concatenate([numbers([i]) for i in range(len(rows))])
    for which in (slice(None), slice(None, None, -1), slice(7, 1029), slice(3, 13), rng.permutation(1500)[:1111]):
        np.testing.assert_array_equal(numbers(which), alone[which])


def test_the_honest_nodes_alone_carry_the_noise():
    for colluding in (0, 1, 15):
        (release,) = releases(1.0, 1e-6, {"all": 10}, {"all": 1.0}, 20, colluding)
        entry = release.entry()
        assert entry.noise == pytest.approx(release.share * math.sqrt(20 - colluding))
        assert epsilon_of(entry.multiplier, 1e-6) <= 1.0
        assert epsilon_of(entry.multiplier, 1e-6) > 0.999
        assert release.share_off_diagonal * math.sqrt(2) >= release.share - 2


def test_nan_and_too_many_rows_are_refused():
    release = Release("", 2, 4.0, 20, 1)
    with pytest.raises(ValueError, match="nothing was sent"):
        release.integers(np.array([[np.nan, 0.0]]))
    with pytest.raises(ValueError, match="node rome: 1000000000 rows"):
        release.check_rows(10**9, "rome")


@pytest.mark.parametrize("long", [1.79e308, 3e154], ids=["coordinates", "what they miss"])
def test_no_map_that_a_root_tells_stops_a_node_for_one_row(long, monkeypatch):
    """Before, a root that lied told coordinates so long that a row near two landmarks overflowed: the node stopped if it had such a row, and only
    then, without noise."""
    rng = np.random.default_rng(0)
    X, public = rng.normal(size=(300, 3)), rng.normal(size=(30, 3))
    row = np.array([2.5, -2.0, 2.0])
    public[:2] = row + 0.1, row - 0.1
    honest, far = Cut.conclude, np.exp(-0.5 * ((X[:, None] - public[:2]) ** 2).sum(axis=2)).sum(axis=1).max()

    def lie(self, total):
        told = honest(self, total)
        root = np.zeros_like(told["root"])
        root[:2, 0] = long / 1.5
        return told | {"root": root}

    assert far < 0.9
    monkeypatch.setattr(Cut, "conclude", lie)
    privacy = Privacy(epsilon=0.5, delta=1e-6, rank=5)
    for parts in (np.split(X, 3), np.split(np.concatenate([X, row[None]]), [100, 200])):
        asked = DecentralizedKernelPCA(1, gamma=0.5, network=3, landmarks=public, privacy=privacy, tol=0.99)
        assert asked.fit_parts(parts).privacy_.epsilon <= 0.5


# ---------------------------------------------------------------------- an attack
def attacked_epsilons(release, runs, seed):
    """Lower bounds on epsilon, at 99.9 % confidence, with all of the noise and with half of it.

    The best attack there is: the likelihood ratio of the noisy totals of two data sets that differ by one row. The attacker knows this row and all
    others, and colluding nodes have taken off their noise.
    """
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(30, release.width))
    victim = np.ones((1, release.width))  # scaled to norm 1: a row that changes the sums as much as any
    without = release.sums(release.integers(rows))
    change = release.sums(release.integers(victim))
    weights = change / release.deviations() ** 2
    scores = {1: [], 2: []}
    nothing = np.zeros((runs, release.numbers), dtype=without.dtype)
    # One draw for both data sets: each of the bounds holds for itself, also where they depend on each other.
    shares = [release.with_noise(nothing, Sealer("", {}).noise) for _ in range(release.honest)]
    for present in (False, True):
        sums = np.broadcast_to(without + present * change, (runs, release.numbers))
        for part, found in scores.items():
            found.append((sums + sum(share // part for share in shares) - without) @ weights)
    return [bounded(*found) for found in scores.values()]


def bounded(absent, there):
    """The best bound at a few thresholds; Clopper and Pearson, at a fifth of the level each."""
    best, runs = 0.0, len(absent)
    for threshold in np.quantile(absent, [0.9, 0.99, 0.995, 0.997, 0.998]):
        false, true = int((absent > threshold).sum()), int((there > threshold).sum())
        high, low = beta.ppf(1 - 2e-4, false + 1, runs - false), beta.ppf(2e-4, true, runs - true + 1)
        best = max(best, math.log(max(low - 1e-6, 1e-12) / high))
    return best


def test_an_attack_stays_below_epsilon_and_exceeds_it_with_half_of_the_noise():
    (release,) = releases(1.0, 1e-6, {"all": 2}, {"all": 1.0}, 4, 2)
    whole, half = attacked_epsilons(release, 200_000, 0)
    assert 0.3 < whole < 1.0  # an attack that finds nothing would prove nothing
    assert half > 1.0


# ---------------------------------------------------------------------- the solver
def private(parts, network, points, **privacy):
    """Options; `points` are landmarks, or their kind."""
    given = Privacy.of({"epsilon": 1.0, "delta": 1e-6} | privacy)
    if isinstance(points, str):
        return make_options(
            parts, network, landmarks=LandmarkSource(points), n_landmarks=40, privacy=given, n_components=2
        )
    return make_options(parts, network, landmarks=LandmarkSource("points", points), privacy=given, n_components=2)


@pytest.fixture
def crowd():
    parts = clusters([400, 300, 500, 450], seed=4)
    points = np.concatenate(clusters([10] * 4, seed=4))
    return parts, Network.ring(4, 2), points


def test_with_a_large_epsilon_the_answer_is_that_without_noise(crowd):
    parts, network, points = crowd
    plain = run(
        parts, network, make_options(parts, network, landmarks=LandmarkSource("points", points), n_components=2)
    ).answers[0]
    secret = run(parts, network, private(parts, network, points, epsilon=9.9)).answers[0]
    np.testing.assert_allclose(
        secret.eigenvalues, plain.eigenvalues, rtol=0.05
    )  # without noise there is a correction for what landmarks miss
    X = np.concatenate(parts)
    for a, b in zip(values(plain, X).T, values(secret, X).T, strict=True):
        assert (
            abs(np.corrcoef(a, b)[0, 1]) > 0.99
        )  # noise is drawn anew: 60 runs gave 0.9989 to 0.9998, another one 0.9984


def values(answer, X):
    psi = answer.kernel.gram(X, answer.marks.points) @ answer.marks.root
    return (psi - answer.mean) @ answer.terms.shared


def test_all_nodes_have_one_answer_and_each_fit_another(crowd):
    parts, network, points = crowd
    options = private(parts, network, points)
    first, second = (run(parts, network, options).answers for _ in range(2))
    assert len({answer.terms.shared.tobytes() for answer in first}) == 1
    assert first[0].terms.shared.tobytes() != second[0].terms.shared.tobytes()  # whatever the seed
    assert first[0].accuracy.method == "private"


def test_the_estimate_of_what_noise_does_is_about_right(crowd):
    parts, network, points = crowd
    X = np.concatenate(parts)
    plain = run(
        parts, network, make_options(parts, network, landmarks=LandmarkSource("points", points), n_components=2)
    ).answers[0]
    truth = values(plain, X)
    for epsilon in (1.0, 4.0):
        found, told = [], []
        for _ in range(12):
            answer = run(parts, network, private(parts, network, points, epsilon=epsilon)).answers[0]
            cosines = np.linalg.svd(
                np.linalg.qr(values(answer, X) - values(answer, X).mean(0))[0].T
                @ np.linalg.qr(truth - truth.mean(0))[0]
            )[1]
            found.append(1 - cosines[-1] ** 2)
            told.append(answer.accuracy.error)
        assert np.mean(found) / 5 < np.mean(told) < 5 * np.mean(found) + 1e-4


@pytest.mark.parametrize(
    ("kind", "least"),
    [
        ("other images", 0.9), ("two directions", 0.0), pytest.param("rows", 0.99, marks=pytest.mark.slow),
        pytest.param("gaussian", 0.9, marks=pytest.mark.slow), pytest.param("one class", 0.0, marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_the_estimate_includes_what_the_landmarks_miss(kind, least):
    """Landmarks from good to useless. It may say less than the truth, since few features make the rest look large, but hardly more."""
    X, y = load_digits(return_X_y=True)
    rng = np.random.default_rng(5)
    rows = X[300:][rng.integers(0, len(X) - 300, 4000)] + rng.normal(scale=0.5, size=(4000, 64))
    mean, (_, size, directions) = rows.mean(axis=0), np.linalg.svd(rows - rows.mean(axis=0), full_matrices=False)

    def drawn(count):
        return mean + rng.normal(size=(300, count)) @ (directions[:count] * (size[:count] / 4000**0.5)[:, None])

    points = {
        "rows": rows[rng.choice(4000, 800, replace=False)], "other images": X[:300], "gaussian": drawn(10), "two directions": drawn(2),
        "one class": X[:300][y[:300] == 0],
    }[kind]  # fmt: skip
    parts, network = np.array_split(rows, 4), Network.ring(4, 2)
    options = make_options(
        parts, network, landmarks=LandmarkSource("points", points), n_components=3, tol=0.1, kernel=make_kernel("rbf", gamma=1e-3),
        privacy=Privacy.of({"epsilon": 9.0, "delta": 1e-2, "rank": min(120, len(points))}),
    )  # fmt: skip
    answer = run(parts, network, options).answers[0]
    central = baselines.central(rows, 3, gamma=1e-3).transform(rows)
    bases = [np.linalg.qr(Z - Z.mean(axis=0))[0] for Z in (values(answer, rows), central)]
    true = np.linalg.svd(bases[0].T @ bases[1], compute_uv=False)[-1]
    assert least <= answer.accuracy.span <= true + 0.02


def test_features_of_the_rest_have_no_more_length_than_is_left():
    rng = np.random.default_rng(0)
    rows, points, kernel = rng.normal(size=(200, 5)), rng.normal(size=(30, 5)), make_kernel("rbf", gamma=0.3)
    sizes, vectors = np.linalg.eigh(kernel.gram(points, points))
    root = vectors[:, -8:] / np.sqrt(sizes[-8:])
    psi = kernel.gram(rows, points) @ root
    rest = Embedding.of(kernel, points, root, 0).rest(rows, psi)
    left = 1 - (psi**2).sum(axis=1)
    assert ((rest**2).sum(axis=1) <= left * (1 + 1e-12)).all()
    assert (rest**2).sum() > 0.8 * left.sum()  # it stands for most of it
    assert (
        Embedding.of(kernel, points, root, 1).frequencies.tolist()
        != Embedding.of(kernel, points, root, 0).frequencies.tolist()
    )


def test_kernels_without_random_features_say_what_their_estimate_leaves_out(crowd):
    parts, network, points = crowd
    given = private(parts, network, points, epsilon=9.9, norm=8.0)
    assert run(parts, network, given).answers[0].accuracy.method == "private"
    linear = replace(given, kernel=make_kernel("linear"))
    assert run(parts, network, linear).answers[0].accuracy.method == "private, without what landmarks miss"


def test_synthetic_points_and_random_features(crowd):
    parts, network, _ = crowd
    for kind, privacy in (("synthetic", {"norm": 5.0}), ("random-features", {})):
        options = private(parts, network, kind, epsilon=9.9, **privacy)
        answer = run(parts, network, options).answers[0]
        assert answer.eigenvalues[0] > answer.eigenvalues[1] > 0
        if kind == "synthetic":
            rows = np.concatenate(parts)
            assert not (answer.marks.points[:, None, :] == rows[None]).all(axis=2).any()
            assert answer.marks.kinds == (("synthetic", 40),)


def test_unbounded_kernels_clip_rows(crowd):
    parts, network, points = crowd
    for kernel in (make_kernel("linear"), make_kernel("poly", gamma=0.1, degree=2)):
        given = private(parts, network, points, epsilon=9.9, norm=8.0)
        options = replace(given, kernel=kernel)
        answer = run(parts, network, options).answers[0]
        assert 0 < float(answer.trace) <= sum(map(len, parts)) * kernel_size(kernel, 8.0) * 1.2


@pytest.mark.parametrize(
    "kernel", [make_kernel("linear"), make_kernel("poly", gamma=0.1, degree=2)], ids=lambda k: k.name
)
def test_the_explained_share_of_kernels_that_are_not_normalized(kernel, crowd):
    """By the trace of the noisy moments: k(x, x) is far below its bound for most rows."""
    parts, network, points = crowd
    given = private(parts, network, points, epsilon=9.9, delta=1e-2, norm=8.0)
    answer = run(parts, network, replace(given, kernel=kernel)).answers[0]
    X = np.concatenate(parts)
    X = X * np.minimum(1.0, 8.0 / np.linalg.norm(X, axis=1))[:, None]
    gram = kernel.gram(X, X)
    centred = gram - gram.mean(axis=0) - gram.mean(axis=1)[:, None] + gram.mean()
    share = np.linalg.eigvalsh(centred)[::-1][:2] / np.trace(centred)
    np.testing.assert_allclose(answer.eigenvalues / answer.trace, share, rtol=0.1)


def test_more_components_than_the_rank_are_refused_before_anything_is_spent(tmp_path):
    X = np.concatenate(clusters([100] * 4, seed=4))
    asked = {"epsilon": 2.0, "delta": 1e-6, "rank": 3, "ledger": str(tmp_path / "ledger.json")}
    points = np.concatenate(clusters([10] * 4, seed=4))
    with pytest.raises(ValueError, match=r"n_components=4, but privacy keeps rank=3.*rank=4\)"):
        DecentralizedKernelPCA(4, gamma=0.05, network=4, landmarks=points, privacy=asked, random_state=0).fit(X)
    assert not (tmp_path / "ledger.json").exists()
    fitted = DecentralizedKernelPCA(3, gamma=0.05, network=4, landmarks=points, privacy=asked, tol=0.9, random_state=0)
    assert fitted.fit(X).eigenvalues_.shape == (3,)


SCALES = np.array([1.0, 100.0, 1e-3, 1.0, 1.0, 1.0])


@pytest.mark.parametrize("case", ["ranges", "linear"])
def test_the_expectation_is_that_of_a_fit_with_the_same_settings(case):
    """Expected agreement against that of fits, on rows like the points."""
    parts, network = clusters([500] * 4, seed=4), Network.ring(4, 2)
    X, points = np.concatenate(parts), np.concatenate(clusters([100] * 4, seed=4))
    asked = {"epsilon": 1.0, "delta": 1e-6, "rank": 40}
    if case == "ranges":
        asked["ranges"] = [(-8 * s, 8 * s) for s in SCALES]
        parts, points = [part * SCALES for part in parts], points * SCALES
        X, kernel = X / 8.0, make_kernel("rbf", gamma=3.0)
    else:
        asked["norm"], asked["rank"], kernel = 8.0, 6, make_kernel("linear")
        X = X * np.minimum(1.0, 8.0 / np.linalg.norm(X, axis=1))[:, None]
    privacy = Privacy.of(asked).with_columns(Features(6))
    plan = expected(points, kernel, len(X), privacy, 4, 2)
    options = make_options(
        parts, network, landmarks=LandmarkSource("points", points), privacy=privacy, n_components=2, kernel=kernel, standardize=case == "ranges",
    )  # fmt: skip
    gram = kernel.gram(X, X)
    gram = gram - gram.mean(axis=0) - gram.mean(axis=1)[:, None] + gram.mean()
    truth = np.linalg.eigh(gram)[1][:, ::-1][:, :2]
    errors = []
    for _ in range(8):
        answer = run(parts, network, options).answers[0]
        marks = answer.marks
        psi = answer.kernel.gram(X, marks.points) @ marks.root
        Z = (psi - answer.mean) @ answer.terms.shared
        errors.append(1 - np.linalg.svd(np.linalg.qr(Z)[0].T @ truth)[1][-1] ** 2)
    told = 1 - plan.span**2
    assert np.mean(errors) / 6 < told < 6 * np.mean(errors) + 1e-4, (errors, told)


def test_one_node_is_central_differential_privacy():
    parts, network = clusters([800], seed=4), Network.complete(1)
    options = make_options(
        parts, network, landmarks=LandmarkSource("points", np.concatenate(clusters([10] * 4, seed=4))), n_components=2,
        privacy=Privacy(epsilon=2.0, delta=1e-6),
    )  # fmt: skip
    assert run(parts, network, options).answers[0].eigenvalues[0] > 0


# ---------------------------------------------------------------------- ledger and refusals
def entry(multiplier):
    return Entry("moments", "discrete Gaussian", 2.0, 2.0 * multiplier, 100, 1)


def test_a_ledger_file_adds_up_and_stops_at_the_budget(tmp_path):
    path = tmp_path / "ledger.json"
    z = multiplier_for(1.0, 1e-6)
    file = LedgerFile(path, 1.6, 1e-6)
    assert file.charge([entry(z)]) == pytest.approx(1.0, abs=1e-6)
    assert file.charge([entry(z)]) == pytest.approx(epsilon_of(z / math.sqrt(2), 1e-6))
    before = path.read_text()
    with pytest.raises(BudgetSpent, match=r"from 1\.4.* the budget is 1\.6"):
        file.charge([entry(z)])
    assert path.read_text() == before
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    held = json.loads(before)
    assert len(held["entries"]) == 2
    with pytest.raises(ValueError, match="a budget is set once"):
        LedgerFile(path, 5.0, 1e-6).charge([entry(z)])
    path.write_text("{}")
    with pytest.raises(ValueError, match="no ledger"):
        file.charge([entry(z)])


def test_what_was_released_before_is_in_the_file_even_if_there_is_no_room(tmp_path):
    path, z = tmp_path / "ledger.json", multiplier_for(1.0, 1e-6)
    file = LedgerFile(path, 1.2, 1e-6)
    with pytest.raises(BudgetSpent):
        file.charge([entry(z)], "run-1", {"run-0": [entry(z)]})
    assert [held["fit"] for held in json.loads(path.read_text())["entries"]] == ["run-0"]
    roomy = LedgerFile(tmp_path / "roomy.json", 3.0, 1e-6)
    for _ in range(2):  # each counts once
        assert roomy.charge([entry(z)], "run-1", {"run-0": [entry(z)]}) == pytest.approx(epsilon_of(z / 2**0.5, 1e-6))


def test_two_fits_at_once_do_not_both_spend(tmp_path):
    path = tmp_path / "ledger.json"
    file = LedgerFile(path, 1.0, 1e-6)
    with file._locked(), pytest.raises(RuntimeError, match="another fit"):
        file.charge([entry(9.0)])
    file.charge([entry(9.0)])


@pytest.mark.slow
def test_the_lock_of_a_fit_that_was_killed_does_not_stay(tmp_path):
    path = tmp_path / "ledger.json"
    holding = (
        "import sys, time; from dekpca.privacy.ledger import LedgerFile\n"
        f"with LedgerFile({str(path)!r}, 1.0, 1e-6)._locked(): print('held', flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", holding], stdout=subprocess.PIPE, text=True) as killed:
        assert killed.stdout.readline() == "held\n"
        with pytest.raises(RuntimeError, match="another fit"):
            LedgerFile(path, 1.0, 1e-6).charge([entry(9.0)])
        killed.kill()
    LedgerFile(path, 1.0, 1e-6).charge([entry(9.0)])


def test_spending_gives_the_ledger_of_the_fit(tmp_path):
    privacy = Privacy.of({"epsilon": 1.0, "delta": 1e-6, "norm": 3.0, "ledger": str(tmp_path / "l.json")})
    planned = privacy.releases("synthetic", 60, 784, 20)
    ledger = privacy.spend(planned)
    assert [e.numbers for e in ledger.entries] == [784 + 784 * 785 // 2 + 1, 60 + 60 * 61 // 2 + 1]
    assert 0.999 < ledger.epsilon <= 1.0
    assert "epsilon 1, delta 1e-06" in str(ledger)
    with pytest.raises(BudgetSpent):
        privacy.spend(planned)


RBF = make_kernel("rbf", gamma=0.1)
GOOD = {
    "gamma": 0.1, "kernel": RBF, "landmarks": np.zeros((3, 2)), "standardize": False, "missing": "error", "norm": None,
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "seen", "remedy"),
    [
        ({"gamma": "scale"}, "gamma='scale'", "give gamma a number"),
        ({"standardize": True}, "standardize=True", "public ranges"),
        ({"missing": "mean"}, "missing='mean'", "public values"),
        ({"landmarks": "auto"}, "landmarks='auto'", "public points"),
        ({"landmarks": "auto"}, "landmarks='auto'", "'norm': B"),
        ({"landmarks": 50}, "landmarks=50", "'norm': B"),
        ({"kernel": make_kernel("linear")}, "kernel='linear'", "'norm': B"),
        ({"kernel": make_kernel("poly")}, "kernel='poly'", "normalize=True"),
        ({"kernel": make_kernel("sigmoid")}, "kernel='sigmoid'", "use rbf"),
        ({"kernel": make_kernel(lambda A, B: A @ B.T)}, "kernel='<lambda>'", "give normalize=True"),
    ],
)
def test_what_is_not_accounted_for_is_refused_with_its_remedy(change, seen, remedy):
    refuse_unaccounted(**GOOD)
    refuse_unaccounted(**GOOD | {"landmarks": "auto", "norm": 3.0})
    with pytest.raises(ValueError) as error:
        refuse_unaccounted(**{**GOOD, **change})
    assert seen in str(error.value)
    assert remedy in str(error.value)


@pytest.mark.parametrize(
    "given",
    [
        1.0, {"epsilon": 1.0}, {"epsilon": 1.0, "delta": 1e-6, "eps": 2}, {"epsilon": 0, "delta": 1e-6}, {"epsilon": 1, "delta": 0.5},
        {"epsilon": 1, "delta": 1e-6, "colluding": -1}, {"epsilon": 1, "delta": 1e-6, "rank": 0.5}, {"epsilon": 1, "delta": 1e-6, "points_share": 1},
        {"epsilon": True, "delta": 1e-6},
    ],
)  # fmt: skip
def test_bad_settings_are_refused(given):
    with pytest.raises(ValueError, match="privacy"):
        Privacy.of(given)


def test_somebody_must_be_honest():
    with pytest.raises(ValueError, match="at least one must be honest"):
        Privacy.of({"epsilon": 1, "delta": 1e-6, "colluding": 4}).releases("points", 10, 5, 4)


# ---------------------------------------------------------------------- the estimator
def test_the_estimator_publishes_the_ledger(tmp_path):
    X = np.concatenate(clusters([500] * 4, seed=4))
    points = np.concatenate(clusters([10] * 4, seed=4))
    asked = {"epsilon": 2.0, "delta": 1e-6, "ledger": str(tmp_path / "ledger.json"), "budget": 3.0}
    model = DecentralizedKernelPCA(2, gamma=0.05, network=4, landmarks=points, privacy=asked, tol=0.1, random_state=0)
    model.fit(X)
    assert 1.99 < model.privacy_.epsilon <= 2.0
    width = 40 + REST
    assert [entry.numbers for entry in model.privacy_.entries] == [width + width * (width + 1) // 2 + 1]
    assert set(model.history_["bytes"]) == {"fingerprint", "landmarks", "moments"}
    assert not any(held.samples for held in model.node_models_[0].contents)
    model.node_models_[1].save(tmp_path / "node.npz")
    model.fit(X)
    with pytest.raises(BudgetSpent):
        model.fit(X)
    assert DecentralizedKernelPCA(2, gamma=0.05, network=4, random_state=0).fit(X).privacy_ is None


def test_columns_are_scaled_by_public_ranges():
    """The same fit as on columns that were scaled before, but for the noise; named columns are computed with in another order."""
    X = np.concatenate(clusters([700] * 4, seed=4)) * [1.0, 100.0, 1e-3, 1.0, 1.0, 1.0]
    points = np.concatenate(clusters([10] * 4, seed=4)) * [1.0, 100.0, 1e-3, 1.0, 1.0, 1.0]
    ranges = np.array([[-8, 8], [-800, 800], [-0.008, 0.008], [-8, 8], [-6, 10], [-8, 8]], dtype=float)
    scaled = [(Y - ranges.mean(axis=1)) / (np.ptp(ranges, axis=1) / 2) for Y in (X, points)]
    asked = {"epsilon": 9.9, "delta": 1e-2}
    given = {"gamma": 3.0, "network": 4, "tol": 0.1, "random_state": 0}
    names = list("vabcux")
    fits = [
        DecentralizedKernelPCA(2, landmarks=scaled[1], privacy=asked, **given).fit(scaled[0]).transform(scaled[0]),
        DecentralizedKernelPCA(2, landmarks=points, privacy=asked | {"ranges": ranges.tolist()}, standardize=True, **given).fit(X).transform(X),
        DecentralizedKernelPCA(
            2, landmarks=points, privacy=asked | {"ranges": dict(zip(names, ranges.tolist(), strict=True))}, standardize=True, **given
        ).fit(pd.DataFrame(X, columns=names)).transform(pd.DataFrame(X, columns=names)),
    ]  # fmt: skip
    for Z in fits[1:]:
        for a, b in zip(fits[0].T, Z.T, strict=True):
            assert abs(np.corrcoef(a, b)[0, 1]) > 0.995
    for bad in ([[0, 1]] * 4, [[1, 0]] * 6, "x", [[0, np.inf]] * 6, {"v": [0, 1]}):
        with pytest.raises(ValueError, match="ranges"):
            DecentralizedKernelPCA(2, landmarks=points, privacy=asked | {"ranges": bad}, standardize=True, **given).fit(
                X
            )


def test_secure_sums_in_the_estimator():
    X = np.concatenate(clusters([60] * 5, seed=4))
    plain, secure = (
        DecentralizedKernelPCA(2, network=5, privacy=privacy, random_state=0).fit(X)
        for privacy in (None, "secure-sums")
    )
    np.testing.assert_allclose(secure.transform(X), plain.transform(X), rtol=0, atol=1e-9)
    with pytest.raises(ValueError, match="The 'privacy' parameter of DecentralizedKernelPCA must be"):
        DecentralizedKernelPCA(2, network=5, privacy=16.0, random_state=0).fit(X)


@pytest.mark.parametrize("landmarks", ["auto", 30])
def test_without_public_points_landmarks_are_drawn_from_noisy_sums(landmarks):
    X = np.concatenate(clusters([500] * 4, seed=4))
    asked = {"epsilon": 9.0, "delta": 1e-6, "norm": 8.0}
    model = DecentralizedKernelPCA(
        2, gamma=0.05, network=4, landmarks=landmarks, privacy=asked, tol=0.9, random_state=0
    )
    model.fit(X)
    (held,) = [c for c in model.node_models_[0].contents if "landmarks" in c.what]
    assert "drawn from noisy sums" in held.what
    assert not held.samples
    assert held.rows == 30 or landmarks == "auto"
    assert len(model.privacy_.entries) == 2  # the points, and the components


@pytest.mark.parametrize(
    ("change", "seen"),
    [
        ({"engine": "mpi"}, "engine='local'"), ({"solver": Projection()}, "use solver='auto'"),
        ({"landmarks": "auto"}, "public points"), ({"gamma": "scale"}, "give gamma a number"), ({"privacy": {"epsilon": 1.0}}, "epsilon and delta"),
    ],
)  # fmt: skip
def test_the_estimator_refuses_before_any_work(change, seen):
    X = np.zeros((10, 2))
    given = {"gamma": 0.1, "landmarks": np.eye(2), "privacy": {"epsilon": 1.0, "delta": 1e-6}} | change
    with pytest.raises(ValueError, match=seen):
        DecentralizedKernelPCA(1, **given).fit_parts([X, X])


@pytest.fixture
def command_line():
    from dekpca.cli import app

    return lambda *words: CliRunner().invoke(app, words)


def test_the_planner_says_what_to_expect(command_line):
    found = command_line("privacy", "--rows", "20000", "--epsilon", "1", "--json")
    assert found.exit_code == 0, found.output
    plan = json.loads(found.stdout)
    assert plan["rank"] in [tried["rank"] for tried in plan["tried"]]
    assert plan["releases"][0]["multiplier"] == pytest.approx(multiplier_for(1.0, 1e-6), rel=1e-6)
    told = command_line("privacy", "--rows", "20000").stdout
    assert "rank to use" in told


def test_a_plan_knows_the_kernel_and_how_columns_are_scaled(command_line):
    def planned(*more):
        done = command_line("privacy", "--rows", "20000", "--json", *more)
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)["agreement"]

    usual = planned()
    np.testing.assert_allclose(
        planned("--ranges", "0", "16"), usual, rtol=1e-9
    )  # one scale for all columns, and gamma follows it
    assert planned("--ranges", "0", "160", "--gamma", "0.001") != pytest.approx(planned("--gamma", "0.001"), rel=1e-3)
    assert planned("--kernel", "linear", "--norm", "100") > planned(
        "--kernel", "linear", "--norm", "1000"
    )  # more noise than signal
    refused = command_line("privacy", "--rows", "20000", "--kernel", "linear")
    assert refused.exit_code == 2
    assert "norm" in refused.output
