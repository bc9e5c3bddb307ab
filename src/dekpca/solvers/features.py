"""The solver for random features: block power iterations, each of them a round of sums.

The covariance C of the features, m x m, is too large for a network sum; the nodes sum C V, m x (k + p), instead. No points are shared, not even
landmarks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import array_api_compat as aac
import numpy as np
from scipy.special import ndtri

from ..answer import Answer, Expansion
from ..arrays import CUTOFF, eps, flip_signs, like, on_host, transposed
from ..chunks import summed
from ..draws import shared_seed, uniform
from ..kernels import Kernel
from ..landmarks import RandomFeatures
from ..rounds import Arrays, Round, Shapes, Solver
from ..signs import LONGEST, reference, signed
from ..site import Site
from .sums import SumsOptions, rows_of
from .sums.columns import prepare_rows

Array = Any

RANDOM_FEATURES: Final = "random-features"  # what users give as `landmarks`
MAX_ITER = 100


def draw_features(X: Array, kernel: Kernel, count: int, seed: int) -> RandomFeatures:
    """The same `count` features at every node."""
    return RandomFeatures(like(X, kernel.frequencies(X.shape[1], count // 2, shared_seed(seed, "features"))))


def width(count: int, k: int) -> int:
    """Of a basis: components and a few more columns, which make the iteration converge faster."""
    return min(count, k + max(4, k))


def columns_seen(count: int, k: int) -> int:
    """So many columns of the features' products the root sees, which tells the basis of each round."""
    return min(count, MAX_ITER * width(count, k))


def solve(site: Site, options: SumsOptions) -> Solver:
    """The leading eigenvectors of the covariance of the features of all rows; returns the `Answer`, of which no accuracy is known."""
    prepared = yield from prepare_rows(rows_of(site, options), options)
    kernel, X, total = prepared.kernel, prepared.rows.X, site.total
    k, m = int(options.n_components), options.first + options.first % 2  # cosine and sine
    features = draw_features(X, kernel, m, options.seed)
    psi = features.coordinates(kernel, X)
    about = yield FirstMoments(psi, reference(kernel, X)(X), total)
    mean, trace, array = about["mean"], float(about["trace"][0]), site.array
    basis = ndtri(uniform((m, width(m, k)), shared_seed(options.seed, "power")))
    residuals: list[float] = []
    while True:
        step = Power(psi, mean, basis, k, options.tol, len(residuals), total)
        told = yield step
        basis, values = told["basis"], told["values"]
        residuals.append(float(told["residual"][0]))
        converged = step.converged(residuals[-1])
        if converged or step.last:
            break
    real = values > max(step.negligible * values[0], 100 * eps(psi) * total)
    directions = signed(np.where(real, basis, 0.0), about["along"] @ basis)[:, :k]
    return Answer(
        site=site, kernel=kernel, terms=Expansion(array(directions)), eigenvalues=array(np.where(real, values, 0.0)[:k]), trace=trace, marks=features,
        mean=array(mean), scales=prepared.scales, fill=prepared.fill, n_iter=len(residuals),
        runs=(("converged" if converged else "max_iter", len(residuals)),),
        history={"residual": np.repeat(np.array(residuals)[:, None], len(site.nodes), axis=1)},
    )  # fmt: skip


@dataclass(frozen=True, eq=False)
class FirstMoments(Round):
    """The mean of the features, the trace of their covariance, and their sums with the reference for signs."""

    psi: Array
    fixed: Array  # (n,) the reference for signs
    total: int
    kind = "mean"

    def term(self) -> Arrays:
        def part(rows: slice) -> tuple[Array, ...]:
            xp, some, fixed = aac.array_namespace(self.psi), self.psi[rows, :], self.fixed[rows]
            return xp.sum(some, axis=0), xp.sum(some * some), fixed @ some, xp.sum(fixed)

        first, squares, along, level = (on_host(x) for x in summed(part, self.psi.shape[0], self.psi))
        return {"first": first, "squares": squares.reshape(1), "along": np.append(along, level)}

    def bounds(self) -> dict[str, Any]:
        return {"first": 2.0 * self.total, "squares": 2.0 * self.total, "along": LONGEST * self.total}  # k(x, x) = 1

    def implausible(self, total: Arrays, rows: int) -> str | None:
        (squares,) = total["squares"]  # k(x, x) = 1
        wrong = abs(squares - rows) > 1e-3 * rows or (np.abs(total["first"]) > 2.0 * rows).any()
        return super().implausible(total, rows) or (
            f"features of {squares:.6g} rows, where there are {rows}" if wrong else None
        )

    def told(self) -> Shapes:
        return {"mean": (self.psi.shape[1],), "trace": (1,), "along": (self.psi.shape[1],)}

    def conclude(self, total: Arrays) -> Arrays:
        mean = total["first"] / self.total
        along = total["along"][:-1] - total["along"][-1] * mean
        return {"mean": mean, "trace": total["squares"] - self.total * float(mean @ mean), "along": along}


@dataclass(frozen=True, eq=False)
class Power(Round):
    """The covariance times a basis (m, q), orthonormal except for the first one. The root tells Ritz values, the worst relative residual of the first
    k, and the basis of the next round or, at the end, the Ritz vectors."""

    psi: Array
    mean: np.ndarray
    basis: np.ndarray
    n_components: int
    tol: float
    iteration: int  # from 0
    total: int
    kind = "power"

    @property
    def last(self) -> bool:
        return self.iteration + 1 == MAX_ITER

    def converged(self, residual: float) -> bool:
        return residual**2 <= self.tol

    @property
    def negligible(self) -> float:
        """Relative to the first: smaller eigenvalues are rounding."""
        return max(CUTOFF, 100 * eps(self.psi))

    def term(self) -> Arrays:
        basis, mean = like(self.psi, self.basis), like(self.psi, self.mean)
        # not (psi - mean) @ basis: means that cancel would make steps of functions
        level = like(self.psi, self.mean @ self.basis)

        def part(rows: slice) -> tuple[Array]:
            some = self.psi[rows, :]
            return (transposed(some - mean) @ (some @ basis - level),)

        return {"image": on_host(summed(part, self.psi.shape[0], self.psi)[0])}

    def bounds(self) -> dict[str, Any]:
        # columns have unit norm; entries of the random start are below 9
        return {"image": 9.0 * len(self.mean) ** 0.5 * 4 * self.total}

    def told(self) -> Shapes:
        m, q = self.basis.shape
        return {"residual": (1,), "values": (q,), "basis": (m, q)}

    def conclude(self, total: Arrays) -> Arrays:
        basis, image, k = self.basis, total["image"], self.n_components
        if not self.iteration:  # orthonormalized at the root only
            basis, triangle = np.linalg.qr(basis)
            image = np.linalg.solve(triangle.T, image.T).T
        inner = basis.T @ image
        values, turn = np.linalg.eigh(0.5 * (inner + inner.T))
        values, turn = np.maximum(values[::-1], 0.0), turn[:, ::-1]
        vectors = flip_signs(basis @ turn)
        missed = np.linalg.norm(image @ (basis.T @ vectors) - vectors * values, axis=0)[:k]
        size = np.maximum(values[:k], max(self.negligible * values[0], float(np.finfo(np.float64).tiny)))
        residual = float((missed / size).max())
        end = self.last or self.converged(residual)
        return {"residual": np.array([residual]), "values": values, "basis": vectors if end else np.linalg.qr(image)[0]}
