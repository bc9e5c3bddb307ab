"""Projection consensus: the steps of one iteration, for all nodes of a block at once.

Shapes: B nodes, d slots (slot 0 is the node itself), m shared (landmark) coordinates, n padded samples a slot, k
columns.

    w             (B, m + n, k)     node j's function: shared coordinates, then coefficients over its own samples
    z             shared (B, m, k) and near (B, d, n, k): the neighborhood's estimate of the global answer
    dual          one multiplier for each constraint w_j = P_j z_q, over rho's factor: over the own samples (B, d, n, k), shared as `Sums`
    share, view   the two messages of an iteration: (B, d, n, k), and shared coordinates (B, m, k) that all neighbors hear alike

In shared coordinates P_j z_q is z_q itself, so that the multiplier is the weighted sum of w_j over the iterations less that of z_q: no
array with a slot for each neighbor is needed there. alpha in the paper is the lower part of w. See docs/algorithm.md.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import array_api_compat as aac
import numpy as np

from .spectrum import Eigen, flip_signs, sane, transposed

Array = Any


@dataclass(frozen=True, eq=False)
class OwnSpace:
    """What a node can express and how: psi (B, n, m) centred coordinates, rest (B, n, n) and its inverse.

    The samples that a node expresses functions over are those its neighbors know. With exchange noise they are not
    quite those whose values count: then `reach` (B, n, n) is the rest between the latter and the former, and K_j is
    that of their projections.
    """

    psi: Array
    rest: Array
    inverse: Array
    reach: Array | None = None  # None: rest

    def __getitem__(self, nodes: slice) -> OwnSpace:
        """That of some nodes."""
        some = (x if x is None else x[nodes, ...] for x in (self.psi, self.rest, self.inverse, self.reach))
        return OwnSpace(*some)

    @property
    def m(self) -> int:
        return int(self.psi.shape[2])

    def values(self, w: Array) -> Array:
        """The values of functions on the node's own samples."""
        return self.psi @ w[:, : self.m, :] + (self.rest if self.reach is None else self.reach) @ w[:, self.m :, :]

    def spread(self, h: Array) -> Array:
        """The function sum_i h_i phi(x_i) over the own samples, Phi(X_j) h, as far as the node can express it."""
        xp = aac.array_namespace(h)
        own = h if self.reach is None else self.inverse @ (transposed(self.reach) @ h)
        return xp.concat([transposed(self.psi) @ h, own], axis=1)

    def project(self, views: Array) -> Array:
        """Coefficients over the own samples of P_j z_q, from the values of z_q that arrived in each slot (B, d, n, k)."""
        if aac.is_numpy_array(views):
            return self.inverse[:, None, ...] @ views
        xp = aac.array_namespace(views)
        B, d, n, k = views.shape
        own = self.inverse @ xp.reshape(xp.permute_dims(views, (0, 2, 1, 3)), (B, n, d * k))
        return xp.permute_dims(xp.reshape(own, (B, n, d, k)), (0, 2, 1, 3))

    def dual_vector(self, w: Array) -> Array:
        """w with the metric applied: <w, x> = dual_vector(w)' x for functions w, x of the node."""
        xp = aac.array_namespace(w)
        return xp.concat([w[:, : self.m, :], self.rest @ w[:, self.m :, :]], axis=1)


@dataclass(frozen=True, eq=False)
class Estimate:
    """z: shared coordinates (B, m, k) and coefficients over the samples of the neighborhood (B, d, n, k)."""

    shared: Array
    near: Array

    def __getitem__(self, nodes: slice) -> Estimate:
        """That of some nodes."""
        return Estimate(self.shared[nodes, ...], self.near[nodes, ...])


@dataclass(frozen=True, eq=False)
class Penalties:
    """rho_jq in one iteration: `factor` of node j, times `near` for its neighbors' z and `mine` for its own.

    Either the factors are what the nodes found for themselves and the weights are 1, or the weights follow a schedule and the factors are 1.
    """

    factors: Array  # (B, d) of the node and its neighbors
    near: float
    mine: float

    def __getitem__(self, nodes: slice) -> Penalties:
        return replace(self, factors=self.factors[nodes, :])

    @property
    def n_slots(self) -> int:
        return int(self.factors.shape[1])

    @property
    def factor(self) -> Array:
        return self.factors[:, 0]

    @property
    def around(self) -> Array:
        """(B,) the sum of the factors of the neighborhood."""
        return aac.array_namespace(self.factors).sum(self.factors, axis=1)

    def weighted(self, x: Array) -> Array:
        """x (B, d, ...) times the weight of each slot."""
        if self.near == self.mine:
            return x if self.near == 1.0 else self.near * x
        xp = aac.array_namespace(x)
        weights = np.full((self.n_slots, *(1,) * (len(x.shape) - 2)), self.near)
        weights[0] = self.mine
        return xp.asarray(weights, dtype=x.dtype, device=aac.device(x)) * x

    @property
    def spent(self) -> Array:
        """(B,) the sum of the penalties that the node puts on the z it sees."""
        return self.factor * (self.mine + (self.n_slots - 1) * self.near)

    @property
    def on_z(self) -> Array:
        """(B,) the sum of the penalties that the neighborhood puts on the node's z."""
        return self.around * self.near + self.factor * (self.mine - self.near)


@dataclass(frozen=True, eq=False)
class Sums:
    """Sums over the iterations so far, weighted by `near`, in shared coordinates: of w and z of the node, and of the z it saw.

    `extra` is for penalties that differ for a node's own z: the sum of (mine - near) (w - z).
    """

    w: Array  # (B, m, k)
    z: Array
    seen: Array  # (B, 1, m, k) all slots together; (B, d, m, k) for diagnostics
    extra: Array

    def __getitem__(self, nodes: slice) -> Sums:
        return Sums(*(x[nodes, ...] for x in self.arrays()))

    def arrays(self) -> tuple[Array, ...]:
        return self.w, self.z, self.seen, self.extra


def z_target(
    z: Estimate, sums: Sums, shares: Array, said: Array, late: Array, rho: Penalties, anchored: bool
) -> Estimate:
    """A new z from the neighbors' shares, before it is clipped; `said` (B, d, m, k) are those in shared coordinates.

    Anchored (the proximal update) the shares say how to move the previous z; otherwise (the paper's) they make up a new one. `late` is
    what the node's own share has beyond the others'.
    """
    total = rho.on_z[:, None, None]
    near = shares * (rho.factors / rho.on_z[:, None])[..., None, None]
    if not anchored:  # without shared coordinates
        return Estimate(z.shared, near)
    move = (
        aac.array_namespace(said).sum(said, axis=1) + late - rho.around[:, None, None] * (sums.z + rho.near * z.shared)
    )
    return Estimate(z.shared + move / total, z.near + near)


def z_clip(z: Estimate, values: Array) -> tuple[Estimate, Array]:
    """z with its singular values clipped at 1, given its `values` on the samples of the neighborhood; and those values likewise."""
    xp = aac.array_namespace(values)
    B, d, n, k = z.near.shape
    shared, flat, values = z.shared, xp.reshape(z.near, (B, d * n, k)), xp.reshape(values, (B, d * n, k))
    square = transposed(shared) @ shared + transposed(flat) @ values
    # an iteration that diverged is noticed at the next check; until then eigensolvers must not trip over it
    square = xp.where(sane(square), square, xp.zeros_like(square))
    size, basis = xp.linalg.eigh(0.5 * (square + transposed(square)))
    shrink = (basis / xp.sqrt(xp.clip(size, min=1.0))[:, None, :]) @ transposed(basis)
    near, values = (xp.reshape(x @ shrink, (B, d, n, k)) for x in (flat, values))
    return Estimate(shared @ shrink, near), values


def w_step(
    own: OwnSpace,
    seen: Array,
    seen_mine: Array,
    heard: Array,
    mine: Array,
    pulled: Array,
    sums: Sums,
    rho: Penalties,
    response: Array,
) -> tuple[Array, Array]:
    """The exact minimizer over w_j, from what it saw of its neighbors' z; and its values on the own samples.

    Over the own samples `seen` (B, n, k) is the sum of P_j z_q over the slots and `seen_mine` that of its own z; in shared coordinates
    these are `heard` and `mine` (B, m, k). `pulled` is the sum of the multipliers, `response` (r - 2 K_j)^-1 with r the sum of the penalties.
    """
    xp = aac.array_namespace(seen)
    extra = rho.mine - rho.near
    shared = rho.near * heard + extra * mine + xp.sum(sums.seen, axis=1) - rho.n_slots * sums.w - sums.extra
    target = rho.factor[:, None, None] * xp.concat([shared, rho.near * seen + extra * seen_mine - pulled], axis=1)
    half = response @ own.values(target)  # (r - 2 K) h = 2 values(t), so that values(w) = (values(t) + K h) / r = h / 2
    return (target + own.spread(2.0 * half)) / rho.spent[:, None, None], half


def products(x: Array, y: Array) -> Array:
    """(B, k, k): inner products of the columns of x and y (B, d, rows, k), summed over the slots."""
    xp = aac.array_namespace(x)
    B, d, rows, k = x.shape
    return transposed(xp.reshape(x, (B, d * rows, k))) @ xp.reshape(y, (B, d * rows, k))


def dual_step(
    w: Array, gap: Array, dual: Array, rho: Penalties, next_rho: Penalties, anchored: bool
) -> tuple[Array, Array]:
    """The new multipliers over the own samples, and the shares for the next iteration; `gap` = w - seen."""
    dual = dual + rho.weighted(gap)
    if not anchored:
        return dual, dual + next_rho.weighted(aac.array_namespace(w).broadcast_to(w[:, None, ...], dual.shape))
    return dual, dual + next_rho.weighted(gap)


def sums_step(
    sums: Sums, w: Array, z: Array, seen: Array, rho: Penalties, next_rho: Penalties
) -> tuple[Sums, Array, Array]:
    """The same in shared coordinates: the new sums, the share that all neighbors hear, and what the node's own has beyond it."""
    apart = w - z
    new = Sums(
        sums.w + rho.near * w,
        sums.z + rho.near * z,
        sums.seen + rho.near * seen,
        sums.extra + (rho.mine - rho.near) * apart,
    )
    factor = next_rho.factor[:, None, None]
    late = factor * (new.extra + (next_rho.mine - next_rho.near) * apart)
    return new, factor * (new.w + next_rho.near * w), late


def view_signs(own: OwnSpace, seen: Array) -> Array:
    """-1 for each view that points against the node's own, to be turned (one column; as the authors' scripts do): (B, d, 1, 1)."""
    xp = aac.array_namespace(seen)
    products = xp.sum(seen * (own.rest @ seen[:, 0, ...])[:, None, ...], axis=(-2, -1), keepdims=True)
    return xp.where(products < 0, -xp.ones_like(products), xp.ones_like(products))


def local_start(own: OwnSpace, eigen: Eigen, n_columns: int) -> Array:
    """The local solution: unit functions along the leading eigenvectors of K_j (`eigen`); zero where K_j has no more."""
    xp = aac.array_namespace(own.rest)
    found = min(n_columns, own.rest.shape[-1])
    basis = xp.flip(eigen.basis, axis=-1)[..., :found]
    inverse = xp.flip(eigen.inverse, axis=-1)[..., :found]
    w = own.spread(flip_signs(basis) * xp.sqrt(inverse)[:, None, :])
    return pad_columns(w, n_columns)


def random_start(own: OwnSpace, eigen: Eigen, noise: Array, sizes: Array) -> Array:
    """Random functions of about unit norm (`eigen` of K_j); `noise` (B, n, k) is standard normal over the real samples and 0 below them."""
    xp = aac.array_namespace(noise)
    whitened = eigen.basis @ (xp.sqrt(eigen.inverse)[..., None] * (transposed(eigen.basis) @ noise))
    return own.spread(whitened / xp.sqrt(sizes)[:, None, None])


def pad_columns(w: Array, n_columns: int) -> Array:
    """w with columns of zeros up to n_columns."""
    xp = aac.array_namespace(w)
    missing = n_columns - w.shape[-1]
    if missing <= 0:
        return w
    return xp.concat([w, xp.zeros((*w.shape[:-1], missing), dtype=w.dtype, device=aac.device(w))], axis=-1)
