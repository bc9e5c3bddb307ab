"""Projection consensus: the steps of one iteration, for all nodes of a block at once.

Shapes: B nodes, d slots (slot 0 is the node itself), m shared (landmark) coordinates, n padded samples a slot, k
columns.

    w             (B, m + n, k)     node j's function: shared coordinates, then coefficients over its own samples
    dual          (B, d, m + n, k)  one multiplier for each constraint w_j = P_j z_q, unscaled
    z             shared (B, m, k) and near (B, d, n, k): the neighborhood's estimate of the global answer
    share, view   (B, d, m + n, k)  the two messages of an iteration

`rho` (B, d, 1, 1) are the penalties, alpha in the paper is the lower part of w. See docs/algorithm.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import array_api_compat as aac

from .pairs import NeighborhoodGram
from .spectrum import Factor, flip_signs, sane, transposed

Array = Any


@dataclass(frozen=True, eq=False)
class OwnSpace:
    """What a node can express and how: psi (B, n, m) centred coordinates, rest (B, n, n), and the factors of rest and of K_j.

    The samples that a node expresses functions over are those its neighbors know. With exchange noise they are not
    quite those whose values count: then `reach` (B, n, n) is the rest between the latter and the former, and K_j is
    that of their projections.
    """

    psi: Array
    rest: Array
    rest_factor: Factor
    gram_factor: Factor  # of K_j = psi psi' + rest
    reach: Array | None = None  # None: rest

    @property
    def m(self) -> int:
        return int(self.psi.shape[2])

    def values(self, w: Array) -> Array:
        """The values of functions on the node's own samples."""
        return self.psi @ w[:, : self.m, :] + (self.rest if self.reach is None else self.reach) @ w[:, self.m :, :]

    def spread(self, h: Array) -> Array:
        """The function sum_i h_i phi(x_i) over the own samples, Phi(X_j) h, as far as the node can express it."""
        xp = aac.array_namespace(h)
        own = h if self.reach is None else self.rest_factor.solve(transposed(self.reach) @ h)
        return xp.concat([transposed(self.psi) @ h, own], axis=1)

    def project(self, views: Array) -> Array:
        """seen = P_j z_q, from the values of z_q that arrived in each slot (B, d, m + n, k)."""
        xp = aac.array_namespace(views)
        B, d, rows, k = views.shape
        own = xp.permute_dims(views[:, :, self.m :, :], (0, 2, 1, 3))
        own = self.rest_factor.solve(xp.reshape(own, (B, rows - self.m, d * k)))
        own = xp.permute_dims(xp.reshape(own, (B, rows - self.m, d, k)), (0, 2, 1, 3))
        return xp.concat([views[:, :, : self.m, :], own], axis=2)

    def dual_vector(self, w: Array) -> Array:
        """w with the metric applied: <w, x> = dual_vector(w)' x for functions w, x of the node."""
        xp = aac.array_namespace(w)
        return xp.concat([w[:, : self.m, :], self.rest @ w[:, self.m :, :]], axis=1)


@dataclass(frozen=True, eq=False)
class Estimate:
    """z: shared coordinates (B, m, k) and coefficients over the samples of the neighborhood (B, d, n, k)."""

    shared: Array
    near: Array


def z_step(gram: NeighborhoodGram, z: Estimate, shares: Array, total: Array, anchored: bool) -> tuple[Estimate, Array]:
    """A new z from the neighbors' shares, its singular values clipped at 1; and the views of it, one for each slot.

    `total` (B,) is the sum of the penalties that the neighbors put on z_j. Anchored (the proximal update) the shares
    say how to move the previous z; otherwise (the paper's) they make up a new one.
    """
    xp = aac.array_namespace(shares)
    B, d, n, k = z.near.shape
    m = z.shared.shape[1]
    shared = xp.sum(shares[:, :, :m, :], axis=1) / total[:, None, None]
    near = shares[:, :, m:, :] / total[:, None, None, None]
    if anchored:
        shared, near = z.shared + shared, z.near + near
    values = gram.apply(near)
    flat = xp.reshape(near, (B, d * n, k))
    square = transposed(shared) @ shared + transposed(flat) @ xp.reshape(values, (B, d * n, k))
    # an iteration that diverged is noticed at the next check; until then eigensolvers must not trip over it
    square = xp.where(sane(square), square, xp.zeros_like(square))
    size, basis = xp.linalg.eigh(0.5 * (square + transposed(square)))
    shrink = (basis / xp.sqrt(xp.clip(size, min=1.0))[:, None, :]) @ transposed(basis)
    shared = shared @ shrink
    near = xp.reshape(flat @ shrink, (B, d, n, k))
    values = xp.reshape(xp.reshape(values, (B, d * n, k)) @ shrink, (B, d, n, k))
    views = xp.concat([xp.broadcast_to(shared[:, None, :, :], (B, d, m, k)), values], axis=2)
    return Estimate(shared, near), views


def w_step(own: OwnSpace, seen: Array, dual: Array, rho: Array) -> Array:
    """The exact minimizer over w_j, from what it saw of its neighbors' z."""
    xp = aac.array_namespace(seen)
    B, d, rows, k = seen.shape
    wanted = xp.reshape(rho, (B, 1, d)) @ xp.reshape(seen, (B, d, rows * k))
    target = xp.reshape(wanted, (B, rows, k)) - xp.sum(dual, axis=1)
    r = xp.sum(rho, axis=(1, 2, 3))
    h = 2.0 * own.gram_factor.solve_shifted(r, own.values(target))
    return (target + own.spread(h)) / r[:, None, None]


def dual_step(w: Array, gap: Array, dual: Array, rho: Array, next_rho: Array, anchored: bool) -> tuple[Array, Array]:
    """The new multipliers, and the shares for the next iteration, in which the penalties are `next_rho`; `gap` = w - seen."""
    push = rho * gap
    dual = dual + push
    if not anchored:
        return dual, dual + next_rho * w[:, None, :, :]
    return dual, dual + (push if next_rho is rho else next_rho * gap)


def view_signs(own: OwnSpace, seen: Array) -> Array:
    """-1 for each view that points against the node's own, to be turned (one column; as the authors' scripts do): (B, d, 1, 1)."""
    xp = aac.array_namespace(seen)
    mine = own.dual_vector(seen[:, 0, ...])
    products = xp.sum(seen * mine[:, None, ...], axis=(-2, -1), keepdims=True)
    return xp.where(products < 0, -xp.ones_like(products), xp.ones_like(products))


def local_start(own: OwnSpace, n_columns: int) -> Array:
    """The local solution: unit functions along the leading eigenvectors of K_j; zero where K_j has no more."""
    xp = aac.array_namespace(own.rest)
    found = min(n_columns, own.rest.shape[-1])
    basis = xp.flip(own.gram_factor.basis, axis=-1)[..., :found]
    inverse = xp.flip(own.gram_factor.inverse, axis=-1)[..., :found]
    w = own.spread(flip_signs(basis) * xp.sqrt(inverse)[:, None, :])
    return pad_columns(w, n_columns)


def random_start(own: OwnSpace, noise: Array, sizes: Array) -> Array:
    """Random functions of about unit norm; `noise` (B, n, k) is standard normal over the real samples and 0 below them."""
    xp = aac.array_namespace(noise)
    gram = own.gram_factor
    whitened = gram.basis @ (xp.sqrt(gram.inverse)[..., None] * (transposed(gram.basis) @ noise))
    return own.spread(whitened / xp.sqrt(sizes)[:, None, None])


def pad_columns(w: Array, n_columns: int) -> Array:
    """w with columns of zeros up to n_columns."""
    xp = aac.array_namespace(w)
    missing = n_columns - w.shape[-1]
    if missing <= 0:
        return w
    return xp.concat([w, xp.zeros((*w.shape[:-1], missing), dtype=w.dtype, device=aac.device(w))], axis=-1)
