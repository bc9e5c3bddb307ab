"""Rows of files in blocks: the answer is that of the same rows in memory, memory does not grow with the file, and bad files are refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from importlib import import_module

import numpy as np
import pandas
import pytest
from typer.testing import CliRunner

import dekpca
from dekpca import DecentralizedKernelPCA, Rows
from dekpca.cli import app
from dekpca.data import DataError
from dekpca.data.formats import writing

N, BLOCK = 12_000, 700  # many blocks, the last one smaller; the rows of a stage are a sample
ROUNDING = 1e-10  # sums in another order, through an eigenproblem


def table(rows=N, seed=0):
    """Four clusters with columns b, a, c10, c9: their order in a file is not the internal one."""
    rng = np.random.default_rng(seed)
    X = rng.normal(scale=2.0, size=(4, 4))[rng.integers(0, 4, size=rows)] + rng.normal(size=(rows, 4)) * [
        2,
        1,
        0.5,
        0.3,
    ]
    return pandas.DataFrame(X, columns=["b", "a", "c10", "c9"])


FRAME = table()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("rows")


def written(folder, kind, frame=FRAME):
    """Rows of the frame from a file of this kind."""
    path = folder / f"{len(frame)}-{len(frame.columns)}.{kind}"
    if kind == "npy":
        np.save(path, frame.to_numpy())
        return Rows.from_npy(path, block_rows=BLOCK)
    if kind == "csv":
        frame.to_csv(path, index=False)
        return Rows.from_csv(path, block_rows=BLOCK)
    if kind == "parquet":
        frame.to_parquet(path, row_group_size=1000)
        return Rows.from_parquet(path, block_rows=BLOCK)
    if kind == "folder":
        path.mkdir(exist_ok=True)
        for number, start in enumerate(range(0, len(frame), 2500)):  # part-10 would come before part-2 as a text
            part = frame.iloc[start : start + 2500]
            part[sorted(part.columns) if number % 2 else list(part.columns)].to_parquet(
                path / f"part-{number + 8}.parquet"
            )
        (path / "_SUCCESS").touch()
        return Rows.from_parquet(path, block_rows=BLOCK)
    return Rows.from_blocks(lambda: (frame.iloc[i : i + BLOCK] for i in range(0, len(frame), BLOCK)))


def check_same(model, other, frame):
    """Two fits with the same answer."""
    np.testing.assert_allclose(model.eigenvalues_, other.eigenvalues_, rtol=ROUNDING)
    np.testing.assert_allclose(model.accuracy_, other.accuracy_, atol=ROUNDING)
    assert model.n_landmarks_ == other.n_landmarks_
    assert model.network_.names == other.network_.names
    np.testing.assert_array_equal(model.node_sizes_, other.node_sizes_)
    values, expected = model.transform(frame), other.transform(frame)
    np.testing.assert_allclose(values, expected, atol=ROUNDING * np.nanmax(np.abs(expected)))


@pytest.mark.parametrize("kind", ["npy", "csv", "parquet", "folder", "blocks"])
def test_a_file_in_blocks_gives_what_its_rows_in_memory_give(folder, kind):
    rows = written(folder, kind)
    given = FRAME.to_numpy() if kind == "npy" else FRAME
    model = DecentralizedKernelPCA(3, random_state=0).fit(rows)
    check_same(model, DecentralizedKernelPCA(3, random_state=0, network=1).fit(given), given)
    assert model.history_["passes"] == 2
    with warnings.catch_warnings(action="error"):
        np.testing.assert_allclose(model.transform(rows), model.transform(given), atol=1e-12)
        if kind == "blocks":  # columns are matched by name
            other = written(folder, kind, FRAME[sorted(FRAME.columns)])
            np.testing.assert_allclose(model.transform(other), model.transform(given), atol=1e-12)
    assert len(model.nodes_) == N
    assert not model.nodes_.any()


SETTINGS = {
    "dealt": {"network": 7},
    "standardized": {"standardize": True},
    "missing, mean": {"missing": "mean", "standardize": True},
    "missing, drop": {"missing": "drop"},
    "missing, drop, dealt": {"missing": "drop", "network": 5},
    "many stages": {"tol": 1e-6, "max_landmarks": 400},
    "landmarks": {"landmarks": 60, "share_rows": False},
    "points": {"landmarks": FRAME.iloc[:40], "gamma": 0.05},
    "no features": {"kernel": "poly", "degree": 2, "gamma": 0.02},
    "memory": {"memory_limit": "300MB"},
}


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_settings_mean_the_same_in_blocks(folder, settings):
    frame = FRAME.copy()
    if "missing" in settings:
        frame.iloc[::50, 1], frame.iloc[7::90, 3] = np.nan, np.nan
    rows = written(folder, "csv" if "missing" in settings else "parquet", frame)
    model = DecentralizedKernelPCA(3, random_state=0, **settings).fit(rows)
    check_same(model, DecentralizedKernelPCA(3, random_state=0, **{"network": 1} | settings).fit(frame), frame)
    if settings.get("missing") == "drop":
        assert model.nodes_ is None
        assert model.history_["dropped"] == frame.isna().any(axis=1).sum()


@pytest.mark.parametrize("kind", ["csv", "parquet"])
@pytest.mark.parametrize("labels", ["texts", "numbers"])
def test_the_values_of_a_column_are_the_nodes(folder, kind, labels):
    owner = np.random.default_rng(1).integers(0, 3, size=N)
    owner[: N // 2] = np.sort(owner[: N // 2])  # owners that first come late
    frame = FRAME.assign(town=np.array(["rome", "oslo", "bonn"])[owner] if labels == "texts" else owner)
    rows = written(folder, kind, frame)
    network = None if labels == "texts" else dekpca.Network.from_edges([("x", "y"), ("y", "z")])
    model = DecentralizedKernelPCA(3, random_state=0, network=network)
    if labels == "numbers" and kind == "csv":  # texts of numbers are no numbers of nodes, as in a DataFrame
        with pytest.raises(ValueError, match="not in the network, whose nodes are x, y, z"):
            model.fit(rows, nodes="town")
        return
    model.fit(rows, nodes="town")
    other = DecentralizedKernelPCA(3, random_state=0, network=network).fit(frame, nodes="town")
    check_same(model, other, frame)
    np.testing.assert_array_equal(model.nodes_, other.nodes_)
    np.testing.assert_allclose(model.transform(rows), other.transform(frame), atol=1e-9)


def test_few_rows_are_decomposed_at_once_and_float32_stays(folder):
    frame = table(400)
    rows = written(folder, "parquet", frame)
    check_same(
        DecentralizedKernelPCA(2, gamma=0.1).fit(rows),
        DecentralizedKernelPCA(2, gamma=0.1, network=1).fit(frame),
        frame,
    )
    narrow = FRAME.astype(np.float32)
    narrow.to_parquet(folder / "float32.parquet")
    model = DecentralizedKernelPCA(2, gamma=0.1, random_state=0).fit(Rows.from_parquet(folder / "float32.parquet"))
    assert model.transform(narrow).dtype == np.float32


def test_categories_become_columns(folder):
    kind = np.array(["low", "high", None], dtype=object)[np.arange(N) % 3]
    frame = FRAME.assign(kind=kind)
    frame.to_csv(folder / "kinds.csv", index=False)
    rows = Rows.from_csv(folder / "kinds.csv", one_hot=["kind"], drop=["c9"], block_rows=BLOCK)
    encoded = dekpca.data.one_hot(frame.drop(columns=["c9"]), {"kind": ["low", "high"]})
    assert rows.names == tuple(encoded.columns)
    settings = {"missing": "mean", "random_state": 0}
    check_same(
        DecentralizedKernelPCA(2, **settings).fit(rows),
        DecentralizedKernelPCA(2, network=1, **settings).fit(encoded),
        encoded,
    )


MEASURED = """
import json, sys
from pathlib import Path
import numpy as np
import dekpca

def most():
    status = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return 1024 * next(int(line.split()[1]) for line in status if line.startswith("VmHWM:"))

found = []
for name in sys.argv[1:]:
    dekpca.DecentralizedKernelPCA(2, random_state=0).fit(dekpca.Rows.from_file(name))
    found.append(most())
print(json.dumps(found))
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_the_file(tmp_path):
    import pyarrow
    import pyarrow.parquet

    rng, columns = np.random.default_rng(0), 10
    for name, rows in (("few", 200_000), ("many", 1_000_000)):
        X = rng.normal(size=(rows, columns)) * np.geomspace(3, 0.3, columns)
        pyarrow.parquet.write_table(pyarrow.table({str(i): x for i, x in enumerate(X.T)}), tmp_path / f"{name}.parquet")
    words = [sys.executable, "-c", MEASURED, str(tmp_path / "few.parquet"), str(tmp_path / "many.parquet")]
    done = subprocess.run(words, check=True, capture_output=True, text=True, timeout=300)
    few, many = json.loads(done.stdout)
    # The second file has 64 MB of rows more. What a row takes in memory is its key, twice, and what is missed of it: 24 bytes; the rest is what
    # pyarrow and the allocator keep.
    assert many - few < 800_000 * 60


def test_columns_and_owners_mean_what_they_mean_in_memory(tmp_path):
    """No column is guessed to be a label; names of nodes and the dtype do not depend on where the rows are."""
    frame = FRAME.iloc[:3000].astype(np.float32).rename(columns={FRAME.columns[0]: "y"})
    sites = {
        "share": np.resize(np.array([0.1, 0.2], dtype=np.float32), 3000),
        "day": np.resize(np.array(["2020-01-01", "2020-02-01"], dtype="datetime64[ns]"), 3000),
        "site": np.resize(["a", "b"], 3000),
    }
    for owner, labels in sites.items():
        owned = frame.assign(**{owner: labels})
        owned.to_parquet(path := tmp_path / f"{owner}.parquet")
        rows = Rows.from_parquet(path, block_rows=BLOCK)
        model, other = (
            DecentralizedKernelPCA(2, gamma=0.05, random_state=0).fit(X, nodes=owner) for X in (rows, owned)
        )
        assert model.network_.names == other.network_.names
        assert model.n_features_in_ == other.n_features_in_ == len(frame.columns)
        assert model.eigenvalues_.dtype == other.eigenvalues_.dtype == np.float32
        np.testing.assert_allclose(model.eigenvalues_, other.eigenvalues_, rtol=1e-5)  # of float32
        assert model.transform(owned).shape == (3000, 2)


def test_ids_of_later_blocks_may_be_missing(tmp_path):
    ids = pandas.array([*range(BLOCK), None, *range(BLOCK)], dtype="Int64")
    frame = FRAME.iloc[: len(ids)].assign(patient=ids)
    frame.to_parquet(tmp_path / "x.parquet", row_group_size=BLOCK)
    model = DecentralizedKernelPCA(2, gamma=0.05, random_state=0).fit(FRAME)
    rows = Rows.from_parquet(tmp_path / "x.parquet", id="patient", block_rows=BLOCK)
    with writing(tmp_path / "z.parquet", ["component 1", "component 2"], "patient") as out:
        for block in rows.blocks():
            out.write(model.transform(block.samples), block.ids)
    found = pandas.read_parquet(tmp_path / "z.parquet")["patient"]
    assert found.isna().sum() == 1
    assert found.dropna().astype(int).tolist() == ids.dropna().tolist()


# ---------------------------------------------------------------------- what is refused
def test_files_that_change_or_are_damaged_are_refused(folder, tmp_path):
    model = DecentralizedKernelPCA(2, gamma=0.1, random_state=0)
    for kind in ("npy", "csv", "parquet"):
        rows = written(tmp_path, kind)
        (path,) = rows.source.files
        os.utime(path, ns=(1, 1))
        with pytest.raises(DataError, match=rf"{kind}: has changed since it was opened; start again"):
            model.fit(rows)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match="not a parquet file, or damaged"):
        Rows.from_parquet(path)
    path.write_bytes(whole[:4] + bytes(60) + whole[64:])  # the header of a page
    with pytest.raises(DataError, match="damaged"):
        model.fit(Rows.from_parquet(path))
    array = np.load(tmp_path / f"{N}-4.npy")
    rows = Rows.from_npy(tmp_path / f"{N}-4.npy")
    with open(tmp_path / f"{N}-4.npy", "r+b") as file:
        file.truncate(array.nbytes // 2)
    with pytest.raises(DataError, match="has changed since"):
        model.fit(rows)
    made = iter(range(1, 100))
    with pytest.raises(DataError, match="other rows than in the first pass"):
        model.fit(Rows.from_blocks(lambda: [table(5000, seed=next(made))]))
    few = iter([3, 3, 2])
    with pytest.raises(DataError, match="fewer rows than in the first pass"):
        model.fit(Rows.from_blocks(lambda: [FRAME[:4000]] * next(few)))


LACKS = r"column 'a' has no value \(NaN\) in row 9001; rows with missing values: 1 of the first \d+; .*missing='drop'"
BAD = {
    "nan": (lambda f: f.assign(a=f["a"].where(f.index != 9001)), LACKS),
    "infinite": (lambda f: f.assign(c9=f["c9"].where(f.index != 8123, np.inf)), r"column 'c9' is infinite in row 8123"),
    "text": (lambda f: f.assign(a=f["a"].astype(str)), r"column 'a' holds .*, not numbers; drop the column"),
    "empty": (lambda f: f[:0], "no rows; give at least one"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_rows_are_named(tmp_path, name):
    change, says = BAD[name]
    frame = change(FRAME)
    with pytest.raises(ValueError, match=says):
        DecentralizedKernelPCA(2).fit(written(tmp_path, "parquet", frame))
    if name == "nan":
        with pytest.raises(ValueError, match=r"column 'a' has no value \(NaN\) in line 9003"):
            DecentralizedKernelPCA(2).fit(written(tmp_path, "csv", frame))


def test_what_does_not_go_together_is_refused_in_a_sentence(folder, tmp_path):
    rows = written(folder, "parquet")
    for settings in (
        {"solver": dekpca.Projection()},
        {"privacy": "secure-sums"},
        {"landmarks": "random-features"},
        {"device": "cuda"},
        {"engine": "mpi"},
    ):
        with pytest.raises(ValueError, match=r"with rows in blocks \(.*parquet\), .*; leave it at its default"):
            DecentralizedKernelPCA(2, **settings).fit(rows)
    with pytest.raises(ValueError, match="nodes with rows in blocks: give the name of the column"):
        DecentralizedKernelPCA(2).fit(rows, nodes=np.zeros(N, dtype=int))
    with pytest.raises(ValueError, match="fit_parts takes one array for each node, but got one Rows; use fit"):
        DecentralizedKernelPCA(2).fit_parts(rows)
    with pytest.raises(TypeError, match=r"Rows, which only fit and transform of the estimator take"):
        DecentralizedKernelPCA(2).fit_parts([rows, rows])
    with pytest.raises(ValueError, match=r"no column or array 'town'; it has"):
        DecentralizedKernelPCA(2).fit(rows, nodes="town")
    with pytest.raises(TypeError, match="unknown option colums; known are"):
        Rows.from_parquet(folder, colums=["a"])
    for what in ("columns", "drop", "one_hot"):  # "ab" would be the columns a and b
        with pytest.raises(TypeError, match=rf"{what}='ab' is one text; give a list of names, \['ab'\]"):
            Rows.from_parquet(folder, **{what: "ab"})
    FRAME.to_csv(tmp_path / "rows.csv", index=False)
    with pytest.raises(ValueError, match=r"block_rows=1\.5: give a whole number of at least 1"):
        Rows.from_csv(tmp_path / "rows.csv", block_rows=1.5)
    with pytest.raises(DataError, match=r"the ending is \.csv, not \.parquet"):
        Rows.from_parquet(tmp_path / "rows.csv")
    with pytest.raises(DataError, match=r"it is a folder of other files than \.parquet"):
        Rows.from_parquet(tmp_path)
    two = tmp_path / "two"
    two.mkdir()
    FRAME.to_parquet(two / "1.parquet")
    FRAME.rename(columns={"c9": "c8"}).to_parquet(two / "2.parquet")
    with pytest.raises(DataError, match=r"2.parquet: the columns are not those of .*1.parquet: unknown 'c8'"):
        Rows.from_parquet(two)
    with pytest.raises(ValueError, match=r"memory_limit=0.001 GB: .*raise it"):
        DecentralizedKernelPCA(2, memory_limit="1MB").fit(rows)


# ---------------------------------------------------------------------- the command line
def run(*words):
    return CliRunner().invoke(app, list(map(str, words)))


@pytest.mark.parametrize("kind", ["csv", "folder", "npy"])
def test_the_command_line_reads_large_files_in_blocks(tmp_path, monkeypatch, kind):
    frame = (
        FRAME
        if kind == "npy"
        else FRAME.assign(patient=np.arange(N), town=np.array(["rome", "oslo"])[np.arange(N) % 2])
    )
    written(tmp_path, kind, frame)
    path = tmp_path / f"{N}-{len(frame.columns)}.{kind}"
    columns = [] if kind == "npy" else ["--owner", "town", "--id", "patient"]
    whole = run("fit", path, *columns, "--nodes" if kind == "npy" else "-k", 2, "--out", tmp_path / "whole", "--json")
    assert whole.exit_code == 0, whole.output
    monkeypatch.setattr(import_module("dekpca.cli.fit"), "machine_bytes", lambda: 100_000)
    done = run("fit", path, *columns, "--nodes" if kind == "npy" else "-k", 2, "--out", tmp_path / "blocks", "--json")
    assert done.exit_code == 0, done.output
    assert "more than a quarter of this machine's memory: read in blocks" in done.stderr
    assert "pass 2 (all rows): 12,000 rows" in done.stderr
    assert "blocks" not in whole.stderr
    one, two = json.loads(whole.stdout), json.loads(done.stdout)
    np.testing.assert_allclose(two["eigenvalues"], one["eigenvalues"], rtol=ROUNDING)
    assert two["models"] == one["models"]
    assert two["rows"] == N
    expected = dekpca.NodeModel.load(tmp_path / "blocks" / next(iter(two["models"].values())))
    expected = expected.transform(FRAME.to_numpy() if kind == "npy" else FRAME)
    for ending in ("csv", "parquet", "npy"):
        file = tmp_path / f"z.{ending}"
        done = run("transform", tmp_path / "blocks", path, "--out", file)
        assert done.exit_code == 0, done.output
        if ending == "npy":
            values = np.load(file)
        else:
            values = pandas.read_csv(file) if ending == "csv" else pandas.read_parquet(file)
            if kind != "npy":
                np.testing.assert_array_equal(values.pop("patient").astype(int), np.arange(N))
            values = values.to_numpy()
        np.testing.assert_allclose(values, expected, atol=1e-12)
        assert file.stat().st_mode & 0o077 == 0
    refused = run("fit", path, "--nodes", 2, "--network", "ring:5", "--out", tmp_path / "none")
    assert refused.exit_code == 2
    assert "--nodes 2, but the network has 5" in refused.stderr
    refused = run("fit", path, *columns, "--out", tmp_path / "none", "--report", tmp_path / "r.html")
    assert refused.exit_code == 2
    assert "it shows all rows, and" in refused.stderr


def test_rows_that_are_left_out_are_reported_also_where_the_answer_is_exact(folder):
    frame = FRAME[:300].copy()
    frame.iloc[::10, 1] = np.nan
    model = DecentralizedKernelPCA(2, missing="drop", random_state=0).fit(written(folder, "csv", frame))
    assert model.n_landmarks_ == 0  # few rows of one node
    assert model.history_["dropped"] == 30
    assert model.nodes_ is None


def test_an_owner_whose_rows_all_lack_a_value_is_not_left_out_silently(folder):
    frame = FRAME[:3000].assign(who=np.repeat(["oslo", "rome", "bonn"], 1000))
    frame.loc[frame["who"] == "rome", "a"] = np.nan
    frame.to_csv(folder / "owners.csv", index=False)
    model = DecentralizedKernelPCA(2, missing="drop", random_state=0)
    with pytest.raises(ValueError, match="node rome: every row lacks a value"):
        model.fit(Rows.from_csv(folder / "owners.csv", owner="who", block_rows=BLOCK))
    with pytest.raises(ValueError, match="node rome: every row lacks a value"):
        dekpca.data.read(folder / "owners.csv", dekpca.data.Roles(owner="who"), missing="drop")
