"""Samples from a file: columns get roles, features become numbers, missing values are handled.

file_formats.py opens the file. An error is one line, with the remedy.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from .columns import Samples, check_unique, closest
from .file_formats import LABELS, DataError, Source, is_absent, open_source, reading
from .network import listing

log = logging.getLogger("dekpca")

LIKE_AN_ID = re.compile(r"(?i:(^|[\W_])(id|ids|key|uuid|guid|nr|no|number|index|idx)$|^unnamed: 0$)|[a-z]I[dD]$")

Missing = Literal["error", "drop", "mean"]
MISSING: tuple[Missing, ...] = ("error", "drop", "mean")


@dataclass(frozen=True)
class Roles:
    """The roles of the columns of a file. Columns with a role are not features.

    Parameters
    ----------
    owner, label, id : str, optional
        The column (or array of an archive) that names each row's node, its class, or the row itself. The default of
        `label` is a column or array called y, label, labels, target or gnd.
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
        Columns that are features in spite of a label's name.
    """

    owner: str | None = None
    label: str | None = None
    id: str | None = None
    columns: Sequence[str] | None = None
    drop: Sequence[str] = ()
    one_hot: Mapping[str, Sequence[str] | None] = field(default_factory=dict)
    ignore: Sequence[str] = ()
    keep: Sequence[str] = ()

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


def read(path: str | Path, roles: Roles | None = None, missing: Missing = "error") -> Data:
    """The samples of a file, by its ending.

    Parameters
    ----------
    path : str or Path
        .npz (arrays "X" and, for labels, "y"; "columns" may name the columns of X), .npy (memory-mapped), .csv (comma, semicolon or tab, with
        or without a header), .parquet, .mat, or idx (MNIST's *-images-idx3-ubyte, plain or .gz; labels are taken from the *-labels-idx1-ubyte
        beside it).
    roles : Roles, optional
        The roles of the columns.
    missing : {"error", "drop", "mean"}
        For rows with missing values: refuse the file, leave the rows out, or keep NaN, which the network's mean will replace.

    Examples
    --------
    >>> import tempfile, pathlib
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "rows.csv"
    >>> _ = path.write_text("hospital,age,weight\\noslo,41,80\\nrome,38,75\\nrome,,70\\n")
    >>> data = read(path, Roles(owner="hospital"), missing="drop")
    >>> data.X.tolist(), data.names, data.owners.tolist(), data.dropped
    ([[41.0, 80.0], [38.0, 75.0]], ('age', 'weight'), ['oslo', 'rome'], 1)
    """
    path, roles = Path(path), roles or Roles()
    with reading(path):
        source = open_source(path, set(roles.mentioned))
        data, where = _take_roles(path, source, roles)
    data = _without_missing(path, data, missing, where)
    if data.names is not None and roles.columns is None:
        _warn_of_ids(path, data.names, data.X)
    return data


def column_names(path: str | Path) -> list[str]:
    """The names of a file's columns and, in an archive, of the other arrays."""
    path = Path(path)
    with reading(path):
        source = open_source(path, set())
    return [*source.names, *source.beside]


def categories(path: str | Path, column: str) -> set[str]:
    """The categories in a column of a file."""
    path = Path(path)
    with reading(path):
        source = open_source(path, {column})
        _check_known(path, source, [column])
        values = source.read([], [column])[1][column]
    return {str(v) for v in values if not is_absent(v)}


def _take_roles(path: Path, source: Source, roles: Roles) -> tuple[Data, Callable[[int], str]]:
    check_unique(source.names, str(path))
    _check_known(path, source, roles.mentioned)
    features = set(roles.columns or ()) | set(roles.one_hot)
    label = roles.label or _usual_label(path, source, roles, features)
    others = {roles.owner, label, roles.id, *roles.drop, *roles.ignore}
    clash = sorted(name for name in others & features if name is not None)
    if clash:
        raise DataError(
            f"{path}: column {listing(map(repr, clash))} cannot be a feature and something else; give it one role"
        )
    wanted = [*(n for n in roles.columns if n not in roles.one_hot), *roles.one_hot] if roles.columns else source.names
    chosen = [name for name in wanted if name not in others and name not in source.beside]
    numbers = [name for name in chosen if name not in roles.one_hot]
    if not chosen:
        raise DataError(f"{path}: no column is left for the features; it has {listing(map(repr, source.names))}")
    roled = {name for name in (roles.owner, label, roles.id) if name is not None}
    X, values = source.read(numbers, [*roled, *roles.one_hot])
    if not len(X):
        raise DataError(f"{path}: no rows; give at least one")
    names = [*numbers]
    for name, given in roles.one_hot.items():
        columns, made = _one_hot(path, name, values[name], given, source.where)
        X, names = np.column_stack([X, columns]), names + made
    return Data(
        X,
        tuple(names) if source.named or roles.one_hot else None,
        None if label is None else values[label],
        None if roles.owner is None else values[roles.owner],
        None if roles.id is None else values[roles.id],
        ignored=tuple(n for n in source.names if source.named and n not in chosen and n != roles.id),
    ), source.where


def _check_known(path: Path, source: Source, names: Sequence[str]) -> None:
    """Refuse names that the file does not have."""
    for name in names:
        if name in source.names or name in source.beside:
            continue
        known = [*source.beside, *(source.names if source.named else ())]
        has = listing(map(repr, known)) if known else "none"
        if not source.named:
            has += f" and columns without names, 0 to {len(source.names) - 1}"
        meant = closest(name, known)
        raise DataError(
            f"{path}: no column or array {name!r}; "
            + (f"it has {has}" if meant is None else f"did you mean {meant!r}?")
        )


def _usual_label(path: Path, source: Source, roles: Roles, features: set[str]) -> str | None:
    taken = {roles.owner, roles.id, *roles.drop, *features, *roles.keep}
    known = {*source.beside} | ({*source.names} if source.named else set())
    found = next((name for name in LABELS if name in known and name not in taken), None)
    if found is not None and found in source.names and roles.columns is None and found not in roles.ignore:
        log.info(
            f"{path}: column {found!r} is taken for the label, so it is not a feature; list the columns to make it one"
        )
    return found


def _one_hot(
    path: Path, name: str, values: np.ndarray, given: Sequence[str] | None, where: Callable[[int], str]
) -> tuple[np.ndarray, list[str]]:
    """A column of zeros and ones for each category; a row without a value has NaN in all of them."""
    absent = np.array([is_absent(v) for v in values])
    texts = np.array([str(v) for v in values])
    found = sorted(set(texts[~absent]) if given is None else given)
    if not found:
        raise DataError(f"{path}: column {name!r} has no value, so no categories; drop the column")
    unknown = np.flatnonzero(~absent & ~np.isin(texts, found))
    if len(unknown):
        row = int(unknown[0])
        raise DataError(
            f"{path}: column {name!r} holds {str(texts[row])!r} in {where(row)}, which is not among its categories {listing(map(repr, found))}"
        )
    columns = (texts[:, None] == np.array(found)[None, :]).astype(np.float64)
    columns[absent] = np.nan
    return columns, [f"{name}={category}" for category in found]


def _without_missing(path: Path, data: Data, missing: Missing, where: Callable[[int], str]) -> Data:
    """Apply `missing`; infinite numbers are refused in any case."""
    if missing not in MISSING:
        raise ValueError(f"missing={missing!r}: known are {', '.join(MISSING)}")
    if not np.issubdtype(data.X.dtype, np.floating):
        return data
    with np.errstate(over="ignore", invalid="ignore"):
        finite = np.isfinite(data.X.sum())
    if finite or np.isfinite(data.X).all():
        return data
    absent = np.isnan(data.X)
    infinite = np.argwhere(~absent & ~np.isfinite(data.X))
    if len(infinite):
        row, column = map(int, infinite[0])
        raise DataError(f"{path}: {_column(data, column)} is infinite in {where(row)}; correct or drop the row")
    if missing == "mean":
        return data
    rows = absent.any(axis=1)
    if missing == "error":
        row, column = map(int, np.argwhere(absent)[0])
        raise DataError(
            f"{path}: {_column(data, column)} has no value in {where(row)} ({absent.sum()} missing values in {rows.sum()} of {len(rows)} rows); "
            f"say what to do: missing=drop leaves such rows out, missing=mean puts the network's mean; or drop the column"
        )
    if rows.all():
        raise DataError(
            f"{path}: every row lacks a value, so missing=drop leaves none; use missing=mean, or drop columns"
        )
    log.info(f"{path}: {rows.sum()} of {len(rows)} rows lack a value and are left out")
    kept = {what: None if (v := getattr(data, what)) is None else v[~rows] for what in ("labels", "owners", "ids")}
    return Data(data.X[~rows], data.names, **kept, dropped=int(rows.sum()), ignored=data.ignored)


def _column(data: Data, column: int) -> str:
    return f"column {column}" if data.names is None else f"column {data.names[column]!r}"


def _warn_of_ids(path: Path, names: Sequence[str], X: np.ndarray) -> None:
    for i, name in enumerate(names):
        if not LIKE_AN_ID.search(name) or len(X) < 2:
            continue
        values = X[:, i]
        if np.isfinite(values).all() and (values == np.round(values)).all() and len(np.unique(values)) == len(values):
            log.warning(
                f"{path}: column {name!r} has another whole number in every row, as an id has; an id is not a feature: "
                f"name it as the id, or drop it; list the columns to keep it"
            )


def remembered(roles: Roles, sources: Sequence[Data]) -> dict[str, Any]:
    """What a model stores, so that `dekpca transform` takes files with the same columns."""
    ignored = dict.fromkeys(name for source in sources for name in source.ignored)
    return {
        "id": roles.id,
        "ignore": list(ignored),
        "one_hot": {name: list(v or ()) for name, v in roles.one_hot.items()},
    }
