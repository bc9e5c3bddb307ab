"""DataFrames and tables: those of pandas, polars and pyarrow give the same bits; what cannot be taken is refused in a sentence."""

from __future__ import annotations

import decimal
import logging

import numpy as np
import pandas as pd
import pyarrow
import pytest

from dekpca import DecentralizedKernelPCA, baselines, metrics
from dekpca.data import one_hot
from dekpca.data.columns import ColumnError, Samples

RNG = np.random.default_rng(3)
ROWS = 90
PENGUINS = pd.DataFrame(
    {
        "bill": RNG.normal(40, 5, ROWS),
        "island": np.repeat(["Biscoe", "Dream", "Torgersen"], ROWS // 3),
        "mass": RNG.integers(2700, 6300, ROWS),
        "adult": RNG.random(ROWS) < 0.5,
    }
)
NUMBERS = PENGUINS.drop(columns="island")


def as_polars(frame):
    return pytest.importorskip("polars").from_arrow(as_pyarrow(frame))


def as_pyarrow(frame):
    return pyarrow.Table.from_pandas(frame, preserve_index=False)


MAKE = {"pandas": lambda frame: frame, "polars": as_polars, "pyarrow": as_pyarrow}
libraries = pytest.mark.parametrize("make", MAKE.values(), ids=MAKE)


def model(**settings):
    return DecentralizedKernelPCA(2, **{"random_state": 0, "standardize": True, **settings})


@libraries
def test_every_library_gives_the_same_bits(make):
    ours = model(network=3).fit(make(NUMBERS))
    theirs = model(network=3).fit(NUMBERS.astype(float))
    assert list(ours.feature_names_in_) == ["bill", "mass", "adult"]
    np.testing.assert_array_equal(ours.transform(make(NUMBERS)), theirs.transform(NUMBERS.astype(float)))
    node = ours.node_models_[1]
    np.testing.assert_array_equal(node.transform(make(NUMBERS)), node.transform(NUMBERS[["mass", "adult", "bill"]]))
    parts = model().fit_parts(make(NUMBERS[start : start + 30]) for start in (0, 30, 60))  # a generator
    assert parts.node_sizes_.tolist() == [30, 30, 30]
    central = baselines.central(make(NUMBERS), 2, standardize=True)
    assert metrics.agreement(ours, central, make(NUMBERS)).min() > 0.99


@libraries
def test_nodes_may_be_a_column(make):
    frame = make(PENGUINS)
    ours = model(max_landmarks=40)
    Z = ours.fit_transform(frame, nodes="island")
    theirs = model(max_landmarks=40).fit(NUMBERS, nodes=PENGUINS["island"])
    assert ours.network_.names == ("Biscoe", "Dream", "Torgersen")
    assert list(ours.feature_names_in_) == ["bill", "mass", "adult"]
    np.testing.assert_array_equal(ours.nodes_, theirs.nodes_)
    np.testing.assert_array_equal(Z, theirs.transform(NUMBERS))
    np.testing.assert_array_equal(Z, ours.transform(make(NUMBERS)))
    with pytest.raises(ColumnError, match=r"nodes='Island': no column or array 'Island'; did you mean 'island'?"):
        model().fit(frame, nodes="Island")
    with pytest.raises(ValueError, match="island"):  # fitted anew, it is an unknown column
        ours.fit(make(NUMBERS)).transform(frame)


def test_a_column_of_owners_needs_a_frame_and_a_label_in_each_row():
    with pytest.raises(ColumnError, match="nodes='island': no column or array 'island'; it has no named columns"):
        model().fit(NUMBERS.to_numpy(dtype=float), nodes="island")
    for nothing in (None, np.nan, pd.NA):
        islands = PENGUINS["island"].astype(object)
        islands[7] = nothing
        with pytest.raises(ValueError, match="no label in row 7"):
            model().fit(PENGUINS.assign(island=islands), nodes="island")


# ---------------------------------------------------------------------- missing values
def with_holes(frame=NUMBERS):
    holes = frame.astype({"bill": float, "mass": "Int64", "adult": "boolean"})
    holes.loc[4, "bill"], holes.loc[[4, 50], "mass"], holes.loc[61, "adult"] = np.nan, pd.NA, pd.NA
    return holes


def test_missing_values_of_every_type_are_nan():
    expected = with_holes().to_numpy(dtype=float, na_value=np.nan)
    polars = pytest.importorskip("polars")
    table = as_pyarrow(with_holes())
    for frame in (with_holes(), table, polars.from_arrow(table), with_holes().convert_dtypes(dtype_backend="pyarrow")):
        np.testing.assert_array_equal(Samples.of(frame, "X").X, expected)
    table = pyarrow.table({"a": pyarrow.array([decimal.Decimal("1.5"), None])})
    for frame in (table, polars.from_arrow(table), table.to_pandas()):
        np.testing.assert_array_equal(Samples.of(frame, "X").X, [[1.5], [np.nan]])


def test_float32_stays():
    narrow = NUMBERS.astype({"bill": "float32", "mass": "float32"})
    for make in (MAKE["pandas"], MAKE["pyarrow"]):
        assert Samples.of(make(narrow), "X").X.dtype == np.float32
    whole = pd.DataFrame(np.ones((4, 3), dtype=np.float32), columns=list("abc"))
    assert np.shares_memory(Samples.of(whole, "X").X, whole.to_numpy())


@libraries
def test_rows_with_missing_values_can_be_left_out(make, caplog):
    holes, without = with_holes().astype(float), with_holes().dropna().astype(float)
    with caplog.at_level(logging.INFO, "dekpca"):
        ours = model(network=3, missing="drop").fit(make(holes))
    assert "X: 3 of 90 rows lack a value and are left out" in caplog.messages
    theirs = model(network=3).fit(without)
    np.testing.assert_array_equal(ours.eigenvalues_, theirs.eigenvalues_)
    lost = np.isin(np.arange(ROWS), [4, 50, 61])
    np.testing.assert_array_equal(ours.nodes_ == -1, lost)
    np.testing.assert_array_equal(ours.nodes_[~lost], theirs.nodes_)
    Z = ours.transform(make(holes))
    assert np.isnan(Z[lost]).all()
    np.testing.assert_allclose(Z[~lost], theirs.transform(without), rtol=1e-12)  # other rows are multiplied together
    assert np.isnan(ours.transform(make(holes[4:5]))).all()
    with pytest.raises(
        ValueError,
        match=r"node \d, X: column 'bill' has no value \(NaN\) in row 4; rows with missing values: 3 of 90; correct or remove them$",
    ):
        ours.node_models_[0].transform(make(holes))


def test_left_out_rows_of_owners():
    holes = with_holes().assign(island=PENGUINS["island"])
    ours = model(missing="drop", max_landmarks=40).fit(holes, nodes="island")
    theirs = model(max_landmarks=40).fit(holes.dropna(), nodes="island")
    parts = {name: frame.drop(columns="island") for name, frame in holes.groupby("island")}
    split = model(missing="drop", max_landmarks=40).fit_parts(parts)
    for other in (ours, split):
        np.testing.assert_array_equal(other.eigenvalues_, theirs.eigenvalues_)
        assert other.node_sizes_.tolist() == [29, 29, 29]
    holes.loc[holes["island"] == "Dream", "bill"] = np.nan
    parts["Dream"] = parts["Dream"].assign(bill=np.nan)
    for work in (lambda: ours.fit(holes, nodes="island"), lambda: ours.fit_parts(parts)):
        with pytest.raises(ValueError, match="node Dream: every row lacks a value, so missing='drop' leaves none"):
            work()
    holes.loc[0, "bill"] = np.inf
    with pytest.raises(
        ValueError, match=r"'bill' is infinite in row 0, which belongs to node Biscoe; correct or remove the row$"
    ):
        model(missing="mean").fit(holes, nodes="island")


def test_missing_values_in_arrays_of_another_library():
    xp = pytest.importorskip("array_api_strict")
    X = RNG.normal(size=(60, 4))
    X[[3, 40], [1, 2]] = np.nan
    ours = model(network=2, missing="drop").fit(xp.asarray(X))
    theirs = model(network=2, missing="drop").fit(X)
    np.testing.assert_allclose(np.asarray(ours.transform(xp.asarray(X))), theirs.transform(X), rtol=1e-6, atol=1e-9)
    np.testing.assert_array_equal(ours.nodes_, theirs.nodes_)


# ---------------------------------------------------------------------- categories
@libraries
def test_one_hot(make):
    blood = pd.DataFrame({"age": [41.0, 38.0, 52.0], "blood": ["A", "B", None], "town": ["oslo", "rome", "rome"]})
    found = one_hot(make(blood), {"blood": ["0", "A", "B"]})
    assert type(found) is type(make(blood))
    frame = pd.DataFrame({name: np.asarray(found[name]) for name in ("age", "town", "blood=0", "blood=A", "blood=B")})
    assert frame["town"].tolist() == ["oslo", "rome", "rome"]
    expected = [[0, 1, 0], [0, 0, 1], [np.nan] * 3]
    np.testing.assert_array_equal(frame[["blood=0", "blood=A", "blood=B"]].to_numpy(dtype=float), expected)
    every = Samples.of(one_hot(make(blood)), "X")
    assert every.names == ("age", "blood=A", "blood=B", "town=oslo", "town=rome")
    np.testing.assert_array_equal(every.X[:, 3:], [[1, 0], [0, 1], [0, 1]])
    with pytest.raises(ColumnError, match="'blood' holds 'B' in row 1, which is not among its categories 'A'"):
        one_hot(make(blood), {"blood": ["A"]})
    with pytest.raises(ColumnError, match=r"no column or array 'bloods'; did you mean 'blood'?"):
        one_hot(make(blood), ["bloods"])
    with pytest.raises(TypeError, match=r"one_hot: columns='blood' is one text; give a list of names, \['blood'\]"):
        one_hot(make(blood), "blood")


def test_one_hot_is_that_of_files(tmp_path):
    from dekpca.data import Roles, read

    frame = PENGUINS.assign(island=PENGUINS["island"].mask(np.arange(ROWS) == 5))
    frame.astype({"adult": int}).to_csv(tmp_path / "rows.csv", index=False)
    data = read(tmp_path / "rows.csv", Roles(one_hot={"island": None}), missing="mean")
    ours = Samples.of(one_hot(frame, ["island"]), "X")
    assert ours.names == data.names
    np.testing.assert_array_equal(ours.X, data.X)


# ---------------------------------------------------------------------- refused
def lazy():
    return pytest.importorskip("polars").DataFrame({"a": [1.0, 2.0]}).lazy()


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lazy, r"a polars LazyFrame, which is a query without rows; call .collect\(\) first"),
        (lambda: (row for row in np.ones((4, 2))), "a generator, expected one array or DataFrame; fit_parts takes"),
        (
            lambda: pyarrow.table({"bill": [1, 2], "mass": ["x", "y"], "adult": [0, 1]}),
            "column 'mass' holds string, not numbers; dekpca.data.one_hot",
        ),
        (
            lambda: pyarrow.table({"bill": [[1, 2], [3]], "mass": [1, 2], "adult": [0, 1]}),
            "column 'bill' holds list<.*, not numbers",
        ),
        (lambda: as_polars(NUMBERS.assign(mass="x")), "column 'mass' holds (String|Object), not numbers"),
    ],
    ids=["LazyFrame", "generator", "texts of pyarrow", "lists", "texts of polars"],
)
def test_what_cannot_be_taken_is_refused_in_a_sentence(make, says):
    fitted = model().fit(NUMBERS)
    for work in (model().fit, fitted.transform, fitted.node_models_[0].transform, lambda X: model().fit_parts([X])):
        with pytest.raises((TypeError, ValueError), match=says):
            work(make())


def test_a_path_is_told_what_reads_it(tmp_path):
    for name, says in (
        ("x.npz", r"not rows; give dekpca\.data\.read\('.*x\.npz'\)\.samples$"),
        ("x.npy", r"give dekpca\.Rows\.from_npy\(.* to fit and transform, or dekpca\.data\.read\("),
        ("", r"give dekpca\.Rows\.from_parquet\("),
    ):
        with pytest.raises(TypeError, match=says):
            model().fit(str(tmp_path / name))


def test_a_column_of_texts_that_the_fit_had_not_is_unknown():
    fitted = model().fit(NUMBERS)
    new = NUMBERS.assign(town="oslo")
    with pytest.raises(ValueError, match=r"unseen at fit time:\n- town"):  # scikit-learn's words
        fitted.transform(new)
    with pytest.raises(ColumnError, match="the columns are not those of the fit: unknown 'town'"):
        fitted.node_models_[0].transform(new)
    with pytest.warns(UserWarning, match="does not have valid feature names") as said:
        fitted.transform(NUMBERS.set_axis(range(NUMBERS.shape[1]), axis=1))
    assert len(said) == 1


def test_dask_collections_are_for_the_estimator():
    rows = pytest.importorskip("dask.array").ones((4, 2))
    for work in (model().fit(NUMBERS).node_models_[0].transform, lambda X: model().fit_parts([X, X])):
        with pytest.raises(TypeError, match=r"a Dask Array, which only fit and transform of the estimator take; use X"):
            work(rows)


def test_one_frame_is_no_parts():
    for whole in (NUMBERS, as_pyarrow(NUMBERS)):
        with pytest.raises(ValueError, match=r"fit_parts takes one array for each node, but got one \w+; use fit\(X\)"):
            model().fit_parts(whole)
    for parts in ([NUMBERS, NUMBERS], {"a": NUMBERS, "b": NUMBERS}):
        with pytest.raises(ValueError, match=r"fit takes one array, but got a (list|dict) of 2; use fit_parts"):
            model().fit(parts)


@libraries
def test_numbers_of_rows_as_a_feature_are_warned_of(make):
    for name in ("customer_id", "patient", "Unnamed: 0"):
        frame = make(NUMBERS.assign(**{name: range(ROWS)}))
        for fit in (model(network=1).fit, lambda X: model(network=1).fit_parts([X])):
            with pytest.warns(UserWarning, match=f"column '{name}' has another whole number in every row"):
                fit(frame)


@libraries
def test_the_column_of_owners_is_left_out_by_every_model(make):
    fitted = model().fit(make(PENGUINS), nodes="island")
    for node in (fitted.node_models_["Dream"], fitted.node_models_[0]):
        np.testing.assert_array_equal(node.transform(make(PENGUINS)), node.transform(make(NUMBERS)))


def test_all_columns_of_texts_are_named_at_once():
    frame = PENGUINS.assign(sex="f", day=pd.Timestamp("2024-01-01"))
    with pytest.raises(ColumnError, match=r"one_hot\(X, \['island', 'sex'\]\).*column 'day' holds dates or times"):
        model().fit(frame)


def test_what_is_no_frame_is_refused():
    with pytest.raises(TypeError, match="one_hot: a ndarray without names of columns"):
        one_hot(NUMBERS.to_numpy(), ["bill"])
    for fit, given in ((model().fit, "shop.csv"), (model().fit_parts, ["a.csv"]), (model().fit_parts, "a.csv")):
        with pytest.raises(TypeError, match=r"a path, not rows; give dekpca.Rows.from_csv\(.*dekpca.data.read\("):
            fit(given)
    with pytest.raises(TypeError, match="did you mean nodes='island'"):
        model().fit(PENGUINS, "island")
