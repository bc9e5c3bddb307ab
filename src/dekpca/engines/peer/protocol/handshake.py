"""What two nodes must hold alike before anything else is said: settings, dtype, and the columns of their data."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ....columns import ColumnError, check_same_names
from ..errors import Disagreement
from .checks import MOST_COLUMN, MOST_COLUMNS
from .text import showable

COLUMNS = "columns"  # the fact that tells whether two nodes have the same columns


@dataclass(frozen=True)
class Terms:
    """Facts as texts, and the names of the columns as they are shown to neighbors (empty where they are not)."""

    facts: Mapping[str, str]
    columns: tuple[str, ...] = ()

    @classmethod
    def of(
        cls, facts: Mapping[str, str], columns: Sequence[str] | None, run: str, secret: bool = False
    ) -> Terms:  # fmt: skip
        """`columns` in the order in which they are computed with; `secret`: neighbors get a fingerprint of the names, not the names."""
        if columns is None:
            return cls({COLUMNS: "without names", **facts})
        shown = tuple(showable(name, MOST_COLUMN) for name in columns)
        if secret or sum(len(name.encode()) + 4 for name in shown) > MOST_COLUMNS:
            shown = ()
        return cls({COLUMNS: f"with names of fingerprint {fingerprint(columns, run)}", **facts}, shown)

    def refuse_differences(self, mine: str, theirs: str, other: Terms) -> None:
        """Raise Disagreement, naming all that two nodes do not hold alike."""
        if self.facts.get(COLUMNS) != other.facts.get(COLUMNS) and self.columns and other.columns:
            try:
                check_same_names(self.columns, other.columns, f"node {mine}", f"node {theirs}")
            except ColumnError as error:
                raise Disagreement(str(error)) from error
        ours, facts = self.facts, other.facts
        differing = [
            f"{what[:80]}: node {mine} has {ours.get(what, 'nothing')[:120]}, node {theirs} has {facts.get(what, 'nothing')[:120]}"
            for what in [*ours, *(w for w in facts if w not in ours)]
            if ours.get(what) != facts.get(what)
        ]
        if differing:
            raise Disagreement("; ".join(differing[:40]) + "; give both the same")


def fingerprint(columns: Sequence[str], run: str) -> str:
    """Of the names in this run: it tells whether two nodes have the same names, and which guess at them is right, but not the names."""
    return hashlib.sha256(json.dumps([run, *columns]).encode()).hexdigest()[:32]
