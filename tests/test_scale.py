"""What makes it fast must not change the answer: totals at once, chunks in threads, kernel matrices computed again, rows dealt without copies.
And a limit of memory is kept."""

from __future__ import annotations

import time
import tracemalloc
import warnings
from dataclasses import replace

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from conftest import clusters, make_options
from dekpca import DecentralizedKernelPCA, Network, Projection, chunks
from dekpca.data.owners import runs_of
from dekpca.engines import local
from dekpca.engines.tree import over_tree
from dekpca.kernels import Rbf, make_kernel
from dekpca.memory import copies, fitting, grams, needed, parse_size
from dekpca.plan import Plan
from dekpca.program import program
from dekpca.site import Dealt, RowNumbers, apart, make_site
from dekpca.solvers.projection.node import Neighborhood, Node
from dekpca.testing import by_node

NETWORKS = [
    Network.ring(12, 4),
    Network.path(9),
    Network.star(7),
    Network.grid(3, 4),
    Network.random(11, degree=4, seed=0),
]


def same(one, two, tolerance=0.0):
    others = by_node(two)
    for name, (answer, functions) in by_node(one).items():
        other, found = others[name]
        np.testing.assert_allclose(other.eigenvalues, answer.eigenvalues, rtol=tolerance)
        assert found.keys() == functions.keys()
        for expansion, terms in functions.items():
            mine, theirs = ((t.shared, *t.coefficients) for t in (terms, found[expansion]))
            size = max(np.abs(w).max(initial=0.0) for w in mine)
            for w, v in zip(mine, theirs, strict=True):
                np.testing.assert_allclose(v, w, rtol=0, atol=tolerance * size)


def few(n_landmarks, **changes):
    """Ten iterations of the projection solver."""
    return {"projection": Projection(**{"n_landmarks": n_landmarks, "max_iter": 10, "tol": 0.0} | changes)}


@pytest.mark.parametrize("settings", [few(12), {}, {"share_rows": False}], ids=["projection", "auto", "no rows"])
@pytest.mark.parametrize("network", NETWORKS, ids=repr)
def test_reductions_are_the_sums_along_the_tree_and_have_the_cost_of_its_messages(network, settings):
    parts = clusters([8 + 3 * (j % 4) for j in range(len(network))])
    options = make_options(parts, network, **settings)
    at_once, sites = local.run(Plan.of(parts, network, options)), apart(parts, network)
    by_messages = local.drive(sites, options, local.Delivery(sites), script=over_tree(program))
    same(at_once, by_messages, 1e-9)
    for name in ("messages", "bytes"):
        mine, theirs = getattr(at_once.traffic, name), getattr(by_messages.traffic, name)
        assert mine.keys() == theirs.keys()
        for kind in mine:
            np.testing.assert_array_equal(mine[kind], theirs[kind])
    np.testing.assert_array_equal(at_once.traffic.edge_bytes, by_messages.traffic.edge_bytes)


SOLVERS = pytest.mark.parametrize("settings", [few(15), {}], ids=["projection", "auto"])


@SOLVERS
def test_chunks_change_nothing_but_rounding(ragged, settings, monkeypatch):
    """BLAS and LAPACK may take other ways for matrices of one row; coefficients of samples that are nearly alike amplify rounding."""
    parts, network = ragged
    options = make_options(parts, network, **settings)
    with threadpool_limits(1):
        usual = local.run(Plan.of(parts, network, options))
        monkeypatch.setattr(chunks, "CACHE_BYTES", 1)
        same(usual, local.run(Plan.of(parts, network, options)), 1e-11)


@SOLVERS
def test_threads_do_not_change_a_bit(settings, monkeypatch):
    monkeypatch.setattr(chunks, "CACHE_BYTES", 2**12)  # small chunks, so that threads have something to share
    network = Network.ring(12, 4)
    parts = clusters([20 + 3 * (j % 5) for j in range(12)])
    options = make_options(parts, network, **settings)
    seen = set()
    work = chunks.run_chunks

    def watched(f, given, like):
        seen.add(len(given) if chunks._pool.get() else 0)
        work(f, given, like)

    monkeypatch.setattr(chunks, "run_chunks", watched)
    outcomes = []
    for threads in (1, 2):
        with threadpool_limits(threads):
            outcomes.append(local.run(Plan.of(parts, network, options)))
    same(*outcomes)
    assert max(seen) > 1  # two threads did share


def test_threads_are_those_of_blas_and_given_back():
    with threadpool_limits(2), chunks.threads(100) as given:
        assert given == 2
        inside = chunks.ThreadpoolController().select(user_api="blas").info()
        assert {library["num_threads"] for library in inside} == {1}
    with threadpool_limits(2), chunks.threads(3) as given:
        assert given == 1  # too few nodes to share
    with threadpool_limits(1), chunks.threads(100) as given:
        assert given == 1


@pytest.mark.parametrize(
    "mode",
    [{}, {"centering": "local", "init": "random"}, {"exchange_noise": 0.1}, {"update": "paper", "n_landmarks": 0}],
    ids=str,
)
def test_kernel_matrices_computed_again_give_the_same_answer(mode, ragged):
    parts, network = ragged
    if mode.get("update") == "paper":
        parts, mode = clusters([20] * 6), {**mode, "centering": "local", "init": "local"}
    plan = Plan.of(parts, network, make_options(parts, network, **few(**{"n_landmarks": 15} | mode)))
    tight = replace(plan, options=replace(plan.options, store_grams=False))
    same(local.run(plan), local.run(tight), 1e-10)


def measured(plan):
    """The outcome, and the peak of its memory besides the rows themselves."""
    with threadpool_limits(1):
        tracemalloc.start()
        try:
            outcome = local.run(plan)
            return outcome, tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()


def with_much_work(plan):
    """The plan with a tolerance that the judge reaches only with all of its effort."""
    outcome, _ = measured(plan)
    accuracy = outcome.answers[0].accuracy
    tol = 0.0 if accuracy is None else 0.95 * accuracy.bound
    return replace(plan, options=replace(plan.options, tol=tol))


def exponential(A, B):
    square = (A * A).sum(axis=1)[:, None] + (B * B).sum(axis=1)[None] - 2 * A @ B.T
    return np.exp(-0.3 * np.sqrt(np.maximum(square, 0)))


SHAPES = {
    "a ring": ([60] * 40, Network.ring(40, 4), few(60)),
    "many landmarks": ([30] * 40, Network.ring(40), few(200)),
    "a star": ([50] * 20, Network.star(20), few(40)),
    "ragged": ([20 + 37 * j % 90 for j in range(30)], Network.ring(30, 4), few(60)),
    "penalties on a schedule": ([60] * 40, Network.ring(40), few(60, rho=[(0, 60.0, 40.0), (2, 90.0, 60.0)])),
    "small nodes": ([20] * 60, Network.ring(60), few(60) | {"n_components": 8}),
    "large nodes": ([400] * 6, Network.ring(6), few(60)),
    "no landmarks": ([60] * 40, Network.ring(40), few(0, init="local", centering="local")),
    "a start at random": ([60] * 40, Network.ring(40), few(60, init="random")),
    "sums": ([400] * 20, Network.ring(20), {"n_landmarks": 120}),
    "sums, many landmarks": ([200] * 20, Network.ring(20), {"n_landmarks": 1000}),
    "sums, many rows": ([700] * 20, Network.ring(20), {"n_landmarks": 100}),
    "sums, a function": ([200] * 10, Network.ring(10), {"n_landmarks": 100, "kernel": make_kernel(exponential)}),
    "sums, a function, no rows": (
        [400] * 10,
        Network.ring(10),
        {"n_landmarks": 300, "kernel": make_kernel(exponential), "share_rows": False},
    ),
}
SOME = {"a star", "ragged", "no landmarks", "sums", "sums, a function, no rows"}  # `make test-all` has all shapes


@pytest.mark.parametrize(
    ("shape", "dtype", "stored"),
    [
        pytest.param(shape, dtype, stored, marks=[] if shape in SOME and dtype == "float64" else pytest.mark.slow)
        for shape in SHAPES
        for dtype in ("float64", "float32")
        for stored in (True, False)
        if stored or "sums" not in shape
    ],
)
def test_a_run_takes_no_more_memory_than_was_counted(shape, dtype, stored):
    sizes, network, settings = SHAPES[shape]
    parts = [part.astype(dtype) for part in clusters(sizes)]
    plan = Plan.of(parts, network, make_options(parts, network, **settings))
    site = plan.site()
    if plan.options.projection is None or plan.options.projection.init == "landmarks":
        plan = with_much_work(plan)
    # as they are measured; of sums only what they make of the rows is counted
    joined = plan.options.projection is not None
    with threadpool_limits(1):
        least = counted = needed(site, plan.options, plan.options.n_landmarks)
        if plan.options.projection is not None:
            least += copies(site, plan.options, joined) * site.X.nbytes
            counted = least + (grams(site) if stored else 0)
        limited = fitting(site, plan.options, counted, joined)
    assert limited.store_grams == (stored and plan.options.projection is not None)
    with pytest.raises(ValueError, match="raise it"):
        fitting(site, plan.options, least - 1, joined)
    _, peak = measured(replace(plan, options=limited))
    assert peak <= counted
    assert peak >= counted / 4  # it is not counted for nothing; a star judges with less effort than is counted


@pytest.mark.parametrize("stored", [True, False])
@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_no_node_keeps_a_copy_of_its_neighbors_rows(noise, stored):
    """Which are most of the numbers, if there are many columns and neighbors."""
    parts, network = clusters([40] * 30, columns=2000), Network.ring(30, 4)
    settings = few(0, init="random", centering="local", exchange_noise=noise, max_iter=2)
    plan = Plan.of(parts, network, make_options(parts, network, **settings))
    site, plan = plan.site(), replace(plan, options=replace(plan.options, store_grams=stored))
    with threadpool_limits(1):
        counted = (
            needed(site, plan.options, 0) + copies(site, plan.options, True) * site.X.nbytes + stored * grams(site)
        )
    _, peak = measured(plan)
    assert peak <= counted < 5 * site.X.nbytes  # each row is known to five nodes


@pytest.mark.parametrize("limit", ["150MB", pytest.param("300MB", marks=pytest.mark.slow)])
def test_a_fit_with_a_limit_has_as_many_landmarks_as_fit(limit):
    X = np.random.default_rng(0).normal(size=(3000, 50))
    model = DecentralizedKernelPCA(4, network=10, memory_limit=limit, random_state=0)
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it may be less accurate
        tracemalloc.start()
        model.fit(X)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak <= parse_size(limit)
    assert (100 if limit == "150MB" else 400) <= model.n_landmarks_ < 2500


def test_the_copy_that_joins_parts_is_within_the_limit():
    """6,000 rows of 2,000 columns are 96 MB; in one array they are not copied."""
    X = np.random.default_rng(0).normal(size=(6000, 2000))
    model = DecentralizedKernelPCA(2, landmarks=20, memory_limit="100MB", random_state=0)
    with pytest.raises(ValueError, match=r"memory_limit=0\.1 GB: the samples of these 2 nodes"):
        model.fit_parts([X[:3000], X[3000:]])


def test_a_limit_that_cannot_hold_says_what_would():
    X = np.concatenate(clusters([40] * 4))
    with pytest.raises(ValueError, match=r"memory_limit=1e-05 GB: .* take about .* GB; raise it"):
        DecentralizedKernelPCA(2, network=4, memory_limit="10kB").fit(X)
    for wrong in ("2 apples", "GB", "0GB", "-1GB"):
        with pytest.raises(ValueError, match="give bytes, or a text such as '2GB'"):
            DecentralizedKernelPCA(2, network=4, memory_limit=wrong).fit(X)
    assert parse_size("1.5GiB") == 3 * 2**29
    assert parse_size(7) == 7


def test_rows_in_order_are_not_copied():
    X, network = np.random.default_rng(0).normal(size=(60, 3)), Network.ring(6)
    node = np.repeat(np.arange(6), 10)
    site = make_site(Dealt(X, RowNumbers.of(node, np.ones_like(node), 6)), network)
    assert site.X is X
    assert site.order is None
    mixed = Dealt(X, RowNumbers.of(np.arange(6)[::-1], np.full(6, 10), 6))
    site = make_site(mixed, network)
    assert site.X is X
    for j, part in enumerate(mixed):
        np.testing.assert_array_equal(part, X[node[::-1] == j])
    np.testing.assert_array_equal(X[site.order], np.concatenate(list(mixed)))


@pytest.mark.parametrize("sort", [np.sort, lambda labels: labels], ids=["in order", "in any order"])
@pytest.mark.parametrize("kind", [int, str, object])
def test_each_label_names_the_node_of_its_row(sort, kind):
    labels = sort(np.random.default_rng(0).integers(3, 12, size=200)).astype(str).astype(kind)
    network, number, lengths = runs_of(None, labels, 200, 0)
    shares = RowNumbers.of(number, lengths, len(network))
    assert (shares.order is None) == (list(map(int, labels)) == sorted(map(int, labels)))
    assert sorted(np.concatenate(list(shares))) == list(range(200))
    for name, rows in zip(network.names, shares, strict=True):
        assert set(labels[rows].astype(str)) == {name}


@pytest.mark.parametrize("rank", [0, 3, 9])
def test_the_inverse_of_a_node_is_the_pseudo_inverse(rank):
    half = np.random.default_rng(rank).normal(size=(9, rank))

    def known(A, B):
        return half[A[:, 0].astype(int)] @ half[B[:, 0].astype(int)].T

    X, kernel = np.arange(9.0)[:, None], make_kernel(known)
    near = Neighborhood([0], [X], kernel, None, local_means=False, stored=True)
    node = Node(0, "0", X, X[:, :0], near, 1.0)
    expected = np.linalg.pinv(half @ half.T, rcond=1e-8, hermitian=True)
    np.testing.assert_allclose(node.inverse, expected, atol=1e-8 * max(1.0, np.abs(expected).max()))
    np.testing.assert_allclose(node.eigenvalues[-1], np.linalg.eigvalsh(half @ half.T)[-1], rtol=1e-10, atol=1e-12)


def test_many_labels_take_linear_time():
    taken = {}
    for J in (2000, 16_000):
        network = Network.ring(J, 2)
        labels = np.repeat(np.arange(J), 2)[::-1]
        seconds = []
        for _ in range(5):
            start = time.process_time()
            found, number, lengths = runs_of(network, labels, 2 * J, 0)
            rows = RowNumbers.of(number, lengths, J)
            seconds.append(time.process_time() - start)
        assert found is network
        assert all(set(own // 2) == {J - 1 - j} for j, own in enumerate(rows))
        taken[J] = min(seconds)
    assert taken[16_000] < 32 * taken[2000]  # linear time is 8 times as long, and some caches; quadratic 64 times


def test_device_needs_pytorch_or_says_so():
    X = np.concatenate(clusters([40] * 4))
    try:
        import torch
    except ImportError:
        with pytest.raises(ImportError, match=r"device='cpu' needs PyTorch.*dekpca\[gpu\]"):
            DecentralizedKernelPCA(2, network=4, device="cpu").fit(X)
        return
    usual = DecentralizedKernelPCA(2, gamma=0.05, network=4, random_state=0).fit(X)
    placed = DecentralizedKernelPCA(2, gamma=0.05, network=4, random_state=0, device="cpu").fit(X)
    assert type(placed.transform(X)) is np.ndarray
    np.testing.assert_allclose(placed.transform(X), usual.transform(X), atol=1e-8)
    with pytest.raises(ValueError, match="is for NumPy data"):
        DecentralizedKernelPCA(2, network=4, device="cpu").fit(torch.as_tensor(X))
    with pytest.raises(ValueError, match="PyTorch cannot use it"):
        DecentralizedKernelPCA(2, network=4, device="nowhere").fit(X)


def test_device_and_limit_are_for_the_local_engine():
    with pytest.raises(ValueError, match="are for engine='local'"):
        DecentralizedKernelPCA(2, engine="mpi", memory_limit="1GB").fit_parts(clusters([9, 9, 9]))


def test_the_model_does_not_follow_changes_of_the_data():
    X = np.concatenate(clusters([20] * 4))
    given = X.copy()
    model = DecentralizedKernelPCA(2, gamma=0.05, network=Network.ring(4), random_state=0)
    model.fit(given, nodes=np.repeat(np.arange(4), 20))
    before = model.transform(X)
    given *= 3
    np.testing.assert_array_equal(model.transform(X), before)


@pytest.mark.filterwarnings("ignore:not converged")  # they have little in common
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_nodes_far_apart_lose_no_digits(dtype):
    random = np.random.default_rng(0)
    step, tolerance = (1e6, 1e-10) if dtype == "float64" else (1024.0, 1e-5)
    away = [(random.normal(size=(15, 3)) + step * j).astype(dtype) for j in range(5)]
    near = [(part - part[:1]) for part in away]  # the differences are exact
    network = Network.complete(5)
    for stored in (True, False):
        whole = Neighborhood([0, 1, 2, 3, 4], away, Rbf(gamma=0.3), None, local_means=False, stored=stored).values(
            np.eye(75)
        )
        for j, rows in enumerate(np.split(np.arange(75), 5)):
            alone = Rbf(gamma=0.3).gram(near[j], near[j])
            np.testing.assert_allclose(whole[np.ix_(rows, rows)], alone, atol=tolerance)
            whole[np.ix_(rows, rows)] = 0
        assert not whole.any()  # nothing is alike of two nodes
    solver = Projection(n_landmarks=0, centering="local", init="local")
    model = DecentralizedKernelPCA(2, gamma=0.3, solver=solver, network=network, random_state=0).fit_parts(away)
    assert model.history_["residual"][-1] < 0.1  # they go on to agree
    node = model.node_models_[2]
    expected = -node.function().offset
    for points, c in zip(node.function().points, node.function().coefficients, strict=True):
        distances = ((away[2][:4, None, :].astype(np.float64) - points[None].astype(np.float64)) ** 2).sum(axis=-1)
        expected = expected + np.exp(-0.3 * distances) @ c
    np.testing.assert_allclose(node.transform(away[2][:4]), expected, atol=tolerance)


def test_fits_at_the_same_time_give_blas_its_threads_back():
    from concurrent.futures import ThreadPoolExecutor

    X = np.concatenate(clusters([20] * 12))

    def fit(seed):
        return DecentralizedKernelPCA(2, gamma=0.05, network=Network.ring(12), random_state=seed).fit(X).eigenvalues_

    with threadpool_limits(2):
        with ThreadPoolExecutor(4) as pool:
            together = list(pool.map(fit, [0, 0, 0, 0]))
        left = chunks.ThreadpoolController().select(user_api="blas").info()
        assert {library["num_threads"] for library in left} == {2}
    np.testing.assert_allclose(together, [together[0]] * 4, rtol=1e-12)


def test_a_penalty_at_its_limit_is_refused():
    """r = 2 lambda_1 exactly: the step of w divides by zero."""
    parts = [np.zeros((1, 2)), np.ones((1, 2))]
    solver = Projection(n_landmarks=0, init="local", centering=None, rho=1.0, max_iter=20)
    with pytest.raises(ValueError, match="sum to 2 in iteration 0, but must be above 2,"):
        DecentralizedKernelPCA(1, gamma=0.5, network=Network.path(2), solver=solver).fit_parts(parts)
