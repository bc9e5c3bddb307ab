"""`dekpca doctor`: what works on this machine, and how to install the rest."""

from __future__ import annotations

import importlib
import os
import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from rich.table import Table

from .. import __version__
from ..core import native
from ..engines import ENGINES
from ..engines.ranks import find_mpiexec
from .common import Debug, Json, emit, out, verb

REQUIRED = ("numpy", "scipy", "scikit-learn", "array-api-compat", "networkx", "rich", "typer")
EXTRAS = {  # module -> package, extra, purpose
    "matplotlib": ("matplotlib", "plot", "figures"),
    "plotly": ("plotly", "report", "the HTML report"),
    "pyarrow": ("pyarrow", "parquet", "parquet files"),
    "mpi4py": ("mpi4py", "mpi", "clusters"),
    "grpc": ("grpcio", "peer", "nodes of different owners"),
    "cryptography": ("cryptography", "peer", "certificates"),
    "torch": ("torch", None, "PyTorch arrays, GPUs"),
    "cupy": ("cupy", None, "CuPy arrays, GPUs"),
}


@verb
def doctor(as_json: Json = False, debug: Debug = False) -> None:
    """List the engines, extras and devices that work on this machine, and how to install the others.

    Example: dekpca doctor --json
    """
    result = {
        "dekpca": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_gb": _memory(),
        "required": {name: _version(name) for name in REQUIRED},
        "extras": {module: _extra(module) for module in EXTRAS},
        "compiled": native.level(),
        "engines": {name: _engine(name) for name in ENGINES},
        "devices": _devices(),
        "mpiexec": _mpiexec(),
    }
    emit(result, as_json, lambda: _tell(result))


def _mpiexec() -> str | None:
    try:
        return str(find_mpiexec())
    except FileNotFoundError:
        return None


def _memory() -> float | None:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1)
    except (ValueError, OSError, AttributeError):
        return None


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _extra(module: str) -> dict[str, Any]:
    """Whether it can be imported: an installed package may lack a library."""
    package, extra, purpose = EXTRAS[module]
    remedy = f"pip install 'dekpca[{extra}]'" if extra else f"pip install {package}"
    if _version(package) is None:
        return {"works": False, "for": purpose, "remedy": remedy}
    try:
        importlib.import_module(module)
    except Exception as error:  # any error is the finding
        return {"works": False, "for": purpose, "version": _version(package), "problem": str(error), "remedy": remedy}
    return {"works": True, "for": purpose, "version": _version(package)}


def _engine(name: str) -> dict[str, Any]:
    from .. import engines

    try:
        engines.get(name)
    except Exception as error:
        return {"works": False, "problem": str(error)}
    return {"works": True}


def _devices() -> list[str]:
    found = ["CPU"]
    if _version("torch") is not None:
        try:
            import torch

            found += [f"CUDA {i}: {torch.cuda.get_device_name(i)} (PyTorch)" for i in range(torch.cuda.device_count())]
        except Exception as error:
            found.append(f"PyTorch cannot list GPUs: {error}")
    return found


def _tell(result: dict[str, Any]) -> None:
    out.print(f"dekpca {result['dekpca']}, Python {result['python']}, {result['platform']}", highlight=False)
    out.print(
        f"{result['cores']} cores, {result['memory_gb']} GB; devices: {'; '.join(result['devices'])}", highlight=False
    )
    table = Table()
    for column in ("", "works", "for", "how to get it"):
        table.add_column(column)
    for name, state in result["engines"].items():
        table.add_row(f"engine {name}", "yes" if state["works"] else "no", "", state.get("problem", ""))
    works = result["compiled"] != "none"
    best = works and list(native.LEVELS).index(result["compiled"]) == native.steps.instructions()
    remedy = "" if best else f"install dekpca again where there is a C compiler ({native.problem})"
    table.add_row("compiled iterations", f"yes, {result['compiled']}" if works else "no", "speed", remedy)
    for name, state in result["extras"].items():
        works = f"yes, {state['version']}" if state["works"] else "no"
        table.add_row(name, works, state["for"], state.get("problem", "") or state.get("remedy", ""))
    table.add_row(
        "mpiexec", "yes" if result["mpiexec"] else "no", "clusters", result["mpiexec"] or "pip install 'dekpca[mpi]'"
    )
    out.print(table, markup=False)
