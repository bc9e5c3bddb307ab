"""Running an experiment: cells times repeats. Each finished one is stored in a CSV file, so that an interrupted run resumes.

Measurements that depend on the seed alone go to NAME.csv: a resumed run writes the same bytes as an uninterrupted one. Times go to NAME-times.csv.
"""

from __future__ import annotations

import csv
import io
import json
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from ..files import PUBLIC, write_text
from ..report.panels import Panel

Row = dict[str, Any]


@dataclass(frozen=True, eq=False)
class Source:
    """The data of an experiment. `gamma` is the kernel's width for it."""

    X: np.ndarray
    y: np.ndarray
    gamma: float
    name: str


@dataclass(frozen=True, eq=False)
class Experiment:
    """The cells of an experiment, its measurement, and its figures."""

    name: str
    title: str
    columns: tuple[str, ...]  # of a measurement, after repeat
    cells: Callable[[Source], list[dict[str, Any]]]  # the settings that are varied
    measure: Callable[[Source, dict[str, Any], int], tuple[list[Row], list[Row]]]  # of a cell and seed; and times
    draw: Callable[[list[Row], list[Row]], list[Panel]]
    text: str  # explanation for the report


TIME_COLUMNS = ("repeat", "cell", "what", "seconds")


def run(
    experiment: Experiment,
    source: Source,
    repeats: int,
    folder: Path,
    progress: Callable[..., None] = lambda *told: None,
) -> tuple[list[Row], list[Row]]:
    """All measurements and times; those finished by earlier runs into the same folder are not repeated."""
    cells = experiment.cells(source)
    path, times_path = folder / f"{experiment.name}.csv", folder / f"{experiment.name}-times.csv"
    columns = ("repeat", "cell", *experiment.columns)
    rows, times = _kept(path, times_path, columns, _stamp(experiment, source, cells))
    done = {(int(row["repeat"]), row["cell"]) for row in rows}
    wanted = [(repeat, cell) for repeat in range(repeats) for cell in cells]
    for number, (repeat, cell) in enumerate(wanted):
        label = _label(cell)
        progress(number, len(wanted), f"repeat {repeat}, {label}")
        if (repeat, label) in done:
            continue
        with _uninterrupted_or_not_at_all():
            measured, took = experiment.measure(source, cell, repeat)
        rows += [_as_read({"repeat": repeat, "cell": label} | row, columns) for row in measured]
        times += [_as_read({"repeat": repeat, "cell": label} | row, TIME_COLUMNS) for row in took]
        _write(times_path, TIME_COLUMNS, times)
        _write(path, columns, rows)  # last: a repeat counts as finished when its measurements are written
    progress(len(wanted), len(wanted), "done")
    return [r for r in rows if r["repeat"] < repeats], [t for t in times if t["repeat"] < repeats]


@contextmanager
def _uninterrupted_or_not_at_all() -> Iterator[None]:
    """Ctrl-C ends the run. A fit would keep its last iterate, which would be measured as a result."""

    def stop(signum: int, frame: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _label(cell: dict[str, Any]) -> str:
    return " ".join(f"{key}={value}" for key, value in cell.items())


def _stamp(experiment: Experiment, source: Source, cells: list[dict[str, Any]]) -> str:
    """The inputs of earlier results; they are used only if these are equal."""
    digest = blake2b(np.ascontiguousarray(source.X).tobytes() + np.ascontiguousarray(source.y).tobytes(), digest_size=8)
    about = {"experiment": experiment.name, "data": digest.hexdigest(), "gamma": source.gamma, "cells": cells}
    return json.dumps(about)


def _kept(path: Path, times_path: Path, columns: Sequence[str], stamp: str) -> tuple[list[Row], list[Row]]:
    """Rows finished by earlier runs."""
    stamp_path = path.with_suffix(".json")
    if path.exists() and (not stamp_path.exists() or stamp_path.read_text(encoding="utf-8") != stamp):
        raise ValueError(f"{path}: made from other data or settings; remove it or choose another folder with --out")
    write_text(stamp_path, stamp, PUBLIC)
    rows, times = _read(path, columns), _read(times_path, TIME_COLUMNS)
    finished = {(row["repeat"], row["cell"]) for row in rows}
    return rows, [row for row in times if (row["repeat"], row["cell"]) in finished]


def _read(path: Path, columns: Sequence[str]) -> list[Row]:
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return [_as_read(row, columns) for row in csv.DictReader(file)]


def _write(path: Path, columns: Sequence[str], rows: Sequence[Row]) -> None:
    """Write all rows atomically; a killed run leaves the previous file."""
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows({key: _text(row[key]) for key in columns} for row in rows)
    write_text(path, text.getvalue(), PUBLIC)


def _text(value: Any) -> Any:
    return f"{value:.6f}" if isinstance(value, float) else value


def _as_read(row: Row, columns: Sequence[str]) -> Row:
    """Values as read from the file: numbers or texts."""
    return {key: _value(str(_text(row[key]))) for key in columns}


def _value(text: str) -> Any:
    for kind in (int, float):
        with suppress(ValueError):
            return kind(text)
    return text
