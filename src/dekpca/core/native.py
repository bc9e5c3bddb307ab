"""The compiled module (_steps.pyx), or None where there is none: then NumPy does its work, slower."""

from __future__ import annotations

from importlib import import_module
from typing import Any

steps: Any = None
problem = ""  # why there is none
try:
    steps = import_module("._steps", __package__)
except (
    ImportError,
    TypeError,
) as error:  # no compiler where this was installed, or another SciPy than it was built for
    problem = str(error)


def level() -> str:
    """What results depend on in their last bits: whether compiled code computes, and with which instructions."""
    return "none" if steps is None else ("plain", "AVX2", "AVX-512")[steps.instructions()]
