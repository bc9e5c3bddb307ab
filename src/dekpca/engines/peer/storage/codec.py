"""Values as bytes and back, without pickle: arrays, numbers, texts, lists, tuples, dicts, and dataclasses from a list.

A file has one line with its type, a JSON skeleton of the value, the concatenated arrays, and a SHA-256 of everything
before it: a file that is truncated, or has a flipped bit, is refused. Arrays are read bit for bit as written.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import struct
from collections import deque
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ....accuracy import Accuracy
from ....choices import AutoPenalty, LandmarkSource, Noise, PaperBound, PenaltyFunction, PenaltySteps
from ....core.centering import Columns
from ....core.consensus import Estimate, Functions, Iterate, SharedDual
from ....core.landmarks import Landmarks, RandomFeatures
from ....features import PowerState
from ....files import atomic_write
from ....kernels import Kernel
from ....messages import Heard
from ....options import Options
from ....privacy.settings import Privacy
from ....program import State
from ....rounds import Transcript
from ....space import Known
from ..errors import Damaged

MAGIC = b"dekpca-values 1\n"
LENGTH = struct.Struct("<QQ")  # of the skeleton, of the arrays
DTYPES = {"<f8", "<f4", "<i8", "<i4", "<u8", "|u1", "|b1"}
CLASSES = {
    c.__name__: c
    for c in (
        Accuracy,
        AutoPenalty,
        Columns,
        Estimate,
        Functions,
        Heard,
        Iterate,
        Kernel,
        Known,
        LandmarkSource,
        Landmarks,
        Noise,
        Options,
        PaperBound,
        PenaltyFunction,
        PenaltySteps,
        PowerState,
        Privacy,
        RandomFeatures,
        SharedDual,
        State,
        Transcript,
    )
}
MENDED = {
    errno.EACCES,
    errno.EPERM,
    errno.EMFILE,
    errno.ENFILE,
    errno.ENOMEM,
}  # not damage: the owner can correct these
SIMPLE = (bool, int, float, str, type(None))


def flatten(value: Any) -> tuple[str, list[np.ndarray]]:
    """The JSON skeleton of a value, and its arrays.

    Examples
    --------
    >>> skeleton, arrays = flatten({"w": np.eye(2), "runs": [("converged", 7)]})
    >>> skeleton
    '{"d": [["w", {"a": 0}], ["runs", {"l": [{"t": ["converged", 7]}]}]]}'
    >>> unflatten(skeleton, arrays)["runs"]
    [('converged', 7)]
    """
    arrays: list[np.ndarray] = []
    return json.dumps(_flatten(value, arrays, {}), allow_nan=True), arrays


def _flatten(value: Any, arrays: list[np.ndarray], seen: dict[int, int]) -> Any:
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, SIMPLE):
        return value
    if isinstance(value, np.ndarray):
        if value.dtype.str not in DTYPES:
            raise TypeError(f"an array of dtype {value.dtype} cannot be stored; known are {', '.join(sorted(DTYPES))}")
        if id(value) not in seen:  # a shared array stays shared
            seen[id(value)] = len(arrays)
            arrays.append(value)
        return {"a": seen[id(value)]}
    if isinstance(value, dict):
        return {"d": [[_text(key), _flatten(inner, arrays, seen)] for key, inner in value.items()]}
    if isinstance(value, (list, tuple)):
        return {"l" if isinstance(value, list) else "t": [_flatten(inner, arrays, seen) for inner in value]}
    if is_dataclass(value) and CLASSES.get(type(value).__name__) is type(value):
        inner = {f.name: _flatten(getattr(value, f.name), arrays, seen) for f in fields(value)}
        return {"c": type(value).__name__, "f": inner}
    what = f"the function {getattr(value, '__name__', '?')}" if callable(value) else f"a {type(value).__name__}"
    raise TypeError(f"{what} cannot be stored or sent to another process; use a kernel and a penalty that have names")


def _text(key: Any) -> str:
    if not isinstance(key, str):
        raise TypeError(f"a dict with the key {key!r} cannot be stored; keys must be texts")
    return key


def unflatten(skeleton: str, arrays: list[np.ndarray]) -> Any:
    def build(node: Any) -> Any:
        if isinstance(node, SIMPLE):
            return node
        if "a" in node:
            return arrays[node["a"]]
        if "d" in node:
            return {key: build(inner) for key, inner in node["d"]}
        if "l" in node:
            return [build(inner) for inner in node["l"]]
        if "t" in node:
            return tuple(build(inner) for inner in node["t"])
        made = CLASSES[node["c"]]
        known = {f.name for f in fields(made) if f.init}
        return made(**{name: build(inner) for name, inner in node["f"].items() if name in known})

    return build(json.loads(skeleton))


def raw_bytes(a: np.ndarray) -> memoryview:
    """The memory of a contiguous array."""
    flat: Any = a.reshape(-1).view(np.uint8)
    return memoryview(flat)


def take_bytes(buffers: deque[memoryview], size: int) -> list[memoryview]:
    """Remove the next `size` bytes from several buffers.

    Examples
    --------
    >>> buffers = deque(map(memoryview, (b"ab", b"cdef")))
    >>> [bytes(part) for part in take_bytes(buffers, 3)], [bytes(rest) for rest in buffers]
    ([b'ab', b'c'], [b'def'])
    """
    taken = []
    while size:
        part = buffers[0][:size]
        taken.append(part)
        size -= len(part)
        if len(part) < len(buffers[0]):
            buffers[0] = buffers[0][len(part) :]
        else:
            buffers.popleft()
    return taken


def same(a: tuple[str, list[np.ndarray]], b: tuple[str, list[np.ndarray]]) -> bool:
    """Whether two flattened values consist of the same array objects."""
    return a[0] == b[0] and len(a[1]) == len(b[1]) and all(x is y for x, y in zip(a[1], b[1], strict=True))


class _Hashed:
    def __init__(self, file: Any):
        self.file, self.digest = file, hashlib.sha256()

    def write(self, data: Any) -> None:
        self.digest.update(data)
        self.file.write(data)


def write_to(file: Any, flat: tuple[str, list[np.ndarray]]) -> None:
    """To anything with a method `write`."""
    skeleton, arrays = flat
    # strides are kept too: products of arrays with other strides may round differently
    listed = [
        {"dtype": a.dtype.str, "shape": a.shape, "strides": None if a.flags.c_contiguous else a.strides} for a in arrays
    ]
    header = json.dumps({"value": skeleton, "arrays": listed}).encode()
    hashed = _Hashed(file)
    hashed.write(MAGIC)
    hashed.write(LENGTH.pack(len(header), sum(a.nbytes for a in arrays)))
    hashed.write(header)
    for a in arrays:
        hashed.write(raw_bytes(np.ascontiguousarray(a)))
    file.write(hashed.digest.digest())


def write(path: Path, flat: tuple[str, list[np.ndarray]]) -> None:
    """Write a file atomically."""
    with atomic_write(path) as file:
        write_to(file, flat)


def read(path: Path) -> Any:
    """A value that `write` wrote; raises Damaged for anything else."""
    try:
        with open(path, "rb") as file:
            return read_from(file, os.fstat(file.fileno()).st_size, str(path))
    except OSError as error:
        if error.errno in MENDED:
            raise
        raise Damaged(f"{path}: cannot be read ({error.strerror})") from error


def read_from(file: Any, size: int, path: str) -> Any:
    """From a stream of `size` bytes; `path` is its name in errors."""
    start = file.read(len(MAGIC) + LENGTH.size)
    digest = hashlib.sha256(start)
    if len(start) < len(MAGIC) + LENGTH.size or not start.startswith(MAGIC):
        raise Damaged(f"{path}: not a file of values")
    header_size, array_size = LENGTH.unpack(start[len(MAGIC) :])
    if len(start) + header_size + array_size + digest.digest_size != size:
        raise Damaged(f"{path}: {size} bytes, not as many as it says; it was cut short or changed")
    header = file.read(header_size)
    digest.update(header)
    try:
        content = json.loads(header)
        listed = [(np.dtype(a["dtype"]), tuple(a["shape"]), a["strides"]) for a in content["arrays"]]
        fits = sum(int(np.prod(shape, dtype=np.int64)) * dtype.itemsize for dtype, shape, _ in listed) == array_size
        if not fits or any(dtype.str not in DTYPES for dtype, _, _ in listed):
            raise ValueError
    except (ValueError, KeyError, TypeError) as error:  # before the digest is checked, the content is arbitrary
        raise Damaged(f"{path}: its header is damaged") from error
    arrays = []
    for dtype, shape, _ in listed:
        a = np.empty(shape, dtype=dtype)
        into = raw_bytes(a)
        file.readinto(into)
        digest.update(into)
        arrays.append(a)
    if file.read() != digest.digest():
        raise Damaged(f"{path}: its checksum is wrong; it was changed or damaged")
    arrays = [
        a if strides is None else _laid_out(a, strides) for a, (_, _, strides) in zip(arrays, listed, strict=True)
    ]
    return unflatten(content["value"], arrays)


def _laid_out(a: np.ndarray, strides: list[int]) -> np.ndarray:
    """The same numbers with other strides."""
    reach = [(n - 1) * s for n, s in zip(a.shape, strides, strict=True)]
    start = -sum(r for r in reach if r < 0)
    if a.size == 0:
        return a
    buffer = np.zeros((start + sum(r for r in reach if r > 0)) // a.itemsize + 1, dtype=a.dtype)
    out = np.ndarray(a.shape, a.dtype, buffer, start, strides)
    out[...] = a
    return out
