"""dekpca fit, transform, network, doctor: as a user types them."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.exceptions import ConvergenceWarning
from typer.testing import CliRunner

import dekpca
from dekpca.cli import app
from faults.supervisor import until

DIGITS = load_digits()


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    X, y = DIGITS.data[:300], DIGITS.target[:300]
    np.savez("rows.npz", X=X, y=y, town=np.array(["oslo", "rome", "bonn"])[np.arange(300) % 3])
    for j, name in enumerate(("oslo", "rome", "bonn")):
        np.savetxt(f"{name}.csv", X[j::3], delimiter=",")
    np.save("new.npy", X[:9])
    return tmp_path


def run(*arguments):
    return CliRunner().invoke(app, list(arguments))


def test_fit_and_transform_are_the_python_calls(files):
    result = run("fit", "rows.npz", "--nodes", "5", "-k", "3", "--gamma", "0.001", "--out", "models", "--json")
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    X = np.load("rows.npz")["X"]
    model = dekpca.DecentralizedKernelPCA(3, gamma=0.001, network=5, random_state=0).fit(X)
    np.testing.assert_allclose(told["eigenvalues"], model.eigenvalues_)
    assert (told["nodes"], told["rows"], told["converged"], len(told["models"])) == (5, 300, True, 5)
    assert run("transform", "models", "new.npy", "--out", "z.npy").exit_code == 0
    np.testing.assert_allclose(np.load("z.npy"), model.transform(X[:9]))
    assert run("transform", "models", "new.npy", "--node", "3", "--out", "z.csv").exit_code == 0
    np.testing.assert_allclose(np.loadtxt("z.csv", delimiter=",", skiprows=1), model.node_models_[3].transform(X[:9]))
    assert run("transform", "models/3.npz", "new.npy", "--out", "z3.npy").exit_code == 0
    np.testing.assert_array_equal(np.load("z3.npy"), model.node_models_[3].transform(X[:9]))


def test_owners_in_a_column_or_in_files_of_their_own(files):
    settings = [
        "-k",
        "2",
        "--gamma",
        "0.001",
        "--tol",
        "1e-9",
        "--json",
    ]  # exact: else landmarks, by the order of owners, decide
    by_column = run("fit", "rows.npz", "--owner", "town", "--network", "path:3", "--out", "a", *settings)
    by_files = run("fit", "oslo.csv", "rome.csv", "bonn.csv", "--network", "path:3", "--out", "b", *settings)
    one, two = json.loads(by_column.stdout), json.loads(by_files.stdout)
    assert list(one["models"]) == ["bonn", "oslo", "rome"]
    np.testing.assert_allclose(one["eigenvalues"], two["eigenvalues"], rtol=1e-9)


def test_config_file_and_command_line(files):
    Path("fit.toml").write_text('nodes = 4\nn_components = 3\ngamma = 0.001\nlandmarks = 30\nout = "c"\n')
    told = json.loads(run("fit", "rows.npz", "--config", "fit.toml", "--n-components", "2", "--json").stdout)
    assert (told["nodes"], told["components"], told["folder"]) == (4, 2, "c")
    Path("fit.toml").write_text("n_componets = 3\n")
    result = run("fit", "rows.npz", "--config", "fit.toml")
    assert result.exit_code == 2
    assert "no option 'n_componets'; did you mean 'n-components'?" in result.stderr


def test_solver_and_privacy_are_the_python_ones(files):
    """Options of Projection and Privacy by their names; --seed is --random-state."""
    X, common = np.load("rows.npz")["X"], {"gamma": 0.001, "network": dekpca.Network.ring(5), "random_state": 3}
    usual = ["fit", "rows.npz", "--network", "ring:5", "--gamma", "0.001", "--json"]
    paper = replace(dekpca.PAPER, max_iter=4)
    model = dekpca.DecentralizedKernelPCA(2, solver=paper, normalize=True, **common)
    with pytest.warns(ConvergenceWarning):
        model.fit(X)
    told = json.loads(run(*usual, "--solver", "paper,max_iter=4", "--normalize", "--random-state", "3").stdout)
    np.testing.assert_allclose(told["eigenvalues"], model.eigenvalues_)
    assert told["iterations"] == model.n_iter_ == 8
    sealed = dekpca.DecentralizedKernelPCA(2, privacy="secure-sums", **common).fit(X)
    told = json.loads(run(*usual, "--privacy", "secure-sums", "--seed", "3").stdout)
    np.testing.assert_allclose(told["eigenvalues"], sealed.eigenvalues_)
    noise = ["--landmarks", "new.npy", "--privacy", "epsilon=5,delta=1e-4,rank=9", "--tol", "0.9"]
    told = json.loads(run(*usual, *noise).stdout)
    assert 4.9 < told["privacy"]["epsilon"] <= 5


def test_a_fit_ends_with_landmarks_error_and_time(files):
    result = run("fit", "rows.npz", "--nodes", "5", "--gamma", "0.001")
    assert re.search(
        r"\d+ landmarks; estimated error of the span \S+, at most \S+\n[\d.]+ s; each node sent", result.stdout
    )
    assert "iterations" not in result.stdout
    assert "note: stage 1: " in result.stderr
    assert "\nexact\n" in run("fit", "rows.npz", "--nodes", "1", "--gamma", "0.001").stdout


def test_not_converged_is_exit_code_3_and_saved(files):
    usual = ["fit", "rows.npz", "--nodes", "5", "--gamma", "0.001"]
    result = run(*usual, "--solver", "projection,max_iter=1,tol=1e-9", "--tol", "1e-9", "--out", "m")
    assert result.exit_code == 3
    assert "warning: not converged after 1 iterations" in result.stderr
    assert "; 1 iterations, not converged; estimated error of the span" in result.stdout
    assert len(list(Path("m").glob("*.npz"))) == 5
    result = run(*usual, "--landmarks", "10", "--out", "less", "--json")
    assert result.exit_code == 3
    assert "warning: the components may be less accurate than tol=0.001 asks for" in result.stderr
    assert json.loads(result.stdout)["converged"] is False
    assert len(list(Path("less").glob("*.npz"))) == 5


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["fit", "missing.npz"], "missing.npz: no such file"),
        (["fit", "rows.npz", "--out", "rows.npz/models"], "cannot write into this folder"),
        (
            ["fit", "rows.npz", "--owner", "city"],
            "no column or array 'city'; it has 'y', 'town', '0', '1', '2',",
        ),
        (["fit", "rows.npz", "--nodes", "3", "--owner", "town"], "give one of them"),
        (["fit", "oslo.csv", "rome.csv", "--nodes", "3"], "--nodes is for one file"),
        (["fit", "oslo.csv", "./oslo.csv"], "two files for node oslo"),
        (["fit", "rows.npz", "--network", "ring"], "no such topology or file"),
        (["fit", "rows.npz", "--network", "ring:2:9"], "network 'ring:2:9'"),
        (["fit", "rows.npz", "--kernel", "magic"], "'kernel' parameter"),
        (["fit", "rows.npz", "--landmarks", "2.5"], "2.5: no such file"),
        (["fit", "rows.npz", "--config", "none.toml"], "none.toml"),
        (["fit", "rows.npz", "--engine", "mpj"], "--engine mpj: known are local, mpi"),
        (["fit", "rows.npz", "--solver", "newton"], "--solver newton: known are auto, projection and paper"),
        (["fit", "rows.npz", "--solver", "auto,max_iter=3"], "--solver auto,max_iter=3: known are"),
        (["fit", "rows.npz", "--solver", "projection,maxiter=3"], "--solver: 'maxiter=3'; write name=value"),
        (
            ["fit", "rows.npz", "--solver", "projection,max_iter=0"],
            "max_iter=0; it must be a whole number of at least 1",
        ),
        (["fit", "rows.npz", "--privacy", "epsilon"], "--privacy: 'epsilon'; write name=value"),
        (["fit", "rows.npz", "--privacy", "epsilon=1"], "give a mapping with epsilon and delta"),
        (["fit", "rows.npz", "--report", "."], "--report .: is a folder"),
        (["fit", "rows.npz", "--compare"], "give --report FILE too"),
        (["fit", "rows.npz", "--gamma", "1.2.3"], "--gamma 1.2.3: expected a number or a word"),
        (["transform", "nowhere", "new.npy"], "no such model file or folder"),
        (["transform", ".", "new.npy"], "no summary.json"),
        (["transform", "rows.npz", "new.npy"], "not a node model"),
        (["transform", "rows.npz", "new.npy", "--out", "z.doc"], "unknown format .doc"),
        (["network", "ring:1x"], "network 'ring:1x'"),
        (["network", "complete:500", "--draw", "n.png"], "at most 400"),
        (["reproduce", "nodes", "--data", "new.npy", "--out", "r"], "no labels"),
        (["reproduce", "nodes", "--data", "rows.npz", "--classes", "0,42", "--out", "r"], "42 not among the labels"),
    ],
    ids=lambda x: " ".join(x) if isinstance(x, list) else "",
)
def test_one_line_says_what_is_wrong(files, arguments, says):
    result = run(*arguments)
    assert result.exit_code == 2, result.output
    assert says in result.stderr.replace("\n", "")
    assert "Traceback" not in result.output
    assert result.stdout == ""
    assert len(result.stderr.strip().splitlines()) == 1


def test_debug_shows_where(files):
    result = run("fit", "missing.npz", "--debug")
    assert result.exit_code == 1
    assert result.exception is not None
    assert "missing.npz" in str(result.exception)


def test_network_says_what_it_costs_and_draws(files):
    told = json.loads(run("network", "grid:4x5", "--write", "net.json", "--draw", "net.png", "--json").stdout)
    assert (told["nodes"], told["edges"], told["diameter"]) == (20, 31, 7)
    assert dekpca.Network.read("net.json") == dekpca.Network.grid(4, 5)
    assert Path("net.png").stat().st_size > 5_000
    assert "20 nodes, 31 edges" in run("network", "net.json").stdout


def test_doctor():
    told = json.loads(run("doctor", "--json").stdout)
    assert told["engines"]["local"]["works"]
    assert told["extras"]["matplotlib"]["works"]
    assert all(told["required"].values())
    assert "matplotlib" in run("doctor").stdout


@pytest.mark.slow
def test_reproduce_goes_on_after_it_was_killed(files, nursery):
    """A real process, really killed."""
    np.savez("few.npz", X=DIGITS.data[:400], y=DIGITS.target[:400] % 4)
    command = ["reproduce", "samples", "--data", files / "few.npz", "--repeats", "2", "--json", "--gamma", "0.001"]
    command = [str(word) for word in command]
    whole = run(*command, "--out", "whole")
    assert json.loads(whole.stdout)["rows"] == 2 * 6 * 4
    cut = nursery.start([*command, "--out", files / "cut"], files / "cut.log")
    path = Path("cut/samples.csv")
    until(lambda: path.exists() and len(path.read_text().splitlines()) > 12, "some rows", 60)
    nursery.signal(cut, signal.SIGKILL)
    until(lambda: cut in nursery.ended, "it is gone", 60)
    assert nursery.ended[cut][0] == -signal.SIGKILL
    assert len(path.read_text().splitlines()) < 2 * 6 * 4
    assert run(*command, "--out", "cut").exit_code == 0
    assert path.read_bytes() == Path("whole/samples.csv").read_bytes()
    for name in ("samples.png", "samples.svg"):
        assert Path("cut", name).stat().st_size > 10_000


@pytest.mark.parametrize(
    "data",
    [
        ["390.npy"],  # ranks took 1 node for it, one process 2 (issue 20)
        pytest.param(["parts/node-*.npy", "--network", "ring:5"], marks=pytest.mark.slow),
        pytest.param(["rows.npy", "--nodes", "6"], marks=pytest.mark.slow),
    ],
    ids=" ".join,
)
def test_ranks_fit_what_one_process_fits(files, launched, data):
    """Real ranks: each reads its own files, or its own rows of one .npy file; rank 0 alone tells."""
    X = np.load("rows.npz")["X"]
    Path("parts").mkdir()
    for j in range(5):
        np.save(f"parts/node-{j}.npy", X[j::5])
    np.save("rows.npy", X)
    np.save("390.npy", np.random.default_rng(0).permutation(np.concatenate([X, X + 1.0, X - 1.0]))[:390])
    # exact: else rounding turns what noise is taken from
    settings = ["--gamma", "0.001", "-k", "2", "--tol", "1e-9", "--json"]
    alone = json.loads(run("fit", *data, "--out", "alone", *settings).stdout)
    together = json.loads(launched("-n", 2, "--", "fit", *data, "--out", "ranks", *settings).stdout)
    assert together["ranks"] == 2
    for key in ("models", "nodes", "rows", "iterations", "bytes_by_phase"):
        assert together[key] == alone[key]
    np.testing.assert_allclose(together["eigenvalues"], alone["eigenvalues"], rtol=1e-10)
    written = {path.name for path in Path("ranks").glob("*.npz")}
    assert written == {path.name for path in Path("alone").glob("*.npz")} == set(together["models"].values())
    for name in together["models"].values():
        one, two = (dekpca.NodeModel.load(Path(folder, name)) for folder in ("alone", "ranks"))
        np.testing.assert_allclose(two.transform(X[:9]), one.transform(X[:9]), atol=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["-n", "2", "--", "fit", "rows.npz"], "give one file a node, or one .npy file"),
        (["-n", "3", "--", "fit", "oslo.csv", "rome.csv"], "3 ranks for 2 nodes"),
        (["-n", "2", "--", "fit", "oslo.csv", "none.csv", "rome.csv"], "none.csv: no such file"),
        (["-n", "2", "--", "doctor"], "only fit runs on ranks"),
    ],
    ids=lambda x: " ".join(x) if isinstance(x, list) else "",
)
def test_ranks_say_once_what_is_wrong(files, launched, arguments, says):
    done = launched(*arguments)
    assert done.returncode == 2
    assert done.stderr.count(says) == 1
    assert "Traceback" not in done.stderr


def test_every_node_has_a_file_of_its_own(files):
    X = np.load("rows.npz")["X"]
    names = np.array(["a/b", "c", "node-0", "C"])[np.arange(len(X)) % 4]
    np.savez("odd.npz", X=X, who=names)
    told = json.loads(run("fit", "odd.npz", "--owner", "who", "--gamma", "0.001", "--out", "odd", "--json").stdout)
    assert len({name.casefold() for name in told["models"].values()}) == 4
    for node, file in told["models"].items():
        assert dekpca.NodeModel.load(Path("odd", file)).name == node
    run(
        "fit", "rows.npz", "--nodes", "3", "--gamma", "0.001", "--out", "odd"
    )  # fewer nodes: no model of the last fit is left
    assert sorted(p.name for p in Path("odd").iterdir()) == ["0.npz", "1.npz", "2.npz", "summary.json"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["fit", "oslo.csv", "--report", "./oslo.csv"], "--report oslo.csv: would overwrite oslo.csv"),
        (["fit", "table", "--out", "table"], "--out table: is in table, which is read"),
        (["fit", "table", "--report", "table/fit.html"], "--report table/fit.html: is in table"),
        (["transform", "rows.npz", "oslo.csv", "--out", "oslo.csv"], "--out oslo.csv: would overwrite oslo.csv"),
    ],
    ids=lambda x: " ".join(x) if isinstance(x, list) else "",
)
def test_what_is_read_is_not_overwritten(files, arguments, says):
    Path("table").mkdir()
    before = {path: path.read_bytes() for path in Path().iterdir() if path.is_file()}
    result = run(*arguments)
    assert result.exit_code == 2
    assert says in result.stderr
    assert {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()} == before


def test_a_file_that_is_no_model_is_neither_overwritten_nor_deleted(files):
    usual = ["--gamma", "0.001", "--out", "m", "--json"]
    Path("m").mkdir()
    shutil.copy("rows.npz", "m/oslo.npz")
    result = run("fit", "rows.npz", "--owner", "town", *usual)
    assert json.loads(result.stdout)["models"] == {"bonn": "bonn.npz", "oslo": "oslo_.npz", "rome": "rome.npz"}
    assert "m: oslo.npz is no model and stays; the model of node oslo is oslo_.npz" in result.stderr
    assert dekpca.NodeModel.load("m/oslo_.npz").name == "oslo"
    assert run("transform", "m", "new.npy", "--node", "oslo", "--out", "z.npy").exit_code == 0
    shutil.copy("rows.npz", "m/bonn.npz")  # in the place of a model
    result = run("fit", "rows.npz", "--nodes", "2", *usual)
    assert json.loads(result.stdout)["removed"] == ["oslo_.npz", "rome.npz"]
    for name in ("oslo", "bonn"):
        assert Path(f"m/{name}.npz").read_bytes() == Path("rows.npz").read_bytes()
    told = json.loads(run("fit", "m/oslo.npz", "m/bonn.npz", *usual).stdout)["models"]  # the same of what is read
    assert told == {"oslo": "oslo_.npz", "bonn": "bonn_.npz"}
    assert Path("m/oslo.npz").read_bytes() == Path("rows.npz").read_bytes()


@pytest.mark.parametrize("text", ["{}", '{"models": ["a.npz"]}', '{"models": {"a": 1}}', "no JSON", "[" * 9999])
def test_another_summary_is_refused_before_the_work(files, monkeypatch, text):
    monkeypatch.setattr(dekpca.DecentralizedKernelPCA, "fit", lambda *given, **more: pytest.fail("the work was begun"))
    Path("m").mkdir()
    Path("m/summary.json").write_text(text)
    result = run("fit", "rows.npz", "--out", "m")
    assert result.exit_code == 2
    assert "m/summary.json: no summary of an earlier fit, and would be overwritten; move it away" in result.stderr
    assert Path("m/summary.json").read_text() == text


def test_a_column_without_a_name_is_warned_of_once(files):
    Path("rows.csv").write_text(",a,b\n0,1,2\n0,3,5\n1,4,4\n1,2,2\n")
    result = run("fit", "rows.csv", "--nodes", "1", "-k", "1", "--out", "m")
    assert result.exit_code == 0, result.output
    assert result.stderr.count("warning: rows.csv: the first column has no name") == 1
    done = run("transform", "m", "rows.csv", "--out", "z.npy")  # the model knows it
    assert (done.exit_code, done.stderr) == (0, "")


def test_rows_that_were_dealt_unasked_leave_one_model(files):
    result = run("fit", "rows.npz", "--gamma", "0.001", "--out", "m")
    assert "2 nodes" in result.stdout
    assert "the model of node 0; --nodes N writes one for each of N nodes in m" in result.stdout
    assert sorted(path.name for path in Path("m").iterdir()) == ["0.npz", "summary.json"]
    assert run("transform", "m", "new.npy", "--out", "z.npy").exit_code == 0
    assert (
        "--node 1: not among the nodes with a model in m: 0" in run("transform", "m", "new.npy", "--node", "1").stderr
    )


def test_the_report_is_in_the_summary(files):
    arguments = ["--nodes", "4", "--gamma", "0.001", "--out", "m", "--report", "fit.html", "--compare", "--json"]
    told = json.loads(run("fit", "rows.npz", *arguments).stdout)
    assert told["report"] == "fit.html" == json.loads(Path("m/summary.json").read_text())["report"]
    assert Path("fit.html").stat().st_size > 1e6


@pytest.mark.slow
def test_a_missing_extra_is_named_before_the_work(files):
    code = """
import sys
sys.modules["plotly"] = sys.modules["matplotlib"] = None
from typer.testing import CliRunner
from dekpca.cli import app
for arguments in (["fit", "rows.npz", "--report", "fit.html"], ["network", "ring:5", "--draw", "net.png"]):
    done = CliRunner().invoke(app, arguments)
    print(done.exit_code, done.stderr.replace("\\n", ""))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True)
    for line, extra in zip(done.stdout.splitlines(), ("dekpca[report]", "dekpca[plot]"), strict=True):
        assert line.startswith("2 ")
        assert extra in line
    assert not list(Path().glob("**/0.npz"))


def test_an_error_is_said_on_every_rank_of_a_scheduler(files, monkeypatch):
    """Tasks that Slurm starts side by side need not be one MPI job: nobody else would speak for them."""
    monkeypatch.setenv("SLURM_PROCID", "3")
    assert "no such file" in run("fit", "missing.npz").stderr
