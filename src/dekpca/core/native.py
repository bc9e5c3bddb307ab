"""The compiled module (_steps.pxi) for the instruction set of this machine, or None: then NumPy is used, which is slower."""

from __future__ import annotations

import hashlib
from importlib import import_module
from pathlib import Path
from typing import Any

LEVELS = {"plain": "_steps", "AVX2": "_steps_avx2", "AVX-512": "_steps_avx512"}  # from the least to the most
SOURCE = Path(__file__).with_name("_steps.pxi")  # missing in a wheel

available: dict[str, Any] = {}
problem = ""  # why there is no module, or not the one for this machine's instruction set


def _load(name: str) -> None:
    global problem
    try:
        module = import_module(f".{LEVELS[name]}", __package__)
        if SOURCE.exists() and getattr(module, "SOURCE", "") != hashlib.sha256(SOURCE.read_bytes()).hexdigest():
            raise ImportError(
                f"{module.__file__} was built from another version of {SOURCE.name}; install dekpca again"
            )
        available[name] = module
    # no compiler at installation, or a SciPy other than it was built for
    except (ImportError, TypeError) as error:
        problem = str(error)


_load("plain")
for level_ in list(LEVELS)[1 : 1 + (available["plain"].instructions() if available else 0)]:
    _load(level_)

steps: Any = list(available.values())[-1] if available else None


def level() -> str:
    """Whether compiled code is used, and its instruction set: the last bits of results depend on it."""
    return next((name for name, module in available.items() if module is steps), "none")
