"""Options of the command line for the columns of files."""

from __future__ import annotations

import csv
import logging
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from ..data import Roles
from ..data.reading import categories
from ..progress import lines_to
from .common import say

NAMED = "Column or array that names each row: never a feature, carried to the output."
IdColumn = Annotated[str | None, typer.Option("--id", help=NAMED)]
Columns = Annotated[list[str] | None, typer.Option(help="The features, separated by commas. Default: all columns.")]
Drop = Annotated[list[str] | None, typer.Option(help="Columns to leave out, separated by commas.")]
CATEGORIES = "A column of categories, each of which becomes a feature: COLUMN, or COLUMN=red,green,blue. Repeatable."
OneHot = Annotated[list[str] | None, typer.Option(help=CATEGORIES)]


def make_roles(
    owner: str | None, label: str | None, id_column: str | None, columns: list[str] | None, drop: list[str] | None, one_hot: list[str] | None
) -> Roles:  # fmt: skip
    """The roles of columns, from the options."""
    encoded: dict[str, list[str] | None] = {}
    for text in one_hot or []:
        name, equals, values = text.partition("=")
        encoded[name.strip()] = _split([values]) if equals else None
    chosen = _split(columns) if columns else None
    return Roles(owner, label, id_column, chosen, _split(drop or []), encoded, interface="options")


def _split(texts: Sequence[str]) -> list[str]:
    """Names separated by commas; quotes protect a comma within a name."""
    return [name.strip() for row in csv.reader(texts, skipinitialspace=True) for name in row if name.strip()]


def with_categories(paths: Sequence[Path], roles: Roles) -> Roles:
    """The roles with the categories of all files, if none were given: all nodes need the same features."""
    found: dict[str, Sequence[str] | None] = dict(roles.one_hot)
    for name, given in roles.one_hot.items():
        if given is None:
            found[name] = sorted(set().union(*(categories(path, name) for path in paths)))
    return replace(roles, one_hot=found)


def recalled(reading: Mapping[str, Any], roles: Roles, there: Sequence[str]) -> Roles:
    """The roles for a file of new samples, from the options or else from the model; `there` are the file's columns."""
    known = reading.get("id") if reading.get("id") in there else None
    one_hot = {**reading.get("one_hot", {}), **roles.one_hot}
    return replace(roles, id=roles.id or known, ignore=tuple(reading.get("ignore", ())), one_hot=one_hot)


class _Notes(logging.Handler):
    said: frozenset[str] = frozenset()  # warnings: a file is opened more than once

    def emit(self, record: logging.LogRecord) -> None:
        text, warns = record.getMessage(), record.levelno >= logging.WARNING
        if text not in self.said:
            say("warning" if warns else "note", text)
        self.said |= {text} if warns else set()


def notes() -> AbstractContextManager[None]:
    """Print log lines of the library on standard error."""
    return lines_to(_Notes())
