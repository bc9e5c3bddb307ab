"""The compiled module (_steps.pxi) for the instructions of this machine, or None where there is none: then NumPy does its work, slower."""

from __future__ import annotations

from importlib import import_module
from typing import Any

LEVELS = {"plain": "_steps", "AVX2": "_steps_avx2", "AVX-512": "_steps_avx512"}  # from the least to the most

available: dict[str, Any] = {}
problem = ""  # why there is none
try:
    available["plain"] = import_module("._steps", __package__)
    for name in list(LEVELS)[1 : 1 + available["plain"].instructions()]:
        available[name] = import_module(f".{LEVELS[name]}", __package__)
except (
    ImportError,
    TypeError,
) as error:  # no compiler where this was installed, or another SciPy than it was built for
    problem = str(error)

steps: Any = list(available.values())[-1] if available else None


def level() -> str:
    """What results depend on in their last bits: whether compiled code computes, and with which instructions."""
    return next((name for name, module in available.items() if module is steps), "none")
