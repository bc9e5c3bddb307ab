"""Engines: they host nodes and carry messages between them. Chosen by name; each imports its own dependencies.

An engine is a module with

    run(plan, watch=None) -> Outcome    drives `dekpca.program.program` (plan.py)
    CANNOT                              what cannot be had with this engine, and why (`parameters.refuse`)
    new_rows(...) -> NewRows            the rows of a call of `partial_fit`, `refresh` or `forget` (local.py)

and, if several processes call the estimator,

    plan_parts(parameters, parts)       the plan that they agree on; `fit(X)` is refused, since no process has all rows
    together()                          a context for checks: what one process refuses, all refuse
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

# name -> module, extra to install
ENGINES = {
    "dask": ("dekpca.engines.dask", "dask"),
    "local": ("dekpca.engines.local", None),
    "mpi": ("dekpca.engines.mpi", "mpi"),
}


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
