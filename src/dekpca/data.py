"""Samples from files and component values to files: npz, npy, csv, parquet; reading also MATLAB's mat and MNIST's idx.

A reader makes a `Source` of a file: columns by name, or a matrix. `read` gives every column its role, turns features into numbers, and treats
missing values. Whatever is wrong with a file is said in one line with what to do about it.
"""

from __future__ import annotations

import csv
import gzip
import io
import logging
import re
import struct
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Literal
from zipfile import BadZipFile

import numpy as np

from .columns import ENCODE_DATES, Samples, check_unique, closest
from .files import atomic_write
from .network import listing

log = logging.getLogger("dekpca")

SAMPLES = (
    "X",
    "data",
    "fea",
)  # arrays of an archive that hold the matrix, in this order; fea and gnd are common in .mat files
LABELS = ("y", "labels", "label", "target", "gnd")
NAMES = ("columns", "feature_names", "names")  # arrays of an archive that name the columns of the matrix
IDX_TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
ABSENT = frozenset({"", "na", "n/a", "#n/a", "nan", "null", "none", "<na>", "?"})  # cells without a value, in any case
CHUNK = 10_000  # lines of a csv file held as texts at a time
LIKE_AN_ID = re.compile(r"(?i:(^|[\W_])(id|ids|key|uuid|guid|nr|no|number|index|idx)$|^unnamed: 0$)|[a-z]I[dD]$")

Missing = Literal["error", "drop", "mean"]
MISSING: tuple[Missing, ...] = ("error", "drop", "mean")


class DataError(ValueError):
    """A file that cannot be read as samples."""


@dataclass(frozen=True)
class Roles:
    """What the columns of a file are for. Columns with a role are not among the features.

    Parameters
    ----------
    owner, label, id : str, optional
        The column (or array of an archive) that names each row's node, its class, or the row itself. Without `label`, a column or array
        called y, label, labels, target or gnd is taken for it.
    columns : sequence of str, optional
        The features; the other columns are left out. Default: all columns without a role.
    drop : sequence of str
        Columns to leave out.
    one_hot : mapping of str to sequence of str or None
        Columns of categories, each of which becomes a feature called column=category with the values 0 and 1; None takes the categories
        that the file has.
    ignore : sequence of str
        Columns to leave out where they are there.
    keep : sequence of str
        Columns that are not taken for the label though they are called like one.
    """

    owner: str | None = None
    label: str | None = None
    id: str | None = None
    columns: Sequence[str] | None = None
    drop: Sequence[str] = ()
    one_hot: Mapping[str, Sequence[str] | None] = field(default_factory=dict)
    ignore: Sequence[str] = ()
    keep: Sequence[str] = ()

    @property
    def mentioned(self) -> list[str]:
        """Columns that must be there."""
        named = (self.owner, self.label, self.id, *(self.columns or ()), *self.drop, *self.one_hot)
        return [name for name in named if name is not None]


@dataclass(frozen=True, eq=False)
class Data:
    """Samples, and what else the file had for each row. A missing value that may stay is NaN."""

    X: np.ndarray
    names: tuple[str, ...] | None = None  # of the columns
    labels: np.ndarray | None = None
    owners: np.ndarray | None = None
    ids: np.ndarray | None = None
    dropped: int = 0  # rows left out because of missing values
    ignored: tuple[str, ...] = ()  # columns of the file that are neither features nor ids

    @property
    def samples(self) -> Samples:
        return Samples(self.X, self.names)


def read(path: str | Path, roles: Roles | None = None, missing: Missing = "error") -> Data:
    """The samples of a file, by its ending.

    Parameters
    ----------
    path : str or Path
        .npz (arrays "X" and, for labels, "y"; "columns" may name the columns of X), .npy (memory-mapped), .csv (comma, semicolon or tab, with
        or without a header), .parquet, .mat, or idx (MNIST's *-images-idx3-ubyte, plain or .gz; labels are taken from the *-labels-idx1-ubyte
        beside it).
    roles : Roles, optional
        What the columns are for.
    missing : {"error", "drop", "mean"}
        What to do about rows with missing values: refuse the file, leave the rows out, or keep NaN for the network's mean to take its place.

    Examples
    --------
    >>> import tempfile, pathlib
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "rows.csv"
    >>> _ = path.write_text("hospital,age,weight\\noslo,41,80\\nrome,38,75\\nrome,,70\\n")
    >>> data = read(path, Roles(owner="hospital"), missing="drop")
    >>> data.X.tolist(), data.names, data.owners.tolist(), data.dropped
    ([[41.0, 80.0], [38.0, 75.0]], ('age', 'weight'), ['oslo', 'rome'], 1)
    """
    path, roles = Path(path), roles or Roles()
    with _reading(path):
        source = _open(path, set(roles.mentioned))
        data, where = _take_roles(path, source, roles)
    data = _without_missing(path, data, missing, where)
    if data.names is not None and roles.columns is None:
        _warn_of_ids(path, data.names, data.X)
    return data


def column_names(path: str | Path) -> list[str]:
    """The names of a file's columns and, in an archive, of the arrays beside the samples."""
    path = Path(path)
    with _reading(path):
        source = _open(path, set())
    return [*source.names, *source.beside]


def categories(path: str | Path, column: str) -> set[str]:
    """The categories in a column of a file."""
    path = Path(path)
    with _reading(path):
        source = _open(path, {column})
        _check_known(path, source, [column])
        values = source.read([], [column])[1][column]
    return {str(v) for v in values if not _is_absent(v)}


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Errors of the libraries that read files, in our words."""
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


# ---------------------------------------------------------------------- formats
class Source(ABC):
    """A file, opened: the names of its columns, and how to read some of them."""

    def __init__(self, names: Sequence[str], named: bool):
        self.names = list(names)
        self.named = named  # whether the names are the file's own, and not just numbers
        self.beside: dict[str, np.ndarray] = {}  # arrays that stand beside the matrix, one value a row

    @abstractmethod
    def read(self, numbers: Sequence[str], values: Sequence[str]) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """The columns `numbers` as a matrix, NaN where a value is missing; and the columns `values` as they are."""

    def where(self, row: int) -> str:
        """Where a row of what was read stands in the file."""
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
            pass  # some cell is no number: look at each
        found = np.empty(len(cells))
        for i, cell in enumerate(cells):
            if _is_absent(cell):
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


def _is_absent(value: Any) -> bool:
    return value is None or value != value or (isinstance(value, str) and value.strip().lower() in ABSENT)


def _open(path: Path, mentioned: set[str]) -> Source:
    """`mentioned` are columns that must be there, by which a header is known."""
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
    """Of the arrays in an archive one is the matrix, one may name its columns, and others have a value for each row."""
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
    if not header or cells in counted:  # numbers are no names, as in a DataFrame
        return Csv(path, counted[0], False, header, delimiter)
    return Csv(path, [cell.strip() for cell in cells], True, header, delimiter)


def _is_header(path: Path, cells: list[str], mentioned: set[str]) -> bool:
    """Whether the first line names columns. Names may be numbers from 0 or 1 on, as pandas writes them; a line that may be either is refused."""
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


# ---------------------------------------------------------------------- roles
def _take_roles(path: Path, source: Source, roles: Roles) -> tuple[Data, Callable[[int], str]]:
    check_unique(source.names, str(path))
    _check_known(path, source, roles.mentioned)
    features = set(roles.columns or ()) | set(roles.one_hot)
    label = roles.label or _usual_label(path, source, roles, features)
    others = {roles.owner, label, roles.id, *roles.drop, *roles.ignore}
    clash = sorted(name for name in others & features if name is not None)
    if clash:
        raise DataError(
            f"{path}: column {listing(map(repr, clash))} cannot be a feature and something else; give it one role"
        )
    wanted = [*(n for n in roles.columns if n not in roles.one_hot), *roles.one_hot] if roles.columns else source.names
    chosen = [name for name in wanted if name not in others and name not in source.beside]
    numbers = [name for name in chosen if name not in roles.one_hot]
    if not chosen:
        raise DataError(f"{path}: no column is left for the features; it has {listing(map(repr, source.names))}")
    roled = {name for name in (roles.owner, label, roles.id) if name is not None}
    X, values = source.read(numbers, [*roled, *roles.one_hot])
    if not len(X):
        raise DataError(f"{path}: no rows; give at least one")
    names = [*numbers]
    for name, given in roles.one_hot.items():
        columns, made = _one_hot(path, name, values[name], given, source.where)
        X, names = np.column_stack([X, columns]), names + made
    return Data(
        X,
        tuple(names) if source.named or roles.one_hot else None,
        None if label is None else values[label],
        None if roles.owner is None else values[roles.owner],
        None if roles.id is None else values[roles.id],
        ignored=tuple(n for n in source.names if source.named and n not in chosen and n != roles.id),
    ), source.where


def _check_known(path: Path, source: Source, names: Sequence[str]) -> None:
    """Refuse names that the file does not have."""
    for name in names:
        if name in source.names or name in source.beside:
            continue
        known = [*source.beside, *(source.names if source.named else ())]
        has = listing(map(repr, known)) if known else "none"
        if not source.named:
            has += f" and columns without names, 0 to {len(source.names) - 1}"
        meant = closest(name, known)
        raise DataError(
            f"{path}: no column or array {name!r}; "
            + (f"it has {has}" if meant is None else f"did you mean {meant!r}?")
        )


def _usual_label(path: Path, source: Source, roles: Roles, features: set[str]) -> str | None:
    taken = {roles.owner, roles.id, *roles.drop, *features, *roles.keep}
    known = {*source.beside} | ({*source.names} if source.named else set())
    found = next((name for name in LABELS if name in known and name not in taken), None)
    if found is not None and found in source.names and roles.columns is None and found not in roles.ignore:
        log.info(
            f"{path}: column {found!r} is taken for the label, so it is not a feature; list the columns to make it one"
        )
    return found


def _one_hot(
    path: Path, name: str, values: np.ndarray, given: Sequence[str] | None, where: Callable[[int], str]
) -> tuple[np.ndarray, list[str]]:
    """A column of zeros and ones for each category; a row without a value has NaN in all of them."""
    absent = np.array([_is_absent(v) for v in values])
    texts = np.array([str(v) for v in values])
    found = sorted(set(texts[~absent]) if given is None else given)
    if not found:
        raise DataError(f"{path}: column {name!r} has no value, so no categories; drop the column")
    unknown = np.flatnonzero(~absent & ~np.isin(texts, found))
    if len(unknown):
        row = int(unknown[0])
        raise DataError(
            f"{path}: column {name!r} holds {str(texts[row])!r} in {where(row)}, which is not among its categories {listing(map(repr, found))}"
        )
    columns = (texts[:, None] == np.array(found)[None, :]).astype(np.float64)
    columns[absent] = np.nan
    return columns, [f"{name}={category}" for category in found]


def _without_missing(path: Path, data: Data, missing: Missing, where: Callable[[int], str]) -> Data:
    """As `missing` has it; infinite numbers are refused in any case."""
    if missing not in MISSING:
        raise ValueError(f"missing={missing!r}: known are {', '.join(MISSING)}")
    if not np.issubdtype(data.X.dtype, np.floating):
        return data
    with np.errstate(over="ignore", invalid="ignore"):
        finite = np.isfinite(data.X.sum())
    if finite or np.isfinite(data.X).all():
        return data
    absent = np.isnan(data.X)
    infinite = np.argwhere(~absent & ~np.isfinite(data.X))
    if len(infinite):
        row, column = map(int, infinite[0])
        raise DataError(f"{path}: {_column(data, column)} is infinite in {where(row)}; correct or drop the row")
    if missing == "mean":
        return data
    rows = absent.any(axis=1)
    if missing == "error":
        row, column = map(int, np.argwhere(absent)[0])
        raise DataError(
            f"{path}: {_column(data, column)} has no value in {where(row)} ({absent.sum()} missing values in {rows.sum()} of {len(rows)} rows); "
            f"say what to do: missing=drop leaves such rows out, missing=mean puts the network's mean; or drop the column"
        )
    if rows.all():
        raise DataError(
            f"{path}: every row lacks a value, so missing=drop leaves none; use missing=mean, or drop columns"
        )
    log.info(f"{path}: {rows.sum()} of {len(rows)} rows lack a value and are left out")
    kept = {what: None if (v := getattr(data, what)) is None else v[~rows] for what in ("labels", "owners", "ids")}
    return Data(data.X[~rows], data.names, **kept, dropped=int(rows.sum()), ignored=data.ignored)


def _column(data: Data, column: int) -> str:
    return f"column {column}" if data.names is None else f"column {data.names[column]!r}"


def _warn_of_ids(path: Path, names: Sequence[str], X: np.ndarray) -> None:
    for i, name in enumerate(names):
        if not LIKE_AN_ID.search(name) or len(X) < 2:
            continue
        values = X[:, i]
        if np.isfinite(values).all() and (values == np.round(values)).all() and len(np.unique(values)) == len(values):
            log.warning(
                f"{path}: column {name!r} has another whole number in every row, as an id has; an id is not a feature: "
                f"name it as the id, or drop it; list the columns to keep it"
            )


# ---------------------------------------------------------------------- component values to files
def write_values(path: Path, values: np.ndarray, ids: np.ndarray | None = None, id_name: str = "id") -> None:
    """Component values (rows, k) to a .csv, .parquet or .npy file; ids come first, where the format has room for them."""
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
    """Refuse a name whose format `write_values` does not know, or cannot write here."""
    if path.suffix.lower() not in (".npy", ".csv", ".parquet"):
        raise ValueError(f"--out {path}: unknown format {path.suffix or '(no ending)'}; use .npy, .csv or .parquet")
    if path.suffix.lower() == ".parquet":
        try:
            import pyarrow.parquet  # noqa: F401
        except ImportError as error:
            raise DataError(f"{path}: writing parquet needs pyarrow; pip install 'dekpca[parquet]'") from error


def remembered(roles: Roles, sources: Sequence[Data]) -> dict[str, Any]:
    """What a model keeps, so that `dekpca transform` takes files with the same columns."""
    ignored = dict.fromkeys(name for source in sources for name in source.ignored)
    return {
        "id": roles.id,
        "ignore": list(ignored),
        "one_hot": {name: list(v or ()) for name, v in roles.one_hot.items()},
    }
