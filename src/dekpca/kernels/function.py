"""Kernels that a user gives as a function of two matrices."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import array_api_compat as aac

from .base import Array, Kernel


@dataclass(frozen=True)
class FunctionKernel(Kernel):
    """`function(A, B, **params)` of two sample matrices (a, M) and (b, M) returns the (a, b) matrix of k."""

    function: Callable[..., Any] = field(kw_only=True)
    params: Mapping[str, Any] = field(default_factory=dict, kw_only=True)

    @property
    def label(self) -> str:
        return getattr(self.function, "__name__", repr(self.function))

    def matrix(self, A: Array, B: Array, squares: Array | None = None) -> Array:
        xp = aac.array_namespace(A)
        expected = (A.shape[0], B.shape[0])
        try:
            gram = self.function(A, B, **self.params)
        except Exception as error:
            self._refuse_vectors(A, B, error)
            raise
        if getattr(gram, "shape", None) != expected:
            self._refuse_vectors(A, B)
            raise ValueError(
                f"kernel {self.label}: returned shape {getattr(gram, 'shape', type(gram).__name__)} for {A.shape[0]} and {B.shape[0]} "
                f"samples, expected {expected}; a callable kernel maps two sample matrices to the matrix of k(a, b)"
            )
        gram = xp.asarray(gram, dtype=A.dtype, copy=True)  # it may be an array that the function keeps
        if not bool(xp.all(xp.isfinite(gram))):
            raise ValueError(f"kernel {self.label}: returned NaN or infinity for finite samples")
        return gram

    def _refuse_vectors(self, A: Array, B: Array, cause: Exception | None = None) -> None:
        """Detect a callable for two vectors (scikit-learn's convention), for a better error message."""
        try:
            value = self.function(A[0, :], B[0, :], **self.params)
            math.isfinite(float(value))
        except Exception:
            return
        raise ValueError(
            f"kernel {self.label}: takes two vectors and gives a number; here a kernel takes two matrices and gives the matrix of k(a, b), which is "
            "faster: write it so, or wrap it: lambda A, B: numpy.array([[f(a, b) for b in B] for a in A])"
        ) from cause
