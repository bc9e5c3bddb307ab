"""What the default solver needs to know."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...kernels import Kernel

LEAST_CLUSTER = 5  # rows whose mean may be told


@dataclass(frozen=True, eq=False)
class SumsOptions:
    """The same at every node, except for `earlier`."""

    n_components: int | float  # a float below 1: a share of the variance
    kernel: Kernel
    seed: int
    tol: float = 1e-3
    first: int = 100  # landmarks to begin with
    max_landmarks: int = 2500  # equal to `first`: just so many (`fixed`)
    points: np.ndarray | None = None  # the landmarks themselves
    resume: str | None = None  # the run whose landmarks are the first ones
    earlier: np.ndarray | None = None  # these landmarks, at a node of that run
    share_rows: bool = True
    centered: bool = True
    gamma_by_variance: bool = False
    impute: bool = False
    standardize: bool = False
    sealed: bool = False
    # more rows will come: landmarks have to satisfy the judgement that a stream repeats (stream.py)
    stream: bool = False
    owners_apart: bool = False  # a node's neighbors belong to others, who see its terms of sums in clear

    @property
    def least(self) -> int:
        """No term tells others of fewer rows of a node, where rows may not leave it (groups.py); 1: no limit."""
        return LEAST_CLUSTER if (self.owners_apart or self.sealed) and not self.share_rows else 1

    @property
    def fixed(self) -> bool:
        """Whether landmarks cannot grow, by the points, the number or the limit that was asked for: then only the answer is judged."""
        return self.points is not None or self.first == self.max_landmarks

    @property
    def largest(self) -> float:
        """k(x, x), at most, if sums are under masks; infinity where no useful bound is known.

        What rows of a bounded size could reach is far above what they do: sums would lose their digits.
        """
        return 1.0 if not self.sealed or self.kernel.is_normal or self.kernel.normalize else np.inf
