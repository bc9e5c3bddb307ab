"""Samples as matrices of numbers, checked once, before any work: NumPy by scikit-learn, other array libraries here."""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import array_api_compat as aac
import numpy as np
from scipy.sparse import issparse
from sklearn.utils import check_array

from ..arrays import take, to_numpy
from ..network import listing
from .columns import ColumnError, Features, Samples, column_text
from .frames import is_frame

Array = Any

log = logging.getLogger("dekpca")

ENDS_LIKE_AN_ID = r"(?i:(^|[\W_])(id|ids|key|uuid|guid|nr|no|number|index|idx)$)|[a-z]I[dD]$"
LIKE_AN_ID = re.compile(rf"{ENDS_LIKE_AN_ID}|(?i:^(unnamed: 0|patient|row)$)")

Where = Callable[[int], str]  # a row, in words
Missing = Literal["error", "drop", "mean"]
MISSING: tuple[Missing, ...] = ("error", "drop", "mean")
NOTHING_LEFT = "every row lacks a value, so missing='drop' leaves none; use missing='mean', or drop columns"
CHOOSE_MISSING = "; a fit with missing='drop' leaves them out, one with 'mean' puts the column's mean over all nodes"


def is_foreign(X: Any) -> bool:
    """An array of another library than NumPy."""
    return aac.is_array_api_obj(X) and not aac.is_numpy_array(X) and not issparse(X)


def checked(X: Any, who: str, dtype: Any = None, least: int = 1) -> Samples:
    """Samples as a matrix of float32 or float64 with at least one column and `least` rows."""
    samples = Samples.of(X, who)
    if is_foreign(samples.X):
        found = _foreign(samples.X, who, dtype)
    else:
        kind = [np.float64, np.float32] if dtype is None else np.dtype(dtype)
        may = {"ensure_all_finite": False, "ensure_min_samples": 0, "ensure_min_features": 0}  # checked below
        try:
            found = check_array(samples.X, dtype=kind, **may)
        except (ValueError, TypeError) as error:
            advice = "; encode text columns as numbers or leave them out" if "could not convert" in str(error) else ""
            raise type(error)(f"{who}: {error}{advice}") from error
    rows, columns = found.shape
    if not columns:
        raise ValueError(f"{who}: no columns: 0 feature(s) (shape={(rows, 0)}) while a minimum of 1 is required.")
    if rows < least:
        remedy = f"give at least {least}" + (
            ", or leave the node out of the network" if who.startswith("node ") else ""
        )
        raise ValueError(f"{who}: {rows or 'no'} sample(s), but at least {least} needed; {remedy}")
    return Samples(found, samples.names)


def _foreign(X: Array, who: str, dtype: Any) -> Array:
    xp = aac.array_namespace(X)
    if len(X.shape) != 2:
        raise ValueError(f"{who}: shape {tuple(X.shape)}, expected rows and columns")
    if dtype is not None:
        return xp.astype(X, getattr(xp, str(np.dtype(dtype))), copy=False)
    if X.dtype in (xp.float32, xp.float64):
        return X
    if not xp.isdtype(X.dtype, ("integral", "bool")):
        raise ValueError(f"{who}: dtype {X.dtype} is not numeric; expected float32, float64 or integers")
    return xp.astype(X, xp.float64)


def check_parts(parts: Sequence[Any], names: Sequence[str], dtype: Any, missing: str) -> tuple[Features, list[Array]]:
    """The columns of the samples of the nodes with these names; and the samples, with columns in internal order."""
    owners = [f"node {name}" for name in names]
    given = [checked(part, owner, dtype) for part, owner in zip(parts, owners, strict=True)]
    kinds = [f"{type(part.X).__name__} of {part.X.dtype} on {aac.device(part.X)}" for part in given]
    for part, own, owner in zip(parts, given, owners, strict=True):
        warn_of_ids(part, own, owner)
    first = given[0]
    features = Features(int(first.X.shape[1]), first.names)
    found = []
    for part, owner, kind in zip(given, owners, kinds, strict=True):
        if kind != kinds[0]:
            raise ValueError(f"{owner}: {kind}, but {owners[0]} has {kinds[0]}; use one library, device and dtype")
        if (part.names is None) != (first.names is None):
            named, bare = (owners[0], owner) if part.names is None else (owner, owners[0])
            raise ColumnError(f"{bare}: its columns have no names, but those of {named} have; name all, or none")
        check_finite(part, owner, missing)
        used = complete(part, owner)[0] if missing == "drop" else part
        found.append(features.arrange(used, owner, owners[0]))
    turned = [owner for part, owner in zip(given, owners, strict=True) if part.names != first.names]
    if turned:
        order = f"the columns are in another order than those of {owners[0]}"
        log.info(f"{listing(turned)}: {order}; they are taken by name")
    return features, found


def placed(X: Array, device: str | None) -> Array:
    """Samples on the device to compute on: NumPy arrays as PyTorch tensors on `device`, if given; others stay."""
    if device is None:
        return X
    if is_foreign(X):
        raise ValueError(f"device={device!r} is for NumPy data, but got {type(X).__name__}; leave device at None")
    try:
        import torch

        return torch.as_tensor(X, device=device)
    except ImportError as error:
        raise ImportError(f"device={device!r} needs PyTorch; pip install 'dekpca[gpu]'") from error
    except (RuntimeError, AssertionError) as error:  # torch's message for a missing device has many lines
        raise ValueError(f"device={device!r}: PyTorch cannot use it ({str(error).splitlines()[0]})") from error


# ---------------------------------------------------------------------- names of rows
def like_ids(samples: Samples, who: str, every: str = "every row") -> Iterator[str]:
    """Warnings of features that look like the names of rows; `every` says which rows these are."""
    for name, values in zip(samples.names or (), samples.X.T, strict=False):
        if len(values) < 2 or not LIKE_AN_ID.search(name) or not np.isfinite(values).all():
            continue
        if (values == values.round()).all() and len(np.unique(values)) == len(values):
            alike = f"{who}: column {name!r} has another whole number in {every}, as an id has"
            yield f"{alike}; an id is not a feature"


def warn_of_ids(given: Any, samples: Samples, who: str) -> None:
    """Warn of such features of a DataFrame. (Of a file its reader does.)"""
    for said in like_ids(samples, who) if is_frame(given) else ():
        warnings.warn(f"{said}: drop it, or rename it if it is one", UserWarning, stacklevel=4)


# ---------------------------------------------------------------------- infinite and missing values
def check_finite(samples: Samples, who: str, missing: str | None, where: Where = "row {}".format, of: str = "") -> None:
    """Refuse infinity and, with missing="error" or None (the user has no choice), NaN. The message names the column. `of`: how many rows were
    seen, of which these are the last ones."""
    found = first_bad(samples.X, allow_nan=missing in ("drop", "mean"))
    if found is None:
        return
    row, what = found[0], f"{who}: {column_text(samples.names, found[1])}"
    if bool(samples.X[found] == samples.X[found]):
        raise ColumnError(f"{what} is infinite in {where(row)}; correct or remove the row")
    lacking = len(samples) - int(complete_rows(samples.X).sum())
    what += f" has no value (NaN) in {where(row)}; rows with missing values: {lacking} of {of or len(samples)}"
    raise ColumnError(f"{what}; correct or remove them{CHOOSE_MISSING if missing == 'error' else ''}")


def first_bad(X: Array, allow_nan: bool) -> tuple[int, int] | None:
    """Row and column of the first infinity or, unless allowed, NaN. A sum shows in half the time that there is none, unless it overflows."""
    xp = aac.array_namespace(X)
    with np.errstate(over="ignore", invalid="ignore"):
        total = xp.sum(X)
    if bool(xp.isfinite(total)):
        return None
    bad = to_numpy(xp.isinf(X) if allow_nan else ~xp.isfinite(X))
    row, column = divmod(int(bad.argmax()), bad.shape[1])
    return (row, column) if bad[row, column] else None


def complete_rows(X: Array) -> np.ndarray:
    """(rows,): whether a row has all its values."""
    xp = aac.array_namespace(X)
    return ~to_numpy(xp.any(xp.isnan(X), axis=1))


def complete(samples: Samples, who: str) -> tuple[Samples, np.ndarray]:
    """missing="drop": the samples without the rows that lack a value, and the numbers of those that stay."""
    kept = np.flatnonzero(complete_rows(samples.X))
    if len(kept) == len(samples):
        return samples, kept
    if not len(kept):
        raise ColumnError(f"{who}: {NOTHING_LEFT}")
    log.info(f"{who}: {len(samples) - len(kept)} of {len(samples)} rows lack a value and are left out")
    return Samples(take(samples.X, kept), samples.names), kept


def where_complete(f: Callable[[Array], Array], X: Array) -> Array:
    """f of the rows of X, with NaN for rows that lack a value."""
    xp = aac.array_namespace(X)
    absent, nan = xp.isnan(X), xp.full((1, 1), xp.nan, dtype=X.dtype, device=aac.device(X))
    found, missing = f(xp.where(absent, xp.ones_like(X), X)), xp.any(absent, axis=1, keepdims=True)
    return xp.where(missing, nan, found) if len(found.shape) == 2 else xp.where(missing[:, 0], nan[:, 0], found)
