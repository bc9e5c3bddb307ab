"""The MPI engine on real ranks: every test is one `mpiexec`. What the ranks do is in on_ranks.py."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from dekpca import Network, Projection, engines
from dekpca.data.columns import Features
from dekpca.engines.agreement import flattened, texts
from dekpca.engines.ranks import assign, find_mpiexec
from dekpca.parameters import Parameters, settings_of

TIMEOUT = 300  # seconds; a run takes a few on an idle machine, a hang must not take the whole test run with it


def mpiexec(ranks, *scenarios):
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PMI", "OMPI", "PMIX", "PRTE", "MPI", "HYDRA"))}
    env |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "COVERAGE_PROCESS_START": ""}
    # Open MPI's mpiexec wants to be told that this is a test in a container
    env |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    env |= {"PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe"}
    script = Path(__file__).with_name("on_ranks.py")
    command = [str(find_mpiexec()), "-n", str(ranks), sys.executable, str(script), *scenarios]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=TIMEOUT, check=False)


def assert_holds(ranks, *scenarios):
    done = mpiexec(ranks, *scenarios)
    report = done.stdout[-4000:] + done.stderr[-4000:]
    assert done.returncode == 0, report
    for scenario in scenarios:
        assert done.stdout.splitlines().count(f"{scenario} holds") == ranks, report


# Starting ranks takes longer than most of what they do: one run for several scenarios.
@pytest.mark.parametrize(
    ("ranks", "scenarios"),
    [
        (2, ["conformance", "networks", "sums", "silence", "asked", "estimator", "tensors"]),
        pytest.param(4, ["networks", "sums", "silence"], marks=pytest.mark.slow),
        pytest.param(1, ["conformance", "sums", "silence", "estimator"], marks=pytest.mark.slow),
        pytest.param(3, ["conformance", "sums", "silence"], marks=pytest.mark.slow),
        pytest.param(4, ["conformance"], marks=pytest.mark.slow),
    ],
)
def test_conformance(ranks, scenarios):
    assert_holds(ranks, *scenarios)


def test_what_differs_is_named_on_all_ranks_and_rows_may_keep_coming():
    assert_holds(3, "disagreement", "bad_streams", "streams")


def test_settings_that_differ_have_other_texts():
    """Two penalty rules without fields were taken for the same."""

    def said(**changes):
        return texts(flattened(settings_of(Parameters(gamma=0.1, **changes), Features(4), 0)))

    for changes, name in (
        ({"solver": Projection(rho="paper-bound")}, "projection rho"),
        ({"solver": Projection(rho=2.0)}, "projection rho"),
        ({"solver": Projection(rho=lambda t, own: 1.0)}, "projection rho"),
        ({"solver": Projection(exchange_noise=0.1)}, "projection exchange_noise"),
        ({"solver": Projection(exchange_noise="20dB")}, "projection exchange_noise"),
        ({"solver": Projection(n_oversamples=3)}, "projection n_oversamples"),
        ({"landmarks": "random-features"}, "landmarks kind"),
        ({"landmarks": np.eye(4)}, "landmarks points"),
        ({"landmarks": 7}, "n_landmarks"),
        ({"kernel": "laplacian"}, "kernel name"),
    ):
        usual = said(solver=Projection()) if "solver" in changes else said()
        changed = said(**changes)
        assert changed.keys() == usual.keys()
        assert changed[name] != usual[name], name


@pytest.mark.slow
def test_an_exception_on_one_rank_ends_the_job():
    done = mpiexec(3, "exception")
    assert done.returncode != 0
    assert "dekpca: rank 1, hosting node" in done.stderr, done.stderr
    assert "MemoryError: no room on rank one; ending the job on all ranks" in done.stderr
    assert done.stderr.count("ending the job on all ranks") == 1  # nobody else has a reason of its own
    assert "holds" not in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 4])
def test_a_killed_rank_ends_the_job(ranks):
    """mpiexec notices; the other ranks, which wait for its messages, do not go on for long."""
    done, ended = mpiexec(ranks, "killed"), time.time()
    assert done.returncode != 0
    assert "holds" not in done.stdout
    (killed_at,) = re.search(r"rank 1 is killed at (\S+)", done.stdout).groups()
    assert ended - float(killed_at) < 10  # seconds


@pytest.mark.slow
def test_a_disagreement_that_nobody_catches_ends_the_job():
    done = mpiexec(2, "uncaught")
    assert done.returncode != 0
    assert "ValueError: rank 1 has tol=0.0001, but rank 0 has 0.001; give all ranks the same" in done.stderr
    assert "holds" not in done.stdout


@pytest.mark.parametrize("nodes", [9, 20, 31])
@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 7])
def test_assignments_are_consecutive_and_balanced(nodes, ranks):
    found = assign(Network.ring(nodes), ranks)
    assert [j for own in found for j in own] == list(range(nodes))
    sizes = [len(own) for own in found]
    assert len(sizes) == ranks
    assert max(sizes) - min(sizes) <= 1


def test_too_many_ranks():
    with pytest.raises(ValueError, match="5 ranks for 4 nodes: a rank hosts at least one node; use 1 to 4 ranks"):
        assign(Network.path(4), 5)


def test_without_mpi4py_the_error_names_the_extra(monkeypatch):
    monkeypatch.delitem(sys.modules, "dekpca.engines.mpi", raising=False)
    monkeypatch.delitem(sys.modules, "dekpca.engines.rank_agreement", raising=False)
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    with pytest.raises(ImportError, match=r"pip install 'dekpca\[mpi\]'"):
        engines.module("mpi")
