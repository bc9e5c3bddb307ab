"""What the benchmarks share: data, tables, floors."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

GAMMA = 2e-7  # the authors' bandwidth on raw pixels

console = Console(width=None if sys.stdout.isatty() else 200)


def arguments(description: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument(
        "--data",
        type=Path,
        required=True,
        help="npz file with X (rows x pixels) and y, such as MNIST's digits 0, 3, 5, 8",
    )
    return parser


def load(path: Path) -> tuple[np.ndarray, np.ndarray]:
    with np.load(path, allow_pickle=False) as file:
        return file["X"].astype(np.float64), file["y"]


def table(title: str, *columns: str) -> Table:
    made = Table(title=title, title_justify="left")
    for i, column in enumerate(columns):
        made.add_column(column, justify="left" if i == 0 else "right")
    return made


def numbers(values, digits: int = 4) -> str:
    return " ".join(f"{v:.{digits}f}" for v in np.atleast_1d(values))


class Floors:
    """Collects what does not hold; `finish` prints the verdict and sets the exit code."""

    def __init__(self):
        self.failed: list[str] = []
        self.checked = 0

    def require(self, holds: bool, what: str) -> None:
        self.checked += 1
        if not holds:
            self.failed.append(what)

    def finish(self) -> None:
        for what in self.failed:
            console.print(f"[red]below its floor[/]: {what}")
        console.print(f"{self.checked - len(self.failed)} of {self.checked} floors hold")
        sys.exit(1 if self.failed else 0)
