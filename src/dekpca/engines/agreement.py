"""Settings that nodes in different processes must share, as texts to compare and display."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

from .._version import __version__
from ..network import Network

PRIVATE = {"private_seed", "earlier", "ledger", "budget"}  # settings that a node keeps to itself


def facts(network: Network, n_columns: int, dtype: Any, settings: Mapping[str, Any]) -> dict[str, str]:
    """Facts that must be equal on all ranks: version, columns, network and settings."""
    names = [f"node {j} named {name}" for j, name in enumerate(network.names)]
    edges = sorted(f"edge {min(e)} - {max(e)}" for e in network.edges)
    known = {"dekpca": __version__, "number of columns": str(n_columns), "dtype": str(dtype)}
    known["network"] = "\n".join([repr(network), *names, *edges])
    return known | texts(settings)


def texts(settings: Mapping[str, Any]) -> dict[str, str]:
    return {name: describe(value) for name, value in settings.items()}


def flattened(options: Any) -> dict[str, Any]:
    """The fields of options, with nested options flattened."""
    found: dict[str, Any] = {}
    for field in fields(options):
        if field.name in PRIVATE:
            continue
        value = getattr(options, field.name)
        if is_dataclass(value):
            found[field.name] = getattr(value, "label", type(value).__name__)  # values of two kinds have other fields
            found |= {f"{field.name} {name}": inner for name, inner in flattened(value).items()}
        else:
            found[field.name] = value
    return found


def describe(value: Any) -> str:
    """A text that is equal for equal values: numbers by value, arrays by content, functions by name and code."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, np.ndarray):
        digest = hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()
        return f"array {value.shape} {value.dtype} with fingerprint {digest[:12]}"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key!r}: {describe(value[key])}" for key in sorted(value, key=str)) + "}"
    if isinstance(value, (list, tuple)):
        return "(" + ", ".join(map(describe, value)) + ")"
    if callable(value):
        return _describe_function(value)
    return repr(value)


def _describe_function(function: Callable[..., Any]) -> str:
    name = f"{getattr(function, '__module__', '?')}.{getattr(function, '__qualname__', type(function).__qualname__)}"
    code = getattr(function, "__code__", None)
    if code is None:
        return name
    constants = [c for c in code.co_consts if isinstance(c, (int, float, complex, str, bytes))]
    return f"{name} with fingerprint {hashlib.sha256(code.co_code + repr(constants).encode()).hexdigest()[:12]}"
