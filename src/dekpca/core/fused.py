"""The steps of an iteration in compiled code (_steps.pxi), where they can be used: NumPy arrays, the proximal update, Gram blocks kept.

The same formulas as consensus.py and stopping.py, to rounding. There each is a call over many nodes and makes a pass over memory; here a
node's iterate stays in the cache from the first to the last. Without the compiled module everything works, slower.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..messages import Slots
from . import native
from .consensus import Estimate, OwnSpace, Penalties, Sums
from .nodewise import in_turn, shares_of
from .pairs import NeighborhoodGram
from .stopping import NOTHING, Measured, Progress

Array = Any
LINE = 64  # bytes of a line of the cache


@dataclass(frozen=True, eq=False)
class Steps:
    """What the iterations need of a block's feature space, laid out for compiled code."""

    own: OwnSpace
    near: NeighborhoodGram  # keeps alive what `address` points to
    alike: bool  # in every iteration a node's penalties are the same for its own z and its neighbors': `late` and `sums.extra` stay zero
    address: np.ndarray  # (B, T) of each Gram block of a neighborhood
    where: np.ndarray  # (B, T, 4): its slots, rows, columns

    @classmethod
    def of(cls, own: OwnSpace, near: NeighborhoodGram, alike: bool) -> Steps | None:
        """None where compiled code cannot be used."""
        if native.steps is None or own.reach is not None or not near.in_memory:
            return None
        psi, rest, inverse = (np.ascontiguousarray(x) for x in (own.psi, own.rest, own.inverse))
        return cls(OwnSpace(psi, rest, inverse), near, alike, *near.blocks_of_nodes)

    def measured(self, w: Array) -> Measured:
        """`Measured.of`, to the same bits as `w_step` has them: a run that is resumed goes on as if it had not stopped."""
        gw = _like(w[:, self.own.m :, :])
        self._run("metric_nodes", w.dtype, self.own.rest, w, gw)
        return Measured(w, gw, None)  # nobody asks for the values of an earlier w

    def z_step(
        self, z: Estimate, sums: Sums, shares: Slots, heard: Slots, late: Array, rho: Penalties
    ) -> tuple[Estimate, Array]:
        """`z_target`, `apply` and `z_clip`: the new z, and its values on the samples of the neighborhood."""
        _fits(shares, z.near.shape[2:])
        _fits(heard, z.shared.shape[1:])
        out = _like(z.shared), _like(z.near), _like(z.near)
        limit = float(np.finfo(late.dtype).max) ** 0.5
        given = (
            z.shared,
            z.near,
            sums.z,
            shares.rows,
            shares.place,
            heard.rows,
            heard.place,
            late,
            rho.factors,
            rho.around,
            rho.on_z,
        )
        self._run("z_nodes", late.dtype, *given, rho.near, self.alike, self.address, self.where, limit, *out)
        return Estimate(out[0], out[1]), out[2]

    def w_step(
        self,
        state: Any,
        views: Slots,
        heard: Slots,
        rho: Penalties,
        next_rho: Penalties,
        response: Array,
        before: Measured,
        at_check: Measured,
        leading: Array,
    ) -> tuple[Measured, Progress]:
        """`project`, `w_step`, `dual_step`, `sums_step` and `measure`: the new w, multipliers and shares (into `state`), and how far they are."""
        own, dual, pulled, sums = self.own, state.dual, state.pulled, state.sums
        _fits(views, dual.shape[2:])
        _fits(heard, sums.w.shape[1:])
        new = Measured(_like(before.w), _like(before.gw), _like(pulled))
        beside = tuple(_like(x) for x in (dual, pulled, dual, sums.w))
        after = Sums(_like(sums.w), _like(sums.z), _like(sums.seen), sums.extra if self.alike else _like(sums.w))
        late = state.late if self.alike else _like(sums.w)
        unused = beside[3]  # for what would be written if penalties were not alike
        dtype = pulled.dtype
        progress = np.empty((4, pulled.shape[0]), dtype=dtype)
        weights = rho.near, rho.mine - rho.near, next_rho.near, next_rho.mine - next_rho.near
        self._run(
            "w_nodes", dtype,
            views.rows, views.place, heard.rows, heard.place, own.psi, own.rest, own.inverse, response, dual, pulled, *sums.arrays(),
            rho.factor, rho.spent, *weights, self.alike, before.w, before.gw, at_check.w, at_check.gw, leading, NOTHING[dtype.itemsize * 8],
            new.w, new.gw, new.values, *beside, unused if self.alike else late,
            after.w, after.z, after.seen, unused if self.alike else after.extra, progress,
        )  # fmt: skip
        (state.dual, state.pulled, state.shares, state.said), state.late, state.sums = beside, late, after
        return new, Progress(*progress)

    def _run(self, name: str, dtype: np.dtype, *arguments: Any) -> None:
        """Some nodes at a time, in the threads that there are."""
        kind = "double" if dtype == np.float64 else "float"
        function: Callable[..., None] = getattr(native.steps, name)[kind]
        laid_out = [np.ascontiguousarray(x) if isinstance(x, np.ndarray) else x for x in arguments]
        in_turn(lambda nodes: function(nodes.start, nodes.stop, *laid_out), shares_of(len(self.address)), laid_out[0])


def _fits(heard: Slots, shape: tuple[int, ...]) -> None:
    """Compiled code would not notice."""
    if heard.rows.shape[1:] != shape:
        raise RuntimeError(f"messages of shape {heard.rows.shape[1:]} arrived, {shape} are needed")


def _like(x: Array) -> Array:
    """An array of the same kind that begins where a line of the cache does."""
    whole = np.empty(x.nbytes + LINE, dtype=np.uint8)
    start = -whole.ctypes.data % LINE
    return whole[start : start + x.nbytes].view(x.dtype).reshape(x.shape)
