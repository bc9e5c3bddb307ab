"""Kernels: the matrix of k(a, b) for the rows of two arrays, on any array library. Each kernel is a class; read `Kernel` first.

Everything here is a pure function of its arrays, without centring and without landmarks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from .base import KERNELS, TILE_ROWS, Kernel, inverse_root
from .function import FunctionKernel
from .products import Cosine, Linear, Poly, Sigmoid
from .stationary import Laplacian, Rbf, Stationary


def make_kernel(
    kernel: str | Callable[..., Any],
    gamma: float | str | None = None,
    degree: float = 3,
    coef0: float = 1.0,
    kernel_params: Mapping[str, Any] | None = None,
    normalize: bool = False,
    n_features: int = 1,
) -> Kernel:
    """A kernel from the parameters a user gives; gamma="scale" is 1 / n_features here, and replaced by the caller."""
    number = 1.0 / n_features if gamma is None or gamma == "scale" else float(gamma)
    common = number, int(degree) if degree == int(degree) else degree, float(coef0), bool(normalize)
    if not isinstance(kernel, str):
        return FunctionKernel(*common, function=kernel, params=dict(kernel_params or {}))
    if kernel not in KERNELS:
        raise ValueError(f"kernel={kernel!r} is unknown; known are {', '.join(sorted(KERNELS))}, or a callable")
    if kernel_params:
        raise ValueError(f"kernel_params is for a callable kernel, but kernel={kernel!r}; use gamma, degree and coef0")
    return KERNELS[kernel](*common)


__all__ = [
    "KERNELS", "TILE_ROWS", "Cosine", "FunctionKernel", "Kernel", "Laplacian", "Linear", "Poly", "Rbf", "Sigmoid", "Stationary", "inverse_root",
    "make_kernel",
]  # fmt: skip
