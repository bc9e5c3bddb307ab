"""What makes it fast must not change the answer: totals at once, chunks in threads, Gram blocks computed again, rows dealt without copies."""

from __future__ import annotations

import importlib
import json
import time
import tracemalloc

import numpy as np
import pytest
from threadpoolctl import threadpool_limits
from typer.testing import CliRunner

from conftest import clusters, make_options
from dekpca import DecentralizedKernelPCA, Network, backends, memory
from dekpca.block import Dealt, make_blocks
from dekpca.cli import app
from dekpca.cli.bench import _tell
from dekpca.core import chunks, native, spectrum
from dekpca.core.gram import blocks as gram_blocks
from dekpca.deal import deal_by_label
from dekpca.engines import local
from dekpca.engines.delivery import CollectiveDelivery, Delivery
from dekpca.engines.tree import over_tree
from dekpca.experiments import scale
from dekpca.memory import parse_size, within
from dekpca.plan import Plan
from dekpca.program import program
from dekpca.testing import by_node

NETWORKS = [
    Network.ring(12, 4),
    Network.path(9),
    Network.star(7),
    Network.grid(3, 4),
    Network.random(11, degree=4, seed=0),
]


def same(one, two, tolerance=0.0):
    for name, (answer, w) in by_node(one).items():
        other, v = by_node(two)[name]
        np.testing.assert_allclose(v, w, rtol=0, atol=tolerance * np.abs(w).max())
        np.testing.assert_allclose(other.eigenvalues, answer.eigenvalues, rtol=tolerance)


AUTO = {"solver": "auto", "landmarks": "auto", "tol": 1e-3}


@pytest.mark.parametrize(
    "settings", [{"landmarks": 12}, AUTO, {**AUTO, "share_rows": False}], ids=["projection", "auto", "no rows"]
)
@pytest.mark.parametrize("network", NETWORKS, ids=repr)
def test_reductions_are_the_sums_along_the_tree_and_have_the_cost_of_its_messages(network, settings):
    parts = clusters([8 + 3 * (j % 4) for j in range(len(network))])
    options = make_options(parts, network, **settings)
    at_once = local.run(Plan.of(parts, network, options))
    blocks = make_blocks(parts, network, apart=True)
    by_messages = local.drive(blocks, options, delivery=Delivery(blocks), script=over_tree(program))
    same(at_once, by_messages, 1e-9)
    for mine, theirs in zip(*(vars(o.traffic).values() for o in (at_once, by_messages)), strict=True):
        if isinstance(mine, dict):
            assert mine.keys() == theirs.keys()
            for kind in mine:
                np.testing.assert_array_equal(mine[kind], theirs[kind])
        else:
            np.testing.assert_array_equal(mine, theirs)


SOLVERS = pytest.mark.parametrize("settings", [{"landmarks": 15}, AUTO], ids=["projection", "auto"])


@SOLVERS
def test_chunks_change_nothing_but_rounding(ragged, settings, monkeypatch):
    """BLAS and LAPACK may take other ways for stacks of one."""
    parts, network = ragged
    options = make_options(parts, network, **settings)
    with threadpool_limits(1):
        usual = local.run(Plan.of(parts, network, options))
        monkeypatch.setattr(chunks, "CACHE_BYTES", 1)  # every node by itself
        same(usual, local.run(Plan.of(parts, network, options)), 1e-12)


@SOLVERS
@pytest.mark.parametrize("compiled", [True, False])
def test_threads_do_not_change_a_bit(settings, compiled, monkeypatch):
    if not compiled:
        monkeypatch.setattr(native, "steps", None)
    monkeypatch.setattr(chunks, "CACHE_BYTES", 1)  # a chunk a node, so that threads have something to share
    network = Network.ring(12, 4)
    parts = clusters([20 + 3 * (j % 5) for j in range(12)])
    options = make_options(parts, network, **settings)
    seen = set()
    work = chunks.run_chunks

    def watched(f, given, like):
        seen.add(len(given) if chunks._pool.get() else 0)
        work(f, given, like)

    monkeypatch.setattr(backends.compiled if compiled else chunks, "run_chunks", watched)
    outcomes = []
    for threads in (1, 2):
        with threadpool_limits(threads):
            outcomes.append(local.run(Plan.of(parts, network, options)))
    same(*outcomes)
    if settings is not AUTO or not compiled:  # else there are no steps of an iteration
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


@pytest.mark.parametrize("mode", [{}, {"centering": "local", "init": "random"}, {"exchange_noise": 0.1}], ids=str)
def test_gram_blocks_computed_again_give_the_same_answer(mode, ragged, monkeypatch):
    monkeypatch.setattr(memory, "_compiled", lambda *given: False)  # which would take all of them
    parts, network = ragged
    options = make_options(parts, network, 15, **mode)
    usual = local.run(Plan.of(parts, network, options))
    blocks = make_blocks(parts, network)
    needed, gram = (
        sum(found) for found in zip(*((memory._without_gram(b, options), memory._gram(b)) for b in blocks), strict=True)
    )
    least = needed + gram // 4
    assert not _fits(blocks, options, needed - 1)
    tight = local.run(Plan.of(parts, network, options, memory_limit=least))
    limited = within(blocks, options, least)
    assert any(block.gram_bytes < memory._gram(block) for block in limited)
    same(usual, tight, 1e-11)


SHAPES = {
    "a ring": ([60] * 40, Network.ring(40, 4), 60, {}),
    "many landmarks": ([30] * 40, Network.ring(40), 200, {}),
    "a star": ([50] * 20, Network.star(20), 40, {}),
    "ragged": ([20 + 37 * j % 90 for j in range(30)], Network.ring(30, 4), 60, {}),
    "penalties on a schedule": ([60] * 40, Network.ring(40), 60, {"rho": [(0, 60.0, 40.0), (2, 90.0, 60.0)]}),
    "small nodes": ([20] * 60, Network.ring(60), 20, {"n_components": 8}),
    "a schedule, small nodes": ([20] * 60, Network.ring(60), 60, {"rho": [(0, 60.0, 40.0), (2, 90.0, 60.0)]}),
    "ragged, many landmarks": ([10 + 7 * j % 30 for j in range(40)], Network.ring(40), 200, {}),
    "no landmarks": ([60] * 40, Network.ring(40), 0, {"init": "local", "centering": "local"}),
    "a start at random": ([60] * 40, Network.ring(40), 60, {"init": "random"}),
}


SOME = {"a star", "ragged", "penalties on a schedule", "no landmarks"}  # `make test-all` has all shapes


@pytest.mark.parametrize(
    ("shape", "compiled"),
    [
        pytest.param(shape, compiled, marks=[] if shape in SOME else pytest.mark.slow)
        for compiled in (True, False)
        for shape in SHAPES
    ],
)
def test_a_run_takes_no_more_memory_than_was_counted(shape, compiled, monkeypatch):
    """But for what threads work on, which does not grow with the network, and is made small here."""
    if compiled and native.steps is None:
        pytest.skip("no compiled steps here")
    monkeypatch.setattr(chunks, "CACHE_BYTES", 2**13)
    monkeypatch.setattr(gram_blocks, "PANEL_BYTES", 2**14)
    monkeypatch.setattr(backends.compiled, "LARGE", 0)
    judge = importlib.import_module("dekpca.solvers.sums.judge")
    monkeypatch.setattr(judge, "EFFORT", 1)  # more is counted for a fit that needs it, which these do not
    sizes, network, n_landmarks, settings = SHAPES[shape]
    parts = clusters(sizes)
    options = make_options(parts, network, n_landmarks, max_iter=4, tol=0, **settings)
    blocks = make_blocks(parts, network)
    gram = sum(memory._gram(block) for block in blocks)
    if not compiled:
        monkeypatch.setattr(memory, "_compiled", lambda *given: False)
        gram = gram // 4  # some blocks are kept, and some computed again
    counted = gram + sum(memory._without_gram(block, options, compiled) for block in blocks)
    limited = within(blocks, options, counted)
    assert all((block.gram_bytes >= memory._gram(block)) == compiled for block in limited)
    with threadpool_limits(1):
        tracemalloc.start()
        local.run(Plan.of(parts, network, options, memory_limit=counted))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak <= counted
    assert peak >= counted / 3  # it is not counted for nothing


def _fits(blocks, options, limit):
    try:
        within(blocks, options, limit)
    except ValueError:
        return False
    return True


def test_a_limit_that_cannot_hold_says_what_would():
    X = np.concatenate(clusters([40] * 4))
    with pytest.raises(ValueError, match=r"memory_limit=1e-05 GB: .* take about .* GB; raise it"):
        DecentralizedKernelPCA(2, network=4, memory_limit="10kB").fit(X)
    for wrong in ("2 apples", "GB", "0GB", "-1GB"):
        with pytest.raises(ValueError, match="give bytes, or a text such as '2GB'"):
            DecentralizedKernelPCA(2, network=4, memory_limit=wrong).fit(X)
    assert parse_size("1.5GiB") == 3 * 2**29
    assert parse_size(7) == 7


def test_kept_blocks_are_only_those_that_fit():
    parts, network = clusters([30] * 8), Network.ring(8, 4)
    options = make_options(parts, network, 10)
    kept = {}
    for limit in (np.inf, 2**17):
        groups = space_of(parts, network, options, limit).neighborhood.groups
        kept[limit] = sum(group.blocks.stored.nbytes for group in groups if group.blocks.stored is not None)
    assert 0 < kept[2**17] <= 2**17 < kept[np.inf]


def test_rows_in_order_are_not_copied():
    X = np.random.default_rng(0).normal(size=(60, 3))
    rows = np.split(np.arange(60), 6)
    assert np.shares_memory(Dealt(X, rows, borrow=True).together(np.arange(6)), X)
    assert not np.shares_memory(Dealt(X, rows).together(np.arange(6)), X)
    mixed = [r[::-1] for r in rows[:5]] + [np.arange(50, 57)]
    stacked = Dealt(X, mixed).together(np.arange(6))
    for part, own in zip(stacked, mixed, strict=True):
        np.testing.assert_array_equal(part[: len(own)], X[own])
        assert not part[len(own) :].any()


@pytest.mark.parametrize("rank", [0, 3, 9])
def test_inverse_is_the_pseudo_inverse(rank):
    random = np.random.default_rng(rank)
    half = random.normal(size=(5, 9, rank))
    gram = half @ half.transpose(0, 2, 1)
    gram[2] = 0
    gram[3, 6:, :] = gram[3, :, 6:] = 0  # padding
    factor = spectrum.Factor(gram, np.array([9.0, 9, 9, 6, 9]), np.ones(5))
    expected = np.linalg.pinv(gram, rcond=1e-8, hermitian=True)
    np.testing.assert_allclose(factor.inverse, expected, atol=1e-8 * max(1.0, np.abs(expected).max()))
    np.testing.assert_allclose(factor.top, np.linalg.eigvalsh(gram)[:, -1], rtol=1e-10, atol=1e-12)


def test_the_largest_eigenvalue_of_a_flat_spectrum():
    values = 1.0 - 1e-3 * np.arange(40)
    basis = np.linalg.qr(np.random.default_rng(0).normal(size=(40, 40)))[0]
    assert spectrum.largest(((basis * values) @ basis.T)[None])[0] == pytest.approx(1.0, abs=0.02)


def test_many_labels_take_linear_time():
    taken = {}
    for J in (2000, 16_000):
        network = Network.ring(J, 2)
        labels = np.repeat(np.arange(J), 2)[::-1]
        seconds = []
        for _ in range(5):
            start = time.process_time()
            found, rows = deal_by_label(network, labels, 2 * J, 0)
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


@pytest.mark.skipif(scale._memory("VmRSS") == 0, reason="no /proc")
def test_the_memory_of_a_fit_is_counted_from_its_beginning():
    """Not from when all the rows were there that its own were drawn from, 10 times as many bytes as its Gram blocks."""
    X = np.random.default_rng(0).standard_normal((200_000, 50))
    (found,) = scale.apart(X, [scale.Case(20, 100, 4)], 0.01, judged=False)
    blocks = 20 * 5 * 100**2 * 8
    assert blocks < found.peak_bytes < found.checks["process_bytes"]
    assert found.checks["values"].shape == (200, scale.K)


@pytest.mark.slow
def test_bench_prints_what_it_measured(capsys, monkeypatch):
    monkeypatch.setattr(scale, "REPEATS", 1)
    done = CliRunner().invoke(app, ["bench", "--nodes", "12,24", "--rows", "20", "--json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert [one["nodes"] for one in found["fits"]] == [12, 24]
    assert found["flops"] > 0
    assert found["central"]["scikit_learn_seconds"] > 0
    assert all(min(one["agreement"][:2]) > 0.9 for one in found["fits"])
    _tell(found)  # what is printed without --json
    shown = capsys.readouterr().out
    assert "scikit-learn on the same rows" in shown
    assert "Gram blocks" in shown
    assert "…" not in shown  # all of it fits into 80 columns
    assert CliRunner().invoke(app, ["bench", "--nodes", "2"]).exit_code == 2


def test_central_values_are_those_of_central_kernel_pca():
    X = np.concatenate(clusters([120] * 5))
    from dekpca import baselines

    found = scale.central_values(X, 0.05)
    expected = baselines.central(X, scale.K, gamma=0.05).transform(X)
    for i in range(scale.K):
        assert abs(np.corrcoef(found[:, i], expected[:, i])[0, 1]) > 1 - 1e-6


def test_the_model_does_not_follow_changes_of_the_data():
    X = np.concatenate(clusters([20] * 4))
    given = X.copy()
    model = DecentralizedKernelPCA(2, gamma=0.05, network=Network.ring(4), random_state=0)
    model.fit(given, nodes=np.repeat(np.arange(4), 20))
    before = model.transform(X)
    given *= 3
    np.testing.assert_array_equal(model.transform(X), before)


def space_of(parts, network, options, limit=np.inf):
    """The feature space of a network of one block, as its program has it at the first checkpoint."""
    (block,) = make_blocks(parts, network)
    block.gram_bytes = limit
    script, delivery = program(block, options), CollectiveDelivery([block])
    request = next(script)
    while not hasattr(request, "state"):
        (reply,) = delivery.answer([request])
        request = script.send(reply)
    return script.gi_frame.f_locals["space"]


@pytest.mark.filterwarnings("ignore:not converged")  # they have little in common
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_nodes_far_apart_lose_no_digits(dtype):
    random = np.random.default_rng(0)
    step, tolerance = (1e6, 1e-10) if dtype == "float64" else (1024.0, 1e-5)
    away = [(random.normal(size=(15, 3)) + step * j).astype(dtype) for j in range(5)]
    near = [(part - part[:1]) for part in away]  # the differences are exact
    network = Network.complete(5)
    spaces = [
        space_of(data, network, make_options(data, network, 0, centering="local", init="local"))
        for data in (away, near)
    ]
    np.testing.assert_allclose(spaces[0].own.rest, spaces[1].own.rest, atol=tolerance)
    settings = {"gamma": 0.3, "landmarks": 0, "centering": "local", "init": "local", "random_state": 0}
    model = DecentralizedKernelPCA(2, network=network, **settings).fit_parts(away)
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


def test_a_penalty_that_has_no_minimum_is_no_crash():
    parts = [np.zeros((1, 2)), np.ones((1, 2))]
    settings = {"landmarks": 0, "init": "local", "centering": None, "gamma": 0.5, "rho": 1.0, "max_iter": 20}
    with pytest.warns(UserWarning, match="diverged|not converged"):
        model = DecentralizedKernelPCA(1, network=Network.path(2), **settings).fit_parts(parts)
    assert not model.converged_


def test_resuming_with_other_diagnostics_is_refused(ragged):
    parts, network = ragged
    seen = []
    options = make_options(parts, network, 15, max_iter=3)
    local.run(Plan.of(parts, network, options), lambda blocks, found: seen.append([(c.known, c.state) for c in found]))
    with pytest.raises(ValueError, match="diagnostics it was begun with"):
        local.run(
            Plan.of(parts, network, make_options(parts, network, 15, max_iter=3, diagnostics=True), resume=seen[1])
        )
