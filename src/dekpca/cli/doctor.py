"""`dekpca doctor`: what works on this machine, and how to install the rest."""

from __future__ import annotations

import importlib
import os
import platform
from collections.abc import Callable
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from rich.table import Table

from .. import __version__, engines
from ..engines.ranks import find_mpiexec
from .common import Said, out, print_plain, verb

REQUIRED = ("numpy", "scipy", "scikit-learn", "array-api-compat", "networkx", "rich", "threadpoolctl", "typer")
EXTRAS = {  # module -> package, extra, purpose
    "matplotlib": ("matplotlib", "plot", "figures"),
    "plotly": ("plotly", "report", "the HTML report"),
    "pyarrow": ("pyarrow", "parquet", "parquet files"),
    "distributed": ("distributed", "dask", "clusters"),
    "mpi4py": ("mpi4py", "mpi", "clusters"),
    "grpc": ("grpcio", "peer", "nodes of different owners"),
    "cryptography": ("cryptography", "peer", "certificates"),
    "dp_accounting": ("dp-accounting", "privacy", "differential privacy"),
    "torch": ("torch", "gpu", "PyTorch arrays, GPUs"),
    "cupy": ("cupy", None, "CuPy arrays, GPUs"),
}


@verb
def doctor() -> Said:
    """List the engines, extras and devices that work on this machine, and how to install the others.

    Example: dekpca doctor --json
    """
    result = {
        "dekpca": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_gb": _or_none(lambda: round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1)),
        "required": {name: _or_none(partial(version, name)) for name in REQUIRED},
        "extras": {module: _extra(module) for module in EXTRAS},
        "engines": {name: _works(partial(engines.module, name)) for name in engines.ENGINES},
        "devices": _devices(),
        "mpiexec": _or_none(lambda: str(find_mpiexec())),
    }
    return Said(result, lambda: _tell(result))


def _or_none(find: Callable[[], Any]) -> Any:
    try:
        return find()
    except (PackageNotFoundError, OSError, ValueError, AttributeError):
        return None


def _works(use: Callable[[], Any]) -> dict[str, Any]:
    try:
        use()
    except Exception as error:  # any error is the finding: an installed package may lack a library
        return {"works": False, "problem": str(error)}
    return {"works": True}


def _extra(module: str) -> dict[str, Any]:
    package, extra, purpose = EXTRAS[module]
    about = {"for": purpose, "remedy": f"pip install 'dekpca[{extra}]'" if extra else f"pip install {package}"}
    found = _or_none(partial(version, package))
    if found is None:
        return about | {"works": False}
    return about | {"version": found} | _works(partial(importlib.import_module, module))


def _devices() -> list[str]:
    found = ["CPU"]
    if _or_none(partial(version, "torch")) is not None:
        try:
            import torch

            found += [f"CUDA {i}: {torch.cuda.get_device_name(i)} (PyTorch)" for i in range(torch.cuda.device_count())]
        except Exception as error:
            found.append(f"PyTorch cannot list GPUs: {error}")
    return found


def _tell(result: dict[str, Any]) -> None:
    print_plain(f"dekpca {result['dekpca']}, Python {result['python']}, {result['platform']}")
    print_plain(f"{result['cores']} cores, {result['memory_gb']} GB; devices: {'; '.join(result['devices'])}")
    table = Table("", "works", "for", "how to get it")
    for name, state in result["engines"].items():
        table.add_row(f"engine {name}", "yes" if state["works"] else "no", "", state.get("problem", ""))
    for name, state in result["extras"].items():
        works = f"yes, {state['version']}" if state["works"] else "no"
        remedy = "" if state["works"] else state.get("problem", "") or state["remedy"]
        table.add_row(name, works, state["for"], remedy)
    mpiexec = result["mpiexec"]
    table.add_row("mpiexec", "yes" if mpiexec else "no", "clusters", mpiexec or "pip install 'dekpca[mpi]'")
    out.print(table, markup=False)
