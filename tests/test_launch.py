"""`dekpca launch`: what follows the command is the command's, with or without --."""

from __future__ import annotations

import subprocess

import pytest
from typer.testing import CliRunner

from dekpca.cli import app


@pytest.fixture
def started(monkeypatch):
    """The words that mpiexec is started with."""
    words = []

    def run(command, **kwargs):
        words.extend(command)
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(subprocess, "run", run)
    return words


# At c6f9cc8 those without -- were refused: "No such option: --nodes".
@pytest.mark.parametrize("dashes", [[], ["--"]])
@pytest.mark.parametrize(
    "command", [["fit", "a.npz"], ["fit", "rows.npy", "--nodes", "40"], ["fit", "rows.npy", "-k", "3"]]
)
def test_a_command_and_its_options(started, dashes, command):
    done = CliRunner().invoke(app, ["launch", "-n", "3", *dashes, *command])
    assert done.exit_code == 0, done.output
    assert started[1:3] == ["-n", "3"]
    assert started[-len(command) - 2 :] == [*command, "--engine", "mpi"]


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (["transform", "models"], "launch transform: only fit runs on ranks; write dekpca launch -n 2 fit FILES"),
        (["fit", "rows.npy", "-n", "4"], "-n behind fit: the number of ranks goes before it"),
    ],
)
def test_what_cannot_be_launched_says_so(started, command, says):
    done = CliRunner().invoke(app, ["launch", *command])
    assert done.exit_code == 2
    assert says in done.output.replace("\n", "")
    assert not started
