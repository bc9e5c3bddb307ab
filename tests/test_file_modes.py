"""Files that hold rows are whole or not there, and readable by their owner only, under the usual umask. All of this failed at c6f9cc8."""

from __future__ import annotations

import os
import re
import resource
import signal
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from dekpca import DecentralizedKernelPCA, NodeModel, files
from dekpca.cli import app
from faults.fuzz_models import fuzz
from peer_nodes import PATIENCE

HOLD_NO_ROWS = {"summary.json", "toy.png", "toy.svg"}


def readable_by_others(folder):
    """Files under a folder that others than their owner may read, as `find -perm /044 -type f` has it."""
    command = ["find", str(folder), "-type", "f", "-perm", "/044"]
    return {
        Path(line).name
        for line in subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    }


def start(*arguments, cwd):
    command = f"umask 022; exec {sys.executable} -m dekpca.cli " + " ".join(map(str, arguments))
    return subprocess.Popen(
        ["bash", "-c", command], cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def end(*processes):
    try:
        for process in processes:
            said = process.communicate(timeout=PATIENCE)[0]
            assert process.returncode in (0, 3), said
    finally:
        for process in processes:
            process.kill()


@pytest.fixture
def usual_umask():
    before = os.umask(0o022)
    yield
    os.umask(before)


def dekpca(*arguments):
    done = CliRunner().invoke(app, [str(a) for a in arguments])
    assert done.exit_code in (0, 3), done.output


@pytest.mark.usefixtures("usual_umask")
def test_nothing_with_rows_is_readable_by_others(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    X = np.random.default_rng(0).normal(size=(90, 4))
    y = np.arange(90) % 3
    np.savez(tmp_path / "rows.npz", X=X, y=y)
    os.chmod(tmp_path / "rows.npz", 0o600)
    dekpca("fit", "rows.npz", "--nodes", 3, "--report", "fit.html", "--out", "models")
    for name in ("values.npy", "values.csv", "values.parquet"):
        dekpca("transform", "models", "rows.npz", "--out", name)
    dekpca("reproduce", "toy", "--out", "figures")
    written = {path.name for path in tmp_path.rglob("*")}
    assert {"fit.html", "0.npz", "values.npy", "values.csv", "values.parquet", *HOLD_NO_ROWS} <= written
    found = readable_by_others(tmp_path)
    assert found <= HOLD_NO_ROWS, found
    assert stat.S_IMODE((tmp_path / "models" / "0.npz").stat().st_mode) == 0o600


def open_to_others(folder):
    """Files and folders under a folder that others can read, write or enter, as `find -perm /077` has it."""
    command = ["find", str(folder), "-mindepth", "1", "-perm", "/077"]
    found = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    return {str(Path(line).relative_to(folder)) for line in found}


@pytest.mark.usefixtures("usual_umask")
def test_nothing_that_peers_write_is_readable_by_others(tmp_path):
    """At c6f9cc8 others could read models, reports, checkpoints, logs and the rows dealt by simulate."""
    pytest.importorskip("grpc", reason="peers need gRPC: make .venv/installed")
    rows = tmp_path / "rows.npy"
    np.save(rows, np.random.default_rng(0).normal(size=(90, 4)))
    os.chmod(rows, 0o600)
    own = tmp_path / "own"
    settings = ["--solver", "projection,max_iter=10,tol=0", "--share-rows", "--tol", "0"]
    made = CliRunner().invoke(
        app, ["node", "simulate", "--data", str(rows), *settings, "--out", str(own), "--nodes", "2", "--write-only"]
    )
    assert made.exit_code == 0, made.output
    for config in own.glob("*.toml"):  # model and report are outside of the folder of the run
        more = f'out = "models/{config.stem}.npz"\n'
        more += 'report = "node-0.html"\n' if config.stem == "node-0" else ""
        config.write_text(more + config.read_text())
    os.chmod(own, 0o755)  # as an owner may have it: what the nodes write protects itself
    end(*(start("node", "run", "--yes", f"node-{j}.toml", cwd=own) for j in range(2)))
    written = {re.sub(r"\d+", "N", path.name) for path in tmp_path.rglob("*")}
    assert {"node-N.npz", "node-N.html", "finished.json", "run.db", "lock"} <= written
    assert open_to_others(tmp_path) == {"own"}


def fitted():
    return DecentralizedKernelPCA(2, network=3, random_state=0).fit(np.random.default_rng(0).normal(size=(60, 3)))


def test_a_killed_save_leaves_the_file_as_it_was(tmp_path):
    path = tmp_path / "node.npz"
    node = fitted().node_models_[0]
    node.save(path)
    before = path.read_bytes()
    script = f"""
import os, signal, sys
from dekpca import NodeModel, model_file
node = NodeModel.load({str(path)!r})
def die(archive, name, x):
    os.kill(os.getpid(), signal.SIGKILL)
model_file._add = die
node.save({str(path)!r})
"""
    done = subprocess.run([sys.executable, "-c", script], timeout=PATIENCE, check=False)
    assert done.returncode == -signal.SIGKILL
    assert path.read_bytes() == before


@pytest.mark.slow
def test_a_full_disk_names_the_file_and_leaves_nothing(tmp_path):
    path = tmp_path / "node.npz"
    script = f"""
import resource, signal
import numpy as np
from dekpca import DecentralizedKernelPCA
node = DecentralizedKernelPCA(2, network=3, random_state=0).fit(np.random.default_rng(0).normal(size=(600, 30))).node_models_[0]
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
node.save({str(path)!r})
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert f"cannot be written (File too large): '{path}'" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_modes_and_errors_of_atomic_write(tmp_path):
    with files.atomic_write(tmp_path / "private") as file:
        file.write(b"x")
    files.write_text(tmp_path / "public", "x", files.PUBLIC)
    mask = os.umask(0)
    os.umask(mask)
    assert stat.S_IMODE((tmp_path / "private").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "public").stat().st_mode) == 0o644 & ~mask
    with (
        pytest.raises(OSError, match=r"cannot be written \(No such file or directory\).*nowhere/file"),
        files.atomic_write(tmp_path / "nowhere" / "file"),
    ):
        pass
    with pytest.raises(ZeroDivisionError), files.atomic_write(tmp_path / "private") as file:
        file.write(b"y" * (1 // 0))
    assert (tmp_path / "private").read_bytes() == b"x"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["private", "public"]


def test_a_file_that_claims_much_takes_little(tmp_path):
    """A file of 2.4 MB took 2.4 GB and 45 s."""
    import zipfile

    path = tmp_path / "node.npz"
    fitted().node_models_[0].save(path)
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("bomb.npy", bytes(200_000_000))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    NodeModel.load(path)  # what the header does not name is not read
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000


def test_damaged_models_raise_one_exception():
    assert fuzz(50, seed=1)["refused"] > 33  # make fuzz has 10,000
