"""The settings that two nodes compare first: options, dtype, and the columns of their data."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from ...data.columns import ColumnError, check_same_names
from ..errors import Disagreement
from .text import showable

COLUMNS = "columns"  # the setting with the fingerprint of the columns
MOST_SETTINGS = 100
MOST_SETTING = 4096  # characters
MOST_COLUMN = 200  # characters of a column name that are sent to neighbors
MOST_COLUMNS = 1 << 15  # bytes of all names; beyond, only a fingerprint is compared


@dataclass(frozen=True)
class HandshakeSettings:
    """Values as texts, and the names of the columns as sent to neighbors (empty if not sent)."""

    values: Mapping[str, str]
    columns: tuple[str, ...] = ()

    @classmethod
    def of(cls, values: Mapping[str, str], columns: Sequence[str] | None, run: str, secret: bool = False) -> Self:
        """`columns` in internal order; `secret`: neighbors get only a fingerprint of the names."""
        if columns is None:
            return cls({COLUMNS: "without names", **values})
        shown = tuple(showable(name, MOST_COLUMN) for name in columns)
        if secret or sum(len(name.encode()) + 4 for name in shown) > MOST_COLUMNS:
            shown = ()
        return cls({COLUMNS: f"with names of fingerprint {fingerprint(columns, run)}", **values}, shown)

    def compare(self, mine: str, theirs: str, other: HandshakeSettings) -> None:
        """Raise Disagreement, naming every difference between node `mine` and node `theirs`."""
        if self.values.get(COLUMNS) != other.values.get(COLUMNS) and self.columns and other.columns:
            try:
                check_same_names(self.columns, other.columns, f"node {mine}", f"node {theirs}")
            except ColumnError as error:
                raise Disagreement(f"{error}{_no_feature(self.columns, other.columns)}") from error
        here, there = self.values, other.values
        has = f"{{}}: node {mine} has {{}}, node {theirs} has {{}}".format
        names = [name for name in dict.fromkeys([*here, *there]) if here.get(name) != there.get(name)]
        if names:
            each = [has(n[:80], here.get(n, "nothing")[:120], there.get(n, "nothing")[:120]) for n in names[:40]]
            raise Disagreement("; ".join(each) + "; give both the same")


def _no_feature(some: Sequence[str], others: Sequence[str]) -> str:
    """The remedy where one of two nodes has columns more than the other, which may be no features."""
    more = set(some) - set(others) or set(others) - set(some)
    if len(more) != abs(len(some) - len(others)):
        return ""
    name = min(more)
    return f'; if {name!r} is no feature, write id = "{name}", label or drop in node.toml, as the other owner may have'


def fingerprint(columns: Sequence[str], run: str) -> str:
    """Of the names in this run: it shows whether two nodes have the same names, and can confirm a guess, but does not reveal the names."""
    return hashlib.sha256(json.dumps([run, *columns]).encode()).hexdigest()[:32]
