"""File formats: npz, npy, csv and parquet. `open_source` makes a `Source` of a file; reading.py has the roles of its columns."""

from __future__ import annotations

import csv
import io
import re
import shlex
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import IO, Any, NamedTuple
from zipfile import BadZipFile

import numpy as np

from ..files import atomic_write
from ..network import listing, natural_key
from .columns import check_same_names
from .frames import AS_NUMBERS, ColumnError, column, frame_names, is_frame, is_null, matrix

SAMPLES = ("X", "data")  # names of the matrix in an archive, by precedence
LABELS = ("y", "labels", "label", "target")
NAMES = ("columns", "feature_names", "names")  # arrays of an archive that name the columns of the matrix
ABSENT = frozenset({"", "na", "n/a", "#n/a", "nan", "null", "none", "<na>", "?"})  # cells without a value, in any case
CHUNK = 10_000  # lines of a csv file held as texts at a time
AT_ONCE = 100_000  # rows of a block of a file that is read as a whole
NO_ROWS = "no rows; give at least one"
TRUTH = {"true": "1", "false": "0"}  # cells, in any case
UNNAMED = "Unnamed: 0"  # as pandas calls the column of row names that it and R write without a name
DATE = re.compile(
    r"\s*(\d{4}([-/.])\d{1,2}\2\d{1,2}|\d{1,2}([-/.])\d{1,2}\3\d{4}|\d{1,2}/\d{1,2}/\d\d|\d{1,2}:\d\d)(?![\d.])"
)
COMMA = re.compile(r"\s*[-+]?\d+(,\d+)+(\.\d+)?\s*")

BUFFER = 2**20  # bytes of a column of a parquet file read at a time

Values = dict[str, np.ndarray]
Where = Callable[[int], str]  # a row, in words


class Block(NamedTuple):
    """Some rows of a file: columns as a matrix, NaN for missing values; other columns unchanged; and where each row is."""

    X: np.ndarray
    values: Values
    where: Where


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
def errors_of(path: Path) -> Iterator[None]:
    """Errors of this module, and of the libraries that read files, as a DataError that names the file."""
    try:
        if not path.is_file() and not _parquet_files(path):
            raise DataError("no such file" + (", it is a folder of other files than .parquet" if path.is_dir() else ""))
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
        raise DataError(
            f"{path}: does not fit into memory; read it in blocks (dekpca.Rows), or give every node a file of its own"
        ) from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from error


class Source:
    """A file, opened: the names of its columns, and how to read some of them."""

    files: Sequence[Path] = ()
    rows: int | None = None  # how many, if that is known before they are read
    float32: frozenset[str] = frozenset()  # columns of this type

    def __init__(self, names: Sequence[str] | int):
        self.named = not isinstance(names, int)
        self.names = list(map(str, range(names))) if isinstance(names, int) else list(names)
        self.beside: Values = {}  # other arrays of an archive, with a value for each row
        self.interface = "python"  # whose words errors use
        self.nameless: str | None = None  # what we call a column of row names that has no name in the file

    def encode(self, names: Sequence[str]) -> str:
        """What to do with columns that are no numbers."""
        if self.interface == "options":
            option = " ".join(f"--one-hot {shlex.quote(name)}" for name in names)
        elif self.interface == "node.toml":
            option = "[one_hot] " + ", ".join(f"{name} = [...]" for name in names)
        else:
            option = f"one_hot={[*names]}"
        column, it = ("columns", "them") if len(names) > 1 else ("column", "it")
        return f"drop the {column}, make a feature of each category ({option}), or name {it} as the id, owner or label"

    def blocks(self, numbers: Sequence[str], values: Sequence[str], size: int) -> Iterator[Block]:
        """Columns as numbers and columns as they are, in blocks of at most `size` rows, of which one is in memory at a time."""
        raise NotImplementedError

    def read(self, numbers: Sequence[str], values: Sequence[str]) -> Block:
        """All rows at once."""
        blocks = list(self.blocks(numbers, values, AT_ONCE))
        if not blocks:
            raise DataError(NO_ROWS)
        ends, wheres = np.cumsum([len(block.X) for block in blocks]), [block.where for block in blocks]

        def where(row: int) -> str:
            i = int(np.searchsorted(ends, row, side="right"))
            return wheres[i](row - int(ends[i - 1]) if i else row)

        together = {name: np.concatenate([block.values[name] for block in blocks]) for name in values}
        return Block(np.concatenate([block.X for block in blocks]), together, where)

    @property
    def estimated_rows(self) -> float:
        return float(self.rows or 0)


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
        self.X, self.rows, self.float32 = X, len(X), frozenset(self.names if X.dtype == np.float32 else ())

    def read(self, numbers: Sequence[str], values: Sequence[str]) -> Block:
        """A file .npy stays memory-mapped."""
        return self._block(0, self.X, numbers, values)

    def blocks(self, numbers: Sequence[str], values: Sequence[str], size: int) -> Iterator[Block]:
        for start, X in self._slices(size):
            yield self._block(start, X, numbers, values)

    def _block(self, start: int, X: np.ndarray, numbers: Sequence[str], values: Sequence[str]) -> Block:
        places, found = {name: i for i, name in enumerate(self.names)}, {}
        for name in values:
            beside = self.beside.get(name)
            if beside is not None and beside.shape != (self.rows,):
                what = f"expected one value for each of the {self.rows} rows"
                raise DataError(f"{name} has shape {beside.shape}, {what}")
            found[name] = X[:, places[name]] if beside is None else beside[start : start + len(X)]
        X = X if list(numbers) == self.names else X[:, [places[name] for name in numbers]]
        return Block(X, found, counted_from(start))

    def _slices(self, size: int) -> Iterator[tuple[int, np.ndarray]]:
        """Rows of a file .npy: read, since pages of a memory map count as memory of the process."""
        X = self.X
        if not self.files or not X.flags.c_contiguous:
            yield from ((start, np.ascontiguousarray(X[start : start + size])) for start in range(0, len(X), size))
            return
        with self.files[0].open("rb") as file:
            file.seek(X.offset)  # type: ignore[attr-defined]
            for start in range(0, len(X), size):
                shape = min(size, len(X) - start), X.shape[1]
                found = np.fromfile(file, X.dtype, shape[0] * shape[1])
                if len(found) < shape[0] * shape[1]:
                    raise DataError(f"the file ends within row {start + len(found) // shape[1]} of {len(X)}")
                yield start, found.reshape(shape)


def counted_from(start: int, of: str = "") -> Where:
    return lambda row: f"row {start + row}{of}"


class Csv(Source):
    """A text file of lines with a cell for each column."""

    def __init__(self, path: Path, names: Sequence[str] | int, header: bool, delimiter: str):
        super().__init__(names)
        self.files, self.header, self.delimiter = [path], header, delimiter

    def blocks(self, numbers: Sequence[str], values: Sequence[str], size: int) -> Iterator[Block]:
        with self.files[0].open(newline="", encoding="utf-8-sig") as file:
            rows = self._rows(file)
            while some := list(islice(rows, min(size, CHUNK))):
                lines, *columns = zip(*some, strict=True)
                cells, where = dict(zip(self.names, columns, strict=True)), _at_lines(lines)
                found = {name: _parsed(cells[name]) for name in numbers}
                wrong = {name: row for name, row in found.items() if isinstance(row, int)}
                if wrong:
                    raise DataError(
                        self._refusal({name: (cells[name][row], row) for name, row in wrong.items()}, where)
                    )
                block = np.column_stack([*found.values()]) if found else np.empty((len(some), 0))
                texts = {name: np.array([cell.strip() for cell in cells[name]], dtype=str) for name in values}
                yield Block(block, texts, where)

    def _refusal(self, wrong: dict[str, tuple[str, int]], where: Where) -> str:
        """Of columns that are no numbers, each with its first cell that is none, and the row of that."""
        comma = [name for name, (cell, _) in wrong.items() if COMMA.fullmatch(cell)]
        date = [name for name, (cell, _) in wrong.items() if DATE.match(cell)]
        texts = [name for name in wrong if name not in (*comma, *date)]
        said = []
        for names, remedy in (
            (texts, self.encode(texts)),
            (comma, "write numbers with a decimal point and without thousands separators"),
            (date, f"if it is a date or a time, {AS_NUMBERS}"),
        ):
            if names:
                (cell, row), others = wrong[names[0]], listing(map(repr, names[1:]))
                also = f" (also {others})" if others else ""
                what = f"column {names[0]!r} holds {cell[:60]!r} in {where(row)}, which is no number{also}"
                said.append(f"{what}; {remedy}")
        return "; ".join(said)

    @property
    def estimated_rows(self) -> float:
        """From the length of the first lines."""
        with self.files[0].open("rb") as file:
            some = file.read(2**20)
        return self.files[0].stat().st_size * max(some.count(b"\n"), 1) / max(len(some), 1)

    def _rows(self, file: Any) -> Iterator[list[Any]]:
        """The number of a line, and its cells."""
        reader = csv.reader(file, delimiter=self.delimiter)
        if self.header:
            next(reader)
        for row in filter(None, reader):
            if len(row) != len(self.names):
                cells = f"{len(row)} cells, the first line {len(self.names)}"
                raise DataError(f"line {reader.line_num} has {cells}; give every row all columns")
            yield [reader.line_num, *row]


def _parsed(cells: Sequence[str]) -> np.ndarray | int:
    """The numbers, NaN where there is no value; or the row of a cell that is no number."""
    try:
        return np.array(cells, dtype=np.float64)
    except ValueError:  # some cell has no value, a truth value, or no number
        cells = ["nan" if is_absent(cell) else TRUTH.get(cell.strip().lower(), cell) for cell in cells]
    wrong = next((i for i, cell in enumerate(cells) if not _is_number(cell)), None)
    return np.array([float(cell) for cell in cells]) if wrong is None else wrong


def _at_lines(lines: Sequence[int]) -> Where:
    return lambda row: f"line {lines[row]}"


def is_absent(value: Any) -> bool:
    return is_null(value) or (isinstance(value, str) and value.strip().lower() in ABSENT)


def open_source(path: Path, mentioned: set[str]) -> Source:
    """`mentioned` are columns that must exist; they identify a header."""
    kind = ".parquet" if path.is_dir() else path.suffix.lower()
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
            source = Matrix(loaded, "the array")
            source.files = [path]
            return source
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
    if all(number or name.lower() in TRUTH for number, name in zip(numbers, names, strict=True)):
        return Csv(path, len(cells), False, delimiter)
    nameless = None
    if len(names) > 1 and not names[0]:
        names[0] = nameless = UNNAMED
    counted = nameless is not None and names[1:] == [str(i) for i in range(len(names) - 1)]
    if counted or (all(names) and (not any(numbers) or mentioned & set(names))):
        source = Csv(path, names, True, delimiter)
        source.nameless = nameless
        return source
    unclear = "the first line has both numbers and text or empty cells, so it is unclear whether it names the columns"
    raise DataError(f"{unclear}; add a line of names")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


class Parquet(Source):
    """Typed columns, of a file or of all files in a folder, one after the other in natural order of their names."""

    def __init__(self, path: Path):
        self.files = _parquet_files(path)
        with _arrow(path) as pyarrow:
            schema = pyarrow.parquet.read_schema(self.files[0])
            self.rows = sum(pyarrow.parquet.read_metadata(file).num_rows for file in self.files)
            for file in self.files[1:]:
                names = pyarrow.parquet.read_schema(file).names
                check_same_names(names, schema.names, str(file), str(self.files[0]))
        super().__init__(schema.names)
        self.float32 = frozenset(n for n, kind in zip(schema.names, schema.types, strict=True) if str(kind) == "float")

    def blocks(self, numbers: Sequence[str], values: Sequence[str], size: int) -> Iterator[Block]:
        names = [*dict.fromkeys([*numbers, *values])]
        for file in self.files:
            start, of = 0, f" of {file}" if len(self.files) > 1 else ""
            with (
                _arrow(file) as pyarrow,
                pyarrow.parquet.ParquetFile(file, buffer_size=BUFFER, pre_buffer=False) as opened,
            ):
                for batch in opened.iter_batches(size, columns=names):
                    table = pyarrow.Table.from_batches([batch])
                    X, at = matrix(table, str(file), self.encode, numbers), table.column_names.index
                    yield Block(X, {n: column(table, at(n))[0] for n in values}, counted_from(start, of))
                    start += len(X)


class Made(Source):
    """Arrays or DataFrames that a function makes, anew for each pass."""

    def __init__(self, make: Callable[[], Any]):
        self.make, first = make, next(iter(make()), None)
        if first is None or not (is_frame(first) or getattr(first, "ndim", 0) == 2):
            raise DataError(f"the first block is {type(first).__name__}; give arrays (rows, columns) or DataFrames")
        super().__init__(frame_names(first) if is_frame(first) else first.shape[1])
        self.float32 = frozenset(self.names if not is_frame(first) and first.dtype == np.float32 else ())

    def blocks(self, numbers: Sequence[str], values: Sequence[str], size: int) -> Iterator[Block]:
        places, start = {name: i for i, name in enumerate(self.names)}, 0
        for block in self.make():
            where = counted_from(start)
            start += block.shape[0]
            if is_frame(block):
                check_same_names(frame_names(block), self.names, f"the block before row {start}", "the first block")
                at = frame_names(block).index
                found = {name: column(block, at(name))[0] for name in values}
                yield Block(matrix(block, "X", self.encode, numbers), found, where)
            elif block.ndim != 2 or block.shape[1] != len(self.names):
                raise DataError(f"the block before row {start} has shape {block.shape}, not {len(self.names)} columns")
            else:
                found = {name: block[:, places[name]] for name in values}
                yield Block(block[:, [places[name] for name in numbers]], found, where)


def _parquet_files(path: Path) -> list[Path]:
    """The file, or the files of a folder of parquet files, which may have others whose names begin with a dot or "_", as Spark writes them."""
    if not path.is_dir():
        return [path] if path.is_file() else []
    files = [file for file in path.rglob("*") if file.is_file() and not file.name.startswith((".", "_"))]
    alike = all(file.suffix.lower() == ".parquet" for file in files)
    return sorted(files, key=lambda file: natural_key(str(file))) if alike else []


@contextmanager
def _arrow(path: Path) -> Iterator[Any]:
    """pyarrow, whose errors become a DataError."""
    pyarrow = _pyarrow()
    try:
        yield pyarrow
    except (pyarrow.ArrowInvalid, pyarrow.ArrowNotImplementedError, OSError) as error:
        raise DataError(f"not a parquet file, or damaged ({error})") from error


def _pyarrow() -> Any:
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise DataError("parquet needs pyarrow; pip install 'dekpca[parquet]'") from error
    return pyarrow


class Writer:
    """Numbers (rows, k) in columns of these names to an open .csv, .parquet or .npy file, block by block; ids come first (.npy has none)."""

    def __init__(self, file: IO[bytes], kind: str, names: Sequence[str], id_name: str | None):
        self.file, self.kind, self.k, self.rows = file, kind, len(names), 0
        self.names = [*([] if id_name is None or kind == ".npy" else [id_name]), *names]
        self.parquet: Any = None
        if kind == ".csv":
            self._csv([self.names])
        elif kind == ".npy":
            self._header()

    def write(self, values: np.ndarray, ids: np.ndarray | None = None) -> None:
        columns = dict(zip(self.names, [*([] if len(self.names) == self.k else [ids]), *values.T], strict=True))
        if self.kind == ".npy":
            self.file.write(np.ascontiguousarray(values, dtype=np.float64).tobytes())
        elif self.kind == ".csv":
            self._csv(zip(*(x.tolist() for x in columns.values()), strict=True))
        else:
            pyarrow = _pyarrow()
            table = pyarrow.table({name: pyarrow.array(x, from_pandas=x is ids) for name, x in columns.items()})
            self.parquet = self.parquet or pyarrow.parquet.ParquetWriter(self.file, table.schema)
            try:
                table = table.cast(self.parquet.schema)
            except pyarrow.ArrowInvalid as error:
                remedy = "write .csv, or make them all numbers or all texts"
                raise DataError(f"ids of another type than those before: {error}; {remedy}") from None
            self.parquet.write_table(table)
        self.rows += len(values)

    def close(self) -> None:
        if self.parquet is not None:
            self.parquet.close()
        if self.kind == ".npy":
            self.file.seek(0)
            self._header()

    def _csv(self, rows: Iterable[Any]) -> None:
        text = io.TextIOWrapper(self.file, encoding="utf-8", newline="")
        csv.writer(text, lineterminator="\n").writerows(rows)
        text.detach()

    def _header(self) -> None:
        """NumPy leaves room in it for any number of rows."""
        about = {"descr": "<f8", "fortran_order": False, "shape": (self.rows, self.k)}
        np.lib.format.write_array_header_1_0(self.file, about)


@contextmanager
def writing(path: Path, names: Sequence[str], id_name: str | None = None) -> Iterator[Writer]:
    """A `Writer` of a file that is there when all is written."""
    with atomic_write(path) as file:
        writer = Writer(file, path.suffix.lower(), names, id_name)
        yield writer
        writer.close()


def check_output(path: Path) -> None:
    """Refuse a file name whose format `writing` does not know, or cannot write on this machine."""
    if path.suffix.lower() not in (".npy", ".csv", ".parquet"):
        raise ValueError(f"--out {path}: unknown format {path.suffix or '(no ending)'}; use .npy, .csv or .parquet")
    if path.suffix.lower() == ".parquet":
        _pyarrow()
