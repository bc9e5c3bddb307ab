"""DataFrames of pandas and polars and tables of pyarrow, by what they have in common: none of these libraries is imported."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import array_api_compat as aac
import numpy as np
from scipy.sparse import issparse

from ..network import listing

CATEGORIES = re.compile(r"categor|enum|dictionary")  # types of columns, by their names in the three libraries
TO_ENCODE = re.compile(r"categor|enum|dictionary|object|str(?!uct)")
TIME = "dates or times"
TIMES = re.compile(r"date|time|duration|period")
AS_NUMBERS = "encode it as a number, such as days since a fixed date, or drop the column"  # of dates and times


class ColumnError(ValueError):
    """Columns that cannot be used, or do not fit together; the message names them."""


def refuse(X: Any, who: str) -> None:
    """Refuse what is not rows in memory, with the remedy."""
    library, kind = type(X).__module__.partition(".")[0], type(X).__name__
    if issparse(X):
        said = "a sparse matrix, but dekpca computes with dense rows; reduce its columns (scikit-learn's TruncatedSVD), or use X.toarray()"
        said += f" if {X.shape[0] * X.shape[1] * 8 / 1e9:.2g} GB fit"
    elif np.ma.is_masked(X):
        said = f"an array with {np.ma.count_masked(X)} masked values, which are not left out; use X.filled(numpy.nan), and missing='drop' or 'mean'"
    elif library in ("dask", "dask_expr"):
        said = f"a Dask {kind}, which only fit and transform of the estimator take; use X.compute() if the rows fit into memory"
    elif library == "polars" and kind == "LazyFrame":
        said = "a polars LazyFrame, which is a query without rows; call .collect() first"
    elif in_blocks(X):
        said = "Rows, which only fit and transform of the estimator take; go through X.blocks(), of which .samples is an array with names"
    elif isinstance(X, (str, PathLike)):
        path, whole = Path(X), f"dekpca.data.read({str(X)!r}).samples"
        kind = "parquet" if path.is_dir() else {".parquet": "parquet", ".npy": "npy"}.get(path.suffix.lower(), "csv")
        one = f"dekpca.Rows.from_{kind}({str(X)!r}) to fit and transform, or {whole}, also to fit_parts"
        said = f"a path, not rows; give {whole if path.suffix.lower() == '.npz' else one}"
    elif isinstance(X, Iterator):
        said = f"a {kind}, expected one array or DataFrame; fit_parts takes a generator of parts"
    else:
        return
    raise TypeError(f"{who}: {said}")


def is_dask(X: Any) -> bool:
    """Whether X is a collection of Dask, which nothing here imports."""
    return type(X).__module__.partition(".")[0] in ("dask", "dask_expr") and hasattr(X, "__dask_graph__")


def in_blocks(X: Any) -> bool:
    """Whether X is `dekpca.Rows`."""
    return type(X).__name__ == "Rows" and hasattr(X, "blocks")


def is_frame(X: Any) -> bool:
    """Whether X is a table with columns, of any library."""
    return hasattr(X, "columns") and hasattr(X, "shape") and not aac.is_array_api_obj(X)


def frame_names(X: Any) -> list[Any]:
    return list(X.column_names if hasattr(X, "column_names") else X.columns)  # pyarrow; pandas and polars


def column(X: Any, place: int) -> tuple[np.ndarray, str]:
    """The values of a column, and the name of its type."""
    series = X.column(place) if hasattr(X, "column_names") else X.iloc[:, place] if hasattr(X, "iloc") else X[:, place]
    return np.asarray(series.to_numpy()), str(series.dtype if hasattr(series, "dtype") else series.type)


def is_null(value: Any) -> bool:
    missing = value is None or type(value).__name__ in ("NAType", "NaTType")  # of pandas
    return missing or (isinstance(value, (float, np.floating)) and bool(value != value))


def encode(names: Sequence[Any]) -> str:
    """What to do with columns that hold texts, in Python."""
    return f"dekpca.data.one_hot(X, {[*names]}) makes a column of each category; or drop the column{'s' * (len(names) > 1)}"


def matrix(
    X: Any, who: str, remedy: Callable[[Sequence[Any]], str] = encode, names: Sequence[Any] | None = None
) -> np.ndarray:
    """Columns (default: all) as a matrix of numbers, NaN for missing values. `remedy` is for columns of texts."""
    dtypes = X.dtypes.tolist() if hasattr(X, "iloc") and names is None else []
    if dtypes and all(isinstance(dtype, np.dtype) and dtype.kind in "biuf" for dtype in dtypes):
        return X.to_numpy(dtype=np.result_type(*dtypes))  # no copy where pandas holds one array
    known = frame_names(X)
    places = range(len(known)) if names is None else [known.index(name) for name in names]
    found = [_numbers(*column(X, place)) for place in places]
    held = [(known[place], numbers) for place, numbers in zip(places, found, strict=True) if isinstance(numbers, str)]
    times = [(name, what) for name, what in held if what.startswith(TIME)]
    texts = [given for given in held if given not in times]
    said = [f"{_holding(texts)}, not numbers; {remedy([name for name, _ in texts])}"] if texts else []
    said += [f"{_holding(times)}; {AS_NUMBERS}"] if times else []
    if said:
        raise ColumnError(f"{who}: {'; '.join(said)}")
    return np.column_stack(found) if found else np.empty((X.shape[0], 0))


def _holding(held: Sequence[tuple[Any, str]]) -> str:
    by = {what: [repr(name) for name, other in held if other == what] for _, what in held}
    several = [len(names) > 1 for names in by.values()]
    return ", ".join(
        f"column{'s' * more} {listing(names)} hold{'s' * (not more)} {what}"
        for (what, names), more in zip(by.items(), several, strict=True)
    )


def _numbers(values: np.ndarray, dtype: str) -> np.ndarray | str:
    """The numbers in a column or, if there are none, what it holds."""
    kind = dtype.lower()
    if CATEGORIES.search(kind) is None:
        if values.dtype.kind in "biuf":
            return values
        if TIMES.search(kind):
            return f"{TIME} ({dtype})"
        try:  # decimals, and truth values of which some are missing
            if not any(isinstance(value, str) for value in values):
                return np.array([np.nan if is_null(value) else float(value) for value in values])
        except (TypeError, ValueError):
            pass
    return "texts or other objects" if kind == "object" else dtype[:60]
