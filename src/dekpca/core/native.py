"""The compiled module (_steps.pyx), or None where it was not built: then NumPy does its work, several times slower."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def _load() -> Any:
    try:
        return import_module("._steps", __package__)
    except ImportError:  # no compiler where this was installed
        return None


steps: Any = _load()
