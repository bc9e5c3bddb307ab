"""The ledger: what was released about a data set, and what it cost. `model.privacy_` is one; a file holds those of all fits on the same data."""

from __future__ import annotations

import fcntl
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ..files import private, write_text
from .accounting import composed, epsilon_of
from .errors import PublicError

VERSION = 1
# Told to others, since ledger and budget are an owner's own
NO_ROOM = "the privacy budget of its data has no room for this run"


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


def cost(entries: Iterable[Entry], delta: float) -> float:
    """Epsilon of these releases together."""
    multiplier = composed(entry.multiplier for entry in entries)
    return 0.0 if multiplier == math.inf else epsilon_of(multiplier, delta)


Releases = Mapping[str, Sequence[Entry]]  # of fits that were interrupted, by their names


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
            noise = f"sensitivity {e.sensitivity:.6g}, noise {e.noise:.6g} (multiplier {e.multiplier:.4g})"
            what = f"  {e.covers}: {e.mechanism} on {e.numbers} numbers"
            lines.append(f"{what}, {noise}, against {e.colluding} colluding nodes")
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
        return self._added(self._read(), entries)

    def charge(self, entries: Sequence[Entry], fit: str = "", before: Releases | None = None) -> float:
        """Add the releases of a fit; returns epsilon of all of them. Raises BudgetSpent where that is above the budget.

        A fit that has a name is added once. `before` were made already, by name: those that the file lacks are added in any case.
        """
        with self._locked():
            held = self._read()
            known = {entry.fit for entry in held}
            missing = [replace(e, fit=name) for name, made in (before or {}).items() if name not in known for e in made]
            new = [] if fit and fit in known else [replace(entry, fit=fit) for entry in entries]
            spent = [*held, *missing]
            try:
                if new:
                    self._added(spent, new)
                    spent += new
            finally:
                after = cost(spent, self.delta)
                if len(spent) > len(held):
                    self._write(after, spent)
            return after

    def _write(self, spent: float, entries: list[Entry]) -> None:
        budget, so_far = ({"epsilon": epsilon, "delta": self.delta} for epsilon in (self.epsilon, spent))
        text = {"version": VERSION, "budget": budget, "spent": so_far, "entries": [asdict(entry) for entry in entries]}
        write_text(self.path, json.dumps(text, indent=2) + "\n")

    def _added(self, spent: Sequence[Entry], entries: Sequence[Entry]) -> tuple[float, float]:
        before, after = cost(spent, self.delta), cost([*spent, *entries], self.delta)
        if after > self.epsilon * (1 + 1e-9):
            raise BudgetSpent(
                f"{self.path}: this fit would bring epsilon from {before:.4g} to {after:.4g} (delta {self.delta:.3g}), but the budget is "
                f"{self.epsilon:.4g}; use a smaller epsilon, or stop: what was published cannot be taken back. Nothing was sent",
                told=NO_ROOM,
            )
        return before, after

    def _read(self) -> list[Entry]:
        """The releases of the file, if there is one; its budget must be ours."""
        if not self.path.exists():
            return []
        try:
            held = json.loads(self.path.read_text())
            epsilon, delta = (float(held["budget"][name]) for name in ("epsilon", "delta"))
            entries = [Entry(**entry) for entry in held["entries"]]
            good = held["version"] == VERSION and all(entry.multiplier > 0 for entry in entries)
        except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
            raise ValueError(f"{self.path}: no ledger of dekpca ({error}); repair it, or give another") from error
        if not good:
            raise ValueError(f"{self.path}: a ledger of another version, or a damaged one; repair it, or give another")
        if (epsilon, delta) != (self.epsilon, self.delta):
            raise ValueError(
                f"{self.path}: its budget is epsilon {epsilon:g}, delta {delta:g}, but this fit names {self.epsilon:g}, {self.delta:g}; a budget is "
                "set once: use that of the file"
            )
        return entries

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Two fits at once must not both spend what is left. The system drops the lock of a process that is killed."""
        lock = self.path.with_name(self.path.name + ".lock")
        with open(lock, "w", opener=private) as handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise RuntimeError(f"{self.path}: another fit is writing it; wait until that has begun") from error
            yield
