"""Reading sample matrices from files: npz, npy, csv, parquet, MATLAB's mat, MNIST's idx.

Every reader ends in a `Data`; whatever is wrong with a file is said in one line with what to do about it.
"""

from __future__ import annotations

import csv
import gzip
import struct
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from .network import listing

SAMPLES = (
    "X",
    "data",
    "fea",
)  # names under which archives hold the matrix, in this order; fea and gnd are common in .mat files
LABELS = ("y", "labels", "label", "target", "gnd")
IDX_TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


class DataError(ValueError):
    """A file that cannot be read as samples."""


@dataclass(frozen=True, eq=False)
class Data:
    """Samples, and what else the file had for each row."""

    X: np.ndarray
    labels: np.ndarray | None = None
    owners: np.ndarray | None = None


def read(path: str | Path, owner: str | None = None, label: str | None = None) -> Data:
    """The samples of a file, by its ending.

    Parameters
    ----------
    path : str or Path
        .npz (arrays "X" and, for labels, "y"), .npy (memory-mapped), .csv (comma, semicolon or tab, with or without a header), .parquet, .mat,
        or idx (MNIST's *-images-idx3-ubyte, plain or .gz; labels are taken from the *-labels-idx1-ubyte beside it).
    owner, label : str, optional
        The column (or array of an archive) that names each row's owner, or its class. Neither is among the samples then. Without `label`, a column
        or array called y, label, labels, target or gnd is taken for it.

    Examples
    --------
    >>> import tempfile, pathlib
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "rows.csv"
    >>> _ = path.write_text("hospital,age,weight\\noslo,41,80\\nrome,38,75\\n")
    >>> data = read(path, owner="hospital")
    >>> data.X.tolist(), data.owners.tolist()
    ([[41.0, 80.0], [38.0, 75.0]], ['oslo', 'rome'])
    """
    path = Path(path)
    if not path.is_file():
        raise DataError(f"{path}: no such file" + (", it is a folder" if path.is_dir() else ""))
    reader = _reader(path)
    try:
        data = reader(path, owner, label)
    except DataError:
        raise
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path}: not text in UTF-8 ({error.reason} at byte {error.start}); save it as UTF-8"
        ) from error
    except (EOFError, BadZipFile, zlib.error, struct.error) as error:
        raise DataError(f"{path}: the file is damaged or empty ({error})") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from error
    if data.X.ndim != 2 or 0 in data.X.shape:
        raise DataError(f"{path}: the samples have shape {data.X.shape}, expected rows and columns")
    for what, values in (("owner", data.owners), ("label", data.labels)):
        if values is not None and values.shape != (len(data.X),):
            raise DataError(f"{path}: {what} has shape {values.shape}, expected one for each of the {len(data.X)} rows")
    return data


def _reader(path: Path) -> Callable[[Path, str | None, str | None], Data]:
    name = path.name.removesuffix(".gz")
    if "-idx" in name or ".idx" in name:
        return _idx_with_labels
    readers = {".npz": _npz, ".npy": _npy, ".csv": _csv, ".tsv": _csv, ".parquet": _parquet, ".mat": _mat}
    if path.suffix.lower() not in readers:
        raise DataError(
            f"{path}: unknown format {path.suffix or '(no ending)'}; known are {', '.join(readers)} and idx"
        )
    return readers[path.suffix.lower()]


def _npz(path: Path, owner: str | None, label: str | None) -> Data:
    try:
        with np.load(path, allow_pickle=False) as file:
            return _from_arrays(path, file, owner, label)
    except DataError:
        raise
    except ValueError as error:
        raise DataError(f"{path}: not a plain npz file; write it with numpy.savez, without Python objects") from error


def _npy(path: Path, owner: str | None, label: str | None) -> Data:
    _no_columns(path, owner, label)
    try:
        X = np.load(path, mmap_mode="r", allow_pickle=False)
    except ValueError as error:
        raise DataError(f"{path}: not a plain npy file; write it with numpy.save, without Python objects") from error
    return Data(_numbers(path, X, "the array"))


def _mat(path: Path, owner: str | None, label: str | None) -> Data:
    from scipy.io import loadmat

    try:
        content = {name: x for name, x in loadmat(path).items() if not name.startswith("__")}
    except NotImplementedError as error:
        raise DataError(f"{path}: a MATLAB 7.3 file; save it with save(..., '-v7')") from error
    except Exception as error:
        raise DataError(f"{path}: not a MATLAB file ({error})") from error
    for name, x in content.items():  # MATLAB has no vectors
        if isinstance(x, np.ndarray) and x.ndim == 2 and 1 in x.shape and name in (*LABELS, owner, label):
            content[name] = x.ravel()
    return _from_arrays(path, content, owner, label)


def _from_arrays(path: Path, arrays: Mapping[str, Any], owner: str | None, label: str | None) -> Data:
    names = list(arrays)
    _known_columns(path, names, owner, label)
    label = label or _usual_label(names, owner)
    others = [name for name in names if name not in (owner, label)]
    samples = next((name for name in SAMPLES if name in others), others[0] if len(others) == 1 else None)
    if samples is None:
        raise DataError(f"{path}: which array are the samples? It has {listing(names)}; name it X")
    return Data(
        _numbers(path, np.asarray(arrays[samples]), f"array {samples!r}"),
        None if label is None else np.asarray(arrays[label]),
        None if owner is None else np.asarray(arrays[owner]),
    )


def _csv(path: Path, owner: str | None, label: str | None) -> Data:
    with path.open(newline="", encoding="utf-8-sig") as file:
        start = file.read(64 * 1024)
    if not start.strip():
        raise DataError(f"{path}: the file is empty")
    first = start.splitlines()[0]
    delimiter = _delimiter(first)
    names = next(csv.reader([first], delimiter=delimiter))
    header = _is_header(path, names, owner, label)
    if not header:
        names = [str(i) for i in range(len(names))]
    _known_columns(path, names, owner, label)
    label = label or _usual_label(names, owner)
    numbers = [i for i, name in enumerate(names) if name not in (owner, label)]
    settings: dict[str, Any] = {
        "delimiter": delimiter,
        "skiprows": int(header),
        "quotechar": '"',
        "encoding": "utf-8-sig",
        "comments": None,
        "ndmin": 2,
    }
    _check_csv_widths(path, delimiter, len(names))
    try:
        X = np.loadtxt(path, usecols=numbers, **settings)
    except ValueError as error:
        raise _csv_error(path, names, numbers, str(error)) from error
    texts = {
        name: np.loadtxt(path, usecols=[names.index(name)], dtype=str, **settings)[:, 0]
        for name in (owner, label)
        if name is not None
    }
    return Data(X, texts.get(label), texts.get(owner))  # type: ignore[arg-type]


def _check_csv_widths(path: Path, delimiter: str, width: int) -> None:
    with path.open(newline="", encoding="utf-8-sig") as file:
        for number, row in enumerate(csv.reader(file, delimiter=delimiter), start=1):
            if row and len(row) != width:
                raise DataError(
                    f"{path}: line {number} has {len(row)} cells, the first line {width}; give every row all columns"
                )


def _csv_error(path: Path, names: list[str], numbers: list[int], message: str) -> DataError:
    """NumPy says at which row and column of those it was asked for; name the column instead."""
    with path.open(newline="", encoding="utf-8-sig") as file:
        rows = csv.reader(file, delimiter=_delimiter(file.readline()))
        for number, row in enumerate(rows, start=2):
            for i in numbers:
                if row and not _is_number(row[i]):
                    text = "is empty" if not row[i].strip() else f"holds {row[i]!r}, which is no number"
                    return DataError(
                        f"{path}: column {names[i]!r} {text} in line {number}; leave the column out, encode it as numbers, "
                        "or name it as the owner or label"
                    )
    return DataError(f"{path}: {message}")


def _delimiter(line: str) -> str:
    return max(",;\t", key=line.count)


def _is_header(path: Path, cells: list[str], owner: str | None, label: str | None) -> bool:
    """Whether the first line names columns. Names may be numbers from 0 or 1 on, as pandas writes them; a line that may be either is refused."""
    numbers = [_is_number(cell) for cell in cells]
    counted = [[str(i + start) for i in range(len(cells))] for start in (0, 1)]
    if not any(numbers) or owner in cells or label in cells or (len(cells) > 1 and cells in counted):
        return all(cell.strip() for cell in cells) or owner in cells or label in cells
    if all(numbers):
        return False
    raise DataError(
        f"{path}: the first line has both numbers and text or empty cells, so it is unclear whether it names the columns; add a line of names"
    )


def _usual_label(names: Iterable[str], owner: str | None) -> str | None:
    return next((name for name in LABELS if name in set(names) and name != owner), None)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _parquet(path: Path, owner: str | None, label: str | None) -> Data:
    try:
        from pyarrow import ArrowInvalid, parquet
    except ImportError as error:
        raise DataError(f"{path}: reading parquet needs pyarrow; pip install 'dekpca[parquet]'") from error
    try:
        table = parquet.read_table(path)
    except ArrowInvalid as error:
        raise DataError(f"{path}: not a parquet file ({error})") from error
    _known_columns(path, table.column_names, owner, label)
    label = label or _usual_label(table.column_names, owner)
    columns = []
    for name in table.column_names:
        if name in (owner, label):
            continue
        values = table[name].to_numpy()
        if not np.issubdtype(values.dtype, np.number) and values.dtype != bool:
            raise DataError(
                f"{path}: column {name!r} is of {table[name].type}, not numbers; leave it out, encode it, or name it as the owner or label"
            )
        columns.append(values)
    others = {name: table[name].to_numpy() for name in (owner, label) if name is not None}
    X = np.column_stack(columns) if columns else np.empty((len(table), 0))
    return Data(X, others.get(label), others.get(owner))  # type: ignore[arg-type]


def _idx_with_labels(path: Path, owner: str | None, label: str | None) -> Data:
    _no_columns(path, owner, label)
    images = _idx(path)
    beside = path.with_name(path.name.replace("images", "labels").replace("idx3", "idx1"))
    labels = _idx(beside) if beside != path and beside.is_file() else None
    return Data(images.reshape(len(images), -1), labels)


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


def _known_columns(path: Path, names: list[str], owner: str | None, label: str | None) -> None:
    for what, name in (("owner", owner), ("label", label)):
        if name is not None and name not in names:
            raise DataError(f"{path}: no column or array {name!r} for the {what}; it has {listing(names)}")


def _no_columns(path: Path, owner: str | None, label: str | None) -> None:
    for what, name in (("owner", owner), ("label", label)):
        if name is not None:
            raise DataError(f"{path}: has no named columns, so none can be the {what}; use npz, csv or parquet")
