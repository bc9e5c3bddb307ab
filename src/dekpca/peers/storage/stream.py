"""What a node keeps of its rows, so that a later run can add others: `NAME.stream.npz` beside its model, readable by its owner only.

It holds the landmarks and scales of the run, the sums over the rows of this node, those of the rows that may judge, and a fingerprint of each row.
The file is written and checked as that of a model is: no pickle, sizes checked before anything is read.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from os import PathLike
from typing import Any

import numpy as np

from ...kernels import Kernel
from ...landmarks import Landmarks
from ...model_file import Format, ModelFileError, kernel_from, kernel_header, opened, read_arrays, write_arrays
from ...scaling import Scales
from ...solvers.sums import Basis, SiteRows, Stream, SumsOptions
from ...solvers.sums.stream import Summed

FORMAT = Format("dekpca-node-stream", 1, "a node's stream", ("<f4", "<f8", "<u8"))
SUMS = ("count", "first", "second", "trace", "along")
KEYS = ("kept_keys", "waiting_keys", "prints")  # unsigned in a file


@dataclass(frozen=True, eq=False)
class NodeStream:
    """The stream of one node after a run; `settings` are those that all nodes agreed on, as texts, `members` the rows of all nodes by name.

    `arrays` are those of the file: landmarks (`points`, `root`), `fill` and scales of columns where there are any, the sums over rows, rows that may
    judge (`kept`) or wait (`waiting`) with their keys, and `prints` of all rows.
    """

    name: str
    run: str
    transcript: str
    settings: Mapping[str, str]
    members: Mapping[str, int]
    columns: tuple[str, ...] | None  # names, in internal order
    kernel: Kernel
    kinds: tuple[tuple[str, int], ...]  # of the landmarks
    arrays: Mapping[str, np.ndarray]

    @classmethod
    def of(
        cls, stream: Stream, name: str, run: str, transcript: str, settings: Mapping[str, str], members: Mapping[str, int],
        columns: tuple[str, ...] | None,
    ) -> NodeStream:  # fmt: skip
        basis, summed = stream.basis, stream.summed.drawn(stream.basis.options)
        none = basis.rows()
        kept = summed.kept[0] if summed.kept else basis.kept(none)
        waiting = [some for some in stream.waiting if len(some)] or [none]
        arrays = {name: summed.total[name] for name in SUMS} | {
            "most": np.array(summed.most), "points": basis.marks.points, "root": basis.marks.root, "left": kept.left,
            "kept": kept.rows.X, "kept_keys": kept.rows.keys.view(np.uint64),
            "waiting": np.concatenate([some.X for some in waiting]),
            "waiting_keys": np.concatenate([some.keys for some in waiting]).view(np.uint64),
            "prints": np.frombuffer(stream.prints[list(basis.names).index(name)], dtype=np.uint64).copy(),
        }  # fmt: skip
        arrays |= {} if basis.fill is None else {"fill": basis.fill}
        scales = basis.scales
        arrays |= {} if scales is None else {"column_mean": scales.mean, "column_scale": scales.scale}
        return cls(name, run, transcript, settings, members, columns, basis.kernel, basis.marks.kinds, arrays)

    def stream(self, names: Sequence[str], options: Any) -> Stream:
        """In a network of nodes with these names."""
        assert isinstance(options, SumsOptions)
        held, node = self.arrays, list(names).index(self.name)
        scales = Scales(held["column_mean"], held["column_scale"]) if "column_mean" in held else None
        options = replace(options, kernel=self.kernel)
        basis = Basis(names, options, self.marks, held.get("fill"), scales)

        def rows(what: str) -> SiteRows:
            keys = held[f"{what}_keys"].view(np.int64)
            return replace(basis.rows(), X=held[what], keys=keys, node=np.full(len(keys), node))

        stream, left, waits = Stream(basis), held["left"], len(held["waiting"])
        count, missed = held["most"].tolist()
        kept = (basis.kept(rows("kept"), left),) if len(left) else ()
        total = {name: held[name] for name in SUMS}
        stream.summed = Summed(total, kept, (count, missed), max(len(left), stream.summed.crowd))
        stream.waiting = [rows("waiting")] if waits else []
        stream.waits, stream.prints[node] = waits, array("Q", held["prints"].tobytes())
        return stream

    @property
    def marks(self) -> Landmarks:
        return Landmarks(self.arrays["points"], self.arrays["root"], self.kinds)

    @property
    def rows(self) -> int:
        return len(self.arrays["prints"])

    # ------------------------------------------------------------------ files
    def save(self, path: str | PathLike[str]) -> None:
        header = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("kernel", "arrays")}
        write_arrays(path, FORMAT, header | {"kernel": kernel_header(self.kernel)}, dict(self.arrays))

    @classmethod
    def load(cls, path: str | PathLike[str]) -> NodeStream:
        with opened(path, "the stream of a node") as file:
            return cls._checked(*read_arrays(file, FORMAT))

    @classmethod
    def _checked(cls, header: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> NodeStream:
        (m, width), left, waiting = arrays["points"].shape, len(arrays["left"]), len(arrays["waiting_keys"])
        shapes = {
            "points": (m, width), "root": (m, m), "count": (1,), "first": (m,), "second": (m * (m + 1) // 2,), "trace": (2,), "along": (m + 1,),
            "most": (2,), "left": (left,), "kept": (left, width), "kept_keys": (left,), "waiting": (waiting, width), "waiting_keys": (waiting,),
            "prints": (len(arrays["prints"]),), "fill": (width,), "column_mean": (width,), "column_scale": (width,),
        }  # fmt: skip
        absent = {"fill", "column_mean", "column_scale"} - arrays.keys()
        if len(absent & {"column_mean", "column_scale"}) == 1:
            raise ModelFileError("a mean without a scale, or a scale without a mean")
        arrays = {name: arrays[name] for name in shapes if name not in absent}
        for name, held in arrays.items():
            if held.shape != shapes[name] or (held.dtype == np.uint64) != (name in KEYS):
                raise ModelFileError(f"{name} is {held.dtype} {held.shape}, where {shapes[name]} is expected")
        members = {str(name): int(rows) for name, rows in header["members"].items()}
        settings = {str(name): str(value) for name, value in header["settings"].items()}
        kinds = tuple((str(kind), int(count)) for kind, count in header["kinds"])
        columns = None if header["columns"] is None else tuple(str(name) for name in header["columns"])
        name, run, transcript = (str(header[key]) for key in ("name", "run", "transcript"))
        fits = sum(count for _, count in kinds) == m and (columns is None or len(columns) == width)
        rows = int(arrays["count"][0]) + waiting
        if not fits or not members.get(name) == len(arrays["prints"]) == rows or min(members.values()) < 1:
            raise ModelFileError("numbers of rows, columns or landmarks that do not fit together")
        if (arrays.get("column_scale", np.ones(1)) <= 0).any():
            raise ModelFileError("a column scale that is not above 0")
        return cls(name, run, transcript, settings, members, columns, kernel_from(header), kinds, arrays)
