"""The ledger: what was released about a data set, and what it cost. `model.privacy_` is one; a file holds those of all fits on the same data."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ..files import private, write_text
from .accounting import composed, epsilon_of
from .errors import PublicError

VERSION = 1
NO_ROOM = (
    "the privacy budget of its data has no room for this run"  # told to others: ledger and budget are an owner's own
)


class BudgetSpent(PublicError):
    """A fit would spend more than the budget of its data; nothing was computed or sent."""


@dataclass(frozen=True)
class Entry:
    """One release."""

    covers: str  # what was released
    mechanism: str
    sensitivity: float  # L2, of one row that is added or removed, in the units of the noise
    noise: float  # standard deviation of what is left if the colluding nodes take off theirs
    numbers: int  # how many numbers carry it
    colluding: int
    fit: str = ""  # in a file: the fit of peers that it belongs to, which a node that was killed goes on with

    @property
    def multiplier(self) -> float:
        return self.noise / self.sensitivity


@dataclass(frozen=True)
class Ledger:
    """What one fit released. Everything else in the model follows from it, or is public.

    `epsilon` and `delta` hold for adding or removing one row of any node, against anybody who sees the model, and against `colluding` nodes.
    """

    entries: tuple[Entry, ...]
    epsilon: float
    delta: float

    def __str__(self) -> str:
        lines = [f"epsilon {self.epsilon:.4g}, delta {self.delta:.3g}, for adding or removing one row:"]
        for e in self.entries:
            lines.append(
                f"  {e.covers}: {e.mechanism} on {e.numbers} numbers, sensitivity {e.sensitivity:.6g}, noise {e.noise:.6g} "
                f"(multiplier {e.multiplier:.4g}), against {e.colluding} colluding nodes"
            )
        return "\n".join(lines)

    def as_dict(self) -> dict[str, Any]:
        return {"epsilon": self.epsilon, "delta": self.delta, "entries": [asdict(entry) for entry in self.entries]}


class LedgerFile:
    """A JSON file: a budget, and the releases of all fits so far. One file for each data set; whoever uses a second file starts to count anew.

    What a fit will cost is written before anything is sent: a fit that fails afterwards has still spent it.
    """

    def __init__(self, path: str | os.PathLike[str], epsilon: float, delta: float):
        self.path, self.epsilon, self.delta = Path(path), float(epsilon), float(delta)

    def would_be(self, entries: Sequence[Entry]) -> tuple[float, float]:
        """Epsilon of all fits so far, and with these releases. Raises BudgetSpent where that is above the budget."""
        return self._added(*self._read(), entries)

    def charge(
        self, entries: Sequence[Entry], fit: str = "", before: Mapping[str, Sequence[Entry]] | None = None
    ) -> float:
        """Add the releases of a fit; returns epsilon of all of them. Raises BudgetSpent where that is above the budget.

        A fit that has a name is added once. `before` were made already, by name: those that the file lacks are added in any case.
        """
        with self._locked():
            budget, held = self._read()
            spent = list(held)
            known = {entry.get("fit") for _, entry in spent}
            missing = [replace(e, fit=name) for name, made in (before or {}).items() if name not in known for e in made]
            spent += [(entry.multiplier, asdict(entry)) for entry in missing]
            new = [] if fit and fit in known else [replace(entry, fit=fit) for entry in entries]
            try:
                if new:
                    self._added(budget, spent, new)
                    spent += [(entry.multiplier, asdict(entry)) for entry in new]
            finally:
                after = epsilon_of(composed(z for z, _ in spent), budget["delta"]) if spent else 0.0
                if len(spent) > len(held):
                    self._write(budget, after, [entry for _, entry in spent])
            return after

    def _write(self, budget: dict[str, float], spent: float, entries: list[dict[str, Any]]) -> None:
        text = {
            "version": VERSION,
            "budget": budget,
            "spent": {"epsilon": spent, "delta": budget["delta"]},
            "entries": entries,
        }
        write_text(self.path, json.dumps(text, indent=2) + "\n")

    def _added(
        self, budget: dict[str, float], spent: list[tuple[float, dict[str, Any]]], entries: Sequence[Entry]
    ) -> tuple[float, float]:
        before = epsilon_of(composed(z for z, _ in spent), budget["delta"]) if spent else 0.0
        after = epsilon_of(composed([z for z, _ in spent] + [e.multiplier for e in entries]), budget["delta"])
        if after > budget["epsilon"] * (1 + 1e-9):
            raise BudgetSpent(
                f"{self.path}: this fit would bring epsilon from {before:.4g} to {after:.4g} (delta {budget['delta']:.3g}), but the budget is "
                f"{budget['epsilon']:.4g}; use a smaller epsilon, or stop: what was published cannot be taken back. Nothing was sent",
                told=NO_ROOM,
            )
        return before, after

    def _read(self) -> tuple[dict[str, float], list[tuple[float, dict[str, Any]]]]:
        if not self.path.exists():
            return {"epsilon": self.epsilon, "delta": self.delta}, []
        try:
            held = json.loads(self.path.read_text())
            budget = {name: float(held["budget"][name]) for name in ("epsilon", "delta")}
            entries = [(Entry(**entry).multiplier, entry) for entry in held["entries"]]
            good = held["version"] == VERSION and all(z > 0 for z, _ in entries)
        except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
            raise ValueError(
                f"{self.path}: this is no ledger of dekpca ({error}); give another path, or repair it"
            ) from error
        if not good:
            raise ValueError(
                f"{self.path}: a ledger of another version, or a damaged one; give another path, or repair it"
            )
        if (budget["epsilon"], budget["delta"]) != (self.epsilon, self.delta):
            raise ValueError(
                f"{self.path}: its budget is epsilon {budget['epsilon']:g}, delta {budget['delta']:g}, but this fit names {self.epsilon:g}, "
                f"{self.delta:g}; a budget is set once: use that of the file"
            )
        return budget, entries

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Two fits at once must not both spend what is left. The system drops the lock of a process that is killed."""
        lock = self.path.with_name(self.path.name + ".lock")
        with open(lock, "w", opener=private) as handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise RuntimeError(
                    f"{self.path}: another fit is writing this ledger; wait until it has begun"
                ) from error
            yield
