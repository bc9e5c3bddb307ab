"""Engines: who hosts which nodes, and how messages cross between them. Chosen by name; each imports its third parties itself.

An engine is a function `run(parts, network, options, ...)` that drives `dekpca.program.program` and returns an
`Outcome`.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

ENGINES = {
    "local": ("dekpca.engines.local", None),
    "mpi": ("dekpca.engines.mpi", "mpi"),
    "peer": ("dekpca.engines.peer", "peer"),
}  # name -> module, extra to install


def get(name: str) -> Callable[..., Any]:
    """The `run` of an engine."""
    return module(name).run


def module(name: str) -> Any:
    """The module of an engine."""
    if name not in ENGINES:
        raise ValueError(f"engine={name!r} is unknown; known are {', '.join(sorted(ENGINES))}")
    path, extra = ENGINES[name]
    try:
        return import_module(path)
    except (ImportError, RuntimeError) as error:  # RuntimeError: mpi4py is there, but no MPI library
        if extra is None:
            raise
        raise ImportError(
            f"engine {name!r} needs a package that is not installed ({error}); pip install 'dekpca[{extra}]'"
        ) from error
