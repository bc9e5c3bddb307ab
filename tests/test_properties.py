"""What must not change a result, and what every run must satisfy."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.exceptions import ConvergenceWarning

from conftest import clusters, make_options
from dekpca import PAPER, DecentralizedKernelPCA, Network, baselines, metrics, testing
from dekpca.block import Block, make_blocks
from dekpca.collectives import network_sum
from dekpca.core.gram.layout import Layout
from dekpca.engines import local
from dekpca.engines.delivery import CollectiveDelivery, Delivery
from dekpca.engines.tree import over_tree
from dekpca.kernels import Kernel
from dekpca.messages import Broadcast, Edges, Gather, NeighborBroadcast, Send
from dekpca.plan import Plan


def by_node(outcome):
    return {name: (w, answer.eigenvalues) for name, (answer, w) in testing.by_node(outcome).items()}


def compare(one, two, tolerance=1e-8):
    assert one.keys() == two.keys()
    for name, (w, lam) in one.items():
        np.testing.assert_allclose(two[name][1], lam, rtol=tolerance)
        np.testing.assert_allclose(two[name][0], w, atol=tolerance * np.abs(w).max())


def wide(A, B):
    """A kernel that nobody knows: it has no random features."""
    return (0.1 * A @ B.T + 1) ** 2


AUTO = {"solver": "auto", "landmarks": "auto", "tol": 1e-3}
MODES = {
    "projection": {},
    "paper": {k: PAPER[k] for k in ("update", "centering", "rho", "init")} | {"n_components": 2, "landmarks": 0},
    "auto": AUTO,
    "auto, no rows": {**AUTO, "share_rows": False},
    "landmarks": {"solver": "landmarks", "landmarks": 15},
    "means": {"solver": "landmarks", "landmarks": 15, "share_rows": False},
    "without random features": {"solver": "landmarks", "kernel": Kernel(wide)},
    "noise": {"exchange_noise": 0.1},
    "random, local means": {"init": "random", "centering": "local"},
    "standardize": {"standardize": True},
    "random features": {"solver": "landmarks", "landmarks": "random-features", "n_landmarks": 40},
}


def options_for(mode, parts, network, **more):
    return make_options(parts, network, **{"landmarks": 15} | MODES[mode] | more)


@pytest.mark.parametrize("mode", MODES)
def test_padding_and_blocking_do_not_matter(mode, ragged):
    parts, network = ragged
    options = options_for(mode, parts, network)
    usual = local.run(Plan.of(parts, network, options))
    alone = local.drive(make_blocks(parts, network, apart=True), options)
    wide = local.drive([padded(b) for b in make_blocks(parts, network)], options)
    assert len({id(a.block) for a in alone.answers}) == len(parts)
    compare(by_node(usual), by_node(alone))
    compare(by_node(usual), by_node(wide))
    check_accuracy(usual, alone, wide)
    for other in (alone, wide):
        for kind, sent in usual.traffic.bytes.items():
            np.testing.assert_array_equal(other.traffic.bytes[kind], sent)


def check_accuracy(*outcomes):
    """All nodes know the same of it, and nearly the same whoever hosts them."""
    first = outcomes[0].answers[0].accuracy
    for outcome in outcomes:
        for found in (answer.accuracy for answer in outcome.answers):
            assert (found is None) == (first is None)
            if found is not None:
                assert found == outcome.answers[0].accuracy
                np.testing.assert_allclose(
                    [found.error, *found.components], [first.error, *first.components], rtol=1e-5
                )


def padded(block):
    """The same nodes with seven rows of padding more."""
    samples = np.concatenate([block.samples, np.zeros((block.n_nodes, 7, block.samples.shape[2]))], axis=1)
    return Block(block.network, block.sizes, block.nodes, block.slots, samples, block.n_near + 5)


@pytest.mark.parametrize("mode", MODES)
def test_numbering_does_not_matter(mode, ragged):
    parts, network = ragged
    order = [3, 0, 5, 1, 4, 2]
    names = [network.names[j] for j in order]
    renumbered = Network({n: [network.names[q] for q in network.neighbors(network.number[n])] for n in names})
    one = local.run(Plan.of(parts, network, options_for(mode, parts, network)))
    shuffled = [parts[j] for j in order]
    two = local.run(Plan.of(shuffled, renumbered, options_for(mode, shuffled, renumbered)))
    if ("rows" in dict(one.answers[0].known.kinds)) and one.answers[0].sites is None:
        # Rows are landmarks in the order of the nodes' numbers, which the coefficients follow; the functions are the same, up to signs.
        values = [np.abs(values_of(outcome.answers[0], np.concatenate(parts))) for outcome in (one, two)]
        np.testing.assert_allclose(values[1], values[0], atol=1e-7 * values[0].max())
    else:
        compare(by_node(one), by_node(two))
    check_accuracy(one, two)


def values_of(answer, X):
    """Of functions over landmarks alone."""
    return (answer.marks.coordinates(answer.kernel, X) - answer.known.mean) @ answer.w[0]


@pytest.mark.parametrize("kernel", ["rbf", "linear", "poly", "laplacian", "cosine"])
def test_one_node_is_central(kernel):
    X = clusters([60])[0]
    settings = {"kernel": kernel, "gamma": 0.1}
    model = DecentralizedKernelPCA(3, network=1, **settings).fit(X)
    central = baselines.central(X, 3, **settings)
    np.testing.assert_allclose(model.eigenvalues_, central.eigenvalues_, rtol=1e-10)
    np.testing.assert_allclose(
        np.abs(model.transform(X)), np.abs(central.transform(X)), atol=1e-8 * np.abs(central.transform(X)).max()
    )
    assert model.converged_


def test_scikit_learn_is_central():
    from sklearn.decomposition import KernelPCA

    X = clusters([80, 40])
    ours = baselines.central(X, 3, gamma=0.05)
    theirs = KernelPCA(3, kernel="rbf", gamma=0.05).fit(np.concatenate(X))
    np.testing.assert_allclose(ours.eigenvalues_, theirs.eigenvalues_, rtol=1e-9)
    new = clusters([9], seed=5)[0]
    np.testing.assert_allclose(np.abs(ours.transform(new)), np.abs(theirs.transform(new)), atol=1e-8)


@pytest.mark.parametrize("n_nodes", [2, 6])
def test_complete_graph_reaches_the_oracle(n_nodes):
    parts = clusters([40] * n_nodes)
    model = DecentralizedKernelPCA(
        2,
        gamma=0.05,
        solver="projection",
        network=Network.complete(n_nodes),
        tol=1e-10,
        max_iter=400,
        landmarks=40,
        random_state=0,
    )
    with pytest.warns(ConvergenceWarning, match="less accurate than tol=1e-10"):
        model.fit_parts(parts)
    assert model.n_iter_ > 1
    central = baselines.central(parts, 2, gamma=0.05)
    ratio = metrics.similarity(model, central) / metrics.oracle(model, central)
    assert ratio.min() >= 1 - 1e-3
    assert ratio.max() <= 1 + 1e-6  # nobody beats the oracle
    np.testing.assert_allclose(model.eigenvalues_, central.eigenvalues_, rtol=1e-2)


@given(st.integers(0, 10_000), st.sampled_from([4, 7, 12]))
@settings(max_examples=25, deadline=None)
def test_a_network_sum_is_the_sum_and_the_same_bits_at_every_node(seed, n_nodes):
    rng = np.random.default_rng(seed)
    network = Network.random(n_nodes, 0.4, seed=seed)
    parts = [rng.normal(size=(rng.integers(1, 30), 2)) for _ in range(n_nodes)]
    given_values = rng.normal(size=(n_nodes, 5)) * 10.0 ** rng.integers(-8, 8, size=(n_nodes, 1))

    def total(block, options, resume):
        return (yield from network_sum(block, "test", given_values[block.nodes].sum(axis=0)))

    along_the_tree = []
    together, apart = make_blocks(parts, network), make_blocks(parts, network, apart=True)
    for blocks, delivery, script in (
        (together, CollectiveDelivery(together), total),
        (apart, CollectiveDelivery(apart), total),
        (apart, Delivery(apart), over_tree(total)),  # as between peers
    ):
        outcome = local.drive(blocks, None, delivery=delivery, script=script)
        found = outcome.answers
        assert all((r == found[0]).all() for r in found)
        assert outcome.traffic.messages["test"].sum() == 2 * (n_nodes - 1)  # every tree edge, up and down
        np.testing.assert_allclose(
            found[0], given_values.sum(axis=0), rtol=1e-9, atol=1e-14 * np.abs(given_values).max()
        )
        along_the_tree.append(outcome.traffic.edge_bytes)
    np.testing.assert_array_equal(*along_the_tree[:2])
    np.testing.assert_array_equal(*along_the_tree[1:])


@given(st.integers(0, 10_000), st.sampled_from([2, 4, 9]))
@settings(max_examples=25, deadline=None)
def test_gathers_and_broadcasts_along_the_tree_have_the_results_and_the_cost_of_those_at_once(seed, n_nodes):
    rng = np.random.default_rng(seed)
    network = Network.random(n_nodes, 0.4, seed=seed)
    counts = rng.integers(0, 3, size=n_nodes)
    rows = [rng.normal(size=(count, 3)) for count in counts]
    parts = [rng.normal(size=(rng.integers(1, 30), 2)) for _ in range(n_nodes)]
    told = rng.normal(size=(4, 2))

    def script(block, options, resume):
        gathered = yield Gather("rows", np.concatenate([rows[j] for j in block.nodes]), counts)
        return gathered, (yield Broadcast("told", lambda: told, told.shape))

    together, apart = make_blocks(parts, network), make_blocks(parts, network, apart=True)
    sent = []
    for blocks, delivery, program in (
        (together, CollectiveDelivery(together), script),
        (apart, Delivery(apart), over_tree(script)),
    ):
        outcome = local.drive(blocks, None, delivery=delivery, script=program)
        for gathered, heard in outcome.answers:
            np.testing.assert_array_equal(gathered, np.concatenate([rows[j] for j in network.by_name]))
            np.testing.assert_array_equal(heard, told)
        sent.append([outcome.traffic.edge_bytes, *outcome.traffic.messages.values()])
    for at_once, along_the_tree in zip(*sent, strict=True):
        np.testing.assert_array_equal(at_once, along_the_tree)


def test_messages_along_a_tree_need_a_block_for_each_node():
    (block,) = make_blocks(clusters([5, 5, 5]), Network.complete(3))
    with pytest.raises(RuntimeError, match="a block of 3 nodes"):
        next(over_tree(lambda block: iter(()))(block))


def test_all_nodes_stop_in_the_same_iteration(ragged):
    parts, network = ragged
    options = options_for("projection", parts, network, tol=1e-3, max_iter=200)
    seen = []
    outcome = local.run(
        Plan.of(parts, network, options),
        lambda blocks, checkpoints: seen.append({c.state.iteration for c in checkpoints}),
    )
    assert all(len(s) == 1 for s in seen)
    assert len({a.n_iter for a in outcome.answers}) == 1
    assert all(a.converged for a in outcome.answers)
    assert outcome.answers[0].n_iter % 5 == 0


def test_a_silent_neighbor_is_an_error_not_a_zero(ragged):
    parts, network = ragged
    blocks = make_blocks(parts, network)
    none = np.zeros(0, dtype=np.int64)
    silent = Edges(none, none)
    sends = [Send("x", np.zeros((0, 1)), silent, b.everywhere, none, np.ones(b.slots.size), 1) for b in blocks]
    with pytest.raises(RuntimeError, match="says nothing"):
        list(Delivery(blocks).answer(sends))
    with pytest.raises(RuntimeError, match="different things"):
        Delivery(blocks).answer([replace(send, kind=str(i)) for i, send in enumerate(sends)])


def test_a_large_node_does_not_inflate_the_others():
    network = Network.star(8)
    blocks = make_blocks(clusters([400] + [10] * 7), network)
    assert sorted((b.n_nodes, b.samples.shape[1]) for b in blocks) == [(1, 400), (7, 10)]
    far = make_blocks(clusters([400] + [10] * 7), Network.path(8))
    assert sorted((b.n_nodes, b.n_near) for b in far) == [(1, 10), (1, 400), (1, 400), (5, 10)]


def test_told_messages_are_held_once(ragged):
    parts, network = ragged
    blocks = make_blocks(parts, network)
    heard = Delivery(blocks).answer([NeighborBroadcast("data", b.samples) for b in blocks])
    for block, h in zip(blocks, heard, strict=True):
        assert all(any(p is b.samples for b in blocks) for p in h.pools)
        for b in range(block.n_nodes):
            for s, q in enumerate(block.slots[b]):
                np.testing.assert_array_equal(h.pools[h.pool[b, s]][h.row[b, s], : len(parts[q])], parts[q])


def test_the_lagrangian_tends_to_minus_the_objective():
    """At a consensus the constraints cost nothing; on the way it may rise now and then, so that is not asserted."""
    rng = np.random.default_rng(3)
    parts = [rng.normal(size=(30, 4)) for _ in range(6)]
    model = DecentralizedKernelPCA(
        2,
        gamma=0.1,
        solver="projection",
        init="random",
        network=Network.ring(6),
        tol=0,
        max_iter=200,
        diagnostics=True,
        random_state=1,
        n_oversamples=0,
    )
    with pytest.warns(UserWarning, match="not converged"):
        model.fit_parts(parts)
    lagrangian, objective = (model.history_[name] for name in ("lagrangian", "objective"))
    assert abs(lagrangian[0] + objective[0]) > 0.05 * objective[0]
    assert abs(lagrangian[-1] + objective[-1]) < 1e-3 * objective[-1]


@pytest.mark.parametrize(
    "network",
    [
        Network.path(8),
        Network.star(8),
        *(
            pytest.param(n, marks=pytest.mark.slow)
            for n in (Network.ring(8, 2), Network.grid(2, 4), Network.complete(8))
        ),
    ],
    ids=repr,
)
def test_five_hundred_iterations_diverge_nowhere(network):
    parts = clusters([15, 30, 8, 22, 1, 19, 40, 12], seed=7)
    model = DecentralizedKernelPCA(
        2, gamma=0.05, solver="projection", network=network, tol=0, max_iter=500, random_state=0
    )
    with pytest.warns(UserWarning, match="not converged"):
        model.fit_parts(parts)
    residual = model.history_["residual"]
    assert residual[-1] <= residual[20]
    central = baselines.central(parts, 2, gamma=0.05)
    assert metrics.agreement(model, central, np.concatenate(parts)).min() > 0.9


@pytest.mark.parametrize("mode", ["projection", "paper", "noise", "standardize", "random features"])
def test_resuming_from_any_checkpoint_gives_the_same_bits(mode, ragged):
    parts, network = ragged
    options = options_for(mode, parts, network, max_iter=8)
    kept = []
    whole = local.run(
        Plan.of(parts, network, options),
        lambda _, checkpoints: kept.append(deepcopy([(c.known, c.state) for c in checkpoints])),
    )
    for at in (0, 3, 8, len(kept) - 2):
        again = local.run(Plan.of(parts, network, options, resume=deepcopy(kept[at])))
        for one, two in zip(whole.answers, again.answers, strict=True):
            np.testing.assert_array_equal(one.w, two.w)
            np.testing.assert_array_equal(one.eigenvalues, two.eigenvalues)
            assert one.n_iter == two.n_iter


@given(st.integers(0, 10_000), st.booleans())
@settings(max_examples=50, deadline=None)
def test_the_layout_has_each_pair_of_sites_once_and_each_pair_of_slots_in_its_place(seed, by_site):
    rng = np.random.default_rng(seed)
    pool_sizes = [4, 7]
    B, d = 6, 4
    sites = np.array([rng.choice(sum(pool_sizes), size=d, replace=False) for _ in range(B)])
    pool_of = (sites >= pool_sizes[0]).astype(np.int64)
    layout = Layout.of(pool_of, sites - pool_of * pool_sizes[0], pool_sizes, [by_site, True])
    np.testing.assert_array_equal(np.sort(layout.order, axis=None), np.arange(B * d * d))
    seen, start = set(), 0
    for group in layout.groups:
        p, q = (rows + pool * pool_sizes[0] for pool, rows in zip(group.pools, group.rows, strict=True))
        assert ((p == q) == group.diagonal).all()
        pairs = set(zip(p.tolist(), q.tolist(), strict=True))
        assert len(pairs) == len(group)
        assert not pairs & seen
        seen |= pairs
        np.testing.assert_array_equal(sites.ravel()[group.first], np.repeat(p, group.n_uses))
        np.testing.assert_array_equal(sites.ravel()[group.second], np.repeat(q, group.n_uses))
        assert (group.first // d == group.second // d).all()  # both are slots of one node
        for there, back in ((group.first, group.second), (group.second, group.first))[: 1 if group.diagonal else 2]:
            parts = layout.order[back % d, there]  # what slot `back` adds to the values at `there`
            np.testing.assert_array_equal(parts, start + np.arange(len(parts)))
            start += len(parts)
    assert not any((b, a) in seen for a, b in seen if a != b)
    assert seen == {(min(a, b), max(a, b)) for row in sites.tolist() for a in row for b in row}
