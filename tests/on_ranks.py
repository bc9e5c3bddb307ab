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

import numpy as np
import pytest
from mpi4py import MPI

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
