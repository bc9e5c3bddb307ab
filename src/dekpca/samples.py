"""Checks of samples, once, before any work: NumPy through scikit-learn, other array libraries here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import array_api_compat as aac
import numpy as np
from scipy.sparse import issparse
from sklearn.utils import check_array

from .core.spectrum import to_numpy
from .network import Network

Array = Any


def is_foreign(X: Any) -> bool:
    """An array of another library than NumPy."""
    return aac.is_array_api_obj(X) and not aac.is_numpy_array(X) and not issparse(X)


def foreign_samples(X: Array, who: str, dtype: Any) -> Array:
    xp = aac.array_namespace(X)
    if len(X.shape) != 2 or X.shape[1] == 0:
        raise ValueError(f"{who}: shape {tuple(X.shape)}, expected rows and at least one column")
    if dtype is not None:
        wanted = getattr(xp, str(np.dtype(dtype))) if isinstance(dtype, (str, type, np.dtype)) else dtype
        return xp.astype(X, wanted, copy=False)
    if X.dtype in (xp.float32, xp.float64):
        return X
    if not xp.isdtype(X.dtype, ("integral", "bool")):
        raise ValueError(f"{who}: dtype {X.dtype} is not numeric; expected float32, float64 or integers")
    return xp.astype(X, xp.float64)


def on_device(X: np.ndarray, device: str) -> Array:
    """NumPy samples as a PyTorch tensor on a device."""
    try:
        import torch
    except ImportError as error:
        raise ImportError(
            f"device={device!r} needs PyTorch, which is not installed; pip install 'dekpca[gpu]'"
        ) from error
    try:
        return torch.as_tensor(X, device=device)
    except (
        RuntimeError,
        AssertionError,
    ) as error:  # torch's message for a missing device has many lines
        raise ValueError(
            f"device={device!r}: PyTorch cannot use it ({str(error).splitlines()[0]}); it sees {torch.cuda.device_count()} CUDA devices"
        ) from error


def placed(X: Array, device: str | None) -> Array:
    """Samples on the device to compute on: NumPy arrays on `device`, if given; others stay."""
    if device is None:
        return X
    if is_foreign(X):
        raise ValueError(
            f"device={device!r} is for NumPy data, but got {type(X).__name__} on {aac.device(X)}, which is computed on where it "
            "is; leave device at None"
        )
    return on_device(X, device)


def refuse_sparse(X: Any, who: str) -> None:
    if issparse(X):
        size = X.shape[0] * X.shape[1] * 8 / 1e9
        raise TypeError(
            f"{who}: a sparse matrix, but dekpca computes with dense rows; reduce its columns first (scikit-learn's TruncatedSVD), or use "
            f"X.toarray() if {size:.2g} GB fit"
        )


def first_bad_row(X: Array, allow_nan: bool) -> int | None:
    """The first row with infinity or, unless allowed, NaN. A sum shows in half the time that there is none, unless it overflows."""
    xp = aac.array_namespace(X)
    with np.errstate(over="ignore", invalid="ignore"):
        total = xp.sum(X)
    if bool(xp.isfinite(total)):
        return None
    bad = xp.isinf(X) if allow_nan else ~xp.isfinite(X)
    rows = np.flatnonzero(to_numpy(bad).any(axis=1))
    return int(rows[0]) if len(rows) else None


def _what(allow_nan: bool) -> str:
    return "infinity" if allow_nan else "NaN or infinity"


def _remedy(allow_nan: bool) -> str:
    return "correct or remove such rows" if allow_nan else "remove or impute such rows, or use missing='mean'"


def check_finite(X: Array, who: str, rows: Sequence[np.ndarray], network: Network, allow_nan: bool = False) -> None:
    """Refuse NaN and infinity, with the row and its node."""
    row = first_bad_row(X, allow_nan)
    if row is None:
        return
    node = next(network.names[j] for j, own in enumerate(rows) if row in own)
    raise ValueError(
        f"Input {who} contains {_what(allow_nan)} in row {row}, which belongs to node {node}; {_remedy(allow_nan)}"
    )


def check_alike(parts: Sequence[Array], names: Sequence[str], allow_nan: bool = False) -> None:
    first, name = parts[0], names[0]
    for part, other in zip(parts, names, strict=True):
        if type(part) is not type(first) or aac.device(part) != aac.device(first):
            raise ValueError(
                f"node {other}: samples of another array library or device than node {name}'s; use one for all"
            )
        if part.shape[1] != first.shape[1]:
            raise ValueError(
                f"node {other}: {part.shape[1]} features, but node {name} has {first.shape[1]}; all nodes need the same columns"
            )
        if part.dtype != first.dtype:
            raise ValueError(
                f"node {other}: dtype {part.dtype}, but node {name} has {first.dtype}; set dtype, or give all nodes the same"
            )
        row = first_bad_row(part, allow_nan)
        if row is not None:
            raise ValueError(f"node {other}: {_what(allow_nan)} in row {row}; {_remedy(allow_nan)}")


def numeric(error: Exception, who: str) -> Exception:
    """scikit-learn's error about a sample matrix, with its owner and, for text, a remedy."""
    advice = "; encode text columns as numbers or leave them out" if "could not convert" in str(error) else ""
    return type(error)(f"{who}: {error}{advice}")


def check_part(part: Array, who: str, dtypes: list[Any], dtype: Any) -> Array:
    """The samples of one node as a matrix of numbers."""
    refuse_sparse(part, who)
    if is_foreign(part):
        part = foreign_samples(part, who, dtype)
    else:
        try:
            part = check_array(part, dtype=dtypes, ensure_min_samples=0, ensure_min_features=0, ensure_all_finite=False)
        except (ValueError, TypeError) as error:
            raise numeric(error, who) from error
    if part.shape[0] == 0:
        raise ValueError(
            f"{who}: no samples; every node needs at least one: give it some or leave it out of the network"
        )
    if part.shape[1] == 0:
        raise ValueError(f"{who}: no columns; samples need at least one feature")
    return part
