"""The compiled module, or None where it was not built: then NumPy does its work, several times slower."""

from __future__ import annotations

from typing import Any

steps: Any
try:
    from . import _steps as steps
except ImportError:  # no compiler where this was installed
    steps = None
