"""Named columns of a DataFrame, a csv or a parquet file.

They are matched by name: nodes may hold them in different orders. The internal order is the natural order of the names,
so that no bit of an answer depends on the order in a file. Users see the order they gave.
"""

from __future__ import annotations

import difflib
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ..arrays import take
from ..network import listing, natural_key
from .frames import TO_ENCODE, ColumnError, column, frame_names, is_frame, is_null, matrix, refuse

Array = Any

MOST_TEXT = 1000  # characters of a name


@dataclass(frozen=True, eq=False)
class Samples:
    """Samples (rows, columns) and the names of the columns, if they have any."""

    X: Array
    names: tuple[str, ...] | None = None

    @classmethod
    def of(cls, X: Any, who: str) -> Samples:
        """From a DataFrame, whose columns become numbers, an array or a Samples. Names that are no texts are ignored, as in scikit-learn."""
        if isinstance(X, Samples):
            return X
        refuse(X, who)
        if not is_frame(X):
            return cls(X)
        names = frame_names(X)
        texts = [isinstance(name, str) for name in names]
        if any(texts) and not all(texts):
            mixed = f"some column names are texts and some are not ({listing(map(repr, names))})"
            raise TypeError(f"{who}: {mixed}; use X.columns.astype(str)")
        if any(texts):
            check_names(names, who)
        return cls(matrix(X, who), tuple(names) if any(texts) else None)

    def __len__(self) -> int:
        return int(self.X.shape[0])

    def __getitem__(self, rows: Any) -> Samples:
        return Samples(self.X[rows], self.names)


def column_text(names: Sequence[str] | None, place: int) -> str:
    """A column by its name or, without names, by its number."""
    return f"column {place}" if names is None else f"column {names[place]!r}"


def split_off(X: Any, name: str, who: str) -> tuple[np.ndarray, Any]:
    """The values of a column of a DataFrame, and the DataFrame without it."""
    known = frame_names(X) if is_frame(X) else []
    check_known(name, known, who)
    return column(X, known.index(name))[0], X.drop(columns=[name]) if hasattr(X, "iloc") else X.drop([name])


def check_known(name: str, known: Sequence[Any], who: str) -> None:
    """Refuse a name that is not there."""
    if name not in known:
        meant = closest(name, [other for other in known if isinstance(other, str)])
        has = f"it has {listing(map(repr, known))}" if known else "it has no named columns"
        raise ColumnError(f"{who}: no column or array {name!r}; {has if meant is None else f'did you mean {meant!r}?'}")


def refuse_text(given: Any, what: str) -> None:
    """Refuse one text in the place of several names: each of its letters would be one."""
    if isinstance(given, str):
        raise TypeError(f"{what}={given!r} is one text; give a list of names, [{given!r}]")


def check_names(names: Sequence[str], who: str) -> None:
    """Refuse names that no model file holds, and duplicates."""
    if unfit := [name for name in names if not is_text(name, lines=True)]:
        limit = f"a name has at most {MOST_TEXT} characters, and no control characters but line breaks and tabs"
        raise ColumnError(f"{who}: column {unfit[0][:60]!r}: {limit}; rename it")
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise ColumnError(f"{who}: column {listing(map(repr, twice))} comes more than once; give each its own name")


def is_text(text: str, lines: bool = False) -> bool:
    """Whether a text may be displayed: it has no control characters, and is on one line unless `lines`."""
    plain = (" " if c.isspace() and (lines or unicodedata.category(c) == "Zs") else c for c in text)
    return "".join(plain).isprintable() and len(text) <= MOST_TEXT


def closest(name: str, among: Sequence[str]) -> str | None:
    """The name that was probably meant: equal up to case and blanks, or similar."""
    same = [other for other in among if other.casefold().strip() == name.casefold().strip()]
    return next(iter(same or difflib.get_close_matches(name, among, n=1)), None)


def check_same_names(names: Sequence[str], expected: Sequence[str], who: str, other: str) -> None:
    """Refuse names that are not the expected ones, in any order; the message lists missing, unknown and possibly renamed columns."""
    have, wanted = set(names), set(expected)
    if have == wanted:
        return
    unknown, missing = [n for n in names if n not in wanted], [n for n in expected if n not in have]
    meant = ((name, closest(name, missing)) for name in unknown)
    said = [f"{name!r}" + (f" (did you mean {other!r}?)" if other is not None else "") for name, other in meant]
    parts = [f"unknown {listing(said)}"] if unknown else []
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
        return column_text(self.sorted_names, place)

    def to_sorted(self, X: Array) -> Array:
        """From the user's order to internal order."""
        return X if self.order is None else take(X, self.order, 1)

    def from_sorted(self, X: Array) -> Array:
        """From internal order to the user's order."""
        return X if self.order is None else take(X, np.argsort(self.order), 1)

    def arrange(self, samples: Samples, who: str, other: str) -> Array:
        """Samples with columns in internal order: by name or, if either side has no names, from the user's order."""
        if self.names is not None and samples.names is not None:
            check_same_names(samples.names, self.names, who, other)
            return Features(self.count, samples.names).to_sorted(samples.X)
        if samples.X.shape[1] != self.count:
            raise ColumnError(f"{who}: {samples.X.shape[1]} columns, but {other} has {self.count}; all need the same")
        return self.to_sorted(samples.X)


# ---------------------------------------------------------------------- categories
def one_hot(frame: Any, columns: Sequence[str] | Mapping[str, Sequence[str] | None] | None = None) -> Any:
    """A DataFrame in which columns of categories have become a column of zeros and ones for each category.

    It is what `dekpca fit --one-hot` does. New columns are called column=category and come last; a row without a
    category has NaN in all of them.

    Parameters
    ----------
    frame : DataFrame of pandas or polars, or table of pyarrow
    columns : sequence of names, or mapping of name to categories, optional
        Default: all columns of texts or categories. All nodes need the same columns: where each encodes its own
        rows, give the categories.

    Examples
    --------
    >>> import pandas
    >>> from dekpca.data import one_hot
    >>> one_hot(pandas.DataFrame({"age": [41, 38, 52], "blood": ["A", "B", None]}), {"blood": ["0", "A", "B"]})
       age  blood=0  blood=A  blood=B
    0   41      0.0      1.0      0.0
    1   38      0.0      0.0      1.0
    2   52      NaN      NaN      NaN
    """
    refuse(frame, "one_hot")
    if not is_frame(frame):
        raise TypeError(f"one_hot: a {type(frame).__name__} without names of columns; give a DataFrame")
    names = frame_names(frame)
    if columns is None:
        columns = [name for i, name in enumerate(names) if TO_ENCODE.search(column(frame, i)[1].lower())]
    refuse_text(columns, "one_hot: columns")
    given = dict(columns) if isinstance(columns, Mapping) else dict.fromkeys(columns)
    made = {name: frame[name] for name in names if name not in given}
    for name, categories in given.items():
        values, _ = split_off(frame, name, "one_hot")
        made |= encoded(name, values, categories, "one_hot", "row {}".format)
    if hasattr(frame, "from_pydict"):  # pyarrow
        return type(frame).from_pydict(made)
    return type(frame)(made, index=frame.index) if hasattr(frame, "iloc") else type(frame)(made)


def encoded(
    name: str, values: Iterable[Any], given: Sequence[str] | None, who: str, where: Callable[[int], str]
) -> dict[str, np.ndarray]:
    """A column of zeros and ones for each category; a row without a value has NaN in all of them."""
    texts = [None if is_null(value) else str(value) for value in values]
    found = dict.fromkeys(sorted({text for text in texts if text is not None} if given is None else given))
    if not found:
        raise ColumnError(f"{who}: column {name!r} has no value, so no categories; drop the column")
    for row, text in enumerate(texts):
        if text is not None and text not in found:
            what = f"column {name!r} holds {text!r} in {where(row)}"
            raise ColumnError(f"{who}: {what}, which is not among its categories {listing(map(repr, found))}")
    held, absent = np.array(texts, dtype=object), np.array([text is None for text in texts])
    return {f"{name}={category}": np.where(absent, np.nan, held == category) for category in found}
