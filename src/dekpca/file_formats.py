"""File formats: npz, npy, csv, parquet, read and written; MATLAB's mat and MNIST's idx, read.

`open_source` makes a `Source` of a file: columns by name, or a matrix. data.py has the roles of the columns.
"""

from __future__ import annotations

import csv
import gzip
import io
import re
import struct
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from .columns import ENCODE_DATES
from .files import atomic_write
from .network import listing

SAMPLES = (
    "X",
    "data",
    "fea",
)  # names of the matrix in an archive, by precedence; fea and gnd are common in .mat files
LABELS = ("y", "labels", "label", "target", "gnd")
NAMES = ("columns", "feature_names", "names")  # arrays of an archive that name the columns of the matrix
IDX_TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
ABSENT = frozenset({"", "na", "n/a", "#n/a", "nan", "null", "none", "<na>", "?"})  # cells without a value, in any case
CHUNK = 10_000  # lines of a csv file held as texts at a time


class DataError(ValueError):
    """A file that cannot be read as samples."""


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Translate errors of the libraries that read files."""
    if not path.is_file():
        raise DataError(f"{path}: no such file" + (", it is a folder" if path.is_dir() else ""))
    try:
        yield
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path}: not text in UTF-8 ({error.reason} at byte {error.start}); save it as UTF-8"
        ) from error
    except csv.Error as error:
        raise DataError(f"{path}: not a csv file that can be read ({error}); check its quotes") from error
    except (EOFError, BadZipFile, zlib.error, struct.error) as error:
        raise DataError(f"{path}: the file is damaged or empty ({error})") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from error


class Source(ABC):
    """A file, opened: the names of its columns, and how to read some of them."""

    def __init__(self, names: Sequence[str], named: bool):
        self.names = list(names)
        self.named = named  # whether the names come from the file; otherwise they are numbers
        self.beside: dict[str, np.ndarray] = {}  # other arrays of the archive, with one value per row

    @abstractmethod
    def read(self, numbers: Sequence[str], values: Sequence[str]) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """The columns `numbers` as a matrix, NaN for missing values; and the columns `values` unchanged."""

    def where(self, row: int) -> str:
        """The place of a row in the file."""
        return f"row {row}"


class Matrix(Source):
    """A file that holds the matrix as a whole."""

    def __init__(self, path: Path, X: np.ndarray, names: Any = None, beside: Mapping[str, np.ndarray] | None = None):
        if X.ndim != 2 or 0 in X.shape:
            raise DataError(f"{path}: the samples have shape {X.shape}, expected rows and columns")
        super().__init__([str(i) for i in range(X.shape[1])] if names is None else names, names is not None)
        if len(self.names) != X.shape[1]:
            raise DataError(
                f"{path}: {len(self.names)} names for the {X.shape[1]} columns of the samples; give each a name"
            )
        self.path, self.X, self.beside = path, X, dict(beside or {})

    def read(self, numbers: Sequence[str], values: Sequence[str]) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        places = {name: i for i, name in enumerate(self.names)}
        chosen = [places[name] for name in numbers]
        X = self.X if chosen == list(range(self.X.shape[1])) else self.X[:, chosen]
        found = {name: self.beside[name] if name in self.beside else self.X[:, places[name]] for name in values}
        for name, column in found.items():
            if column.shape != (len(X),):
                raise DataError(
                    f"{self.path}: {name} has shape {column.shape}, expected one value for each of the {len(X)} rows"
                )
        return X, found


class Csv(Source):
    """A text file of lines with a cell for each column."""

    def __init__(self, path: Path, names: Sequence[str], named: bool, header: bool, delimiter: str):
        super().__init__(names, named)
        self.path, self.header, self.delimiter = path, header, delimiter
        self._lines: np.ndarray = np.empty(0, dtype=np.int64)

    def where(self, row: int) -> str:
        return f"line {self._lines[row]}"

    def read(self, numbers: Sequence[str], values: Sequence[str]) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        places = {name: i for i, name in enumerate(self.names)}
        matrices: list[np.ndarray] = []
        texts: dict[str, list[str]] = {name: [] for name in values}
        lines: list[int] = []
        with self.path.open(newline="", encoding="utf-8-sig") as file:
            rows = self._rows(file)
            while some := list(islice(rows, CHUNK)):
                at = [line for line, _ in some]
                lines += at
                cells = list(zip(*(row for _, row in some), strict=True))
                block = np.empty((len(some), len(numbers)))
                for i, name in enumerate(numbers):
                    block[:, i] = self._parsed(name, cells[places[name]], at)
                matrices.append(block)
                for name in values:
                    texts[name] += [cell.strip() for cell in cells[places[name]]]
        self._lines = np.array(lines, dtype=np.int64)
        X = np.concatenate(matrices) if matrices else np.empty((0, len(numbers)))
        return X, {name: np.array(column, dtype=str) for name, column in texts.items()}

    def _rows(self, file: Any) -> Iterator[tuple[int, list[str]]]:
        reader = csv.reader(file, delimiter=self.delimiter)
        if self.header:
            next(reader)
        for row in reader:
            if not row:
                continue
            if len(row) != len(self.names):
                raise DataError(
                    f"{self.path}: line {reader.line_num} has {len(row)} cells, the first line {len(self.names)}; give every row all columns"
                )
            yield reader.line_num, row

    def _parsed(self, name: str, cells: Sequence[str], lines: Sequence[int]) -> Any:
        try:
            return np.array(cells, dtype=np.float64)
        except ValueError:
            pass  # some cell is not a number: convert one by one
        found = np.empty(len(cells))
        for i, cell in enumerate(cells):
            if is_absent(cell):
                found[i] = np.nan
                continue
            try:
                found[i] = float(cell)
            except ValueError as error:
                hint = (
                    "write a decimal point, not a comma"
                    if re.fullmatch(r"\s*[-+]?\d+,\d+\s*", cell)
                    else _not_a_number(name)
                )
                raise DataError(
                    f"{self.path}: column {name!r} holds {cell[:60]!r} in line {lines[i]}, which is no number; {hint}"
                ) from error
        return found


class Parquet(Source):
    """Typed columns."""

    def __init__(self, path: Path, table: Any):
        super().__init__(table.column_names, True)
        self.path, self.table = path, table

    def read(self, numbers: Sequence[str], values: Sequence[str]) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        import pyarrow.types as types

        columns = []
        for name in numbers:
            column = self.table[name]
            if types.is_temporal(column.type):
                raise DataError(
                    f"{self.path}: column {name!r} holds dates or times ({column.type}); {ENCODE_DATES}, or drop the column"
                )
            if types.is_decimal(column.type):
                column = column.cast("float64")
            if not (types.is_floating(column.type) or types.is_integer(column.type) or types.is_boolean(column.type)):
                raise DataError(f"{self.path}: column {name!r} holds {column.type}, not numbers; {_not_a_number(name)}")
            if column.null_count and not types.is_floating(column.type):
                column = column.cast("float64")
            columns.append(column.to_numpy())
        X = np.column_stack(columns) if columns else np.empty((len(self.table), 0))
        return X, {name: self.table[name].to_numpy() for name in values}


def _not_a_number(name: str) -> str:
    return f"drop the column, make a feature of each category (one-hot {name}), or name it as the id, owner or label"


def is_absent(value: Any) -> bool:
    return value is None or value != value or (isinstance(value, str) and value.strip().lower() in ABSENT)


def open_source(path: Path, mentioned: set[str]) -> Source:
    """`mentioned` are columns that must exist; they identify a header."""
    name = path.name.removesuffix(".gz")
    if "-idx" in name or ".idx" in name:
        return _open_idx(path)
    readers: dict[str, Callable[[Path], Source]] = {
        ".npz": _open_npz,
        ".npy": _open_npy,
        ".csv": lambda path: _open_csv(path, mentioned),
        ".tsv": lambda path: _open_csv(path, mentioned),
        ".parquet": _open_parquet,
        ".mat": _open_mat,
    }
    if path.suffix.lower() not in readers:
        raise DataError(
            f"{path}: unknown format {path.suffix or '(no ending)'}; known are {', '.join(readers)} and idx"
        )
    return readers[path.suffix.lower()](path)


def _open_npz(path: Path) -> Source:
    try:
        with np.load(path, allow_pickle=False) as file:
            return _from_arrays(path, {name: file[name] for name in file.files})
    except DataError:
        raise
    except ValueError as error:
        raise DataError(f"{path}: not a plain npz file; write it with numpy.savez, without Python objects") from error


def _open_npy(path: Path) -> Source:
    try:
        X = np.load(path, mmap_mode="r", allow_pickle=False)
    except ValueError as error:
        raise DataError(f"{path}: not a plain npy file; write it with numpy.save, without Python objects") from error
    return Matrix(path, _numbers(path, X, "the array"))


def _open_mat(path: Path) -> Source:
    from scipy.io import loadmat

    try:
        content = {name: x for name, x in loadmat(path).items() if not name.startswith("__")}
    except NotImplementedError as error:
        raise DataError(f"{path}: a MATLAB 7.3 file; save it with save(..., '-v7')") from error
    except Exception as error:
        raise DataError(f"{path}: not a MATLAB file ({error})") from error
    for name, x in content.items():  # MATLAB has no vectors
        if isinstance(x, np.ndarray) and x.ndim == 2 and 1 in x.shape and name not in SAMPLES:
            content[name] = x.ravel()
    return _from_arrays(path, content)


def _from_arrays(path: Path, arrays: Mapping[str, Any]) -> Source:
    """An archive has the matrix, possibly the names of its columns, and arrays with a value for each row."""
    named = next((name for name in NAMES if name in arrays and np.asarray(arrays[name]).dtype.kind in "US"), None)
    others = {name: np.asarray(x) for name, x in arrays.items() if name != named}
    tables = [name for name, x in others.items() if x.ndim == 2 and name not in LABELS]
    samples = next((name for name in SAMPLES if name in others), tables[0] if len(tables) == 1 else None)
    if samples is None:
        raise DataError(f"{path}: which array are the samples? It has {listing(arrays)}; name it X")
    X = _numbers(path, others.pop(samples), f"array {samples!r}")
    names = None if named is None else [str(name) for name in np.asarray(arrays[named]).ravel()]
    return Matrix(path, X, names, {name: x for name, x in others.items() if x.ndim == 1})


def _open_csv(path: Path, mentioned: set[str]) -> Source:
    with path.open(newline="", encoding="utf-8-sig") as file:
        first = file.readline(csv.field_size_limit() + 1)
        while first and not first.strip():
            first = file.readline(csv.field_size_limit() + 1)
        if not first:
            raise DataError(f"{path}: the file is empty")
        delimiter = max(",;\t", key=first.count)
        cells = next(csv.reader(io.StringIO(first + file.read(CHUNK) if '"' in first else first), delimiter=delimiter))
    header = _is_header(path, cells, mentioned)
    counted = [str(i) for i in range(len(cells))], [str(i + 1) for i in range(len(cells))]
    if not header or cells in counted:  # numbers do not count as names, as in a DataFrame
        return Csv(path, counted[0], False, header, delimiter)
    return Csv(path, [cell.strip() for cell in cells], True, header, delimiter)


def _is_header(path: Path, cells: list[str], mentioned: set[str]) -> bool:
    """Whether the first line names columns. Names may be numbers from 0 or 1 on, as pandas writes them; an ambiguous line is refused."""
    numbers = [_is_number(cell) for cell in cells]
    counted = [[str(i + start) for i in range(len(cells))] for start in (0, 1)]
    if len(cells) > 1 and cells in counted:
        return True
    if all(numbers):
        return False
    if all(cell.strip() for cell in cells) and (not any(numbers) or mentioned & {cell.strip() for cell in cells}):
        return True
    raise DataError(
        f"{path}: the first line has both numbers and text or empty cells, so it is unclear whether it names the columns; add a line of names"
    )


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _open_parquet(path: Path) -> Source:
    try:
        from pyarrow import ArrowInvalid, parquet
    except ImportError as error:
        raise DataError(f"{path}: reading parquet needs pyarrow; pip install 'dekpca[parquet]'") from error
    try:
        return Parquet(path, parquet.read_table(path))
    except ArrowInvalid as error:
        raise DataError(f"{path}: not a parquet file ({error})") from error


def _open_idx(path: Path) -> Source:
    images = _idx(path)
    beside = path.with_name(path.name.replace("images", "labels").replace("idx3", "idx1"))
    labels = {"labels": _idx(beside)} if beside != path and beside.is_file() else {}
    return Matrix(path, images.reshape(len(images), -1), None, labels)


def _idx(path: Path) -> np.ndarray:
    """The format of MNIST: two zeros, type, number of dimensions, the dimensions, the numbers."""
    with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
        head = file.read(4)
        if len(head) < 4 or head[:2] != b"\0\0" or head[2] not in IDX_TYPES:
            raise DataError(f"{path}: not an idx file, it starts with {head!r}")
        shape = struct.unpack(f">{head[3]}I", file.read(4 * head[3]))
        kind = np.dtype(IDX_TYPES[head[2]])
        size = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
        body = file.read(size + 1)
    if len(body) != size:
        raise DataError(f"{path}: {len(body)} bytes for shape {shape}, expected {size}; the file is damaged")
    return np.frombuffer(body, dtype=kind).reshape(shape)


def _numbers(path: Path, X: np.ndarray, what: str) -> np.ndarray:
    if not np.issubdtype(X.dtype, np.number) and X.dtype != bool:
        raise DataError(f"{path}: {what} holds {X.dtype}, not numbers; encode text as numbers or leave it out")
    if np.issubdtype(X.dtype, np.complexfloating):
        raise DataError(f"{path}: {what} holds complex numbers; use real ones")
    return X


def write_values(path: Path, values: np.ndarray, ids: np.ndarray | None = None, id_name: str = "id") -> None:
    """Component values (rows, k) to a .csv, .parquet or .npy file; ids come first (.npy has none)."""
    names = [f"component {i + 1}" for i in range(values.shape[1])]
    kind = path.suffix.lower()
    check_output(path)
    with atomic_write(path) as file:
        if kind == ".npy":
            np.save(file, values, allow_pickle=False)
        elif kind == ".csv":
            text = io.TextIOWrapper(file, encoding="utf-8", newline="")
            writer = csv.writer(text, lineterminator="\n")
            writer.writerow(names if ids is None else [id_name, *names])
            rows = values.tolist()
            writer.writerows(
                rows if ids is None else ([key, *row] for key, row in zip(ids.tolist(), rows, strict=True))
            )
            text.flush()
            text.detach()
        else:
            import pyarrow
            from pyarrow import parquet

            columns = {} if ids is None else {id_name: pyarrow.array(ids.tolist())}
            columns |= {name: pyarrow.array(values[:, i]) for i, name in enumerate(names)}
            parquet.write_table(pyarrow.table(columns), file)


def check_output(path: Path) -> None:
    """Refuse a file name whose format `write_values` does not know, or cannot write on this machine."""
    if path.suffix.lower() not in (".npy", ".csv", ".parquet"):
        raise ValueError(f"--out {path}: unknown format {path.suffix or '(no ending)'}; use .npy, .csv or .parquet")
    if path.suffix.lower() == ".parquet":
        try:
            import pyarrow.parquet  # noqa: F401
        except ImportError as error:
            raise DataError(f"{path}: writing parquet needs pyarrow; pip install 'dekpca[parquet]'") from error
