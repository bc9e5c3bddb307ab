"""Engines: they host nodes and carry messages between them. Chosen by name; each imports its own dependencies.

An engine is a module with a function `run(plan, watch=None) -> Outcome` (plan.py) that drives
`dekpca.program.program`. If processes must first agree on the plan, the module also has `plan_parts(parameters,
parts) -> Plan`.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from ..plan import Engine

# name -> module, extra to install
ENGINES = {
    "dask": ("dekpca.engines.dask", "dask"),
    "local": ("dekpca.engines.local", None),
    "mpi": ("dekpca.engines.mpi", "mpi"),
}


def get(name: str) -> Engine:
    """The `run` of an engine."""
    return module(name).run


def module(name: str) -> Any:
    """The module of an engine."""
    if name not in ENGINES:
        raise ValueError(f"engine={name!r} is unknown; known are {', '.join(sorted(ENGINES))}")
    path, extra = ENGINES[name]
    try:
        return import_module(path)
    except (ImportError, RuntimeError) as error:  # RuntimeError: mpi4py without an MPI library
        if extra is None:
            raise
        raise ImportError(f"engine {name!r} lacks a package ({error}); pip install 'dekpca[{extra}]'") from error
