"""A node of the projection solver: what it can represent, and its steps of an iteration.

A function at node j is a pair w = (s, a): s (m, k) are its landmark coordinates, a (n_j, k) its coefficients over the
node's samples, for the rest of the kernel, rest(x, y) = k(x, y) - psi(x)'psi(y). Without landmarks (the paper) m is 0,
a is the paper's alpha, and rest is the kernel.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ...arrays import CUTOFF, NEGATIVE, double_centered, flip_signs
from ...chunks import row_tiles
from ...kernels import Kernel
from ...landmarks import Landmarks, check_finite
from . import Projection

Link = dict[int, float]  # a penalty for each node around
Progress = dict[str, float]  # of a node in an iteration, by name

TILE = 1024  # rows of a matrix that is not stored
NEGLIGIBLE = {"float64": 1e-12, "float32": 1e-6}  # functions have unit norm: below it they are zero


class Neighborhood:
    """The samples of a node and of its neighbors, as all of them know them (with exchange noise, if any), and the kernel between them."""

    def __init__(
        self, around: list[int], samples: list[np.ndarray], kernel: Kernel, marks: Landmarks | None, local_means: bool, stored: bool
    ):  # fmt: skip
        self.around, self.samples, self.kernel, self.local_means = around, samples, kernel, local_means
        self.sizes = np.array([len(own) for own in samples])
        self.starts = np.cumsum(self.sizes) - self.sizes
        self.n = int(self.sizes.sum())
        X = np.concatenate(samples)  # not kept, or every node would have a copy of its neighbors' rows
        self.psi = np.zeros((self.n, 0), dtype=X.dtype) if marks is None else marks.coordinates(kernel, X)
        self.removed: list[tuple[np.ndarray, np.ndarray]] = []  # by deflation: directions (N, 1), and their values
        self.rest = None
        self.far = kernel.far(kernel.squares(X))
        if stored:
            rest = (
                np.concatenate([self._rest(X, rows) for rows in self._tiles()])
                if self.far
                else self._rest(X, slice(None))
            )
            if local_means:
                rest = self._centered(self._centered(rest).T)
            self.rest = rest

    def split(self, x: np.ndarray) -> list[np.ndarray]:
        """Rows for all samples (N, ...), as an array for each node around."""
        return np.split(x, self.starts[1:])

    def values(self, z: np.ndarray) -> np.ndarray:
        """The values (N, k), in the rest of the kernel, of the functions with coefficients z (N, k)."""
        for u, v in reversed(self.removed):
            z = self._without(z, u, v)
        if self.rest is not None:
            found = self.rest @ z
        else:
            z = self._centered(z) if self.local_means else z
            X = np.concatenate(self.samples)
            found = np.concatenate([self._rest(X, rows) @ z for rows in self._tiles()])
            found = self._centered(found) if self.local_means else found
        for u, v in self.removed:
            found = self._without(found, v, u)
        return found

    def own_rest(self) -> np.ndarray:
        """rest between the node's own samples, before any deflation."""
        n = int(self.sizes[0])
        if self.rest is not None:
            return self.rest[:n, :n].copy()
        rest = self.kernel.gram(self.samples[0], self.samples[0]) - self.psi[:n] @ self.psi[:n].T
        return double_centered(rest) if self.local_means else rest

    def _tiles(self) -> list[slice]:
        """Slices of at most TILE samples, each of one node."""
        own = zip(self.starts.tolist(), self.sizes.tolist(), strict=True)
        return [slice(start + t.start, start + t.stop) for start, size in own for t in row_tiles(size, TILE)]

    def _rest(self, X: np.ndarray, rows: slice) -> np.ndarray:
        """rest between some of all samples X and all. Far from the origin distances keep their digits only between samples of two nodes at a time."""
        others = self.samples if self.far else [X]
        grams = [self.kernel.gram(X[rows], other) for other in others]
        gram = grams[0] if len(grams) == 1 else np.concatenate(grams, axis=1)
        return gram - self.psi[rows] @ self.psi.T

    def _without(self, x: np.ndarray, u: np.ndarray, v: np.ndarray) -> np.ndarray:
        """x - u_l (v_l'x_l) for each node l around."""
        along = np.add.reduceat(v * x, self.starts, axis=0)
        return x - u * np.repeat(along, self.sizes, axis=0)

    def _centered(self, x: np.ndarray) -> np.ndarray:
        """x minus its mean over the samples of each node around."""
        ones = np.ones((self.n, 1), dtype=x.dtype)
        return self._without(x, ones, ones / np.repeat(self.sizes, self.sizes)[:, None].astype(x.dtype))


@dataclass(eq=False)
class Node:
    """One node: its space, and its iterate.

    With exchange noise its neighbors know other samples than its own, whose values count. Then functions are over the noisy samples, and
    `reach` (n, n) is the rest between its own samples (rows) and the noisy ones.
    """

    number: int
    name: str
    X: np.ndarray  # its own samples
    psi: np.ndarray  # (n, m) their landmark coordinates, centred
    near: Neighborhood
    scale: float  # the largest k(x, x): what rounding is relative to
    reach: np.ndarray | None = None
    clean_rest: np.ndarray | None = None  # between its own samples, without noise; None: there is no noise

    def __post_init__(self) -> None:
        self.whole_reach = self.reach
        self.restore()
        check_finite(self.rest, f"node {self.name}", self.near.kernel)
        self.trace = float(np.trace(self.gram))  # of K_j, without noise
        if self.clean_rest is not None:
            self.trace = float(np.trace(self.clean_rest) + (self.psi**2).sum())

    def restore(self) -> None:
        """The space before any deflation."""
        self.near.removed.clear()
        self.rest, self.reach = self.near.own_rest(), self.whole_reach
        self._factor()

    # ------------------------------------------------------------------ the space of the node
    def _factor(self) -> None:
        values, basis = np.linalg.eigh(self.rest)
        keep = values > max(CUTOFF * values[-1], self.rounding)
        self.inverse = (basis[:, keep] / values[keep]) @ basis[:, keep].T  # of rest
        self.response_of: tuple[float, np.ndarray] | None = None
        own = self.rest if self.reach is None else self.reach @ self.inverse @ self.reach.T
        self.gram = self.psi @ self.psi.T + own  # K_j
        self.eigenvalues, self.basis = np.linalg.eigh(self.gram)

    @property
    def around(self) -> list[int]:
        return self.near.around

    @property
    def n(self) -> int:
        return len(self.X)

    @property
    def m(self) -> int:
        return self.psi.shape[1]

    @property
    def rounding(self) -> float:
        """An eigenvalue below it is rounding, even if the centred matrix is tiny."""
        return 10.0 * self.n * float(np.finfo(self.X.dtype).eps) * self.scale

    def at_samples(self, w: np.ndarray) -> np.ndarray:
        """The values of functions on the node's own samples."""
        return self.psi @ w[: self.m] + (self.rest if self.reach is None else self.reach) @ w[self.m :]

    def spread(self, h: np.ndarray) -> np.ndarray:
        """The function sum_i h_i phi(x_i) over the own samples, projected on the node's span."""
        own = h if self.reach is None else self.inverse @ (self.reach.T @ h)
        return np.concatenate([self.psi.T @ h, own])

    def products(self, w: np.ndarray, x: np.ndarray) -> np.ndarray:
        """(k, k): the inner products of functions."""
        m = self.m
        return w[:m].T @ x[:m] + w[m:].T @ (self.rest @ x[m:])

    def response(self, r: float) -> np.ndarray:
        """(r - 2 K_j)^-1. `meet` has checked that r is above twice the largest eigenvalue of K_j."""
        if self.response_of is None or self.response_of[0] != r:
            matrix = (self.basis / (r - 2.0 * self.eigenvalues)) @ self.basis.T
            self.response_of = r, matrix.astype(self.X.dtype, copy=False)
        return self.response_of[1]

    def check_kernel(self) -> None:
        """Refuse a kernel that is not positive semi-definite on the node's samples."""
        kernel, lowest, top = self.near.kernel, float(self.eigenvalues[0]), float(self.eigenvalues[-1])
        if lowest >= -(NEGATIVE * top + self.rounding):
            return
        # K_j is computed by subtraction: the kernel matrix itself decides
        values = np.linalg.eigvalsh(kernel.gram(self.X, self.X))
        if values[0] < -(NEGATIVE * values[-1] + self.rounding):
            raise ValueError(
                f"node {self.name}: kernel {kernel.label} is not positive semi-definite: smallest eigenvalue {values[0]:.3g} of a Gram matrix "
                f"whose largest is {values[-1]:.3g}; allowed, beyond rounding, is {-NEGATIVE:g} times the largest; change the kernel or its "
                "parameters, or fit on one node (network=1), which leaves negative eigenvalues out"
            )

    # ------------------------------------------------------------------ where to begin
    def begin(self, w: np.ndarray, warm: bool) -> None:
        """The first iterate, from w. Multipliers and z are zero or, if `warm`, as at a stationary point, so that the first steps keep a good start.

        At a stationary point the multipliers of a node sum to twice the image of its values, and P_j z_q is w_j; so it is set to w_j in columns that
        begin at random too, where z_q is another function.
        """
        k, zero = w.shape[1], np.zeros_like(w)
        self.w, self.before, self.w_values = w, w, self.at_samples(w)
        self.z_shared = w[: self.m] if warm else zero[: self.m]
        self.z = np.zeros((self.near.n, k), dtype=w.dtype)
        pull = self.spread(self.w_values * (2.0 / len(self.around))) if warm else zero
        self.dual = dict.fromkeys(self.around, pull)
        self.projected = dict.fromkeys(self.around, w if warm else zero)  # P_j z_q, of each node q around
        # a run that diverges before the first check returns to w, and to the same function as z
        over_own = np.concatenate([w[self.m :], self.z[self.n :]])
        self.at_check = self.w, w[: self.m], over_own

    def local_start(self, random: np.ndarray) -> np.ndarray:
        """The node's own solution: unit functions along the leading eigenvectors of K_j. Where it has no more, the columns of `random` (m + n, k)."""
        found = min(random.shape[1], self.n)
        inverse, basis = self._inverse_eigenvalues[::-1][:found], flip_signs(self.basis[:, ::-1][:, :found])
        w, rank = self.spread(basis * np.sqrt(inverse).astype(basis.dtype)), np.count_nonzero(inverse)
        return np.concatenate([w[:, :rank], random[:, rank:]], axis=1)

    def random_start(self, noise: np.ndarray) -> np.ndarray:
        """Random functions of about unit norm, from standard normal numbers (n, k)."""
        whitened = self.basis @ (np.sqrt(self._inverse_eigenvalues)[:, None] * (self.basis.T @ noise))
        return self.spread((whitened / np.sqrt(self.n)).astype(self.X.dtype))

    @property
    def _inverse_eigenvalues(self) -> np.ndarray:
        keep = self.eigenvalues > max(CUTOFF * self.eigenvalues[-1], self.rounding)
        return np.where(keep, 1.0 / np.where(keep, self.eigenvalues, 1.0), 0.0)

    # ------------------------------------------------------------------ an iteration
    def share(self, q: int, rho: float, proximal: bool) -> np.ndarray:
        """How this node wants z_q to move (the proximal update) or to be (the paper's), (m + n, k)."""
        target = self.w - self.projected[q] if proximal else self.w
        return self.dual[q] + rho * target

    def z_step(self, shares: dict[int, np.ndarray], rho_on_z: Link, proximal: bool) -> dict[int, np.ndarray]:
        """z from the shares of the nodes around; `rho_on_z[l]` is the penalty of node l on this node's z. Returns the views: for each node around the
        landmark coordinates of z and its values on that node's samples."""
        total, m = sum(rho_on_z.values()), self.m
        shared = np.sum([shares[l][:m] for l in self.around], axis=0) / total
        near = np.concatenate([shares[l][m:] for l in self.around]) / total
        if proximal:
            shared, near = self.z_shared + shared, self.z + near
        values = self.near.values(near)
        squares = shared.T @ shared + near.T @ values
        # the next check detects divergence; until then eigensolvers must not fail
        squares = np.where(sane(squares), squares, 0.0)
        sizes, basis = np.linalg.eigh(0.5 * (squares + squares.T))
        shrink = (basis / np.sqrt(np.maximum(sizes, 1.0))) @ basis.T  # singular values of z are clipped at 1
        self.z_shared, self.z = shared @ shrink, near @ shrink
        views = self.near.split(values @ shrink)
        return {l: np.concatenate([self.z_shared, own]) for l, own in zip(self.around, views, strict=True)}

    def w_step(self, views: dict[int, np.ndarray], rho_on_w: Link, leading: np.ndarray, asked: Projection) -> Progress:
        """P_j z_q from the views of the nodes around; then w, exactly, and the multipliers. `rho_on_w[q]` is this node's penalty on z_q. Returns the
        progress of the leading components, which are the columns times `leading`."""
        m, r = self.m, sum(rho_on_w.values())
        for q, view in views.items():
            self.projected[q] = np.concatenate([view[:m], self.inverse @ view[m:]])
        if asked.update == "paper":  # signs as this node's own z has them
            own = self.projected[self.number]
            for q in self.around[1:]:
                if self.products(self.projected[q], own)[0, 0] < 0:
                    self.projected[q] = -self.projected[q]
        target = sum(rho_on_w[q] * self.projected[q] - self.dual[q] for q in self.around)
        # w solves (r - 2 Phi Phi') w = target (the paper: alpha = (r - 2 K_j)^-1 target); by Woodbury's formula its values on the samples come first
        values = self.response(r) @ self.at_samples(target)
        self.before, self.w, self.w_values = self.w, (target + self.spread(2.0 * values)) / r, values
        for q in self.around:
            self.dual[q] = self.dual[q] + rho_on_w[q] * (self.w - self.projected[q])
        return self.progress(leading, rho_on_w if asked.diagnostics else None)

    def progress(self, leading: np.ndarray, rho_on_w: Link | None) -> Progress:
        """How far the node is from its neighbors and from where it was, for the leading components (columns times `leading`).

        Of the worst component, "residual" is the root mean square of |w_j - P_j z_q| / |w_j| over the nodes q of the neighborhood, "change" is how
        far w_j is from that of the last iteration, relative to |w_j|, and "since_check" from that of the last check. "lagrangian", the node's part
        of the augmented Lagrangian, only if `rho_on_w` is given.
        """
        others = [0.0, self.before, self.at_check[0], *(self.projected[q] for q in self.around)]
        squares = self._squares(np.stack([(self.w - x) @ leading for x in others]))
        length = np.maximum(np.sqrt(squares[0]), NEGLIGIBLE[self.w.dtype.name])
        found = {
            "residual": float((np.sqrt(squares[3:].mean(axis=0)) / length).max()),
            "change": float((np.sqrt(squares[1]) / length).max()),
            "since_check": float((np.sqrt(squares[2]) / length).max()),
            "objective": float(((self.w_values @ leading) ** 2).sum()),
        }
        if rho_on_w is not None:
            pull = 0.0
            for q in self.around:
                gap = self.w - self.projected[q]
                pull += float(np.trace(self.products(self.dual[q] + 0.5 * rho_on_w[q] * gap, gap)))
            found["lagrangian"] = pull - float((self.w_values**2).sum())
        return found

    def _squares(self, w: np.ndarray) -> np.ndarray:
        """(sets, k): the squared norms of sets of functions (sets, m + n, k)."""
        s, a = w[:, : self.m], w[:, self.m :]
        return np.maximum((s**2).sum(axis=1) + (a * (self.rest @ a)).sum(axis=1), 0.0)

    # ------------------------------------------------------------------ deflation: the paper's way to more components
    def direction(self) -> np.ndarray:
        """(n, 2): this node's last component as a unit function over its samples, and its values on them."""
        size = float(self.products(self.w, self.w)[0, 0])
        unit = self.w / np.sqrt(size) if size > 0 else np.zeros_like(self.w)
        return np.concatenate([unit, self.rest @ unit], axis=1)

    def deflate(self, directions: dict[int, np.ndarray]) -> None:
        """Every node around has removed its direction from its samples: phi(x) <- phi(x) - <phi(x), v> v."""
        together = np.concatenate([directions[l] for l in self.around])
        u, v = directions[self.number][:, :1], directions[self.number][:, 1:]
        if self.reach is not None:
            self.reach = self.reach - (self.reach @ u) @ v.T
        self.rest = self.rest - v @ v.T
        self.near.removed.append((together[:, :1], together[:, 1:]))
        self._factor()

    def undeflated(self, w: np.ndarray, z: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Coefficients over the original samples, of functions found after `count` deflations; the last one is undone first."""
        for u, v in reversed(self.near.removed[:count]):
            z = self.near._without(z, u, v)
            w = w - u[: self.n] @ (v[: self.n].T @ w)
        return w, z


def sane(x: Any) -> Any:
    """Elementwise: whether the square of a number is finite. A diverging iteration soon has others."""
    return np.abs(x) < float(np.finfo(x.dtype).max) ** 0.5
