"""Damaged model files: each must raise ModelFileError or load as a model, within 2 s and 3 times the memory of an honest file of its size.

    python tests/faults/fuzz_models.py --files 10000 --seed 0

A damaged file is loaded in this process; memory is what Python and NumPy allocate (tracemalloc).
"""

from __future__ import annotations

import argparse
import io
import json
import struct
import tempfile
import time
import tracemalloc
import warnings
import zipfile
from collections import Counter
from pathlib import Path

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from dekpca import DecentralizedKernelPCA, NodeModel, Projection
from dekpca.model_file import ModelFileError

SLOWEST = 2.0  # seconds
# bytes: an error of zipfile repeats a name of up to 64 KiB, and writes each byte as up to four characters
NAME = 4 << 16
FACTOR, ROOM = 3, 200_000 + NAME  # of the file's size, and bytes for the interpreter's own objects


def honest_files(folder: Path) -> list[bytes]:
    """Models of several kinds."""
    import pandas as pd

    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 30))
    frame = pd.DataFrame(X, columns=[f"column {i}" for i in range(30)])
    kinds = [
        (X, {}),
        (X, {"landmarks": 60}),
        (X, {"solver": Projection()}),
        (frame, {"standardize": True, "missing": "mean"}),
        (frame, {"solver": Projection(), "standardize": True, "missing": "mean"}),
        (X, {"share_rows": False}),
        (X, {"landmarks": "random-features", "max_landmarks": 60}),
        (X, {"solver": Projection(expansion="node"), "dtype": "float32"}),
    ]
    found = []
    for data, settings in kinds:
        path = folder / "node.npz"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # any model will do
            DecentralizedKernelPCA(3, network=4, random_state=0, **settings).fit(data).node_models_[1].save(path)
        found.append(path.read_bytes())
    return found


def damaged(honest: bytes, rng: np.random.Generator) -> bytes:
    """One of many ways to spoil a file."""
    way = int(rng.integers(9))
    data = bytearray(honest)
    if way == 0:  # bytes
        for _ in range(int(rng.integers(1, 20))):
            data[int(rng.integers(len(data)))] = int(rng.integers(256))
        return bytes(data)
    if way == 1:  # a piece is missing, or too much
        a, b = sorted(rng.integers(0, len(data), 2))
        return bytes(data[:a] + data[b:]) if rng.random() < 0.5 else bytes(data[:b] + data[a:])
    if way == 2:  # cut off
        return bytes(data[: int(rng.integers(len(data)))])
    if way == 3:  # the directory lies
        at = len(data) - 22 + int(rng.integers(22))
        struct.pack_into("<B", data, at, int(rng.integers(256)))
        return bytes(data)
    with zipfile.ZipFile(io.BytesIO(honest)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    if way == 4:  # members that nobody asked for, or that unpack to far more
        members["extra.npy"] = bytes(5_000_000)
        return packed(members, zipfile.ZIP_DEFLATED)
    if way == 5:  # everything compressed, one member a bomb
        name = list(members)[int(rng.integers(len(members)))]
        members[name] = members[name][:128] + bytes(20_000_000)
        return packed(members, zipfile.ZIP_DEFLATED)
    if way == 6:  # many members
        return packed(members | {f"{i}": b"" for i in range(int(rng.integers(10, 5000)))}, zipfile.ZIP_STORED)
    if way == 7:  # a number that is none
        name = [n for n in members if n != "header.npy"][int(rng.integers(len(members) - 1))]
        member = bytearray(members[name])
        at = 128 + 8 * int(rng.integers(max(1, (len(member) - 128) // 8)))
        member[at : at + 8] = struct.pack("<d", [np.nan, np.inf, -np.inf, 1e308][int(rng.integers(4))])
        return packed(members | {name: bytes(member[: len(members[name])])}, zipfile.ZIP_STORED)
    text = str(np.load(io.BytesIO(members["header.npy"])))
    buffer = io.BytesIO()
    np.save(buffer, np.array(spoiled(text, rng)))
    return packed(members | {"header.npy": buffer.getvalue()}, zipfile.ZIP_STORED)


def spoiled(text: str, rng: np.random.Generator) -> str:
    """A header with something else somewhere."""
    if rng.random() < 0.1:
        return "[" * 100_000
    header = json.loads(text)
    where: object = header
    for _ in range(int(rng.integers(1, 4))):
        keys = list(where) if isinstance(where, dict) else list(range(len(where))) if isinstance(where, list) else []
        if not keys:
            break
        key = keys[int(rng.integers(len(keys)))]
        if isinstance(where[key], (dict, list)) and where[key] and rng.random() < 0.7:  # type: ignore[index]
            where = where[key]  # type: ignore[index]
            continue
        values = [
            None,
            True,
            -1,
            0,
            2**70,
            1e400,
            "",
            "\x1b[31m",
            "x" * 5000,
            [],
            {},
            [[]],
            {"a": 1},
            float("nan"),
            "points",
            10**12,
        ]
        where[key] = values[int(rng.integers(len(values)))]  # type: ignore[index]
        if rng.random() < 0.2:
            del where[key]  # type: ignore[attr-defined]
        break
    return json.dumps(header)


def packed(members: dict[str, bytes], how: int) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", how) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def fuzz(files: int, seed: int) -> Counter[str]:
    """Load so many damaged files; raises AssertionError where one is taken amiss."""
    rng = np.random.default_rng(seed)
    outcome: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        honest = honest_files(Path(folder))
        path = Path(folder) / "damaged.npz"
        tracemalloc.start()
        for number in range(files):
            path.write_bytes(content := damaged(honest[number % len(honest)], rng))
            tracemalloc.reset_peak()
            before, start = tracemalloc.get_traced_memory()[0], time.perf_counter()
            said = None
            try:
                NodeModel.load(path)
            except ModelFileError as error:
                said = str(error)
            outcome["loaded" if said is None else "refused"] += 1
            good = said is None or ("not a node model: " in said and said.isprintable())
            assert good, f"file {number} of seed {seed}: {said!r}"
            seconds, peak = time.perf_counter() - start, tracemalloc.get_traced_memory()[1] - before
            limit = FACTOR * max(len(content), max(map(len, honest))) + ROOM
            assert seconds < SLOWEST, f"file {number} of seed {seed}: {seconds:.1f} s"
            assert peak < limit, f"file {number} of seed {seed}: {peak} bytes for a file of {len(content)}"
        tracemalloc.stop()
    return outcome


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    start = time.perf_counter()
    print(dict(fuzz(given.files, given.seed)), f"{time.perf_counter() - start:.0f} s")
