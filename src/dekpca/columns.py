"""Named columns of a DataFrame, a csv or a parquet file.

Columns with names are matched by name: nodes may hold the same columns in another order. The internal order is the
natural order of the names, so that no bit of an answer depends on the order in a file. Users see the order they
gave.
"""

from __future__ import annotations

import difflib
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import array_api_compat as aac
import numpy as np

from .network import listing, natural_key

Array = Any

log = logging.getLogger("dekpca")


class ColumnError(ValueError):
    """Columns that do not fit together; the message lists them."""


@dataclass(frozen=True, eq=False)
class Samples:
    """Samples (rows, columns) and the names of the columns, if they have any."""

    X: Array
    names: tuple[str, ...] | None = None

    @classmethod
    def of(cls, X: Any, who: str) -> Samples:
        """From a DataFrame, an array or a Samples. Names that are not strings are ignored, as in scikit-learn."""
        if isinstance(X, Samples):
            return X
        names = column_names(X, who)
        _check_frame(X, who)
        return cls(X, names)

    def __len__(self) -> int:
        return int(self.X.shape[0])

    def __getitem__(self, rows: Any) -> Samples:
        return Samples(self.X[rows], self.names)

    def in_order_of(self, names: tuple[str, ...] | None) -> Samples:
        """The same with the columns in the order of `names`, if both have names."""
        if self.names is None or names is None or self.names == names:
            return self
        places = {name: i for i, name in enumerate(self.names)}
        return Samples(_take_columns(self.X, np.array([places[name] for name in names])), names)


def column_names(X: Any, who: str) -> tuple[str, ...] | None:
    """The names of a DataFrame's columns; None without names."""
    if not is_frame(X) or not len(X.columns):
        return None
    texts = [isinstance(name, str) for name in X.columns]
    if not any(texts):
        return None
    if not all(texts):
        raise TypeError(
            f"{who}: some column names are texts and some are not ({listing(map(repr, X.columns))}); "
            "make all of them texts, such as by X.columns = X.columns.astype(str)"
        )
    names = tuple(X.columns)
    check_unique(names, who)
    return names


def is_frame(X: Any) -> bool:
    """Whether X is a DataFrame, of pandas or another library."""
    return hasattr(X, "columns") and hasattr(X, "shape") and not aac.is_array_api_obj(X)


def _check_frame(X: Any, who: str) -> None:
    """Refuse columns of a pandas DataFrame that hold categories, dates or texts."""
    if not is_frame(X) or not hasattr(X.dtypes, "items"):
        return
    for name, dtype in X.dtypes.items():
        kind = getattr(dtype, "kind", "O")
        if kind in "Mm":
            raise ColumnError(
                f"{who}: column {name!r} holds dates or times ({dtype}); {ENCODE_DATES}, or drop the column"
            )
        if str(dtype) == "category" or kind in "US" or str(dtype) in ("string", "str"):
            raise ColumnError(
                f"{who}: column {name!r} holds categories or texts ({dtype}); encode it as numbers "
                "(pandas.get_dummies or scikit-learn's OneHotEncoder makes a column for each category), or drop the column"
            )


ENCODE_DATES = "encode it as a number, such as days since a fixed date"


def check_unique(names: Sequence[str], who: str) -> None:
    """Refuse duplicate names."""
    twice = sorted({name for name in names if names.count(name) > 1}) if len(set(names)) < len(names) else []
    if twice:
        raise ColumnError(
            f"{who}: column {listing(map(repr, twice))} comes more than once; give each column its own name"
        )


def closest(name: str, among: Sequence[str]) -> str | None:
    """The name that was probably meant: equal up to case and blanks, or similar."""
    folded = {other.casefold().strip(): other for other in among}
    same = folded.get(name.casefold().strip())
    if same is not None:
        return same
    near = difflib.get_close_matches(name, among, n=1)
    return near[0] if near else None


def check_same_names(names: Sequence[str], expected: Sequence[str], who: str, other: str) -> None:
    """Refuse names that are not the expected ones, in any order; the message lists missing, unknown and possibly renamed columns."""
    have, wanted = set(names), set(expected)
    if have == wanted:
        return
    unknown, missing = [n for n in names if n not in wanted], [n for n in expected if n not in have]
    said = []
    for name in unknown[:8]:
        meant = closest(name, missing)
        said.append(f"{name!r}" + (f" (did you mean {meant!r}?)" if meant is not None else ""))
    more = f" and {len(unknown) - 8} more" if len(unknown) > 8 else ""
    parts = [f"unknown {', '.join(said)}{more}"] if unknown else []
    parts += [f"missing {listing(map(repr, missing))}"] if missing else []
    raise ColumnError(f"{who}: the columns are not those of {other}: {'; '.join(parts)}; rename, add or drop columns")


@dataclass(frozen=True)
class Features:
    """The columns of a fit: how many, and their names in the user's order."""

    count: int
    names: tuple[str, ...] | None = None

    @cached_property
    def order(self) -> np.ndarray | None:
        """For each column in internal order, its number in the user's order; None if the orders are equal."""
        if self.names is None:
            return None
        order = np.array(sorted(range(self.count), key=lambda i: natural_key(self.names[i])))  # type: ignore[index]
        return None if (order == np.arange(self.count)).all() else order

    @property
    def sorted_names(self) -> tuple[str, ...] | None:
        """The names in internal order."""
        return None if self.names is None else tuple(sorted(self.names, key=natural_key))

    def describe(self, place: int) -> str:
        """The column with this number in internal order, as the user knows it."""
        if self.sorted_names is not None:
            return f"column {self.sorted_names[place]!r}"
        return f"column {place}"

    def to_sorted(self, X: Array) -> Array:
        """From the user's order to internal order."""
        return X if self.order is None else _take_columns(X, self.order)

    def from_sorted(self, X: Array) -> Array:
        """From internal order to the user's order."""
        return X if self.order is None else _take_columns(X, np.argsort(self.order))

    def arrange(self, samples: Samples, who: str, other: str) -> Array:
        """Samples with columns in internal order: by name or, if either side has no names, from the user's order."""
        if self.names is not None and samples.names is not None:
            check_same_names(samples.names, self.names, who, other)
            return Features(self.count, samples.names).to_sorted(samples.X)
        if samples.X.shape[1] != self.count:
            raise ColumnError(
                f"{who}: {samples.X.shape[1]} columns, but {other} has {self.count}; all need the same columns"
            )
        return self.to_sorted(samples.X)


def check_all_named(parts: Sequence[Samples], owners: Sequence[str]) -> None:
    """Refuse parts of which only some have names, or with names other than the first's; report once which have another order."""
    first, owner = parts[0], owners[0]
    for part, other in zip(parts, owners, strict=True):
        if (part.names is None) != (first.names is None):
            named, bare = (owner, other) if part.names is None else (other, owner)
            raise ColumnError(
                f"{bare}: its columns have no names, but those of {named} have; give all named columns, or none"
            )
        if part.names is not None and first.names is not None:
            check_same_names(part.names, first.names, other, owner)
    turned = [other for part, other in zip(parts, owners, strict=True) if part.names != first.names]
    if turned:
        log.info(f"{listing(turned)}: the columns are in another order than those of {owner}; they are taken by name")


def _take_columns(X: Array, order: np.ndarray) -> Array:
    xp = aac.array_namespace(X)
    return xp.take(X, xp.asarray(order, device=aac.device(X)), axis=1)
