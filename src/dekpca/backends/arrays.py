"""The reference backend: the formulas of docs/algorithm.md as batched array operations, for every array library and every option.

A step works on chunks of nodes, with NumPy in threads (core/chunks.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import array_api_compat as aac

from ..core import stopping
from ..core.chunks import by_nodes, row_bytes
from ..core.consensus import Estimate, Functions, Iterate, OwnSpace, Penalties, SharedDual, column_products
from ..core.spectrum import sane, transposed
from ..messages import Slots
from ..options import Options
from ..space import Space

Array = Any


class Arrays:
    """Implements `Backend`."""

    def __init__(self, space: Space, options: Options, response: Callable[[Penalties], Array]):
        self.own, self.neighborhood, self.options, self.response = space.own, space.neighborhood, options, response
        # of the last w step, for `measure`
        self.before: Functions | None = None
        self.gaps: Array = None
        self.constraints: Array | None = None

    def shares(self, it: Iterate, rho: Penalties) -> tuple[Array, Array]:
        m, anchored = self.own.m, self.options.anchored

        def some(j: slice) -> tuple[Array, ...]:
            w, dual, on = it.w.w[j, ...], it.dual[j, ...], rho[j]
            gap = w[:, None, m:, :]
            if anchored:
                gap = gap - it.seen[j, ...]
            shared = on.factor[:, None, None] * (it.shared_dual.w[j, ...] + on.neighbor * w[:, :m, :])
            return dual + on.weighted(gap), shared

        found = by_nodes(some, it.dual.shape[0], row_bytes(it.dual), it.dual)
        it.seen = None  # the next views replace it
        return found[0], found[1]

    def z_step(self, it: Iterate, heard: tuple[Slots, Slots], rho: Penalties) -> tuple[Array, Array]:
        xp = aac.array_namespace(it.dual)
        B, d, n, k = it.z.near.shape
        work, m, anchored = row_bytes(it.z.near), self.own.m, self.options.anchored
        shares, shared_shares = heard

        def target(j: slice) -> tuple[Array, ...]:
            z = unclipped(
                it.z[j], it.w.w[j, :m, :], it.shared_dual[j], shares.slots(j), shared_shares.slots(j), rho[j], anchored
            )
            return z.shared, z.near

        wanted = Estimate(*by_nodes(target, B, work, it.dual))
        products = self.neighborhood.products(xp.reshape(wanted.near, (B * d, n, k)))

        def clip(j: slice) -> tuple[Array, ...]:
            z, values = clipped(wanted[j], self.neighborhood.collect(products, j))
            return z.shared, z.near, values

        shared, near, values = by_nodes(clip, B, work, it.dual)
        it.z = Estimate(shared, near)
        return values, shared

    def w_step(self, it: Iterate, heard: tuple[Slots, Slots], rho: Penalties) -> None:
        xp = aac.array_namespace(it.dual)
        (B, d), m = it.dual.shape[:2], self.own.m
        views, shared_views = heard
        response, diagnostics = self.response(rho), self.options.diagnostics

        def some(j: slice) -> tuple[Array, ...]:
            own, dual, shared_dual, on = self.own[j], it.dual[j, ...], it.shared_dual[j], rho[j]
            values, z_shared = views.slots(j), shared_views.slots(j)
            seen = own.project(values)
            if self.options.update == "paper":
                signs = view_signs(own, seen)
                seen, values = signs * seen, signs * values

            target = consensus_target(seen, z_shared, dual, shared_dual, on)
            w, w_values = minimizer(own, target, on, response[j, ...])
            new = own.functions(w)
            gap, shared_gap = w[:, None, m:, :] - seen, w[:, None, :m, :] - z_shared
            dual = dual + on.weighted(gap)
            shared_dual = next_shared_dual(shared_dual, w[:, :m, :], z_shared, on, diagnostics)

            # <w - P z_q, w - P z_q>: over the own samples the gaps times their values
            gaps = column_products(gap, new.image[:, None, ...] - values) + column_products(shared_gap, shared_gap)
            found = (new.w, new.image, w_values, dual, seen, *shared_dual.arrays(), gaps / d)
            if not diagnostics:
                return found
            pull = xp.sum((dual + 0.5 * on.weighted(gap)) * (new.image[:, None, ...] - values), axis=(1, 2, 3))
            by_slot = shared_dual.w[:, None, ...] - shared_dual.seen + 0.5 * on.weighted(shared_gap)
            pull = pull + xp.sum(by_slot * shared_gap, axis=(1, 2, 3))
            pull = pull + xp.sum(shared_dual.extra * shared_gap[:, 0, ...], axis=(1, 2))
            return (*found, on.factor * pull)

        found = by_nodes(some, B, row_bytes(it.dual), it.dual)
        self.before, it.w = it.w, Functions(*found[:2])
        it.values, it.dual, it.seen, it.shared_dual = *found[2:5], SharedDual(*found[5:9])
        self.gaps, self.constraints = found[9], found[10] if diagnostics else None

    def measure(self, it: Iterate) -> stopping.Progress:
        leading = it.rotation[:, : min(it.rotation.shape[0], self.options.n_components)]
        before, constraints = self.before, self.constraints
        assert before is not None

        def some(j: slice) -> tuple[Array, ...]:
            pull = None if constraints is None else constraints[j]
            at_check = it.at_check[0][j]
            return stopping.measure(
                it.w[j], it.values[j, ...], self.gaps[j, ...], before[j], at_check, leading, pull
            ).numbers()

        return stopping.Progress(*by_nodes(some, it.w.w.shape[0], 3 * row_bytes(it.w.w), it.w.w))


def unclipped(
    z: Estimate, w: Array, dual: SharedDual, shares: Array, shared_shares: Array, rho: Penalties, anchored: bool
) -> Estimate:
    """A new z from the neighbors' shares (B, d, n, k) and, in shared coordinates, (B, d, m, k); `w` (B, m, k) is the node's own there.

    With `anchored` (the proximal update) the shares change the previous z; otherwise (the paper's) they give a new one, without shared coordinates.
    """
    near = shares * (rho.factors / rho.on_z[:, None])[..., None, None]
    if not anchored:
        return Estimate(z.shared, near)
    # In shared coordinates shares lack the term - dual_z - rho z, the same for all neighbors, and the own share lacks its larger weight.
    move = aac.array_namespace(shares).sum(shared_shares, axis=1)
    move = move - rho.around[:, None, None] * (dual.z + rho.neighbor * z.shared)
    move = move + rho.factor[:, None, None] * (dual.extra + rho.extra * (w - z.shared))
    return Estimate(z.shared + move / rho.on_z[:, None, None], z.near + near)


def clipped(z: Estimate, values: Array) -> tuple[Estimate, Array]:
    """z with its singular values clipped at 1, given its `values` on the samples of the neighborhood; and the clipped values."""
    xp = aac.array_namespace(values)
    B, d, n, k = z.near.shape
    shared, flat, values = z.shared, xp.reshape(z.near, (B, d * n, k)), xp.reshape(values, (B, d * n, k))
    square = transposed(shared) @ shared + transposed(flat) @ values
    # The next check detects divergence; until then eigensolvers must not fail.
    square = xp.where(sane(square), square, xp.zeros_like(square))
    size, basis = xp.linalg.eigh(0.5 * (square + transposed(square)))
    shrink = (basis / xp.sqrt(xp.clip(size, min=1.0))[:, None, :]) @ transposed(basis)
    near, values = (xp.reshape(x @ shrink, (B, d, n, k)) for x in (flat, values))
    return Estimate(shared @ shrink, near), values


def consensus_target(seen: Array, z_shared: Array, dual: Array, shared_dual: SharedDual, rho: Penalties) -> Array:
    """(B, m + n, k): sum over q of rho P_j z_q - dual_jq."""
    xp = aac.array_namespace(seen)
    shared = rho.neighbor * xp.sum(z_shared, axis=1) + rho.extra * z_shared[:, 0, ...]
    shared = shared - (rho.n_slots * shared_dual.w - xp.sum(shared_dual.seen, axis=1) + shared_dual.extra)
    own = rho.neighbor * xp.sum(seen, axis=1) + rho.extra * seen[:, 0, ...] - xp.sum(dual, axis=1)
    return rho.factor[:, None, None] * xp.concat([shared, own], axis=1)


def minimizer(own: OwnSpace, target: Array, rho: Penalties, response: Array) -> tuple[Array, Array]:
    """The exact w, and its values on the own samples; `response` is (r - 2 K_j)^-1, where r is the sum of the penalties."""
    half = response @ own.values(target)  # (r - 2 K) h = 2 values(t), so that values(w) = (values(t) + K h) / r = h / 2
    return (target + own.spread(2.0 * half)) / rho.on_w[:, None, None], half


def next_shared_dual(dual: SharedDual, w: Array, z_shared: Array, rho: Penalties, by_slot: bool) -> SharedDual:
    """The multipliers in shared coordinates after a step; `z_shared` (B, d, m, k) as each slot sent it."""
    xp = aac.array_namespace(w)
    z = z_shared[:, 0, ...]
    seen = z_shared if by_slot else xp.sum(z_shared, axis=1, keepdims=True)
    return SharedDual(
        dual.w + rho.neighbor * w,
        dual.z + rho.neighbor * z,
        dual.seen + rho.neighbor * seen,
        dual.extra + rho.extra * (w - z),
    )


def view_signs(own: OwnSpace, seen: Array) -> Array:
    """(B, d, 1, 1): -1 for each view opposite to the node's own, as in the authors' scripts (one column)."""
    xp = aac.array_namespace(seen)
    products = xp.sum(seen * (own.rest @ seen[:, 0, ...])[:, None, ...], axis=(-2, -1), keepdims=True)
    return xp.where(products < 0, -xp.ones_like(products), xp.ones_like(products))
