"""Small data for the tests: seeded, heterogeneous, ragged."""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import partial

os.environ.setdefault("SCIPY_ARRAY_API", "1")  # or scikit-learn skips its array API checks; read when SciPy is imported

import numpy as np
import pytest
from typer.testing import CliRunner

from dekpca import Network
from dekpca.cli import app
from dekpca.kernels import make_kernel
from dekpca.settings import Settings, settle
from faults.supervisor import Nursery


def clusters(sizes, seed=0, columns=6, n_clusters=4):
    """One cluster a node, so that nodes really differ; sizes may be ragged."""
    rng = np.random.default_rng(seed)
    centers = rng.normal(scale=1.5, size=(n_clusters, columns))
    spread = np.geomspace(2.0, 0.3, columns)  # no two directions alike: the leading eigenvalues are well apart
    return [centers[j % n_clusters] + spread * rng.normal(size=(n, columns)) for j, n in enumerate(sizes)]


def make_options(parts, network, **changes):
    """Settled options for the engine, as the estimator would make them; `changes` are fields of `Settings`."""
    given = {"n_components": 3, "kernel": make_kernel("rbf", gamma=0.05), "seed": 0} | changes
    return settle(Settings(**given), network, np.array([len(p) for p in parts]))


def replayed(solver, transcript):
    """What a solver returns after it was told all of this; no term is computed."""
    try:
        next(solver)
        for told in transcript:
            solver.send(told)
    except StopIteration as end:
        return end.value
    raise ValueError("the transcript ends before the solver does")


@pytest.fixture
def ragged():
    """Six nodes on an irregular network, 1 to 40 samples each."""
    network = Network.from_edges([(0, 1), (1, 2), (2, 3), (3, 0), (3, 4), (4, 5)])
    return clusters([40, 25, 1, 33, 2, 18]), network


@pytest.fixture(scope="session")
def nursery():
    """Starts `dekpca` as forks of a process that has imported it: a new interpreter takes seconds."""
    with Nursery() as nursery:
        yield nursery


@pytest.fixture(scope="module")
def dask_workers_are_forks():
    """Of one process that has imported what they need: as interpreters each of them takes seconds to start."""
    dask, distributed = pytest.importorskip("dask"), pytest.importorskip("distributed")
    with dask.config.set({"distributed.worker.multiprocessing-method": "forkserver"}):
        context = distributed.utils.get_mp_context()  # has a list of its own, of all that it finds
        context.set_forkserver_preload(["distributed", "dask.dataframe", "dekpca.engines.dask", "dekpca.estimator"])
        yield


@pytest.fixture
def launched(capfd, monkeypatch):
    """`dekpca launch` with these arguments, on real ranks; only the process that starts mpiexec is this one."""
    monkeypatch.setattr(subprocess, "run", partial(subprocess.run, timeout=300))

    def run(*arguments):
        done = CliRunner().invoke(app, ["launch", *map(str, arguments)])
        out, err = capfd.readouterr()
        return subprocess.CompletedProcess(arguments, done.exit_code, done.stdout + out, done.stderr + err)

    return run


@pytest.fixture(scope="session")
def chromium():
    """A headless Chromium, if the machine has one."""
    playwright = pytest.importorskip("playwright.sync_api", reason="the browser tests need playwright: make .venv/all")
    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if path is None:
        pytest.skip("no Chromium here: apt-get install chromium, as root")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()
