"""Files of samples: every format gives the same numbers, and what is wrong is said in one line."""

from __future__ import annotations

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from dekpca.data import DataError, Roles, read

X = np.random.default_rng(0).normal(size=(7, 3))
Y = np.array([0, 1, 1, 0, 2, 2, 1])
OWNERS = np.array(["oslo", "rome", "rome", "oslo", "bonn", "bonn", "rome"])


def write_csv(path, header=True, delimiter=","):
    rows = [[owner, *map(repr, row.tolist()), str(y)] for owner, row, y in zip(OWNERS, X, Y, strict=True)]
    lines = [["town", "a", "b", "c", "y"]] * header + rows
    path.write_text("\n".join(delimiter.join(line) for line in lines) + "\n", encoding="utf-8")


def test_csv_with_owner_and_label(tmp_path):
    for delimiter in (",", ";", "\t"):
        write_csv(tmp_path / "rows.csv", delimiter=delimiter)
        data = read(tmp_path / "rows.csv", Roles(owner="town", label="y"))
        np.testing.assert_array_equal(data.X, X)
        assert data.owners.tolist() == OWNERS.tolist()
        assert data.labels.tolist() == [str(y) for y in Y]
    np.savetxt(tmp_path / "plain.csv", X, delimiter=",", fmt="%.17g")
    np.testing.assert_array_equal(read(tmp_path / "plain.csv").X, X)


def test_archives(tmp_path):
    np.savez(tmp_path / "rows.npz", X=X, y=Y, town=OWNERS)
    data = read(tmp_path / "rows.npz", Roles(owner="town"))
    np.testing.assert_array_equal(data.X, X)
    assert data.owners.tolist() == OWNERS.tolist()
    data = read(tmp_path / "rows.npz")
    np.testing.assert_array_equal(data.X, X)
    assert data.labels.tolist() == Y.tolist()


def test_npy_is_not_read_into_memory(tmp_path):
    np.save(tmp_path / "rows.npy", X)
    data = read(tmp_path / "rows.npy")
    assert isinstance(data.X, np.memmap)
    np.testing.assert_array_equal(data.X, X)


def test_parquet(tmp_path):
    table = pyarrow.table({"town": OWNERS, "a": X[:, 0], "b": X[:, 1], "c": X[:, 2], "y": Y})
    parquet.write_table(table, tmp_path / "rows.parquet")
    data = read(tmp_path / "rows.parquet", Roles(owner="town", label="y"))
    np.testing.assert_array_equal(data.X, X)
    assert data.owners.tolist() == OWNERS.tolist()
    with pytest.raises(DataError, match="column 'town' holds string, not numbers"):
        read(tmp_path / "rows.parquet", Roles(label="y"))


def test_the_first_line_is_a_header_or_it_is_not(tmp_path):
    path = tmp_path / "rows.csv"
    for text, rows in (
        ("0,1\n5,6\n7,8\n", 2),
        ("1,2\n5,6\n7,8\n", 2),
        ("a,b\n5,6\n", 1),
        ("5,6\n7,8\n", 2),
        ("town,2019\noslo,1\n", 1),
    ):
        path.write_text(text)
        owner = "town" if "town" in text else None
        assert len(read(path, Roles(owner=owner)).X) == rows
    for text in ("1,,3\n4,5,6\n", "oslo,1\nrome,2\n"):
        path.write_text(text)
        with pytest.raises(DataError, match="both numbers and text or empty cells"):
            read(path)


def test_a_column_called_y_is_the_label_in_every_format(tmp_path):
    (tmp_path / "rows.csv").write_text("a,b,y\n1,2,cat\n3,4,dog\n")
    parquet.write_table(
        pyarrow.table({"a": [1.0, 3.0], "b": [2.0, 4.0], "y": ["cat", "dog"]}), tmp_path / "rows.parquet"
    )
    for name in ("rows.csv", "rows.parquet"):
        data = read(tmp_path / name)
        assert data.X.tolist() == [[1, 2], [3, 4]]
        assert data.labels.tolist() == ["cat", "dog"]


def test_what_is_wrong_is_said(tmp_path):
    (tmp_path / "empty.csv").write_text("")
    (tmp_path / "text.csv").write_text("a,b\n1,2\n3,four\n")
    (tmp_path / "hole.csv").write_text("a,b\n1,2\n3,\n")
    (tmp_path / "infinite.csv").write_text("a,b\n1,2\n3,inf\n")
    (tmp_path / "ragged.csv").write_text("a,b\n1,2\n3\n")
    (tmp_path / "rows.mat").write_text("")
    (tmp_path / "broken.npz").write_text("no archive")
    (tmp_path / "broken.parquet").write_text("no archive")
    for name in ("empty.npz", "empty.npy"):
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "zip.npz").write_bytes(b"PK\x03\x04 no zip")
    (tmp_path / "latin.csv").write_bytes("a,b\n1,2\n\xe4,3\n".encode("latin-1"))
    np.savez(tmp_path / "two.npz", one=X, two=X)
    np.savez(tmp_path / "words.npz", X=OWNERS)
    np.savez(tmp_path / "short.npz", X=X, y=Y[:3])
    np.savez(tmp_path / "objects.npz", X=np.array([{}], dtype=object))
    np.save(tmp_path / "flat.npy", Y)
    for name, says, more in (
        ("missing.csv", "no such file", {}),
        ("", "it is a folder", {}),
        ("empty.csv", "the file is empty", {}),
        ("text.csv", "column 'b' holds 'four' in line 3, which is no number", {}),
        (
            "hole.csv",
            r"column 'b' has no value \(NaN\) in line 3; rows with missing values: 1 of 2; .*missing='drop'",
            {},
        ),
        ("infinite.csv", "column 'b' is infinite in line 3; correct or remove the row$", {}),
        ("ragged.csv", "line 3 has 1 cells, the first line 2", {}),
        ("rows.mat", "unknown format .mat; known are .npz", {}),
        ("text.csv", "no column or array 'town'; it has 'a', 'b'", {"owner": "town"}),
        ("broken.npz", "not a plain npz file", {}),
        ("broken.parquet", "not a parquet file", {}),
        ("two.npz", "which array are the samples. It has one, two; name it X", {}),
        ("words.npz", "array 'X' holds <U4, not numbers", {}),
        ("short.npz", r"y has shape \(3,\), expected one value for each of the 7 rows", {}),
        ("objects.npz", "not a plain npz file", {}),
        ("flat.npy", r"shape \(7,\), expected rows and columns", {}),
        ("empty.npz", "empty.npz: the file is damaged or empty", {}),
        ("empty.npy", "empty.npy: (the file is damaged or empty|not a plain npy)", {}),
        ("zip.npz", "zip.npz: the file is damaged", {}),
        ("latin.csv", "latin.csv: not text in UTF-8", {}),
    ):
        with pytest.raises(DataError, match=says):
            read(tmp_path / name, Roles(**more))


def test_csv_as_pandas_and_r_write_it(tmp_path):
    path = tmp_path / "rows.csv"
    for text in (",a,b\n0,1.5,True\n1,2.5,false\n", '"","a","b"\n"0",1.5,TRUE\n"1",2.5,FALSE\n'):
        path.write_text(text)
        found = read(path)
        assert found.names == ("a", "b")
        assert found.X.tolist() == [[1.5, 1], [2.5, 0]]
    path.write_text(",0,1\n0,1.5,2\n")
    assert read(path).names == ("0", "1")
    path.write_text("1,True\n2,False\n")  # no line of names
    assert read(path).X.tolist() == [[1, 1], [2, 0]]
    path.write_text("true,age\n1,41\n0,38\n")  # names, of which one is a truth value
    assert read(path).names == ("true", "age")
    path.write_text("flag\nTrue\nFalse\n")
    assert read(path, Roles(one_hot={"flag": None})).names == ("flag=False", "flag=True")


@pytest.mark.parametrize("rows", [[0, 0], [0.5, 1.5], ["oslo", "rome"]], ids=str)  # neither is like an id
def test_names_of_rows_without_a_name_are_no_feature_unless_asked_for(tmp_path, rows, caplog):
    path, named = tmp_path / "rows.csv", "Unnamed: 0"
    path.write_text(f",a,b\n{rows[0]},1,2\n{rows[1]},3,4\n")
    found = read(path)
    assert found.names == ("a", "b")
    assert found.ignored == (named,)
    assert "the first column has no name, so it is taken for names of rows" in caplog.text
    caplog.clear()
    assert read(path, Roles(id=named)).ids.tolist() == list(map(str, rows))
    assert read(path, Roles(columns=["a", "b"])).names == read(path, Roles(drop=[named])).names == ("a", "b")
    if isinstance(rows[0], float):
        assert read(path, Roles(columns=[named, "a"])).X.tolist() == [[rows[0], 1], [rows[1], 3]]
        assert read(path, Roles(keep=[named])).names == (named, "a", "b")  # as transform asks of a model with it
    assert not caplog.text


def test_all_columns_that_are_no_numbers_are_named(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text('a,town,day,cost,class\n1,oslo,2024-01-31,"1,304",x\n')
    with pytest.raises(DataError) as said:
        read(path)
    text = str(said.value)
    assert "'town' holds 'oslo' in line 2, which is no number (also 'class'); drop the columns" in text
    assert "(one_hot=['town', 'class'])" in text
    assert "'1,304' in line 2, which is no number; write numbers with a decimal point and without thousands" in text
    assert (
        "'2024-01-31' in line 2, which is no number; if it is a date or a time, encode it as a number, such as" in text
    )
    commas = [f"c{i}" for i in range(20)]
    path.write_text(f"{','.join(commas)}\n" + ",".join(['"1,304"'] * 20) + "\n")
    with pytest.raises(DataError, match=r"column 'c0' holds '1,304' .* \(also 'c1', 'c2'"):
        read(path)  # in the order of the file
    path.write_text("a,town,class\n1,oslo,x\n")
    with pytest.raises(DataError, match="--one-hot town --one-hot class"):
        read(path, Roles(interface="options"))
    for address in ("10.0.0.1", "1.2.3"):
        path.write_text(f"a,b\n1,{address}\n")
        with pytest.raises(DataError, match="one_hot="):
            read(path)
