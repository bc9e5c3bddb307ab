"""The penalties rho: of each node from its own spectrum, or of all nodes from the number of the iteration."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from numbers import Real
from typing import Any

import numpy as np

from ...network import listing

BY_SPECTRUM = ("auto", "paper-bound")


def of_spectrum(rho: str, eigenvalues: np.ndarray, d: int) -> float:
    """The penalty of a node with these eigenvalues of K_j and d nodes in its neighborhood, itself among them.

    "paper-bound" is the paper's Assumption 2; "auto" is that bound with the cube of the largest eigenvalue in the place of the sum of cubes, with
    which the Lagrangian usually falls.
    """
    top = float(eigenvalues.max())
    if rho == "auto":
        return top * (1 + (1 + 8 * d) ** 0.5) / d
    cubes = max(float((eigenvalues**3).sum()), top**3)
    return (top**2 + (top**4 + 8 * d * top * cubes) ** 0.5) / (d * top)


def of_iteration(rho: Any, t: int, own: bool) -> float:
    """The penalty in iteration t on the node's own constraint, or on a neighbor's."""
    if callable(rho):
        return float(rho(t, own))
    return next(step[1 if own else 2] for step in reversed(rho) if t >= step[0])


def checked(rho: Any, max_iter: int) -> str | tuple[tuple[int, float, float], ...] | Callable[[int, bool], float]:
    """`rho` as a word, as steps (from iteration, penalty of the node itself, of its neighbors), or as a function; every penalty is above 0."""
    if isinstance(rho, str):
        if rho not in BY_SPECTRUM:
            raise ValueError(f"rho={rho!r}: known are 'auto', 'paper-bound', a positive number, and a schedule")
        return rho
    if callable(rho):
        for t in range(max_iter):
            for own in (True, False):
                _check(rho, rho(t, own), t)
        return rho
    if not _has_items(rho):
        _check(rho, rho, 0)
        return ((0, float(rho), float(rho)),)
    steps = [step for step in rho if _has_items(step) and len(step) == 3]
    if not len(rho) or len(steps) < len(rho):
        raise ValueError(f"rho={rho!r}: a schedule is a list of (from iteration, own penalty, penalty of neighbors)")
    starts = [step[0] for step in steps]
    if not all(map(_is_number, starts)) or starts[0] != 0 or any(not a < b for a, b in pairwise(starts)):
        raise ValueError(
            f"rho={rho!r}: a schedule starts at iteration 0, the finite numbers of its iterations rise; got {listing(map(repr, starts))}"
        )
    for start, own, others in steps:
        _check(rho, own, start)
        _check(rho, others, start)
    return tuple((int(np.ceil(start)), float(own), float(others)) for start, own, others in steps)


def _check(rho: Any, value: Any, iteration: int) -> None:
    if not _is_number(value) or value <= 0:
        raise ValueError(f"rho={rho!r}: {value!r} in iteration {iteration}; penalties must be numbers above 0")


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and bool(np.isfinite(float(value)))


def _has_items(value: Any) -> bool:
    return isinstance(value, Sequence) or (isinstance(value, np.ndarray) and value.ndim > 0)
