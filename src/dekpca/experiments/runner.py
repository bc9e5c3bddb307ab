"""Running an experiment: cells times repeats. Each finished one is stored in NAME.json, so that an interrupted run resumes.

Measurements that depend on the seed alone go to NAME.csv: a resumed run writes the same bytes as an uninterrupted one. Times go to NAME-times.csv.
"""

from __future__ import annotations

import csv
import io
import json
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
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


def run(
    experiment: Experiment,
    source: Source,
    repeats: int,
    folder: Path,
    progress: Callable[..., None] = lambda *told: None,
) -> tuple[list[Row], list[Row]]:
    """All measurements and times; those finished by earlier runs into the same folder are not repeated."""
    cells = experiment.cells(source)
    path, stamp = folder / f"{experiment.name}.csv", _stamp(experiment, source, cells)
    finished = _finished(path, stamp)
    done = {(one["repeat"], one["cell"]) for one in finished}
    wanted = [(repeat, cell) for repeat in range(repeats) for cell in cells]
    for number, (repeat, cell) in enumerate(wanted):
        label = _label(cell)
        progress(number, len(wanted), f"repeat {repeat}, {label}")
        if (repeat, label) in done:
            continue
        with _uninterrupted_or_not_at_all():
            measured, took = experiment.measure(source, cell, repeat)
        one = {"repeat": repeat, "cell": label, "measured": measured, "times": took}
        finished.append(json.loads(json.dumps(one, default=lambda x: x.item())))  # as a resumed run reads it
        write_text(path.with_suffix(".json"), json.dumps({"inputs": stamp, "finished": finished}), PUBLIC)
        _tables(path, experiment, finished)
    progress(len(wanted), len(wanted), "done")
    rows, times = _tables(path, experiment, finished)
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


def _finished(path: Path, stamp: str) -> list[dict[str, Any]]:
    """What earlier runs have finished, whose table is at `path`."""
    stored = path.with_suffix(".json")
    if not path.exists():
        return []
    held = json.loads(stored.read_text(encoding="utf-8")) if stored.exists() else {}
    if held.get("inputs") != stamp:
        raise ValueError(f"{path}: made from other data or settings; remove it or choose another folder with --out")
    return held["finished"]


def _tables(path: Path, experiment: Experiment, finished: Sequence[dict[str, Any]]) -> list[list[Row]]:
    """Measurements and times as rows, and in CSV files."""
    found = []
    kinds = ("measured", path, experiment.columns), ("times", path.with_stem(f"{path.stem}-times"), ("what", "seconds"))
    for kind, file, columns in kinds:
        together = [{"repeat": one["repeat"], "cell": one["cell"]} | row for one in finished for row in one[kind]]
        rows = [{key: row[key] for key in ("repeat", "cell", *columns)} for row in together]
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, ("repeat", "cell", *columns), lineterminator="\n")
        writer.writeheader()
        writer.writerows({key: f"{x:.6f}" if isinstance(x, float) else x for key, x in row.items()} for row in rows)
        write_text(file, text.getvalue(), PUBLIC)
        found.append(rows)
    return found
