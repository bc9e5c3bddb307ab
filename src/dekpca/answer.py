"""The answer of a program: components as functions, and how good they are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import array_api_compat as aac
import numpy as np

from .accuracy import Accuracy
from .arrays import transposed
from .chunks import by_rows, threads
from .kernels import Kernel
from .landmarks import Landmarks, RandomFeatures, row_kernel
from .rounds import Transcript
from .scaling import Scales, prepared
from .scores import Histogram
from .site import Site

Array = Any


@dataclass(frozen=True, eq=False)
class Function:
    """k functions over several sets of points: coefficients (P_i, k) for each set, one offset (k,).

    With `fourier` the only set holds the frequencies of random features, P / 2 of them.
    """

    points: tuple[Array, ...]
    coefficients: tuple[Array, ...]
    offset: Array
    fourier: bool = False

    def __call__(self, kernel: Kernel, X: Array) -> Array:
        """Values at the rows of X, (rows, k), computed in chunks, with NumPy in threads."""
        xp = aac.array_namespace(X, self.offset)
        several = len(self.points) > 1
        if several and any(kernel.far(kernel.squares(points)) for points in self.points):
            parts = zip(self.points, self.coefficients, strict=True)
            return sum(Function((p,), (c,), 0.0 * self.offset)(kernel, X) for p, c in parts) - self.offset
        points, coefficients = (xp.concat(x) if several else x[0] for x in (self.points, self.coefficients))
        basis, rows, width = self.basis(kernel, points), X.shape[0], 2 * coefficients.shape[0]
        with threads(rows if aac.is_numpy_array(X) else 0):
            return by_rows(lambda some: basis(X[some, :]) @ coefficients - self.offset, rows, width, X)

    def basis(self, kernel: Kernel, points: Array) -> Callable[[Array], Array]:
        """The basis functions of one set of points, as a function of rows."""
        return partial(kernel.features, frequencies=points) if self.fourier else row_kernel(kernel, points)

    def with_errors(self, mean: Function, kernel: Kernel, X: Array) -> tuple[Array, Array]:
        """Values (rows, k), and what the components leave of |phi(x) - mean|^2, (rows,): at least 0, since rounding and landmarks that miss a part
        of a row may make it less. `mean` is that of `Answer.mean_function`."""
        xp, k = aac.array_namespace(X, self.offset), self.offset.shape[0]
        pairs = zip(self.coefficients, mean.coefficients, strict=True)
        both = tuple(xp.concat([mine, other], axis=1) for mine, other in pairs)
        found = replace(self, coefficients=both, offset=xp.concat([self.offset, mean.offset]))(kernel, X)
        values = found[:, :k]
        left = kernel.diagonal(X) - 2.0 * found[:, k] - xp.sum(values * values, axis=1)
        return values, xp.clip(left, min=0.0)


@dataclass(frozen=True, eq=False)
class Expansion:
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
    terms: dict[int, dict[str, Expansion]] | Expansion  # by node and name of the expansion; or the same at all nodes
    eigenvalues: Array  # (k,)
    trace: float  # of the whole network's centred kernel
    marks: Landmarks | RandomFeatures | None = None
    mean: Array | None = None  # (m,) of the landmark coordinates over the network, if functions are centred by it
    scales: Scales | None = None  # that standardize all samples
    fill: Array | None = None  # (columns,) replaces missing values
    accuracy: Accuracy | None = None
    stages: tuple[tuple[int, float, float], ...] = ()  # landmarks, error and bound of each judgement
    n_iter: int = 0
    runs: tuple[tuple[str, int], ...] = ()  # verdict and number of iterations, of each run of an iteration
    history: dict[str, np.ndarray] = field(default_factory=dict)  # (iterations, nodes of the site)
    transcript: Transcript | None = None
    rows: float | None = None  # of the network, as far as may be told; None: all that the site knows of
    histogram: Histogram | None = None  # of the reconstruction errors of all rows

    def without_rows(self) -> Answer:
        """Without the rows and keys of its site: whoever keeps it keeps no more of the rows than its terms hold."""
        none = self.site.array(np.zeros((0, self.site.X.shape[1])))
        return replace(self, site=replace(self.site, X=none, order=None, sealer=None))

    @property
    def converged(self) -> bool:
        return all(verdict == "converged" for verdict, _ in self.runs)

    def expansions(self, node: int) -> dict[str, Expansion]:
        """The functions of a node, by name of the expansion, the smallest first."""
        return {"landmarks": self.terms} if isinstance(self.terms, Expansion) else self.terms[node]

    @property
    def n_rows(self) -> float:
        return float(self.site.total if self.rows is None else self.rows)

    def function(self, terms: Expansion) -> Function:
        """Components as functions of rows: landmark coordinates and means are folded into coefficients and the offset."""
        marks, shared, points, coefficients = self.marks, terms.shared, list(terms.points), list(terms.coefficients)
        xp = aac.array_namespace(shared)
        if terms.centre is not None:  # every set of samples is centred by its own mean
            coefficients = [c - xp.mean(c, axis=0, keepdims=True) for c in coefficients]
        offset = xp.zeros(self.eigenvalues.shape, dtype=shared.dtype, device=aac.device(shared))
        if self.mean is not None and terms.centre is None:
            offset = self.mean @ shared  # the mean is in the span of the landmarks: the other terms do not contribute
        if isinstance(marks, RandomFeatures):
            return Function((marks.frequencies,), (shared,), offset, fourier=True)
        if marks is not None:
            for p, c in zip(points, coefficients, strict=True):
                shared = shared - transposed(marks.coordinates(self.kernel, p)) @ c
            points, coefficients = [marks.points, *points], [marks.root @ shared, *coefficients]
        function = Function(tuple(points), tuple(coefficients), offset)
        if terms.centre is not None:  # a new point is centred by the mean of this node
            return replace(function, offset=xp.mean(function(self.kernel, terms.centre), axis=0))
        return function

    def mean_function(self, terms: Expansion, function: Function) -> Function | None:
        """f(x) = phi(x)'mean - |mean|^2 / 2 over the points of `function` of these terms, so that |phi(x) - mean|^2 = k(x, x) - 2 f(x).

        The mean is that of all rows of the network, or 0 if nothing is centred. None: nodes are centred by means of their own.
        """
        marks, xp = self.marks, aac.array_namespace(terms.shared)
        alone = terms.centre is not None
        if alone and (marks is not None or len(self.site.network) > 1):
            return None

        def column(length: int, value: float) -> Array:
            return xp.full((length, 1), value, dtype=terms.shared.dtype, device=aac.device(terms.shared))

        sizes = [c.shape[0] for c in function.coefficients]
        if alone:
            mean = replace(function, coefficients=(column(sizes[0], 1.0 / sizes[0]),), offset=column(1, 0.0)[0, :])
            return replace(mean, offset=0.5 * xp.mean(mean(self.kernel, terms.centre), axis=0))
        coefficients, offset = [column(size, 0.0) for size in sizes], column(1, 0.0)[0, :]
        if self.mean is not None and marks is not None:
            along = self.mean if isinstance(marks, RandomFeatures) else marks.root @ self.mean
            coefficients[0], offset = along[:, None], offset + 0.5 * xp.sum(self.mean * self.mean)
        return replace(function, coefficients=tuple(coefficients), offset=offset)

    def prepared(self, X: Array) -> Array:
        """Rows of a node as input of the functions."""
        return prepared(X, self.fill, self.scales)
