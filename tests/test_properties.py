"""What must not change a result, and what every run must satisfy."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.exceptions import ConvergenceWarning

from conftest import clusters, make_options
from dekpca import PAPER, DecentralizedKernelPCA, Network, Projection, baselines, metrics
from dekpca.engines import local
from dekpca.engines.tree import over_tree
from dekpca.kernels import make_kernel
from dekpca.messages import Exchange, Sum
from dekpca.plan import Plan
from dekpca.settings import LandmarkSource
from dekpca.site import Dealt, RowNumbers, apart, make_site
from dekpca.testing import by_node


def run_sites(sites, options, script=None):
    more = {} if script is None else {"script": script}
    return local.drive(sites, options, local.Delivery(sites), **more)


def compare(one, two, tolerance=1e-8):
    """Eigenvalues and functions of every node."""
    one, two = by_node(one), by_node(two)
    assert one.keys() == two.keys()
    for name, (answer, functions) in one.items():
        other, others = two[name]
        np.testing.assert_allclose(other.eigenvalues, answer.eigenvalues, rtol=tolerance)
        assert functions.keys() == others.keys()
        for expansion, terms in functions.items():
            mine, theirs = terms, others[expansion]
            assert theirs.owners[:1] == mine.owners[:1]  # neighbors may come in another order
            their = dict(zip(theirs.owners, theirs.coefficients, strict=True))
            pairs = [(mine.shared, theirs.shared)]
            pairs += [(c, their[owner]) for owner, c in zip(mine.owners, mine.coefficients, strict=True)]
            size = max(np.abs(a).max(initial=0.0) for a, _ in pairs)
            for a, b in pairs:
                np.testing.assert_allclose(b, a, atol=tolerance * size)


def wide(A, B):
    """A kernel that nobody knows: it has no random features."""
    return (0.1 * A @ B.T + 1) ** 2


FEW = Projection(n_landmarks=15, max_iter=10, tol=0)
MODES = {
    "projection": {"projection": FEW},
    "paper": {"projection": replace(PAPER, max_iter=10, tol=0), "n_components": 2},
    "auto": {},
    "auto, no rows": {"share_rows": False},
    "landmarks": {"n_landmarks": 15},
    "means": {"n_landmarks": 15, "share_rows": False},
    "without random features": {"n_landmarks": 15, "kernel": make_kernel(wide)},
    "noise": {"projection": replace(FEW, exchange_noise=0.1)},
    "random, local means": {"projection": replace(FEW, init="random", centering="local")},
    "standardize": {"projection": FEW, "standardize": True},
    "random features": {"landmarks": LandmarkSource("random-features"), "n_landmarks": 40},
}


@pytest.mark.parametrize("mode", MODES)
def test_sites_and_the_order_of_rows_do_not_matter(mode, ragged):
    """All nodes at one site, each at its own, or their rows anywhere in one array."""
    parts, network = ragged
    options = make_options(parts, network, **MODES[mode])
    usual = local.run(Plan.of(parts, network, options))
    alone = run_sites(apart(parts, network), options)
    mixed, X = np.random.default_rng(0).permutation(sum(map(len, parts))), np.concatenate(parts)
    rows = RowNumbers(np.array([len(part) for part in parts]), np.argsort(mixed))
    site = make_site(Dealt(X[mixed], rows), network)
    assert site.order is not None
    dealt = run_sites([site], options)
    assert len({id(a.site) for a in alone.answers}) == len(parts)
    for other in (alone, dealt):
        if has_rows_as_landmarks(usual) and other is dealt:
            same_values(usual, other, X)  # rows are landmarks in the order of the array
        else:
            compare(usual, other)
        for kind, sent in usual.traffic.bytes.items():
            np.testing.assert_array_equal(other.traffic.bytes[kind], sent)
    check_accuracy(usual, alone, dealt)


def has_rows_as_landmarks(outcome):
    return "rows" in dict(getattr(outcome.answers[0].marks, "kinds", ()))


def same_values(one, two, X):
    """The same functions over landmarks alone, up to signs."""
    values = []
    for answer in (one.answers[0], two.answers[0]):
        psi = answer.marks.coordinates(answer.kernel, X) - answer.mean
        values.append(np.abs(psi @ answer.terms.shared))
    np.testing.assert_allclose(values[1], values[0], atol=1e-7 * values[0].max())


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


@pytest.mark.parametrize("mode", MODES)
def test_numbering_does_not_matter(mode, ragged):
    parts, network = ragged
    order = [3, 0, 5, 1, 4, 2]
    names = [network.names[j] for j in order]
    renumbered = Network({n: [network.names[q] for q in network.neighbors(network.number[n])] for n in names})
    one = local.run(Plan.of(parts, network, make_options(parts, network, **MODES[mode])))
    shuffled = [parts[j] for j in order]
    two = local.run(Plan.of(shuffled, renumbered, make_options(shuffled, renumbered, **MODES[mode])))
    if has_rows_as_landmarks(one) and "projection" not in MODES[mode]:
        same_values(one, two, np.concatenate(parts))  # rows are landmarks in the order of the nodes' numbers
    else:
        compare(one, two)
    check_accuracy(one, two)


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


def test_one_node_is_central_without_centering_too():
    X = clusters([60])[0]
    model = DecentralizedKernelPCA(3, gamma=0.1, network=1, solver=Projection(centering=None)).fit(X)
    values, vectors = np.linalg.eigh(model.node_models_[0].kernel.gram(X, X))
    np.testing.assert_allclose(model.eigenvalues_, values[::-1][:3], rtol=1e-10)
    np.testing.assert_allclose(
        np.abs(model.transform(X)), np.abs(vectors[:, ::-1][:, :3]) * np.sqrt(values[::-1][:3]), atol=1e-8
    )


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
    solver = Projection(n_landmarks=40, tol=1e-10, max_iter=400)
    network = Network.complete(n_nodes)
    model = DecentralizedKernelPCA(2, gamma=0.05, solver=solver, network=network, tol=1e-10, random_state=0)
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
    """Also where the root tells something without a sum."""
    rng = np.random.default_rng(seed)
    network = Network.random(n_nodes, 0.4, seed=seed)
    parts = [rng.normal(size=(rng.integers(1, 30), 2)) for _ in range(n_nodes)]
    given_values = rng.normal(size=(n_nodes, 5)) * 10.0 ** rng.integers(-8, 8, size=(n_nodes, 1))
    told = rng.normal(size=7)

    def total(site, options):
        found = yield Sum("test", given_values[site.nodes].sum(axis=0), lambda total: total, 5)
        return np.concatenate([found, (yield Sum("told", np.zeros(0), lambda total: told, 7))])

    along_the_tree = []
    together, alone = [make_site(parts, network)], apart(parts, network)
    for sites, script in ((together, total), (alone, total), (alone, over_tree(total))):  # the last as between peers
        outcome = run_sites(sites, None, script)
        found = outcome.answers
        assert all((r == found[0]).all() for r in found)
        assert outcome.traffic.messages["test"].sum() == 2 * (n_nodes - 1)  # every tree edge, up and down
        assert outcome.traffic.messages["told"].sum() == n_nodes - 1  # down only
        np.testing.assert_allclose(
            found[0][:5], given_values.sum(axis=0), rtol=1e-9, atol=1e-14 * np.abs(given_values).max()
        )
        np.testing.assert_array_equal(found[0][5:], told)
        along_the_tree.append(outcome.traffic.edge_bytes)
    np.testing.assert_array_equal(*along_the_tree[:2])
    np.testing.assert_array_equal(*along_the_tree[1:])


def test_sums_along_a_tree_need_a_site_for_each_node():
    site = make_site(clusters([5, 5, 5]), Network.complete(3))
    with pytest.raises(RuntimeError, match="a site of 3 nodes"):
        next(over_tree(lambda site: iter(()))(site))


def test_all_nodes_stop_in_the_same_iteration(ragged):
    parts, network = ragged
    options = make_options(parts, network, projection=replace(FEW, tol=1e-3, max_iter=200))
    seen, sites = [], apart(parts, network)
    outcome = local.drive(sites, options, local.Delivery(sites), seen.append)
    (n_iter,) = {a.n_iter for a in outcome.answers}
    assert [about.number for about in seen] == list(range(n_iter))
    assert all(a.converged for a in outcome.answers)
    assert n_iter % 5 == 0
    assert 5 < n_iter < 200


def test_a_silent_neighbor_is_an_error_not_a_zero(ragged):
    sites = apart(*ragged)

    def silent(site, options):
        return (yield Exchange("data", {}, {(0, 1): (40, 6)} if 1 in site.nodes else {}, np.dtype(float)))

    with pytest.raises(RuntimeError, match=r"data: node 1 expects an array \(40, 6\) of node 0, which says nothing"):
        run_sites(sites, None, silent)

    def different(site, options):
        return (yield Exchange(str(site.nodes[0]), {}, {}, np.dtype(float)))

    with pytest.raises(RuntimeError, match="different things"):
        run_sites(sites, None, different)


def test_the_lagrangian_tends_to_minus_the_objective():
    """At a consensus the constraints cost nothing; on the way it may rise now and then, so that is not asserted."""
    rng = np.random.default_rng(3)
    parts = [rng.normal(size=(30, 4)) for _ in range(6)]
    solver = Projection(init="random", tol=0, max_iter=200, diagnostics=True, n_oversamples=0)
    model = DecentralizedKernelPCA(2, gamma=0.1, solver=solver, network=Network.ring(6), random_state=1)
    with pytest.warns(UserWarning, match="not converged"):
        model.fit_parts(parts)
    lagrangian, objective = (model.history_[name] for name in ("lagrangian", "objective"))
    assert abs(lagrangian[0] + objective[0]) > 0.05 * objective[0]
    assert abs(lagrangian[-1] + objective[-1]) < 1e-3 * objective[-1]


@pytest.mark.parametrize(("rows", "centering", "k"), [(3, "local", 5), (2, None, 3)])
def test_more_components_than_a_node_has_dimensions_are_found_from_its_own_solution_too(rows, centering, k):
    """No node has a direction for the last columns, which must not stay zero. Where an iteration ends does not depend on where it begins."""
    random = np.random.default_rng(0)
    parts = [random.normal(size=(rows, 4)) for _ in range(5)]
    found = []
    for init in ("local", "random"):
        solver = Projection(n_landmarks=0, centering=centering, init=init, max_iter=500)
        model = DecentralizedKernelPCA(k, gamma=0.1, solver=solver, network=Network.ring(5), random_state=0)
        found.append(model.fit_parts(parts).eigenvalues_)
        assert model.converged_
    np.testing.assert_allclose(*found, rtol=0.01)  # of functions that may differ by 0.03, sqrt(tol): second order


@pytest.mark.slow
@pytest.mark.parametrize(
    "network", [Network.path(8), Network.star(8), Network.ring(8, 2), Network.grid(2, 4), Network.complete(8)], ids=repr
)
def test_five_hundred_iterations_diverge_nowhere(network):
    parts = clusters([15, 30, 8, 22, 1, 19, 40, 12], seed=7)
    solver = Projection(tol=0, max_iter=500)
    model = DecentralizedKernelPCA(2, gamma=0.05, solver=solver, network=network, random_state=0)
    with pytest.warns(UserWarning, match="not converged"):
        model.fit_parts(parts)
    residual = model.history_["residual"]
    assert residual[-1] <= residual[20]
    central = baselines.central(parts, 2, gamma=0.05)
    assert metrics.agreement(model, central, np.concatenate(parts)).min() > 0.9
