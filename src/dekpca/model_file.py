"""Node models in `.npz` files: a JSON header and plain arrays, no pickle.

The header names every array with its dtype and shape. `load` reads the header, compares it with the file, and then
reads only the arrays that it names. So a damaged or malicious file takes no more memory than a valid one of its
size.
"""

from __future__ import annotations

import io
import json
import math
import os
import struct
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, fields
from functools import partial
from itertools import accumulate, pairwise
from os import PathLike
from threading import Lock
from typing import IO, Any, NamedTuple

import numpy as np

from .accuracy import Accuracy
from .arrays import to_numpy
from .data.columns import MOST_TEXT, Features, is_text
from .files import atomic_write
from .kernels import KERNELS, FunctionKernel, Kernel, make_kernel
from .node_model import Function, Held, NodeModel
from .privacy.ledger import Entry, Ledger
from .scaling import Scales
from .scores import BINS, Histogram
from .solvers.projection import EXPANSIONS

MOST_HEADER = 64 * 2**20  # bytes; it names every column
MOST_ARRAYS = 32
END_OF_ZIP = struct.Struct("<4s4H2IH")  # the last record of a zip file without a comment
LARGEST_DIRECTORY = 100 * MOST_ARRAYS  # bytes of the list of members

_one_parser = Lock()  # NumPy reads the head of an array by `ast`, which in Python 3.11 may fail where two threads are in it: not a damaged file


class ModelFileError(ValueError):
    """A file that is not a node model, or is damaged."""


class Format(NamedTuple):
    """Of a file of named arrays with a header: its name in the header, its version, what it is, and the dtypes that its arrays may have."""

    name: str
    version: int
    what: str
    dtypes: tuple[str, ...] = ("<f4", "<f8")


# fields of a model that its header has under the same names
AS_THEY_ARE = "name", "run", "centering", "transcript", "expansion", "reading", "missing", "n_rows", "contamination"
FORMAT = Format("dekpca-node-model", 8, "one that NodeModel.save wrote")


def save(model: NodeModel, path: str | PathLike[str]) -> None:
    """See `NodeModel.save`."""
    largest = model.functions[model.expansion]
    names = [name for name in EXPANSIONS if name in model.functions]
    found: dict[str, Sequence[Any]] = {"points": largest.points, "eigenvalues": [model.eigenvalues_]}
    for name in names:
        function = model.functions[name]
        found |= {f"{name}_coefficients": function.coefficients, f"{name}_offset": [function.offset]}
    if model.scales is not None:
        found |= {"column_mean": [model.scales.mean], "column_scale": [model.scales.scale]}
    if model.fill is not None:
        found["fill"] = [model.fill]
    if model.mean is not None:
        found |= {"mean_coefficients": model.mean.coefficients, "mean_offset": [model.mean.offset]}
    if model.histogram is not None:
        found["histogram"] = [model.histogram.counts]
    arrays = {name: np.concatenate([to_numpy(x) for x in parts]) for name, parts in found.items()}
    header = {name: getattr(model, name) for name in AS_THEY_ARE} | {
        "expansions": names,
        "kernel": kernel_header(model.kernel),
        "fourier": largest.fourier,
        "contents": [asdict(held) for held in model.contents],
        "feature_names": model.features.names,
        "scale": None if model.histogram is None else model.histogram.scale,
        "accuracy": None if model.accuracy is None else asdict(model.accuracy),
        "privacy": None if model.privacy_ is None else model.privacy_.as_dict(),
    }
    try:  # nobody should hear of it when the fit is long gone
        _model(json.loads(json.dumps(header, allow_nan=False)), arrays, model.kernel.gram, None)
    except ModelFileError as error:
        raise ValueError(f"node {_printable(model.name)}: its model could not be loaded again: {error}") from error
    write_arrays(path, FORMAT, header, arrays)


def kernel_header(kernel: Kernel) -> dict[str, Any]:
    """A kernel as a header has it: its name and its numbers."""
    numbers = {key: getattr(kernel, key) for key in ("gamma", "degree", "coef0", "normalize")}
    function = isinstance(kernel, FunctionKernel)
    if not function and make_kernel(kernel.label, **numbers) != kernel:
        held = f"a model file holds {', '.join(numbers)}, and no other parameter that is not at its default"
        raise ValueError(f"kernel {kernel.label}: {held}; give its class these values as defaults")
    return {"name": kernel.label, "callable": function, **numbers}


def write_arrays(
    path: str | PathLike[str], kind: Format, about: Mapping[str, Any], arrays: Mapping[str, np.ndarray]
) -> None:
    """A file of named arrays with a header, readable by its owner only."""
    arrays = {name: np.ascontiguousarray(x, dtype=x.dtype.newbyteorder("<")) for name, x in arrays.items()}
    header = {"format": kind.name, "version": kind.version, **about}
    header["arrays"] = {name: [x.dtype.str, x.shape] for name, x in arrays.items()}
    with atomic_write(path) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        _add(archive, "header", np.array(json.dumps(header, allow_nan=False)))
        for name, x in arrays.items():
            _add(archive, name, x)


def _add(archive: zipfile.ZipFile, name: str, x: np.ndarray) -> None:
    with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
        np.lib.format.write_array(member, x, allow_pickle=False)


def load(path: str | PathLike[str], kernel: Any = None, kernel_params: Mapping[str, Any] | None = None) -> NodeModel:
    """See `NodeModel.load`."""
    with opened(path, "a node model") as file:
        return _model(*read_arrays(file, FORMAT), kernel, kernel_params)


@contextmanager
def opened(path: str | PathLike[str], what: str) -> Iterator[IO[bytes]]:
    """A file to read; raises ModelFileError, which names it and what it should be, for whatever is wrong with its content."""
    with open(path, "rb") as file:
        try:
            yield file
        except ModelFileError as error:
            raise ModelFileError(f"{os.fspath(path)}: not {what}: {error}") from error
        except MemoryError:
            raise
        except (Exception, RecursionError) as error:
            why = _printable(str(error))[:200] or type(error).__name__
            raise ModelFileError(f"{os.fspath(path)}: not {what}: the file is damaged ({why})") from error


def is_model(path: str | PathLike[str]) -> bool:
    """Whether a file is a node model, of any version; its arrays are not read."""
    try:
        with open(path, "rb") as file:
            _check_directory(file, file.seek(0, os.SEEK_END))
            with zipfile.ZipFile(file) as archive:
                return bool(_header(archive, FORMAT))
    except (ValueError, OSError, RecursionError, zipfile.BadZipFile):
        return False


# ---------------------------------------------------------------------- bytes to header and arrays
def read_arrays(file: IO[bytes], kind: Format) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The header and the arrays of a file that `write_arrays` wrote."""
    size = file.seek(0, os.SEEK_END)
    _check_directory(file, size)
    with zipfile.ZipFile(file) as archive:
        header = _read_header(archive, kind)
        arrays = {}
        for name, (dtype, shape) in _promised(header, size, kind).items():
            arrays[name] = _read_array(archive, name, dtype, shape)
            if not np.isfinite(arrays[name]).all():
                raise ModelFileError(f"array {name} has NaN or infinity")
    return header, arrays


def _check_directory(file: IO[bytes], size: int) -> None:
    """Require a zip file with few members and no trailing data: Python's reader would allocate memory for as many as a file claims."""
    if size < END_OF_ZIP.size:
        raise ModelFileError(f"{size} bytes are too few")
    file.seek(size - END_OF_ZIP.size)
    mark, _, _, _, members, directory, _, comment = END_OF_ZIP.unpack(file.read(END_OF_ZIP.size))
    if mark != b"PK\x05\x06" or comment:
        raise ModelFileError("not an npz file, or the end is cut off")
    if members > MOST_ARRAYS or directory > LARGEST_DIRECTORY:
        raise ModelFileError(f"{members} members, more than the {MOST_ARRAYS} that a model may have")
    file.seek(0)


def _member(archive: zipfile.ZipFile, name: str, expected: int | None, most: int) -> bytes:
    """The bytes of a member, which must be stored uncompressed: a compressed one may expand to a thousand times the size of the file."""
    try:
        info = archive.getinfo(f"{name}.npy")
    except KeyError:
        raise ModelFileError(f"{name} is missing") from None
    if info.compress_type != zipfile.ZIP_STORED or info.file_size != info.compress_size:
        raise ModelFileError(f"{name} is compressed")
    if info.file_size > most or (expected is not None and not expected <= info.file_size <= expected + 4096):
        raise ModelFileError(f"{name} has {info.file_size} bytes")
    return archive.read(info)


def _header(archive: zipfile.ZipFile, kind: Format) -> dict[str, Any]:
    """Of any version."""
    data = io.BytesIO(_member(archive, "header", None, MOST_HEADER))
    dtype, shape = _array_head(data)
    if dtype.kind != "U" or shape != ():
        raise ModelFileError("the header is no text")
    text = data.read().decode("utf-32-le" if dtype.byteorder in "<=" else "utf-32-be").rstrip("\0")
    header = json.loads(text, parse_constant=_no_constant)
    if not isinstance(header, dict) or header.get("format") != kind.name:
        raise ModelFileError(f"its header is not {kind.what}")
    return header


def _read_header(archive: zipfile.ZipFile, kind: Format) -> dict[str, Any]:
    header = _header(archive, kind)
    if header.get("version") != kind.version:
        found = f"version {header.get('version')!r}, this dekpca reads version {kind.version}"
        raise ModelFileError(f"{found}; update it, or fit again")
    return header


def _no_constant(name: str) -> None:
    raise ModelFileError(f"{name} in the header")


def _promised(header: Mapping[str, Any], size: int, kind: Format) -> dict[str, tuple[np.dtype, tuple[int, ...]]]:
    """The arrays that the header names; their sizes must fit into the file."""
    found = {}
    arrays = _typed(header, "arrays", dict)
    if len(arrays) >= MOST_ARRAYS:
        raise ModelFileError(f"{len(arrays)} arrays")
    for name, (dtype, shape) in arrays.items():
        if dtype not in kind.dtypes or len(shape) > 2 or not all(type(n) is int and 0 <= n < 2**40 for n in shape):
            raise ModelFileError(f"array {_printable(name)} of {_printable(str(dtype))} {shape!r}")
        found[name] = np.dtype(dtype), tuple(shape)
    total = sum(dtype.itemsize * math.prod(shape) for dtype, shape in found.values())
    if total > size:
        raise ModelFileError(f"its arrays need {total} bytes, the file has {size}")
    return found


def _read_array(archive: zipfile.ZipFile, name: str, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
    size = dtype.itemsize * math.prod(shape)
    data = io.BytesIO(_member(archive, name, size, size + 4096))
    found = _array_head(data)
    if found != (dtype, shape):
        raise ModelFileError(f"array {name} is {found[0]} {found[1]}, the header says {dtype} {shape}")
    body = data.getbuffer()[data.tell() :]
    if len(body) != size:
        raise ModelFileError(f"array {name} has {len(body)} bytes, expected {size}")
    return np.frombuffer(body, dtype=dtype).reshape(shape).astype(dtype.newbyteorder("="), copy=True)


def _array_head(data: IO[bytes]) -> tuple[np.dtype, tuple[int, ...]]:
    version = np.lib.format.read_magic(data)
    read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}[version]
    with _one_parser:
        shape, fortran, dtype = read(data, max_header_size=4096)
    if fortran and len(shape) > 1:
        raise ModelFileError("an array that is stored by columns")
    return dtype, shape


# ---------------------------------------------------------------------- header and arrays to a model
def _model(
    header: Mapping[str, Any], arrays: Mapping[str, np.ndarray], kernel: Any, kernel_params: Mapping[str, Any] | None
) -> NodeModel:
    contents = [_record(Held, held) for held in _typed(header, "contents", list)]
    expansions, fourier = _typed(header, "expansions", list), _typed(header, "fourier", bool)
    expansion, centering = _text(header, "expansion"), header["centering"]
    if expansion not in expansions or not set(expansions) <= set(EXPANSIONS):
        raise ModelFileError(f"expansion {expansion!r} of {expansions!r}")
    if centering not in ("global", "local", None):
        raise ModelFileError(f"centering {centering!r}")
    points, eigenvalues = _array(arrays, "points", 2), _array(arrays, "eigenvalues", 1)
    if (eigenvalues < 0).any():
        raise ModelFileError("an eigenvalue below 0")
    functions = {name: _function(name, arrays, contents, fourier, len(eigenvalues)) for name in expansions}
    mean = _function("mean", arrays, contents, fourier, 1) if "mean_offset" in arrays else None
    if mean is not None and [len(c) for c in mean.coefficients] != [len(c) for c in functions[expansion].coefficients]:
        raise ModelFileError("a mean over other points than the components")
    names, width = None, points.shape[1]
    if header["feature_names"] is not None:
        names = tuple(_names(header, "feature_names"))
        if len(names) != width or len(set(names)) != width:
            raise ModelFileError(f"{len(names)} names for {width} columns")
    scales = fill = None
    if "column_mean" in arrays:
        scales = Scales(_array(arrays, "column_mean", 1, width), _array(arrays, "column_scale", 1, width))
        if (scales.scale <= 0).any():
            raise ModelFileError("a column scale that is not above 0")
    if "fill" in arrays:
        fill = _array(arrays, "fill", 1, width)
    run, transcript = (None if header[key] is None else _text(header, key) for key in ("run", "transcript"))
    histogram, contamination = _threshold(header, arrays)
    return NodeModel(
        name=_text(header, "name"), kernel=kernel_from(header, kernel, kernel_params), functions=functions, expansion=expansion,
        eigenvalues_=eigenvalues, centering=centering, contents=contents, scales=scales, features=Features(width, names), fill=fill,
        reading=_reading(header), accuracy=_accuracy(header, len(eigenvalues)), privacy_=_ledger(header), missing=_missing(header), run=run,
        transcript=transcript, mean=mean, n_rows=_not_negative(header, "n_rows"), histogram=histogram, contamination=contamination,
    )  # fmt: skip


def kernel_from(header: Mapping[str, Any], given: Any = None, params: Mapping[str, Any] | None = None) -> Kernel:
    """The kernel of a header, which `kernel_header` made."""
    settings = _typed(header, "kernel", dict)
    name, function = _text(settings, "name"), _typed(settings, "callable", bool)
    if function and not callable(given):
        raise ModelFileError(f"its kernel is the Python function {name}, which a file cannot hold; pass kernel=")
    if not function and name not in KERNELS:
        raise ModelFileError(f"unknown kernel {name!r}; known are {', '.join(sorted(KERNELS))}")
    numbers: dict[str, Any] = {key: _number(settings, key) for key in ("gamma", "degree", "coef0")}
    if numbers["gamma"] <= 0 or numbers["degree"] < 0:
        raise ModelFileError(f"gamma={numbers['gamma']} and degree={numbers['degree']}")
    numbers["normalize"] = _typed(settings, "normalize", bool)
    return make_kernel(given, **numbers, kernel_params=params) if function else make_kernel(name, **numbers)


def _threshold(header: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> tuple[Histogram | None, float | None]:
    """The histogram of reconstruction errors, and the share of rows that are beyond the threshold."""
    if "histogram" not in arrays:
        return None, None
    counts, scale, share = (
        _array(arrays, "histogram", 1, BINS),
        _number(header, "scale"),
        _number(header, "contamination"),
    )
    if (counts < 0).any() or not counts.any() or scale <= 0 or not 0 < share <= 0.5:
        raise ModelFileError("a histogram that no rows have")
    return Histogram(scale, counts), share


def _function(name: str, arrays: Mapping[str, np.ndarray], contents: Sequence[Held], fourier: bool, k: int) -> Function:
    points = arrays["points"]
    coefficients, offset = _array(arrays, f"{name}_coefficients", 2), _array(arrays, f"{name}_offset", 1, k)
    ends = [0, *accumulate(held.rows for held in contents)]
    if any(held.rows < 0 for held in contents):
        raise ModelFileError("a set of fewer than 0 points")
    rows = len(coefficients) // 2 if fourier else len(coefficients)  # cos and sin of each frequency
    # A smaller expansion uses the first few sets.
    if rows not in ends or ends[-1] != len(points) or coefficients.shape[1] != k:
        held = f"{len(points)} points, {coefficients.shape} coefficients and sets of {', '.join(map(str, contents))}"
        raise ModelFileError(f"{held} do not fit")
    if fourier:
        return Function((points,), (coefficients,), offset, fourier=True)
    slices = [slice(a, b) for a, b in pairwise(ends[: ends.index(rows) + 1])]
    return Function(tuple(points[s] for s in slices), tuple(coefficients[s] for s in slices), offset)


def _accuracy(header: Mapping[str, Any], k: int) -> Accuracy | None:
    if header["accuracy"] is None:
        return None
    given = _typed(header, "accuracy", dict)
    mixed = _typed(given, "mixed", list)
    each = tuple(_number({"accuracy": a}, "accuracy") for a in _typed(given, "errors", list))
    whole = _number(given, "error"), _number(given, "bound")
    if len(each) != k:
        raise ModelFileError(f"an accuracy of {len(each)} components, where there are {k}")
    if not all(0 <= a <= 1 for a in (*each, *whole)):
        raise ModelFileError("an accuracy that is not between 0 and 1")
    if not all(isinstance(group, list) and all(type(i) is int and 0 <= i < k for i in group) for group in mixed):
        raise ModelFileError(f"mixed components that are not among the {k}")
    return Accuracy(each, *whole, tuple(map(tuple, mixed)), _text(given, "method"))


def _reading(header: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of `dekpca transform` for files: names of columns only."""
    given = {"id": None, "ignore": [], "one_hot": {}} | _typed(header, "reading", dict)
    one_hot = {
        _text({"name": name}, "name", lines=True): _names(given["one_hot"], name)
        for name in _typed(given, "one_hot", dict)
    }
    found = {"ignore": _names(given, "ignore"), "one_hot": one_hot}
    return found if given["id"] is None else found | {"id": _text(given, "id", lines=True)}


def _missing(header: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
    """Nodes that were lost during the fit; their rows are not told with differential privacy."""
    found = []
    for lost in _typed(header, "missing", list):
        told = not isinstance(lost, dict) or lost.get("rows") is not None
        rows = _typed(lost, "rows", int) if told else None
        if rows is not None and rows < 1:
            raise ModelFileError("a missing node without rows")
        found.append({"node": _text(lost, "node"), "rows": rows, "since": _text(lost, "since")})
    return tuple(found)


def _ledger(header: Mapping[str, Any]) -> Ledger | None:
    """The privacy spent."""
    if header["privacy"] is None:
        return None
    given = _typed(header, "privacy", dict)
    entries = [_record(Entry, entry) for entry in _typed(given, "entries", list)]
    if any(entry.sensitivity <= 0 or entry.noise <= 0 for entry in entries):
        raise ModelFileError("a release without noise")
    return Ledger(tuple(entries), _number(given, "epsilon"), _number(given, "delta"))


def _record(kind: type, where: Mapping[str, Any]) -> Any:
    """A dataclass of plain values, each checked by the type of its field."""
    checks: dict[Any, Any] = {
        "str": _text,
        "float": _number,
        "int": partial(_typed, kind=int),
        "bool": partial(_typed, kind=bool),
    }
    return kind(**{field.name: checks[field.type](where, field.name) for field in fields(kind)})


def _names(where: Mapping[str, Any], key: str) -> list[str]:
    """Names of columns, which have line breaks in some spreadsheets."""
    return [_text({key: name}, key, lines=True) for name in _typed(where, key, list)]


def _typed(where: Mapping[str, Any], key: str, kind: type) -> Any:
    value = where[key] if isinstance(where, dict) and key in where else None
    if type(value) is not kind:
        raise ModelFileError(f"{key} in the header is {_printable(repr(value))[:60]}, not of {kind.__name__}")
    return value


def _text(where: Mapping[str, Any], key: str, lines: bool = False) -> str:
    """A text to display: without control characters, on one line unless `lines`."""
    value = _typed(where, key, str)
    if not is_text(value, lines):
        limit = f"a name has at most {MOST_TEXT} characters, and no control characters"
        raise ModelFileError(f"{key} in the header is no name: {_printable(value)[:60]!r}; {limit}")
    return value


def _number(where: Mapping[str, Any], key: str) -> float:
    value: Any = where.get(key)
    if type(value) not in (int, float) or not math.isfinite(value):
        raise ModelFileError(f"{key}={_printable(repr(value))[:60]}")
    return float(value)


def _not_negative(where: Mapping[str, Any], key: str) -> float:
    if (value := _number(where, key)) < 0:
        raise ModelFileError(f"{key}={value}")
    return value


def _array(arrays: Mapping[str, np.ndarray], name: str, axes: int, length: int | None = None) -> np.ndarray:
    if name not in arrays:
        raise ModelFileError(f"array {name} is missing")
    x = arrays[name]
    if x.ndim != axes or 0 in x.shape[1:] or (length is not None and x.shape != (length,)):
        raise ModelFileError(f"array {name} has shape {x.shape}")
    return x


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in text)
