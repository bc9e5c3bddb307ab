"""Columns are taken by name everywhere: another order changes no bit, other names are an error. All of this failed at c6f9cc8."""

from __future__ import annotations

import json
import logging
import warnings

import numpy as np
import pandas as pd
import pyarrow
import pytest
from pyarrow import parquet
from typer.testing import CliRunner

from dekpca import DecentralizedKernelPCA, Network, NodeModel, Projection, baselines, data, metrics
from dekpca.data.columns import ColumnError, Features, check_same_names

NAMES = ["age", "height", "x2", "x10", "zip", "bmi"]
RNG = np.random.default_rng(7)
PARTS = {
    town: pd.DataFrame(RNG.normal(size=(n, 6)) * [40, 12, 1, 3, 900, 4] + 5, columns=NAMES)
    for town, n in (("oslo", 30), ("rome", 45), ("bonn", 25))
}
SETTINGS = [
    {"standardize": standardize, **settings}
    for settings in ({}, {"landmarks": 12}, {"solver": Projection()}, {"solver": Projection(n_landmarks=12)})
    for standardize in (False, True)
]


def shuffled(parts, seed=1):
    """Every node's columns in an order of its own."""
    rng = np.random.default_rng(seed)
    return {name: frame[list(rng.permutation(frame.columns))] for name, frame in parts.items()}


def fit(parts, **settings):
    return DecentralizedKernelPCA(
        2, network=Network.complete(3) if isinstance(parts, list) else None, random_state=0, **settings
    ).fit_parts(parts)


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_another_order_of_the_columns_of_each_node_changes_no_bit(settings):
    one, two = fit(PARTS, **settings), fit(shuffled(PARTS), **settings)
    new = PARTS["rome"]
    np.testing.assert_array_equal(one.eigenvalues_, two.eigenvalues_)
    for name in PARTS:
        here, there = one.node_models_[name], two.node_models_[name]
        np.testing.assert_array_equal(here.transform(new), there.transform(new))
        np.testing.assert_array_equal(here.transform(new), here.transform(new[new.columns[::-1]]))
    assert list(one.feature_names_in_) == NAMES
    assert set(two.feature_names_in_) == set(NAMES)


def test_users_see_their_own_order():
    frame = PARTS["rome"]
    model = DecentralizedKernelPCA(2, network=3, random_state=0).fit(frame)
    assert list(model.feature_names_in_) == NAMES
    node = model.node_models_[0]
    assert list(node.feature_names_in_) == NAMES
    Z = model.transform(frame)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        np.testing.assert_array_equal(
            node.transform(frame.to_numpy()), node.transform(frame)
        )  # an array is in the order of the fit
    bare = DecentralizedKernelPCA(2, network=3, random_state=0).fit(frame.to_numpy())
    np.testing.assert_allclose(np.abs(bare.transform(frame.to_numpy())), np.abs(Z), rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(
        model.inverse_transform(Z), bare.inverse_transform(bare.transform(frame.to_numpy())), rtol=1e-6
    )
    assert not hasattr(bare, "feature_names_in_")
    assert not hasattr(bare.node_models_[0], "feature_names_in_")
    assert not hasattr(model.fit(frame.to_numpy()), "feature_names_in_")  # nor of an earlier fit


def test_landmarks_and_metrics_follow_the_names():
    frame = pd.concat(PARTS.values(), ignore_index=True)
    points = frame.iloc[::5]
    given = {"random_state": 0, "network": 4}
    by_name = DecentralizedKernelPCA(2, landmarks=points[points.columns[::-1]], **given).fit(frame)
    by_place = DecentralizedKernelPCA(2, landmarks=points.to_numpy(), **given).fit(frame)
    np.testing.assert_array_equal(by_name.eigenvalues_, by_place.eigenvalues_)
    turned = frame[frame.columns[::-1]]
    named, bare = baselines.central(turned, 2), baselines.central(frame.to_numpy(), 2)
    for measure in (metrics.similarity, metrics.oracle, metrics.angles):
        np.testing.assert_allclose(measure(by_name, named), measure(by_name, bare), rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(
        metrics.agreement(by_name, named, turned), metrics.agreement(by_name, bare, frame), rtol=1e-9
    )
    assert metrics.agreement(by_name, named, turned).min() > 0.99


def test_the_order_is_said_once(caplog):
    with caplog.at_level(logging.INFO, "dekpca"):
        model = fit(shuffled(PARTS))
        assert [r.message for r in caplog.records if "another order" in r.message] == [
            "node oslo, node rome: the columns are in another order than those of node bonn; they are taken by name"
        ]
        caplog.clear()
        for _ in range(3):
            model.node_models_[0].transform(PARTS["oslo"])
        assert len(caplog.records) == 1


def broken(kind):
    """Another set of columns at rome, and what an error must say about it."""
    frame = PARTS["rome"]
    if kind == "missing":
        return frame.drop(columns="bmi"), "missing 'bmi'"
    if kind == "extra":
        return frame.assign(weight=1.0), "unknown 'weight'"
    if kind == "renamed":
        return frame.rename(columns={"height": "heigth"}), "unknown 'heigth' (did you mean 'height'?); missing 'height'"
    if kind == "case":
        return frame.rename(columns={"age": "Age"}), "unknown 'Age' (did you mean 'age'?); missing 'age'"
    return frame.rename(columns={"age": "bmi"}), "'bmi' comes more than once"


KINDS = ("missing", "extra", "renamed", "case", "duplicated")


@pytest.mark.parametrize("kind", KINDS)
def test_other_names_are_an_error(kind):
    frame, says = broken(kind)
    with pytest.raises(ColumnError) as error:
        fit(PARTS | {"rome": frame})
    assert "node rome" in str(error.value)
    assert says in str(error.value)
    with pytest.raises(ColumnError) as error:
        fit(PARTS).node_models_["oslo"].transform(frame)
    assert says in str(error.value)


def test_named_and_nameless_nodes_do_not_mix():
    with pytest.raises(ColumnError, match="node rome: its columns have no names, but those of node bonn have"):
        fit(PARTS | {"rome": PARTS["rome"].to_numpy()})
    node = fit(PARTS).node_models_["oslo"]
    with pytest.warns(UserWarning, match="X has no column names, but the model was fitted with them"):
        node.transform(PARTS["rome"].to_numpy())
    bare = fit({name: frame.to_numpy() for name, frame in PARTS.items()}).node_models_["oslo"]
    with pytest.warns(UserWarning, match="X has column names, but the model was fitted without them"):
        bare.transform(PARTS["rome"])
    numbers = PARTS["rome"].rename(
        columns=dict(zip(NAMES, range(6), strict=True))
    )  # numbers are no names, as in scikit-learn
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        bare.transform(numbers)
    with pytest.raises(TypeError, match="some column names are texts and some are not"):
        bare.transform(PARTS["rome"].rename(columns={"age": 3}))


def test_model_files_keep_names(tmp_path):
    model = fit(shuffled(PARTS), missing="mean", standardize=True)
    node = model.node_models_["rome"]
    node.save(tmp_path / "rome.npz")
    again = NodeModel.load(tmp_path / "rome.npz")
    assert list(again.feature_names_in_) == list(model.feature_names_in_)
    holes = PARTS["oslo"].copy()
    holes.iloc[3, 2] = np.nan
    np.testing.assert_array_equal(again.transform(holes), node.transform(holes))


def test_natural_order():
    assert Features(3, ("x10", "x2", "a")).sorted_names == ("a", "x2", "x10")
    assert Features(3, ("a", "x2", "x10")).order is None
    with pytest.raises(ColumnError, match="unknown 'b'; missing 'a'"):
        check_same_names(["b"], ["a"], "here", "there")


@pytest.mark.parametrize(
    ("column", "says"),
    [
        (pd.Categorical(["a", "b", "a"]), r"column 'c' holds category, not numbers; dekpca.data.one_hot\(X, \['c'\]\)"),
        (pd.Categorical([1, 2, 1]), "column 'c' holds category, not numbers"),
        (["x", "y", "z"], "column 'c' holds (str|texts or other objects), not numbers"),
        (pd.to_datetime(["2020-01-01"] * 3), "column 'c' holds dates or times .*days since a fixed date"),
    ],
    ids=["category", "numbered category", "text", "date"],
)
def test_categories_and_dates_in_frames(column, says):
    frame = pd.DataFrame({"a": [1.0, 2.0, 3.0], "c": column})
    for work in (lambda: DecentralizedKernelPCA(1).fit(frame), lambda: fit([frame, frame, frame])):
        with pytest.raises(ValueError, match=says):
            work()


# ---------------------------------------------------------------------- missing values
def test_missing_values_get_the_networks_mean():
    rng = np.random.default_rng(0)
    holes = {name: frame.mask(rng.random(frame.shape) < 0.1) for name, frame in PARTS.items()}
    together = pd.concat(holes.values())
    filled = {name: frame.fillna(together.mean()) for name, frame in holes.items()}
    for standardize in (False, True):
        ours = fit(holes, missing="mean", standardize=standardize)
        theirs = fit(filled, standardize=standardize)
        np.testing.assert_allclose(ours.eigenvalues_, theirs.eigenvalues_, rtol=1e-9)
        for name in PARTS:
            mine, other = ours.node_models_[name], theirs.node_models_[name]
            np.testing.assert_allclose(
                np.abs(mine.transform(holes["rome"])), np.abs(other.transform(filled["rome"])), rtol=1e-6, atol=1e-8
            )
    with pytest.raises(
        ValueError,
        match=r"column '\w+' has no value \(NaN\) in row .*; a fit with missing='drop' leaves them out, one with 'mean' puts",
    ):
        fit(holes)
    holes["oslo"].iloc[0, 0] = np.inf
    with pytest.raises(ValueError, match=r"node oslo: column 'age' is infinite in row 0; correct or remove the row$"):
        fit(holes, missing="mean")
    nothing = {name: frame.assign(bmi=np.nan) for name, frame in PARTS.items()}
    with pytest.raises(ValueError, match="column 'bmi' has no value at any node"):
        fit(nothing, missing="mean")


# ---------------------------------------------------------------------- files
def write(folder, frames, ending):
    paths = []
    for name, frame in frames.items():
        path = folder / f"{name}.{ending}"
        if ending == "csv":
            frame.to_csv(path, index=False)
        elif ending == "parquet":
            parquet.write_table(pyarrow.Table.from_pandas(frame, preserve_index=False), path)
        else:
            np.savez(path, X=frame.to_numpy(), columns=np.array(list(frame.columns)))
        paths.append(str(path))
    return paths


def run(*arguments):
    from dekpca.cli import app

    return CliRunner().invoke(app, list(map(str, arguments)), catch_exceptions=False)


@pytest.mark.parametrize("ending", ["csv", "parquet", "npz"])
@pytest.mark.parametrize("solver", ["projection,n_landmarks=60", "auto"])
@pytest.mark.parametrize("more", [[], ["--standardize"]], ids=["raw", "standardized"])
def test_files_in_another_order_change_no_bit(tmp_path, ending, solver, more):
    values = []
    for kind, frames in (("ordered", PARTS), ("shuffled", shuffled(PARTS))):
        (tmp_path / kind).mkdir()
        paths = write(tmp_path / kind, frames, ending)
        out = ["--out", tmp_path / kind / "models", "--json"]
        done = run("fit", *paths, "--solver", solver, *out, *more)
        assert done.exit_code == 0, done.stderr
        assert ("another order" in done.stderr) == (kind == "shuffled")
        out = tmp_path / kind / "values.npy"
        assert (
            run(
                "transform",
                tmp_path / kind / "models",
                tmp_path / "shuffled" / f"rome.{ending}" if kind == "shuffled" else paths[1],
                "--out",
                out,
            ).exit_code
            == 0
        )
        values.append((json.loads(done.stdout)["eigenvalues"], np.load(out)))
    assert values[0][0] == values[1][0]
    np.testing.assert_array_equal(values[0][1], values[1][1])


@pytest.mark.parametrize(
    ("kind", "ending"),
    [(kind, "csv") for kind in KINDS] + [(kind, "parquet") for kind in KINDS if kind != "duplicated"],
)
def test_files_with_other_names_are_refused(tmp_path, kind, ending):
    frame, says = broken(kind)
    good = write(tmp_path, PARTS, ending)
    assert run("fit", *good, "--out", tmp_path / "models").exit_code == 0
    (tmp_path / "bad").mkdir()
    (bad,) = write(tmp_path / "bad", {"rome": frame}, ending)
    for command in (
        ["fit", good[0], bad, good[2], "--out", tmp_path / "other"],
        ["transform", tmp_path / "models", bad],
    ):
        done = run(*command)
        assert done.exit_code == 2
        assert says in done.stderr
        assert "rome" in done.stderr or "transform" in command
        assert not (tmp_path / "other" / "rome.npz").exists()


TABLE = """patient_id,town,age,blood,admitted,weight,notes
17,oslo,41,A,2020-01-01,80,ok
18,rome,38,B,2020-01-02,,fine
19,rome,61,A,2020-01-03,70,NA
20,oslo,55,0,2020-01-04,90,-
21,rome,29,0,2020-01-05,66,
22,oslo,47,B,2020-01-06,71,x
"""


def test_roles_of_columns(tmp_path):
    (tmp_path / "rows.csv").write_text(TABLE)
    usual = [
        "fit",
        tmp_path / "rows.csv",
        "--owner",
        "town",
        "--drop",
        "admitted,notes",
        "--one-hot",
        "blood",
        "-k",
        "1",
        "--out",
        tmp_path / "models",
        "--json",
    ]
    done = run(*usual, "--id", "patient_id", "--missing", "drop")
    assert done.exit_code == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["feature_names"] == ["age", "weight", "blood=0", "blood=A", "blood=B"]
    assert (told["rows"], told["rows_dropped"]) == (5, 1)
    # the model remembers which columns are no features, and carries the id
    for ending, read in (("csv", pd.read_csv), ("parquet", pd.read_parquet)):
        out = tmp_path / f"values.{ending}"
        done = run("transform", tmp_path / "models", tmp_path / "rows.csv", "--missing", "drop", "--out", out)
        assert done.exit_code == 0, done.stderr
        assert "1 rows with missing values left out" in done.stdout
        found = read(out)
        assert list(found.columns) == ["patient_id", "component 1"]
        assert found["patient_id"].astype(int).tolist() == [17, 19, 20, 21, 22]
    (tmp_path / "new.csv").write_text("weight,blood,age\n70,B,40\n")  # without the columns that are not needed
    done = run("transform", tmp_path / "models", tmp_path / "new.csv", "--out", tmp_path / "one.npy")
    assert done.exit_code == 0, done.stderr
    (tmp_path / "new.csv").write_text("weight,blood,age\n70,AB,40\n")
    done = run("transform", tmp_path / "models", tmp_path / "new.csv")
    assert done.exit_code == 2
    assert "'blood' holds 'AB' in line 2, which is not among its categories '0', 'A', 'B'" in done.stderr
    # an id that is not named as such draws a warning
    done = run(*usual, "--missing", "mean")
    assert "warning: " in done.stderr
    assert "column 'patient_id' has another whole number in every row, as an id has" in done.stderr
    for asked in (["--missing", "mean"], []):  # a model that has means fills by default, as in Python
        out = tmp_path / f"{len(asked)}.npy"
        done = run("transform", tmp_path / "models", tmp_path / "rows.csv", *asked, "--out", out)
        assert np.load(out).shape == (6, 1)


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (
            ["--drop", "notes,admitted", "--one-hot", "blood"],
            "column 'weight' has no value (NaN) in line 3; rows with missing values: 1 of 6;",
        ),
        (["--drop", "note"], "no column or array 'note'; did you mean 'notes'?"),
        (["--columns", "Age"], "no column or array 'Age'; did you mean 'age'?"),
        (
            ["--drop", "notes,admitted"],
            "column 'blood' holds 'A' in line 2, which is no number; drop the column, make a feature of each category (--one-hot blood)",
        ),
        (["--drop", "notes", "--one-hot", "blood"], "column 'admitted' holds '2020-01-01'"),
        (["--columns", "age", "--drop", "age"], "column 'age' cannot be a feature and something else"),
        (["--columns", "age", "--missing", "median"], "missing='median'"),
    ],
)
def test_what_is_wrong_with_columns_is_said(tmp_path, more, says):
    (tmp_path / "rows.csv").write_text(TABLE)
    done = run("fit", tmp_path / "rows.csv", "--owner", "town", "-k", "1", "--out", tmp_path / "models", *more)
    assert done.exit_code == 2
    assert says in done.stderr.replace("\n", "")


def test_parquet_types(tmp_path):
    frame = pd.DataFrame(
        {
            "a": [1, 2, None],
            "b": [True, False, True],
            "c": pd.Categorical(["x", "y", "x"]),
            "d": pd.to_datetime(["2020-01-01"] * 3),
        }
    )
    frame["a"] = frame["a"].astype("Int64")
    write(tmp_path, {"rows": frame}, "parquet")
    path = tmp_path / "rows.parquet"
    for roles, says in (
        ({}, "column 'c' holds dictionary"),
        ({"one_hot": {"c": None}}, "column 'd' holds dates or times"),
    ):
        with pytest.raises(data.DataError, match=says):
            data.read(path, data.Roles(**roles))
    found = data.read(path, data.Roles(one_hot={"c": None}, drop=["d"]), missing="mean")
    np.testing.assert_array_equal(found.X, [[1, 1, 1, 0], [2, 0, 0, 1], [np.nan, 1, 1, 0]])
    assert found.names == ("a", "b", "c=x", "c=y")


def test_a_long_csv_field_is_no_crash(tmp_path):
    (tmp_path / "rows.csv").write_text('a,b\n1,"' + "x" * 200_000 + '"\n')
    done = run("fit", tmp_path / "rows.csv")
    assert done.exit_code == 2
    assert "not a csv file that can be read (field larger than field limit" in done.stderr


# ---------------------------------------------------------------------- ranks
@pytest.mark.slow
@pytest.mark.parametrize("kinds", [["shuffled"], ["ordered", "shuffled"]])
def test_ranks_take_columns_by_name(tmp_path, monkeypatch, launched, kinds):
    told = []
    for kind in kinds:
        frames = PARTS if kind == "ordered" else shuffled(PARTS)
        (tmp_path / kind).mkdir()
        paths = write(tmp_path / kind, frames, "csv")
        monkeypatch.chdir(tmp_path / kind)
        done = launched("-n", 2, "--", "fit", *paths, "--standardize", "--json")
        assert done.returncode == 0, done.stderr
        told.append(json.loads(done.stdout)["eigenvalues"])
    assert told[0] == told[-1]
    here = fit(PARTS, standardize=True)
    np.testing.assert_allclose(told[0], here.eigenvalues_, rtol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["renamed", "missing"])
def test_ranks_refuse_other_names(tmp_path, monkeypatch, launched, kind):
    frame, says = broken(kind)
    paths = write(tmp_path, PARTS | {"rome": frame}, "csv")
    monkeypatch.chdir(tmp_path)
    done = launched("-n", 2, "--", "fit", *paths)
    assert done.returncode == 2
    assert (
        says in done.stderr
        or "unknown 'height' (did you mean 'heigth'?)" in done.stderr
        or "unknown 'bmi'" in done.stderr
    )
    assert "Traceback" not in done.stderr
    assert not list((tmp_path / "dekpca-models").glob("*.npz"))


def test_a_file_of_another_table_is_said_first(tmp_path):
    (tmp_path / "a.csv").write_text("u,v\n1,2\n3,5\n8,1\n")
    (tmp_path / "b.csv").write_text("name,u\nx,2\n")
    run("fit", tmp_path / "a.csv", "-k", "1", "--out", tmp_path / "models")
    done = run("transform", tmp_path / "models", tmp_path / "b.csv", "--out", tmp_path / "z.csv")
    assert done.exit_code == 2
    assert "b.csv: the columns are not those of the model: unknown 'name'; missing 'v'" in done.stderr
