"""What test_mpi.py runs under mpiexec: `mpiexec -n RANKS python on_ranks.py SCENARIO`. Every scenario prints "SCENARIO holds" on each rank."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
import warnings
from importlib.util import find_spec
from types import SimpleNamespace

import array_api_strict
import numpy as np
import pytest
from mpi4py import MPI
from sklearn.exceptions import NotFittedError

from conftest import clusters, make_options
from dekpca import DecentralizedKernelPCA, Network, Projection
from dekpca.engines import local, mpi, rank_agreement
from dekpca.messages import Sum
from dekpca.plan import Plan
from dekpca.site import make_site
from dekpca.testing import VALUE_TOLERANCE, by_node, check_answers, check_engine

WORLD = MPI.COMM_WORLD
RANK, SIZE = WORLD.Get_rank(), WORLD.Get_size()
SIZES = [25, 18, 40, 7, 31, 12, 22, 1, 28, 16]


def mine(network):
    return mpi.assign(network, SIZE)[RANK]


def run(plan, watch=None, comm=WORLD):
    return mpi.run(plan.hosting(mine(plan.network)), watch, comm)


def conformance():
    check_engine(run, lambda net: [net.names[j] for j in mine(net)])


def networks():
    """Twenty nodes on a ring, unequal ones on an irregular network and a star, whatever ranks host them."""
    for name, sizes, network in (
        ("twenty", [30] * 20, Network.ring(20, 4)),
        ("unequal", SIZES, Network.random(10, degree=4, seed=3)),
        ("star", SIZES, Network.star(10)),
    ):
        parts, nodes = clusters(sizes), mine(network)
        for changes in ({"projection": Projection(n_landmarks=20)}, {}, {"share_rows": False}):
            options = make_options(parts, network, **changes)
            plan = Plan.of(parts, network, options)
            expected, got = local.run(plan), run(plan)
            check_answers(name, by_node(got), by_node(expected))
            for kind, sent in expected.traffic.bytes.items():
                np.testing.assert_array_equal(got.traffic.bytes[kind][nodes], sent[nodes], err_msg=f"{name}, {kind}")


def tensors():
    """Ranks with arrays of another library, such as tensors on a GPU of their own, find what one process finds in NumPy."""
    parts, network = clusters([90] * 6), Network.ring(6)
    settings = {"n_components": 2, "gamma": 0.3, "random_state": 0}
    expected = DecentralizedKernelPCA(network=network, **settings).fit_parts(parts).node_models_
    nodes = mine(network)
    theirs = [array_api_strict.asarray(parts[j]) for j in nodes]
    for model, rows in zip(mpi.fit(theirs, nodes, network, **settings), theirs, strict=True):
        values = model.transform(rows)
        assert isinstance(values, type(rows))
        in_numpy = expected[model.name].transform(np.asarray(rows))
        np.testing.assert_allclose(np.asarray(values), in_numpy, atol=1e-9 * np.abs(in_numpy).max())


def sums():
    """A network sum is the local engine's up to rounding, and has the same bits on every rank."""
    rng = np.random.default_rng(1)
    for seed in range(5):
        network = Network.random(9, 0.4, seed=seed)
        parts = [rng.normal(size=(rng.integers(1, 30), 2)) for _ in range(9)]
        values = rng.normal(size=(9, 5)) * 10.0 ** rng.integers(-8, 8, size=(9, 1))
        everything = make_site(parts, network)
        (expected,) = add_up(everything, values, local.Delivery([everything]))
        hosts = np.empty(9, dtype=np.int64)
        for rank, nodes in enumerate(mpi.assign(network, SIZE)):
            hosts[nodes] = rank
        nodes = mine(network)
        site = make_site([parts[j] for j in nodes], network, nodes, [len(p) for p in parts])
        (got,) = add_up(site, values, mpi.RankDelivery([site], WORLD, hosts))
        np.testing.assert_allclose(got, expected, rtol=1e-9, atol=1e-14 * np.abs(values).max())
        assert len(set(WORLD.allgather(got.tobytes()))) == 1


def add_up(site, values, delivery):
    def script(site, options):
        own = values[site.nodes].sum(axis=0)
        return (yield Sum("test", own, lambda total: total, len(own)))

    return local.drive([site], None, delivery, script=script).answers


class Watched:
    """A communicator that notes every method called on it, and on the communicators it makes."""

    def __init__(self, comm, calls):
        self._comm, self._calls = comm, calls

    def __getattr__(self, name):
        value = getattr(self._comm, name)
        if not callable(value):
            return value

        def call(*args, **kwargs):
            self._calls.append(name)
            result = value(*args, **kwargs)
            return Watched(result, self._calls) if isinstance(result, MPI.Comm) else result

        return call


def silence():
    """Between the first and the last iteration ranks speak to neighbors only, but for one sum at every check."""
    calls, at = [], []
    parts, network = clusters([20] * 8), Network.ring(8, 4)
    options = make_options(parts, network, projection=Projection(n_landmarks=20, max_iter=12, tol=0.0))
    kept = mpi.MPI, rank_agreement.MPI
    mpi.MPI, rank_agreement.MPI = SimpleNamespace(Request=MPI.Request), None  # no way around the watched communicator
    try:
        outcome = run(Plan.of(parts, network, options), lambda about: at.append(len(calls)), Watched(WORLD, calls))
    finally:
        mpi.MPI, rank_agreement.MPI = kept
    between, before = calls[at[0] : at[-1]], calls[: at[0]]
    iterations = outcome.answers[0].n_iter - 1  # up to the beginning of the last one
    if SIZE > 1:
        spoke = len({rank for rank, nodes in enumerate(mpi.assign(network, SIZE)) if touches(network, nodes)} - {RANK})
        counts = {name: between.count(name) for name in set(between)}
        messages, checks = 2 * iterations * spoke, iterations // 5
        assert counts == {"Isend": messages, "Irecv": messages, "Reduce": checks, "Bcast": checks}, counts
        assert {"Allgather", "Reduce", "Bcast"} <= set(before)
    assert not any(name.islower() for name in calls), calls  # nothing pickled, ever: mpi4py's lower case methods are


def touches(network, nodes):
    """Whether one of the nodes has a neighbor on this rank."""
    return bool({int(q) for j in nodes for q in network.neighbors(j)} & set(mine(network)))


def estimator():
    """Without iterations and with them."""
    same_as_local()
    same_as_local(share_rows=False)
    same_as_local(solver=Projection(n_landmarks=40))


def same_as_local(**more):
    """mpi.fit and DecentralizedKernelPCA(engine="mpi") give what the local engine gives, names and orders included."""
    network = Network.from_edges([(f"site-{a}", f"site-{(a + s) % 8}") for a in range(8) for s in (1, 2)])
    parts, new = clusters([*SIZES[:7], 9]), clusters([15], seed=9)[0]
    settings = {"n_components": 2, "gamma": 0.05, "network": network, **more}
    truth = DecentralizedKernelPCA(random_state=0, **settings).fit_parts(parts)
    scale = np.abs(truth.transform(new)).max()
    nodes = mine(network)[::-1]
    names = [network.names[j] for j in nodes]

    def check(models):
        for model, name in zip(models, names, strict=True):
            assert model.name == name
            expected = truth.node_models_[name].transform(new)
            np.testing.assert_allclose(model.transform(new), expected, atol=VALUE_TOLERANCE * scale, rtol=0)

    check(mpi.fit([parts[j] for j in nodes], nodes=names, random_state=0, **settings))
    check(mpi.fit([parts[j] for j in nodes], nodes=nodes, random_state=0, **settings))
    model = DecentralizedKernelPCA(engine="mpi", random_state=0, **settings)
    model.fit_parts({name: parts[j] for name, j in zip(names, nodes, strict=True)})
    check([model.node_models_[name] for name in names])
    assert model.node_models_.names == names[::-1]
    assert (model.n_iter_, model.converged_, model.network_) == (truth.n_iter_, True, network)
    np.testing.assert_allclose(model.eigenvalues_, truth.eigenvalues_, rtol=1e-10)
    np.testing.assert_allclose(model.accuracy_, truth.accuracy_, rtol=1e-6)
    assert ("residual_by_node" in truth.history_) == ("solver" in more)
    if "residual_by_node" in truth.history_:
        np.testing.assert_allclose(
            model.history_["residual_by_node"], truth.history_["residual_by_node"][:, sorted(nodes)], rtol=1e-5
        )
    assert model.answering_node_ in nodes
    assert model.transform(new).shape == (15, 2)

    # consecutive numbers in rank order; no seed: rank 0's; no network: a random one that all have alike
    counts = [len(piece) for piece in np.array_split(np.arange(8), SIZE)]
    first = sum(counts[:RANK])
    models = mpi.fit(parts[first : first + counts[RANK]], n_components=2, gamma=0.05)
    assert [model.name for model in models] == [str(j) for j in range(first, first + counts[RANK])]
    own = parts[first : first + counts[RANK]]
    single = mpi.fit([p.astype(np.float32) for p in own], n_components=2, gamma=0.05)
    assert single[0].eigenvalues_.dtype == np.float32
    if find_spec("array_api_strict"):  # arrays of other libraries cross as host buffers, and come back in kind
        import array_api_strict as xp

        foreign = mpi.fit([xp.asarray(p) for p in own], random_state=0, **settings)
        values = foreign[0].transform(xp.asarray(new))
        np.testing.assert_allclose(
            np.asarray(values), truth.node_models_[first].transform(new), atol=VALUE_TOLERANCE * scale, rtol=0
        )
    half = WORLD.Split(color=RANK // 2)  # other ranks may do something else meanwhile
    models = mpi.fit(clusters([20] * 4)[2 * half.Get_rank() :][:2] * (2 // half.Get_size()), comm=half, n_components=2)
    assert len(models) == 4 // half.Get_size()
    assert models[0].name == str(2 * half.Get_rank())
    half.Free()
    same = {0: {"tol": 1e-3, "degree": 3}, 1: {"tol": np.float64(1e-3), "degree": 3.0}}[RANK % 2]  # equal, if not alike
    schedule = Projection(rho=[(0, 9, 9)] if RANK % 2 else ((0, 9.0, 9.0),))
    mpi.fit(own, n_components=2, gamma=0.05, random_state=0, solver=schedule, **same)
    with pytest.raises(ValueError, match="engine='mpi' with fit: no rank holds all the data"):
        DecentralizedKernelPCA(engine="mpi").fit(parts[0])


def disagreement():
    """What differs on rank 1 is named on all ranks, before the first message, and the ranks go on together."""
    network, parts = Network.ring(6, 2), clusters([12] * 6)
    own = [parts[j] for j in (2 * RANK, 2 * RANK + 1)]
    other = Network.from_edges([(j, (j + 1) % 6) for j in range(6)] + [(0, 3)])
    odd = RANK == 1
    plain = {"network": network, "n_components": 2, "gamma": 0.05, "random_state": 0}
    narrow = [p[:, :4] for p in own] if odd else own
    single = [p.astype(np.float32) for p in own] if odd else own
    broken = [own[0], own[1] * np.nan] if odd else own
    for given, changes, nodes, says in (
        (own, {"tol": 1e-4 if odd else 1e-3}, None, "rank 1 has tol=0.0001, but rank 0, 2 have 0.001; give all"),
        (own, {"gamma": 0.1 if odd else 0.05}, None, "rank 1 has kernel gamma=0.1, but rank 0, 2 have 0.05"),
        (own, {"landmarks": 9 + RANK}, None, "rank 1 has n_landmarks=10, but rank 0 has 9; rank 2 has n_landmarks=11"),
        (own, {"solver": Projection(rho="paper-bound" if odd else "auto")}, None,
         "rank 1 has projection rho='paper-bound', but rank 0, 2 have 'auto'"),
        (own, {"solver": Projection(rho=2.0 if odd else "auto")}, None, "rank 1 has projection rho=((0, 2, 2)), but rank 0, 2 have 'auto'"),
        (own, {"solver": Projection() if odd else "auto"}, None, "rank 1 has projection='Projection', but rank 0, 2 have None"),
        (own, {"random_state": RANK // 2}, None, "rank 2 has seed=1, but rank 0, 1 have 0"),
        (own, {"landmarks": parts[0] + odd}, None, "rank 1 has landmarks points=array (12, 6) float64 with fingerprint"),
        (own, {"kernel": linear_kernel if odd else "rbf"}, None, "rank 1 has kernel='linear_kernel', but rank 0, 2 have 'rbf'"),
        (own, {"network": other if odd else network}, None, "rank 1 has another network: Network(6 nodes, 7 edges"),
        (narrow, {}, None, "rank 1 has number of columns=4, but rank 0, 2 have 6"),
        (single, {}, None, "rank 1 has dtype=float32, but rank 0, 2 have float64"),
        (broken, {}, None, "node 3: column 0 has no value (NaN) in row 0"),
        (own[:0] if odd else own, {}, None, "rank 1 hosts no node (3 ranks, 4 nodes)"),
        (own, {}, [0, 1] if odd else [2 * RANK, 2 * RANK + 1], "node 0 is hosted by rank 0 and by rank 1"),
        (own[:1] if odd else own, {}, None, "5 parts on 3 ranks for a network of 6 nodes"),
        (own, {}, ["2", "x"] if odd else [2 * RANK, 2 * RANK + 1], "node 'x' is not in the network"),
        (own, {"n_components": -1 if odd else 2}, None, "The 'n_components' parameter of DecentralizedKernelPCA must be"),
        (own, {"tolerance": 1} if odd else {}, None, "unexpected keyword argument 'tolerance'"),
        (own, {"n_components": 99}, None, "n_components=99, but"),
        (None if odd else own, {}, None, "'NoneType' object is not iterable"),
        (parts[0] if odd else own, {}, None, "fit_parts takes one array for each node, but got one ndarray"),
    ):  # fmt: skip
        with pytest.raises((ValueError, TypeError, rank_agreement.RankError), match=re.escape(says)) as caught:
            mpi.fit(given, nodes=nodes, **(plain | changes))
        assert caught.type is not rank_agreement.RankError or str(caught.value).startswith("rank 1: ")
    mpi.fit(own, **plain)


def streams():
    """Rows that come in calls, of which some are forgotten, give what the same calls give in one process; a rank may have none."""
    rng, network = np.random.default_rng(0), Network.ring(6, 2)
    X = rng.normal(size=(56_000, 5)) @ np.diag([3, 2, 1, 0.5, 0.3])
    owner = np.where(np.arange(len(X)) < 5_000, rng.integers(6, size=len(X)), 5 * (rng.random(len(X)) < 0.95))
    # Judging in float32 adds 1e-7 of what the landmarks miss: with this gamma, little.
    settings = {"n_components": 3, "gamma": 0.003, "network": network, "random_state": 0, "tol": 1.0}
    model = DecentralizedKernelPCA(engine="mpi", landmarks=X[:150], **settings)
    truth = DecentralizedKernelPCA(landmarks=X[:150], **settings)
    here = np.isin(owner, mine(network))

    def both(verb, some, within=1e-10):
        getattr(model, verb)(X[some & here], nodes=owner[some & here])
        getattr(truth, verb)(X[some], nodes=owner[some])
        same_stream(model, truth, X[:200], within)
        assert model.nodes_.tolist() == owner[some & here].tolist()

    number = np.arange(len(X))
    both("partial_fit", number < 900)
    both("partial_fit", (number >= 900) & (number < 5_000) & ((owner < 2) | (number < 1_000)))
    both("partial_fit", (number >= 5_000))
    both("forget", (number >= 5_000) & (number % 2 == 0))
    # More than two thirds are forgotten: rows judge with the chances that each process has kept them with, up to a block. 1e-2: the noise of judging.
    both("forget", (number >= 5_000) & (number % 16 != 0) & (number % 2 == 1), 1e-2)
    # landmarks of the rows that are there
    plain = {"n_components": 2, "gamma": 0.05, "random_state": 0}
    parts = np.array_split(X[:900], SIZE)
    model = DecentralizedKernelPCA(engine="mpi", **plain).partial_fit(parts[RANK])
    labels = np.repeat(np.arange(SIZE), [len(part) for part in parts])
    truth = DecentralizedKernelPCA(**plain, network=Network.complete(SIZE)).partial_fit(X[:900], nodes=labels)
    same_stream(model, truth, X[:200], 1e-8)  # the landmarks agree up to rounding
    some = parts[RANK] if RANK == 0 else parts[RANK][:0]
    model.refresh(3 * some)
    truth.refresh(3 * parts[0], nodes=labels[labels == 0])
    assert model.n_samples_seen_ == len(parts[0])
    same_stream(model, truth, 3 * X[:200], 1e-8)
    named = DecentralizedKernelPCA(engine="mpi", **plain).partial_fit(
        parts[RANK], nodes=[f"site {RANK}"] * len(parts[RANK])
    )
    assert named.network_.names == tuple(f"site {rank}" for rank in range(SIZE))


def same_stream(model, truth, X, within=1e-10):
    assert model.n_samples_seen_ == truth.n_samples_seen_
    assert model.node_sizes_.tolist() == truth.node_sizes_.tolist()
    assert "eigenvalues_" in vars(model)  # computed already: a rank may ask alone
    if RANK == 0:
        values = truth.transform(X)
        np.testing.assert_allclose(model.eigenvalues_, truth.eigenvalues_, rtol=within)
        np.testing.assert_allclose(model.transform(X), values, rtol=0, atol=within * np.abs(values).max())
        np.testing.assert_allclose(model.span_accuracy_bound_, truth.span_accuracy_bound_, rtol=within)
    assert len(set(WORLD.allgather(model.eigenvalues_.tobytes()))) == 1


def bad_streams():
    """What one rank refuses all refuse, with the same sentence, and nothing changes."""
    X, odd = clusters([90] * SIZE)[RANK], RANK == 1
    settings = {"n_components": 2, "gamma": 0.05, "random_state": 0, "landmarks": clusters([30])[0], "tol": 1.0}
    model = DecentralizedKernelPCA(engine="mpi", **settings)
    broken = X.copy()
    broken[3, 2] = np.nan
    names, good = [f"site {RANK}"] * len(X), model.partial_fit
    with pytest.raises(NotFittedError if odd else rank_agreement.RankError, match="forget: there are no rows"):
        model.forget(X) if odd else good(X)
    for X_here, nodes, changes, says in (
        (broken if odd else X, names, {}, "column 2 has no value (NaN) in row 3"),
        (X, None if odd else names, {}, "rank 1 has nodes=None, but rank 0, 2 have given"),
        (X, ["site 0"] * len(X) if odd else names, {}, "rows of node site 0 come from rank 0, 1"),
        (X, names, {"tol": 0.5 if odd else 1.0}, "rank 1 has tol=0.5, but rank 0, 2 have 1"),
        (X[:0], None, {}, "X: no rank has a row"),
        (X[:, :3] if odd else X, names, {}, "landmarks: 6 columns, but the samples have 3"),
    ):
        with pytest.raises((ValueError, rank_agreement.RankError), match=re.escape(says)):
            model.set_params(**settings | changes).partial_fit(X_here, nodes=nodes)
    model.set_params(**settings).partial_fit(X, nodes=names)
    before = model.eigenvalues_
    for verb, X_here, nodes, changes, says in (
        ("partial_fit", broken if odd else X, names, {}, "column 2 has no value (NaN) in row 3"),
        ("partial_fit", X, names, {"n_components": 1} if odd else {}, "n_components: changed since the first call"),
        ("partial_fit", X[:, :3] if odd else X, names, {}, "expecting 6 features"),
        ("partial_fit", X, ["site 0"] * len(X), {}, "rows of node site 0 come from rank 0, 1, 2"),
        ("partial_fit" if odd else "forget", X, names, {}, "rank 1 has call=partial_fit of more rows, but"),
        ("forget", 2 * X if odd else X[:3], None, {}, "row 0 of X was never added"),
        ("forget", X, names, {}, "forget: no row would be left"),
    ):
        nodes = nodes if nodes is None or len(nodes) == len(X_here) else nodes[: len(X_here)]
        with pytest.raises((ValueError, rank_agreement.RankError), match=re.escape(says)):
            getattr(model.set_params(**settings | changes), verb)(X_here, nodes=nodes)
        assert model.n_samples_seen_ == 90 * SIZE
    model.set_params(**settings).forget(X[:3] if odd else X[:0])
    assert model.n_samples_seen_ == 90 * SIZE - 3
    model.partial_fit(X[:3] if odd else X[:0], nodes=names[:3] if odd else [])
    np.testing.assert_allclose(model.eigenvalues_, before, rtol=1e-9)


def linear_kernel(a, b):
    return a @ b.T


def exception():
    """Rank 1 fails in the middle of the iterations; nobody catches it."""

    def watch(about):
        if RANK == 1 and about.number == 7:
            raise MemoryError("no room on rank one")

    run(fifty_iterations(), watch)


def fifty_iterations():
    parts, network = clusters([20] * 6), Network.ring(6, 2)
    solver = Projection(n_landmarks=10, max_iter=50, tol=0.0)
    return Plan.of(parts, network, make_options(parts, network, projection=solver))


def killed():
    """Rank 1 is killed in the middle of the iterations, as when memory runs out."""

    def watch(about):
        if RANK == 1 and about.number == 7:
            print(f"rank 1 is killed at {time.time()}", flush=True)
            time.sleep(0.5)  # until mpiexec has passed that on
            os.kill(os.getpid(), signal.SIGKILL)

    run(fifty_iterations(), watch)


def uncaught():
    """A disagreement that nobody catches ends every rank."""
    network, parts = Network.path(4), clusters([12] * 4)
    mpi.fit(parts[2 * RANK : 2 * RANK + 2], network=network, n_components=2, tol=10.0 ** -(3 + RANK), random_state=0)


def asked():
    """One rank is asked to stop; all do, at the next check, and keep what they have."""

    def watch(about):
        if RANK == 1 and about.number == 7:
            os.kill(os.getpid(), signal.SIGINT)

    outcome = run(fifty_iterations(), watch)
    assert {a.n_iter for a in outcome.answers} == {10}
    assert outcome.answers[0].runs[0] == ("interrupted", 10)


if __name__ == "__main__":
    warnings.simplefilter("error", RuntimeWarning)
    for scenario in sys.argv[1:]:
        if scenario == "uncaught":
            uncaught()
        with mpi.guard(WORLD):
            globals()[scenario]()
        WORLD.Barrier()
        print(f"{scenario} holds\n", end="", flush=True)
