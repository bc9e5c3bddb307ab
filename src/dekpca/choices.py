"""Parameters that have several forms, parsed once into values: noise, source of landmarks, penalties.

A user gives a word, a number, an array or a function. Here it is checked and becomes a value of one type, so that other code need not know its form.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from numbers import Integral
from typing import Any, Literal, cast

import numpy as np

from .network import listing

RANDOM_FEATURES = "random-features"
LandmarkKind = Literal["auto", "synthetic", "random-features", "points"]


@dataclass(frozen=True)
class Noise:
    """Gaussian noise on samples that leave a node: a standard deviation or, where that is None, a signal to noise ratio in dB.

    >>> Noise.of("20dB"), bool(Noise.of(0))
    (Noise(deviation=None, decibel=20.0), False)
    """

    deviation: float | None = 0.0
    decibel: float | None = None

    @classmethod
    def of(cls, exchange_noise: float | str) -> Noise:
        if isinstance(exchange_noise, str):
            match = re.fullmatch(r"\s*([-+]?\d+(?:\.\d*)?)\s*dB\s*", exchange_noise, re.IGNORECASE)
            if not match:
                raise ValueError(
                    f"exchange_noise={exchange_noise!r}: give a standard deviation such as 0.1, or a signal to noise ratio such as '20dB'"
                )
            return cls(None, float(match[1]))
        if not np.isfinite(exchange_noise) or exchange_noise < 0:
            raise ValueError(f"exchange_noise={exchange_noise!r}: a standard deviation is a number of at least 0")
        return cls(float(exchange_noise))

    def __bool__(self) -> bool:
        return self.deviation != 0


@dataclass(frozen=True, eq=False)
class LandmarkSource:
    """Where landmarks come from: a kind, and the points themselves (m, columns) if they were given ("points").

    "auto": from the rows of all nodes; "synthetic": drawn from noisy sums, with differential privacy.
    """

    kind: LandmarkKind
    points: Any = None

    @classmethod
    def of(cls, landmarks: str | int | np.ndarray) -> LandmarkSource:
        """From a kind, a number of landmarks, or points."""
        if isinstance(landmarks, Integral):
            return cls("auto")
        return cls(cast(LandmarkKind, landmarks)) if isinstance(landmarks, str) else cls("points", landmarks)


# ---------------------------------------------------------------------- penalties
class PenaltyRule:
    """The penalties: of each node from its own spectrum, or of all nodes from the number of the iteration."""

    @property
    def rho(self) -> Any:
        """The parameter for this rule."""
        raise NotImplementedError

    def of_spectrum(self, top: np.ndarray, cubes: Callable[[], np.ndarray], n_slots: int) -> np.ndarray | None:
        """Penalties (B,) from lam_1 of each K_j and, for rules that need it, the sum of its lam^3; None for rules by iteration."""
        return None

    def at(self, iteration: int, own: bool) -> float:
        """The penalty on the node's own constraint, or on a neighbor's; only for rules by iteration."""
        raise NotImplementedError


@dataclass(frozen=True)
class AutoPenalty(PenaltyRule):
    """rho="auto": the smallest penalty for which the Lagrangian falls."""

    @property
    def rho(self) -> str:
        return "auto"

    def of_spectrum(self, top: np.ndarray, cubes: Callable[[], np.ndarray], n_slots: int) -> np.ndarray:
        return top * (1 + np.sqrt(1 + 8 * n_slots)) / n_slots


@dataclass(frozen=True)
class PaperBound(PenaltyRule):
    """rho="paper-bound": the paper's Assumption 2."""

    @property
    def rho(self) -> str:
        return "paper-bound"

    def of_spectrum(self, top: np.ndarray, cubes: Callable[[], np.ndarray], n_slots: int) -> np.ndarray:
        return (top**2 + np.sqrt(top**4 + 8 * n_slots * top * cubes())) / (n_slots * top)


@dataclass(frozen=True)
class PenaltySteps(PenaltyRule):
    """Steps of (from iteration, penalty on the node's own constraint, on a neighbor's); a constant is one step."""

    steps: tuple[tuple[int, float, float], ...]

    @property
    def rho(self) -> tuple[tuple[int, float, float], ...]:
        return self.steps

    def at(self, iteration: int, own: bool) -> float:
        return next(step[1 if own else 2] for step in reversed(self.steps) if iteration >= step[0])


@dataclass(frozen=True)
class PenaltyFunction(PenaltyRule):
    """A user's function of (iteration, own constraint or not)."""

    function: Callable[[int, bool], float]

    @property
    def rho(self) -> Callable[[int, bool], float]:
        return self.function

    def at(self, iteration: int, own: bool) -> float:
        return self.function(iteration, own)


def penalty_rule(rho: Any, max_iter: int) -> PenaltyRule:
    """The rule for a value of `rho`; every penalty must be a number above 0."""
    if isinstance(rho, str):
        if rho not in ("auto", "paper-bound"):
            raise ValueError(f"rho={rho!r}: known are 'auto', 'paper-bound', a positive number, and a schedule")
        return AutoPenalty() if rho == "auto" else PaperBound()
    if callable(rho):
        for t in range(max_iter + 1):
            for own in (True, False):
                _check_penalty(rho, rho(t, own), t)
        return PenaltyFunction(rho)
    if isinstance(rho, (Sequence, np.ndarray)):
        return PenaltySteps(_steps(rho))
    _check_penalty(rho, rho, 0)
    return PenaltySteps(((0, float(rho), float(rho)),))


def _steps(rho: Any) -> tuple[tuple[int, float, float], ...]:
    steps = [step for step in rho if isinstance(step, (Sequence, np.ndarray)) and len(step) == 3]
    if not len(rho) or len(steps) < len(rho):
        raise ValueError(
            f"rho={rho!r}: a schedule is a list of (from iteration, penalty of the node itself, penalty of its neighbors)"
        )
    starts = [step[0] for step in steps]
    if starts[0] != 0 or any(not a < b for a, b in pairwise(starts)):
        raise ValueError(
            f"rho={rho!r}: a schedule starts at iteration 0 and its iterations rise; they are {listing(starts)}"
        )
    for start, own, others in steps:
        _check_penalty(rho, own, start)
        _check_penalty(rho, others, start)
    return tuple((math.ceil(start), float(own), float(others)) for start, own, others in steps)


def _check_penalty(rho: Any, value: Any, iteration: int) -> None:
    number = isinstance(value, (int, float, np.number)) and not isinstance(value, bool)
    if not number or not np.isfinite(value) or value <= 0:
        raise ValueError(f"rho={rho!r}: {value!r} in iteration {iteration}; penalties must be numbers above 0")
