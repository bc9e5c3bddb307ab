"""Projection consensus: the span of a node, its iterate and its start. The steps are in backends/.

Shapes: B nodes, d slots (slot 0 is the node itself), m shared (landmark) coordinates, n padded samples a slot, k columns.
alpha in the paper is the lower part of w. See docs/algorithm.md.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import array_api_compat as aac
import numpy as np

from .spectrum import Eigen, flip_signs, transposed

Array = Any


@dataclass(frozen=True, eq=False)
class OwnSpace:
    """The span of a node's functions: psi (B, n, m) centred coordinates, rest (B, n, n) and its inverse.

    A node expands functions in the samples that its neighbors know. With exchange noise these differ from its own
    samples, whose values count. Then `reach` (B, n, n) is the rest between own and noisy samples, and K_j is the
    Gram matrix of the projections of its own.
    """

    psi: Array
    rest: Array
    inverse: Array
    reach: Array | None = None  # None: rest

    def __getitem__(self, nodes: slice) -> OwnSpace:
        some = (x if x is None else x[nodes, ...] for x in (self.psi, self.rest, self.inverse, self.reach))
        return OwnSpace(*some)

    @property
    def m(self) -> int:
        return int(self.psi.shape[2])

    def values(self, w: Array) -> Array:
        """The values of functions on the node's own samples."""
        return self.psi @ w[:, : self.m, :] + (self.rest if self.reach is None else self.reach) @ w[:, self.m :, :]

    def spread(self, h: Array) -> Array:
        """The function sum_i h_i phi(x_i) over the own samples, Phi(X_j) h, projected on the node's span."""
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

    def functions(self, w: Array) -> Functions:
        return Functions(w, self.rest @ w[:, self.m :, :])


@dataclass(frozen=True, eq=False)
class Functions:
    """Functions of the nodes, with the image that inner products need: <w, x> = s's + a' rest b for w = (s, a), x = (s, b)."""

    w: Array  # (B, m + n, k): shared coordinates, then coefficients over the own samples
    image: Array  # (B, n, k): rest times the latter

    def __getitem__(self, nodes: slice) -> Functions:
        return Functions(self.w[nodes, ...], self.image[nodes, ...])

    def __sub__(self, other: Functions) -> Functions:
        return Functions(self.w - other.w, self.image - other.image)

    def squares(self) -> Array:
        """(B, k, k): the inner products of all columns."""
        m = self.w.shape[1] - self.image.shape[1]
        shared, own = self.w[:, :m, :], self.w[:, m:, :]
        return transposed(shared) @ shared + transposed(own) @ self.image


@dataclass(frozen=True, eq=False)
class Estimate:
    """z, a neighborhood's estimate of the global answer: shared coordinates (B, m, k), coefficients over its samples (B, d, n, k)."""

    shared: Array
    near: Array

    def __getitem__(self, nodes: slice) -> Estimate:
        return Estimate(self.shared[nodes, ...], self.near[nodes, ...])


@dataclass(frozen=True, eq=False)
class Penalties:
    """rho_jq in one iteration: `factor` of node j, times `neighbor` for its neighbors' z and `own` for its own.

    Either each node has its own factor and the weights are 1 (`constant` in all iterations), or the weights follow a schedule and the factors are 1.
    """

    factors: Array  # (B, d) of the node and its neighbors
    neighbor: float
    own: float
    constant: bool

    def __getitem__(self, nodes: slice) -> Penalties:
        return replace(self, factors=self.factors[nodes, :])

    @property
    def n_slots(self) -> int:
        return int(self.factors.shape[1])

    @property
    def factor(self) -> Array:
        return self.factors[:, 0]

    @property
    def extra(self) -> float:
        """The weight of a node's own z minus that of its neighbors'."""
        return self.own - self.neighbor

    @property
    def around(self) -> Array:
        """(B,) the sum of the factors of the neighborhood."""
        return aac.array_namespace(self.factors).sum(self.factors, axis=1)

    def weighted(self, x: Array) -> Array:
        """x (B, d, ...) times the weight of each slot."""
        if self.neighbor == self.own:
            return x if self.neighbor == 1.0 else self.neighbor * x
        xp = aac.array_namespace(x)
        weights = np.full((self.n_slots, *(1,) * (len(x.shape) - 2)), self.neighbor)
        weights[0] = self.own
        return xp.asarray(weights, dtype=x.dtype, device=aac.device(x)) * x

    @property
    def on_w(self) -> Array:
        """(B,) the sum of the penalties that tie the node's w to the z it sees."""
        return self.factor * (self.own + (self.n_slots - 1) * self.neighbor)

    @property
    def on_z(self) -> Array:
        """(B,) the sum of the penalties that the neighborhood puts on the node's z."""
        return self.around * self.neighbor + self.factor * self.extra


@dataclass(frozen=True, eq=False)
class SharedDual:
    """The multipliers in shared coordinates, where P_j z_q = z_q, as sums over the iterations so far.

    dual_jq = sum of weight (w_j - z_q) = `w` - sum of weight z_q. So a node sends the same `w` to all neighbors, each subtracts its own `z`,
    and no array needs a slot for each neighbor. Weights are `Penalties.neighbor`; `extra` is the additional term of the node's own constraint.
    """

    w: Array  # (B, m, k): sum of weight w_j
    z: Array  # (B, m, k): sum of weight z_j
    seen: Array  # sum of weight z_q: (B, 1, m, k) over all slots together, or (B, d, m, k) for diagnostics
    extra: Array  # (B, m, k): sum of (own - neighbor) (w_j - z_j)

    def __getitem__(self, nodes: slice) -> SharedDual:
        return SharedDual(*(x[nodes, ...] for x in self.arrays()))

    def arrays(self) -> tuple[Array, ...]:
        return self.w, self.z, self.seen, self.extra


@dataclass(eq=False)
class Iterate:
    """The state of a block's nodes between two iterations. A step stores new arrays here and changes none in place."""

    w: Functions
    z: Estimate
    dual: Array  # (B, d, n, k): multipliers of w_j = P_j z_q over the own samples, divided by rho's factor
    seen: Array  # (B, d, n, k): P_j z_q over the own samples, from the last views; None after the shares are computed
    shared_dual: SharedDual
    at_check: tuple[Functions, Estimate]  # w and z at the last check
    rotation: Array  # (k, k), from the last check: turns the columns into components
    values: Array = None  # (B, n, k): of w on the own samples, from the last step


def begin(own: OwnSpace, w: Array, z_shape: tuple[int, ...], rho: Penalties, warm: bool, by_slot: bool) -> Iterate:
    """The first iterate. Multipliers and z start at zero or, if `warm`, at their values in a stationary point.

    At a stationary point the multipliers of a node sum to twice the image of its values. With zeros the first
    iterations would destroy a good start. `z_shape` is (B, d, n, k); `by_slot`: sums are kept by slot, for
    diagnostics.
    """
    xp = aac.array_namespace(w)
    (B, rows, k), d = w.shape, rho.n_slots
    like = {"dtype": w.dtype, "device": aac.device(w)}
    nothing, shared = xp.zeros((B, d, rows - own.m, k), **like), xp.zeros((B, own.m, k), **like)
    z, dual, seen, on_marks = Estimate(shared, xp.zeros(z_shape, **like)), nothing, nothing, shared
    if warm:
        values = own.values(w) * (2.0 / d / rho.factor[:, None, None])
        on_marks, dual = own.spread(values)[:, : own.m, :], values[:, None, ...] + nothing
        seen, z = w[:, None, own.m :, :] + nothing, Estimate(w[:, : own.m, :] + shared, z.near)
    shared_dual = SharedDual(on_marks, shared, xp.zeros((B, d if by_slot else 1, own.m, k), **like), shared)
    functions = own.functions(w)
    return Iterate(functions, z, dual, seen, shared_dual, (functions, z), xp.eye(k, **like))


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


def column_products(x: Array, y: Array) -> Array:
    """(B, k, k): inner products of the columns of x and y (B, d, rows, k), summed over the slots."""
    xp = aac.array_namespace(x)
    B, d, rows, k = x.shape
    return transposed(xp.reshape(x, (B, d * rows, k))) @ xp.reshape(y, (B, d * rows, k))
