"""File formats: npz, npy, csv and parquet. `open_source` makes a `Source` of a file; reading.py has the roles of its columns."""

from __future__ import annotations

import csv
import io
import re
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from ..files import atomic_write
from ..network import listing
from .frames import ColumnError, column, is_null, matrix

SAMPLES = ("X", "data")  # names of the matrix in an archive, by precedence
LABELS = ("y", "labels", "label", "target")
NAMES = ("columns", "feature_names", "names")  # arrays of an archive that name the columns of the matrix
ABSENT = frozenset({"", "na", "n/a", "#n/a", "nan", "null", "none", "<na>", "?"})  # cells without a value, in any case
CHUNK = 10_000  # lines of a csv file held as texts at a time
NO_NUMBER = "drop the column, make a feature of each category (one-hot {}), or name it as the id, owner or label"

Values = dict[str, np.ndarray]


class DataError(ValueError):
    """A file that cannot be read as samples.

    Examples
    --------
    >>> from dekpca.data import DataError, read
    >>> try:
    ...     read("rows.mat")
    ... except DataError as error:
    ...     print("rows.mat" in str(error))
    True
    """


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Errors of this module, and of the libraries that read files, as a DataError that names the file."""
    try:
        if not path.is_file():
            raise DataError("no such file" + (", it is a folder" if path.is_dir() else ""))
        yield
    except ColumnError as error:  # names the file already
        raise DataError(str(error)) from error
    except DataError as error:
        raise DataError(f"{path}: {error}") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not text in UTF-8 ({error.reason} at byte {error.start}); save it so") from error
    except csv.Error as error:
        raise DataError(f"{path}: not a csv file that can be read ({error}); check its quotes") from error
    except (EOFError, BadZipFile, zlib.error) as error:
        raise DataError(f"{path}: the file is damaged or empty ({error})") from error
    except MemoryError as error:
        raise DataError(f"{path}: does not fit into memory; give every node a file of its own") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from error


class Source:
    """A file, opened: the names of its columns, and how to read some of them."""

    def __init__(self, names: Sequence[str] | int):
        self.named = not isinstance(names, int)
        self.names = list(map(str, range(names))) if isinstance(names, int) else list(names)
        self.beside: Values = {}  # other arrays of an archive, with a value for each row

    def read(self, numbers: Sequence[str], values: Sequence[str]) -> tuple[np.ndarray, Values]:
        """The columns `numbers` as a matrix, NaN for missing values; and the columns `values` unchanged."""
        raise NotImplementedError

    def where(self, row: int) -> str:
        return f"row {row}"


class Matrix(Source):
    """A file that holds the matrix as a whole."""

    def __init__(self, X: np.ndarray, what: str, names: Sequence[str] | None = None):
        if X.dtype.kind not in "biuf":
            raise DataError(f"{what} holds {X.dtype}, not numbers; encode text and complex numbers as real ones")
        if X.ndim != 2 or 0 in X.shape:
            raise DataError(f"the samples have shape {X.shape}, expected rows and columns")
        super().__init__(X.shape[1] if names is None else names)
        if len(self.names) != X.shape[1]:
            raise DataError(f"{len(self.names)} names for the {X.shape[1]} columns of the samples; give each a name")
        self.X = X

    def read(self, numbers: Sequence[str], values: Sequence[str]) -> tuple[np.ndarray, Values]:
        places = {name: i for i, name in enumerate(self.names)}
        X = self.X if list(numbers) == self.names else self.X[:, [places[name] for name in numbers]]
        found = {name: self.beside[name] if name in self.beside else self.X[:, places[name]] for name in values}
        for name, beside in found.items():
            if beside.shape != (len(X),):
                raise DataError(f"{name} has shape {beside.shape}, expected one value for each of the {len(X)} rows")
        return X, found


class Csv(Source):
    """A text file of lines with a cell for each column."""

    def __init__(self, path: Path, names: Sequence[str] | int, header: bool, delimiter: str):
        super().__init__(names)
        self.path, self.header, self.delimiter = path, header, delimiter
        self._lines: list[int] = []

    def where(self, row: int) -> str:
        return f"line {self._lines[row]}"

    def read(self, numbers: Sequence[str], values: Sequence[str]) -> tuple[np.ndarray, Values]:
        places = {name: i for i, name in enumerate(self.names)}
        matrices = [np.empty((0, len(numbers)))]
        texts: dict[str, list[str]] = {name: [] for name in values}
        self._lines = []
        with self.path.open(newline="", encoding="utf-8-sig") as file:
            rows = self._rows(file)
            while some := list(islice(rows, CHUNK)):
                cells = list(zip(*some, strict=True))
                block = np.empty((len(some), len(numbers)))
                for i, name in enumerate(numbers):
                    block[:, i] = self._parsed(name, cells[places[name]])
                matrices.append(block)
                for name in values:
                    texts[name] += [cell.strip() for cell in cells[places[name]]]
        return np.concatenate(matrices), {name: np.array(cells, dtype=str) for name, cells in texts.items()}

    def _rows(self, file: Any) -> Iterator[list[str]]:
        reader = csv.reader(file, delimiter=self.delimiter)
        if self.header:
            next(reader)
        for row in filter(None, reader):
            if len(row) != len(self.names):
                cells = f"{len(row)} cells, the first line {len(self.names)}"
                raise DataError(f"line {reader.line_num} has {cells}; give every row all columns")
            self._lines.append(reader.line_num)
            yield row

    def _parsed(self, name: str, cells: Sequence[str]) -> np.ndarray:
        try:
            return np.array(cells, dtype=np.float64)
        except ValueError:  # some cell has no value, or no number
            cells = ["nan" if is_absent(cell) else cell for cell in cells]
        for i, cell in enumerate(cells):
            if not _is_number(cell):
                comma = re.fullmatch(r"\s*[-+]?\d+,\d+\s*", cell)
                hint = "write a decimal point, not a comma" if comma else NO_NUMBER.format(name)
                line = self.where(i - len(cells))  # of the chunk that was read last
                raise DataError(f"column {name!r} holds {cell[:60]!r} in {line}, which is no number; {hint}")
        return np.array([float(cell) for cell in cells])


def is_absent(value: Any) -> bool:
    return is_null(value) or (isinstance(value, str) and value.strip().lower() in ABSENT)


def open_source(path: Path, mentioned: set[str]) -> Source:
    """`mentioned` are columns that must exist; they identify a header."""
    kind = path.suffix.lower()
    if kind in (".npz", ".npy"):
        return _open_numpy(path)
    if kind in (".csv", ".tsv"):
        return _open_csv(path, mentioned)
    if kind == ".parquet":
        return Parquet(path)
    raise DataError(f"unknown format {kind or '(no ending)'}; known are .npz, .npy, .csv, .tsv and .parquet")


def _open_numpy(path: Path) -> Source:
    """A matrix; or an archive of the matrix, possibly the names of its columns, and arrays with a value for each row."""
    try:
        loaded = np.load(path, mmap_mode="r", allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            return Matrix(loaded, "the array")
        with loaded:
            arrays: dict[str, np.ndarray] = dict(loaded)
    except DataError:
        raise
    except ValueError as error:
        raise DataError(f"not a plain {path.suffix[1:]} file; use numpy.save or savez, without objects") from error
    named = next((name for name in NAMES if name in arrays and arrays[name].dtype.kind in "US"), None)
    tables = [name for name, x in arrays.items() if x.ndim == 2 and name not in (*LABELS, named)]
    samples = next((name for name in SAMPLES if name in arrays), tables[0] if len(tables) == 1 else None)
    if samples is None:
        raise DataError(f"which array are the samples? It has {listing(arrays)}; name it X")
    names = None if named is None else [str(name) for name in arrays[named].ravel()]
    source = Matrix(arrays[samples], f"array {samples!r}", names)
    source.beside = {name: x for name, x in arrays.items() if x.ndim == 1 and name != named}
    return source


def _open_csv(path: Path, mentioned: set[str]) -> Source:
    with path.open(newline="", encoding="utf-8-sig") as file:
        limit = csv.field_size_limit() + 1
        first = next((line for line in iter(lambda: file.readline(limit), "") if line.strip()), None)
        if first is None:
            raise DataError("the file is empty")
        delimiter = max(",;\t", key=first.count)
        cells = next(csv.reader(io.StringIO(first + file.read(CHUNK) if '"' in first else first), delimiter=delimiter))
    names = [cell.strip() for cell in cells]
    numbers = [_is_number(cell) for cell in cells]
    if any(cells == [str(i + start) for i in range(len(cells))] for start in (0, 1)):  # as pandas numbers columns
        return Csv(path, len(cells), len(cells) > 1, delimiter)  # numbers do not count as names, as in a DataFrame
    if all(numbers):
        return Csv(path, len(cells), False, delimiter)
    if all(names) and (not any(numbers) or mentioned & set(names)):
        return Csv(path, names, True, delimiter)
    unclear = "the first line has both numbers and text or empty cells, so it is unclear whether it names the columns"
    raise DataError(f"{unclear}; add a line of names")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


class Parquet(Source):
    """Typed columns."""

    def __init__(self, path: Path):
        pyarrow = _pyarrow()
        try:
            self.table = pyarrow.parquet.read_table(path)
        except pyarrow.ArrowInvalid as error:
            raise DataError(f"not a parquet file ({error})") from error
        super().__init__(self.table.column_names)
        self.path = path

    def read(self, numbers: Sequence[str], values: Sequence[str]) -> tuple[np.ndarray, Values]:
        X = matrix(self.table, str(self.path), NO_NUMBER, numbers)
        return X, {name: column(self.table, self.names.index(name))[0] for name in values}


def _pyarrow() -> Any:
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise DataError("parquet needs pyarrow; pip install 'dekpca[parquet]'") from error
    return pyarrow


def write_values(path: Path, values: np.ndarray, ids: np.ndarray | None = None, id_name: str = "id") -> None:
    """Component values (rows, k) to a .csv, .parquet or .npy file; ids come first (.npy has none)."""
    columns = {} if ids is None else {id_name: ids}
    columns |= {f"component {i + 1}": x for i, x in enumerate(values.T)}
    with atomic_write(path) as file:
        if path.suffix.lower() == ".npy":
            np.save(file, values, allow_pickle=False)
        elif path.suffix.lower() == ".csv":
            text = io.TextIOWrapper(file, encoding="utf-8", newline="")
            writer = csv.writer(text, lineterminator="\n")
            writer.writerow(columns)
            writer.writerows(zip(*(x.tolist() for x in columns.values()), strict=True))
            text.detach()
        else:
            pyarrow = _pyarrow()
            pyarrow.parquet.write_table(pyarrow.table(columns), file)


def check_output(path: Path) -> None:
    """Refuse a file name whose format `write_values` does not know, or cannot write on this machine."""
    if path.suffix.lower() not in (".npy", ".csv", ".parquet"):
        raise ValueError(f"--out {path}: unknown format {path.suffix or '(no ending)'}; use .npy, .csv or .parquet")
    if path.suffix.lower() == ".parquet":
        _pyarrow()
