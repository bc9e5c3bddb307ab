"""What a node keeps of its rows, so that a later run can add others: `NAME.stream.npz` beside its model, readable by its owner only.

It holds the landmarks and scales of the run, the sums over the rows of this node, those of the rows that may judge, and a fingerprint of each row.
The file is written and checked as that of a model is: no pickle, sizes checked before anything is read.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from typing import Any

import numpy as np

from ...kernels import Kernel
from ...landmarks import Landmarks
from ...model_file import Format, ModelFileError, kernel_of, kernel_text, read_arrays, write_arrays
from ...rounds import Arrays
from ...scaling import Columns
from ...solvers.sums import Basis, SiteRows, Stream, SumsOptions
from ...solvers.sums.stream import Summed

FORMAT = Format("dekpca-node-stream", 1, "a node's stream", ("<f4", "<f8", "<u8"))
SUMS = ("count", "first", "second", "trace", "along")
Some = tuple[np.ndarray, np.ndarray]  # rows (n, columns) and their keys (n,), unsigned


@dataclass(frozen=True, eq=False)
class NodeStream:
    """The stream of one node after a run; `settings` are those that all nodes agreed on, as texts, `members` the rows of all nodes by name."""

    name: str
    run: str
    transcript: str
    settings: Mapping[str, str]
    members: Mapping[str, int]
    columns: tuple[str, ...] | None  # names, in internal order
    kernel: Kernel
    kinds: tuple[tuple[str, int], ...]
    marks: Landmarks
    fill: np.ndarray | None
    scales: Columns | None
    total: Arrays
    most: tuple[float, float]
    kept: Some
    left: np.ndarray
    waiting: Some
    prints: np.ndarray

    @classmethod
    def of(
        cls, stream: Stream, name: str, run: str, transcript: str, settings: Mapping[str, str], members: Mapping[str, int],
        columns: tuple[str, ...] | None,
    ) -> NodeStream:  # fmt: skip
        basis, summed = stream.basis, stream.summed.drawn(stream.basis.options)
        none = basis.rows()
        kept = summed.kept[0] if summed.kept else basis.kept(none)
        waiting = [some for some in stream.waiting if len(some)] or [none]
        waits = np.concatenate([some.X for some in waiting]), _unsigned(np.concatenate([some.keys for some in waiting]))
        prints = np.frombuffer(stream.prints[list(basis.names).index(name)], dtype=np.uint64).copy()
        return cls(
            name, run, transcript, settings, members, columns, basis.kernel, basis.kinds, basis.marks, basis.fill, basis.columns,
            summed.total, summed.most, (kept.rows.X, _unsigned(kept.rows.keys)), kept.left, waits, prints,
        )  # fmt: skip

    def stream(self, names: Sequence[str], options: SumsOptions) -> Stream:
        """In a network of nodes with these names."""
        options = replace(options, kernel=self.kernel)
        basis, node = (
            Basis(names, options, self.marks, self.kinds, self.fill, self.scales),
            list(names).index(self.name),
        )

        def rows(some: Some) -> SiteRows:
            X, keys = some
            return replace(basis.rows(), X=X, keys=keys.view(np.int64), node=np.full(len(keys), node))

        stream = Stream(basis)
        kept = (basis.kept(rows(self.kept), self.left),) if len(self.left) else ()
        stream.summed = Summed(self.total, kept, self.most, max(len(self.left), stream.summed.crowd))
        stream.waiting = [rows(self.waiting)] if len(self.waiting[1]) else []
        stream.waits, stream.prints[node] = len(self.waiting[1]), array("Q", self.prints.tobytes())
        return stream

    @property
    def rows(self) -> int:
        return len(self.prints)

    # ------------------------------------------------------------------ files
    def save(self, path: str | PathLike[str]) -> None:
        arrays = {name: self.total[name] for name in SUMS} | {"most": np.array(self.most)}
        arrays |= {
            "points": self.marks.points,
            "root": self.marks.root,
            "kept": self.kept[0],
            "kept_keys": self.kept[1],
        }
        arrays |= {
            "left": self.left,
            "waiting": self.waiting[0],
            "waiting_keys": self.waiting[1],
            "prints": self.prints,
        }
        arrays |= {} if self.fill is None else {"fill": self.fill}
        arrays |= {} if self.scales is None else {"column_mean": self.scales.mean, "column_scale": self.scales.scale}
        header = {
            "name": self.name, "run": self.run, "transcript": self.transcript, "settings": dict(self.settings), "members": dict(self.members),
            "columns": None if self.columns is None else list(self.columns), "kinds": [list(kind) for kind in self.kinds],
            "kernel": kernel_text(self.kernel),
        }  # fmt: skip
        write_arrays(path, FORMAT, header, arrays)

    @classmethod
    def load(cls, path: str | PathLike[str]) -> NodeStream:
        with open(path, "rb") as file:
            try:
                return cls._checked(*read_arrays(file, FORMAT))
            except MemoryError:
                raise
            except (Exception, RecursionError) as error:
                why = (
                    str(error)[:200]
                    if isinstance(error, ModelFileError)
                    else f"the file is damaged ({type(error).__name__})"
                )
                raise ModelFileError(f"{os.fspath(path)}: not the stream of a node: {why}") from error

    @classmethod
    def _checked(cls, header: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> NodeStream:
        (m, width), prints = arrays["points"].shape, arrays["prints"]
        n = {name: len(arrays[name]) for name in ("left", "waiting_keys", "prints")}
        shapes = {
            "root": (m, m), "count": (1,), "first": (m,), "second": (m * (m + 1) // 2,), "trace": (2,), "along": (m + 1,), "most": (2,),
            "kept": (n["left"], width), "kept_keys": (n["left"],), "waiting": (n["waiting_keys"], width), "fill": (width,),
            "column_mean": (width,), "column_scale": (width,), "left": (n["left"],), "waiting_keys": (n["waiting_keys"],),
            "prints": (n["prints"],),
        }  # fmt: skip
        keys = {"kept_keys", "waiting_keys", "prints"}
        optional = {"fill", "column_mean", "column_scale"}
        for name, shape in shapes.items():
            if name in optional and name not in arrays:
                continue
            if arrays[name].shape != shape or (arrays[name].dtype == np.uint64) != (name in keys):
                raise ModelFileError(f"{name} is {arrays[name].dtype} {arrays[name].shape}, where {shape} is expected")
        members = {str(name): int(rows) for name, rows in header["members"].items()}
        settings = {str(name): str(value) for name, value in header["settings"].items()}
        kinds = tuple((str(kind), int(count)) for kind, count in header["kinds"])
        columns = None if header["columns"] is None else tuple(str(name) for name in header["columns"])
        name, run, transcript = (str(header[key]) for key in ("name", "run", "transcript"))
        fits = sum(count for _, count in kinds) == m and (columns is None or len(columns) == width)
        rows = int(arrays["count"][0]) + n["waiting_keys"]
        if not fits or members.get(name) != n["prints"] or rows != n["prints"] or min(members.values()) < 1:
            raise ModelFileError("numbers of rows, columns or landmarks that do not fit together")
        scales = None
        if "column_mean" in arrays:
            scales = Columns(arrays["column_mean"], arrays["column_scale"])
            if (scales.scale <= 0).any():
                raise ModelFileError("a column scale that is not above 0")
        total = {name: arrays[name] for name in SUMS}
        count, missed = arrays["most"].tolist()
        kept, waiting = (arrays["kept"], arrays["kept_keys"]), (arrays["waiting"], arrays["waiting_keys"])
        return cls(
            name, run, transcript, settings, members, columns, kernel_of(header), kinds, Landmarks(arrays["points"], arrays["root"]),
            arrays.get("fill"), scales, total, (count, missed), kept, arrays["left"], waiting, prints,
        )  # fmt: skip


def _unsigned(keys: np.ndarray) -> np.ndarray:
    """Keys of rows as a file has them."""
    return keys.view(np.uint64)
