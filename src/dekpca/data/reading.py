"""The columns of a file get roles, and features become numbers. formats.py opens the file, rows.py reads its rows."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from ..network import listing
from .checks import NOTHING_LEFT
from .columns import Samples, check_known, check_names, encoded, refuse_text
from .formats import CHUNK, LABELS, Block, DataError, Source, errors_of, is_absent, open_source
from .frames import ColumnError

log = logging.getLogger("dekpca")


@dataclass(frozen=True)
class Roles:
    """The roles of the columns of a file. Columns with a role are not features.

    Parameters
    ----------
    owner, label, id : str, optional
        The column (or array of an archive) that names each row's node, its class, or the row itself. The default of
        `label` is a column or array called y, label, labels or target.
    columns : sequence of str, optional
        The features; the other columns are left out. Default: all columns without a role.
    drop : sequence of str
        Columns to leave out.
    one_hot : mapping of str to sequence of str or None
        Columns of categories, each of which becomes a feature called column=category with the values 0 and 1; None takes the categories
        that the file has.
    ignore : sequence of str
        Columns to leave out, if they exist.
    keep : sequence of str
        Columns that are features in spite of a label's name, or of a name that they lack in the file.
    interface : {"python", "options", "node.toml"}
        Whose words errors use.
    """

    owner: str | None = None
    label: str | None = None
    id: str | None = None
    columns: Sequence[str] | None = None
    drop: Sequence[str] = ()
    one_hot: Mapping[str, Sequence[str] | None] = field(default_factory=dict)
    ignore: Sequence[str] = ()
    keep: Sequence[str] = ()
    interface: str = "python"

    def __post_init__(self) -> None:
        for what in ("columns", "drop", "one_hot", "ignore", "keep"):
            refuse_text(getattr(self, what), what)

    @property
    def mentioned(self) -> list[str]:
        """Columns that must exist."""
        named = (self.owner, self.label, self.id, *(self.columns or ()), *self.drop, *self.one_hot)
        return [name for name in named if name is not None]


@dataclass(frozen=True, eq=False)
class Data:
    """Samples, and the other values that the file has for each row. A missing value that may stay is NaN."""

    X: np.ndarray
    names: tuple[str, ...] | None = None  # of the columns
    labels: np.ndarray | None = None
    owners: np.ndarray | None = None
    ids: np.ndarray | None = None
    dropped: int = 0  # rows left out because of missing values
    ignored: tuple[str, ...] = ()  # columns of the file that are neither features nor ids

    @property
    def samples(self) -> Samples:
        return Samples(self.X, self.names)

    @property
    def owner_names(self) -> list[str]:
        return [] if self.owners is None else sorted(set(map(str, self.owners.tolist())))

    def at(self, kept: np.ndarray) -> Data:
        """These rows alone; the others are counted as dropped."""
        given = {what: getattr(self, what) for what in ("labels", "owners", "ids")}
        rest: Any = {what: x[kept] for what, x in given.items() if x is not None}
        return replace(self, X=self.X[kept], dropped=len(self.X) - len(kept), **rest)


def check_owners_left(who: str, owners: set[Any], left: set[Any]) -> None:
    """Refuse that missing="drop" leaves an owner without rows: the fit would go on without it."""
    if owners != left:
        raise ColumnError(f"{who}: node {listing(sorted(map(str, owners - left)))}: {NOTHING_LEFT}")


def column_names(path: str | Path) -> list[str]:
    """The names of a file's columns and, in an archive, of the other arrays."""
    path = Path(path)
    with errors_of(path):
        source = open_source(path, set())
    return [*source.names, *source.beside]


def categories(path: str | Path, column: str) -> set[str]:
    """The categories in a column of a file."""
    path = Path(path)
    with errors_of(path):
        return source_categories(open_source(path, {column}), column, str(path))


def source_categories(source: Source, column: str, who: str) -> set[str]:
    check_known(column, [*source.beside, *source.names], who)
    if column in source.beside:
        return {str(v) for v in source.beside[column] if not is_absent(v)}
    found: set[str] = set()
    for block in source.blocks([], [column], CHUNK):
        found |= {str(v) for v in block.values[column] if not is_absent(v)}
    return found


@dataclass(frozen=True)
class Chosen:
    """What to read of a file: columns as numbers, columns of categories, and those with a role."""

    who: str  # the file
    numbers: list[str]
    one_hot: Mapping[str, Sequence[str] | None]
    roled: dict[str, str]  # "labels", "owners", "ids" to a column
    named: bool
    ignored: tuple[str, ...]

    @property
    def values(self) -> list[str]:
        """Columns that are read as they are."""
        return [*dict.fromkeys([*self.roled.values(), *self.one_hot])]

    def data(self, block: Block) -> Data:
        """From these columns of some rows."""
        (X, values, where), names = block, [*self.numbers]
        for name, categories in self.one_hot.items():
            known = [None if is_absent(value) else value for value in values[name]]
            made = encoded(name, known, categories, self.who, where)
            X, names = np.column_stack([X, *made.values()]), [*names, *made]
        given: Any = {what: values[name] for what, name in self.roled.items()}
        return Data(X, tuple(names) if self.named or self.one_hot else None, **given, ignored=self.ignored)


def choose(who: str, source: Source, roles: Roles) -> Chosen:
    """Apply roles to the columns of a file."""
    check_names(source.names, who)
    for name in roles.mentioned:
        check_known(name, [*source.beside, *source.names], who)
    features = set(roles.columns or ()) | set(roles.one_hot)
    label = roles.label or _usual_label(who, source, roles, features)
    others = {roles.owner, label, roles.id, *roles.drop, *roles.ignore}
    bare = source.nameless
    if bare is not None and roles.columns is None and bare not in {*others, *features, *roles.keep}:
        what = f"the first column has no name, so it is taken for names of rows and left out; it is called {bare!r}"
        log.warning(f"{who}: {what}: name it as the id, drop it, or list the columns to make it a feature")
        others.add(bare)
    clash = sorted(name for name in others & features if name is not None)
    if clash:
        raise DataError(f"column {listing(map(repr, clash))} cannot be a feature and something else; give it one role")
    wanted = [*(n for n in roles.columns if n not in roles.one_hot), *roles.one_hot] if roles.columns else source.names
    chosen = [name for name in wanted if name not in others and name not in source.beside]
    numbers = [name for name in chosen if name not in roles.one_hot]
    if not chosen:
        raise DataError(f"no column is left for the features; it has {listing(map(repr, source.names))}")
    roled = {"labels": label, "owners": roles.owner, "ids": roles.id}
    given = {what: name for what, name in roled.items() if name is not None}
    ignored = tuple(name for name in source.names if source.named and name not in chosen and name != roles.id)
    return Chosen(who, numbers, roles.one_hot, given, source.named, ignored)


def _usual_label(who: str, source: Source, roles: Roles, features: set[str]) -> str | None:
    taken = {roles.owner, roles.id, *roles.drop, *features, *roles.keep}
    known = {*source.beside} | ({*source.names} if source.named else set())
    found = next((name for name in LABELS if name in known and name not in taken), None)
    if found is not None and found in source.names and roles.columns is None and found not in roles.ignore:
        log.info(f"{who}: column {found!r} is taken for the label, not for a feature; list the columns to make it one")
    return found


def remembered(roles: Roles, sources: Sequence[Any]) -> dict[str, Any]:
    """What a model stores, so that `dekpca transform` takes files with the same columns; `sources` are of `Data` or `Rows`."""
    ignored = dict.fromkeys(name for source in sources for name in source.ignored)
    one_hot = {name: list(categories or ()) for name, categories in roles.one_hot.items()}
    return {"id": roles.id, "ignore": list(ignored), "one_hot": one_hot}
