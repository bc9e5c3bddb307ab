"""`fit(..., checkpoint=folder)`: a fit that was killed goes on to the same bits; anything else is refused. MPI ranks are in test_mpi.py."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

import dekpca
from dekpca.engines import checkpoints

X = np.random.default_rng(0).normal(size=(240, 6)) * np.geomspace(3, 0.3, 6)
PROBLEMS = {
    "projection": {"solver": "projection", "landmarks": 30},
    "paper": dict(dekpca.PAPER) | {"gamma": 0.1},
    "features": {"solver": "landmarks", "landmarks": "random-features", "max_landmarks": 120},
}
# Of a fit that kills itself when it has written so many checkpoints.
SCRIPT = """
import os, signal, sys, warnings
from test_checkpoints import fitted
from dekpca.engines import checkpoints
checkpoints.APART = checkpoints.SHARE = 0
save, last = checkpoints.Checkpoints.save, int(sys.argv[3])
def save_and_die(self, step, *more):
    save(self, step, *more)
    if step == last:
        os.kill(os.getpid(), signal.SIGKILL)
checkpoints.Checkpoints.save = save_and_die
fitted(sys.argv[1], sys.argv[2])
"""


def fitted(problem: str, folder: str | Path | None = None, data: np.ndarray = X, **changes):
    settings = (
        {"n_components": 2, "max_iter": 12, "tol": 0.0, "network": 4, "random_state": 0} | PROBLEMS[problem] | changes
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it has not converged
        return dekpca.DecentralizedKernelPCA(**settings).fit(data, checkpoint=folder)


def killed(problem: str, folder: Path, step: int) -> None:
    """A process that fits, until it is killed after this checkpoint."""
    here = Path(__file__).parent
    command = [sys.executable, "-c", SCRIPT, problem, str(folder), str(step)]
    done = subprocess.run(
        command, env=os.environ | {"PYTHONPATH": str(here)}, capture_output=True, text=True, check=False
    )
    assert done.returncode == -signal.SIGKILL, done.stderr


def same(a, b) -> None:
    for one, other in zip(a.node_models_, b.node_models_, strict=True):
        assert one.transform(X).tobytes() == other.transform(X).tobytes()
    assert a.eigenvalues_.tobytes() == b.eigenvalues_.tobytes()
    assert a.history_["residual"].tobytes() == b.history_["residual"].tobytes()
    assert {k: v.tolist() for k, v in a.history_["bytes"].items()} == {
        k: v.tolist() for k, v in b.history_["bytes"].items()
    }


@pytest.mark.parametrize("problem", PROBLEMS)
def test_a_fit_that_was_killed_goes_on_to_the_same_bits(problem, tmp_path, monkeypatch):
    folder = tmp_path / "kept"
    killed(problem, folder, 7)
    files = {file.name: stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()}
    assert files.keys() > {"rank-0.json", "rank-0-6.state", "rank-0-7.state"}
    assert set(files.values()) == {0o600}
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    loaded = []
    load = checkpoints.Checkpoints.load
    monkeypatch.setattr(checkpoints.Checkpoints, "load", lambda self, step: loaded.append(step) or load(self, step))
    same(fitted(problem), fitted(problem, folder))
    assert loaded == [7]
    assert not list(folder.iterdir())


@pytest.mark.parametrize("problem", ["projection", "paper"])
def test_a_fit_that_was_interrupted_goes_on_where_it_was(problem, tmp_path, monkeypatch):
    """Ctrl-C in the first component of the paper's iteration: the second gets a few iterations, and the next fit goes on with the first."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    save, folder = checkpoints.Checkpoints.save, tmp_path / "kept"

    def save_and_press(self, step, *more):
        save(self, step, *more)
        if step == 3:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(checkpoints, "APART", 0.0)
    monkeypatch.setattr(checkpoints, "SHARE", 0.0)
    try:
        with monkeypatch.context() as patched:
            patched.setattr(checkpoints.Checkpoints, "save", save_and_press)
            interrupted = fitted(problem, folder)
    finally:
        signal.signal(signal.SIGINT, before)
    assert np.isfinite(interrupted.transform(X)).all()
    assert list(folder.iterdir())
    same(fitted(problem), fitted(problem, folder))
    assert not list(folder.iterdir())


@pytest.mark.slow
def test_a_fit_can_be_killed_again_and_again(tmp_path):
    """Also between two components of the paper's iteration, where what is known changes."""
    for step in (3, 9, 17, 22):
        killed("paper", tmp_path / "kept", step)
    same(fitted("paper"), fitted("paper", tmp_path / "kept"))


def test_a_fit_that_failed_before_its_first_checkpoint_may_be_corrected(tmp_path):
    with pytest.raises(ValueError, match="NaN"):
        fitted("projection", tmp_path / "kept", np.full_like(X, np.nan))
    killed("projection", tmp_path / "kept", 1)
    for file in (tmp_path / "kept").glob("rank-0-*"):
        file.unlink()  # as if it had been killed before
    fitted("projection", tmp_path / "kept", max_iter=13)


def test_another_fit_is_refused_and_told_what_differs(tmp_path):
    folder = tmp_path / "kept"
    killed("projection", folder, 2)
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    changed = X.copy()
    changed[100, 3] += 1e-12
    for how, text in (
        ({"tol": 1e-3}, r"tol was 0 and is 0\.001"),
        ({"data": changed}, r"data was \w{16} and is \w{16}"),
        (
            {"network": dekpca.Network.ring(4)},
            r"network was Network\(4 nodes, 6 edges.*, edge 0 - 2, edge 1 - 3 and is Network",
        ),
        ({"random_state": 1}, "seed was 0 and is 1"),
        ({"memory_limit": "1GB"}, "memory_limit was None and is 1000000000"),
    ):
        with pytest.raises(
            ValueError, match=f"{folder}: checkpoints of another fit: .*{text}.*give the same, or another folder"
        ):
            fitted("projection", folder, **how)
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before


def test_what_cannot_be_resumed_is_refused_before_anything_is_computed(tmp_path):
    open_to_all = tmp_path / "open"
    open_to_all.mkdir(mode=0o755)
    open_to_all.chmod(0o755)
    with pytest.raises(ValueError, match=r"others may read or enter it \(mode 0755\).*chmod 700"):
        fitted("projection", open_to_all)
    with pytest.raises(ValueError, match=r"random_state=None.*give an integer"):
        fitted("projection", tmp_path / "kept", random_state=None)
    with pytest.raises(ValueError, match="goes on from the folder of each node"):
        fitted("projection", tmp_path / "kept", engine="peer")
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="cannot be used as a folder"):
        fitted("projection", tmp_path / "file")
    torch = pytest.importorskip("torch")
    with pytest.raises(ValueError, match="only fits of NumPy arrays"):
        fitted("projection", tmp_path / "kept", torch.asarray(X))


def test_a_damaged_checkpoint_is_refused_and_the_owner_told_what_to_do(tmp_path):
    folder = tmp_path / "kept"
    killed("projection", folder, 5)
    file = folder / "rank-0-5.state"
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    with pytest.raises(ValueError, match=r"rank-0-5\.state.*checksum is wrong.*delete the files"):
        fitted("projection", folder)


def test_two_processes_do_not_share_checkpoints(tmp_path):
    with (
        checkpoints.Checkpoints(tmp_path / "kept", {"tol": "1"}),
        pytest.raises(ValueError, match="another process uses these checkpoints"),
    ):
        checkpoints.Checkpoints(tmp_path / "kept", {"tol": "1"})


def test_solvers_without_iterations_take_a_folder_too(tmp_path):
    settings = {"n_components": 2, "network": 4, "random_state": 0}
    kept = dekpca.DecentralizedKernelPCA(**settings).fit(X, checkpoint=tmp_path / "kept")
    assert kept.transform(X).tobytes() == dekpca.DecentralizedKernelPCA(**settings).fit(X).transform(X).tobytes()
    assert not list((tmp_path / "kept").iterdir())
