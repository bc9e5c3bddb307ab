"""The answer of a program: components as functions, and how good they are."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from .accuracy import Accuracy
from .kernels import Kernel
from .landmarks import Landmarks, RandomFeatures
from .rounds import Transcript
from .scaling import Columns
from .site import Site

Array = Any


@dataclass(frozen=True, eq=False)
class Terms:
    """k functions: `shared` (m, k) in landmark coordinates, and coefficients (P_i, k) over sets of points (P_i, columns), each of one owner.

    `centre`: every set is centred by its own mean, and a new point by the mean of these samples; None: by the network's mean, or not at all.
    """

    shared: Array
    points: tuple[Array, ...] = ()
    coefficients: tuple[Array, ...] = ()
    owners: tuple[str, ...] = ()
    centre: Array | None = None


@dataclass(frozen=True, eq=False)
class Answer:
    """What the program of a site found. Components are scaled to unit directions of the central problem."""

    site: Site
    kernel: Kernel
    terms: dict[int, dict[str, Terms]] | Terms  # by node and name of the expansion; or the same at all nodes
    eigenvalues: Array  # (k,)
    trace: float  # of the whole network's centred kernel
    marks: Landmarks | RandomFeatures | None = None
    kinds: tuple[tuple[str, int], ...] = ()  # of the landmarks, in order, and how many of each
    mean: Array | None = None  # (m,) of the landmark coordinates over the network, if functions are centred by it
    columns: Columns | None = None  # scales that standardize all samples
    fill: Array | None = None  # (columns,) replaces missing values
    accuracy: Accuracy | None = None
    stages: tuple[tuple[int, float, float], ...] = ()  # landmarks, error and bound of each judgement
    n_iter: int = 0
    runs: tuple[tuple[str, int], ...] = ()  # verdict and number of iterations, of each run of an iteration
    history: dict[str, np.ndarray] = field(default_factory=dict)  # (iterations, nodes of the site)
    transcript: Transcript | None = None

    def without_rows(self) -> Answer:
        """Without the rows and keys of its site: whoever keeps it keeps no more of the rows than its terms hold."""
        none = self.site.array(np.zeros((0, self.site.X.shape[1])))
        return replace(self, site=replace(self.site, X=none, order=None, sealer=None))

    @property
    def converged(self) -> bool:
        return all(verdict == "converged" for verdict, _ in self.runs)

    def expansions(self, node: int) -> dict[str, Terms]:
        """The functions of a node, by name of the expansion, the smallest first."""
        return {"landmarks": self.terms} if isinstance(self.terms, Terms) else self.terms[node]
