"""The steps of an iteration in compiled code (_steps.pxi), where they can be used: NumPy arrays, the proximal update, Gram blocks kept.

The same formulas as consensus.py and stopping.py, to rounding. There each is a call over many nodes and makes a pass over memory; here a
node's iterate stays in the cache from the first to the last. Without the compiled module everything works, slower.
"""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
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
LARGE = 2**22  # bytes; the memory of smaller arrays the C library keeps for others


class Memory:
    """Memory for what each iteration makes anew: that of large arrays which nobody refers to any more is used again.

    The C library would give it back to the system, which clears all that it gives out, page by page: a quarter of the time of a large network.
    """

    def __init__(self) -> None:
        self.free: dict[int, list[np.ndarray]] = defaultdict(list)  # by size

    def like(self, x: Array) -> Array:
        """An array of the same kind, not filled, that begins where a line of the cache does."""
        free = self.free[x.nbytes]
        whole = free.pop() if free else np.empty(x.nbytes + LINE, dtype=np.uint8)
        if x.nbytes >= LARGE:
            memory, whole = whole, np.frombuffer(whole.data, dtype=np.uint8)  # to which all views of it refer
            weakref.finalize(whole, _taken_back, weakref.ref(self), memory).atexit = False
        start = -whole.ctypes.data % LINE
        return whole[start : start + x.nbytes].view(x.dtype).reshape(x.shape)


def _taken_back(by: weakref.ref[Memory], memory: np.ndarray) -> None:
    """After the iterations there is nobody to use it again."""
    if (there := by()) is not None:
        there.free[len(memory) - LINE].append(memory)


@dataclass(frozen=True, eq=False)
class Steps:
    """What the iterations need of a block's feature space, laid out for compiled code."""

    own: OwnSpace
    near: NeighborhoodGram  # keeps alive what `address` points to
    alike: bool  # in every iteration a node's penalties are the same for its own z and its neighbors': `late` and `sums.extra` stay zero
    address: np.ndarray  # (B, T) of each Gram block of a neighborhood
    where: np.ndarray  # (B, T, 4): its slots, rows, columns
    memory: Memory = field(default_factory=Memory)

    @classmethod
    def of(cls, own: OwnSpace, near: NeighborhoodGram, alike: bool) -> Steps | None:
        """None where compiled code cannot be used."""
        if native.steps is None or own.reach is not None or not near.in_memory:
            return None
        psi, rest, inverse = (np.ascontiguousarray(x) for x in (own.psi, own.rest, own.inverse))
        return cls(OwnSpace(psi, rest, inverse), near, alike, *near.blocks_of_nodes)

    def measured(self, w: Array) -> Measured:
        """`Measured.of`, to the same bits as `w_step` has them: a run that is resumed goes on as if it had not stopped."""
        gw = self.memory.like(w[:, self.own.m :, :])
        self._run("metric_nodes", w.dtype, self.own.rest, w, gw)
        return Measured(w, gw, None)  # nobody asks for the values of an earlier w

    def z_step(
        self, z: Estimate, sums: Sums, shares: Slots, heard: Slots, late: Array, rho: Penalties
    ) -> tuple[Estimate, Array]:
        """`z_target`, `apply` and `z_clip`: the new z, and its values on the samples of the neighborhood."""
        _fits(shares, z.near.shape[2:])
        _fits(heard, z.shared.shape[1:])
        out = tuple(self.memory.like(x) for x in (z.shared, z.near, z.near))
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
        own, dual, pulled, sums, like = self.own, state.dual, state.pulled, state.sums, self.memory.like
        _fits(views, dual.shape[2:])
        _fits(heard, sums.w.shape[1:])
        new = Measured(like(before.w), like(before.gw), like(pulled))
        beside = tuple(like(x) for x in (dual, pulled, dual, sums.w))
        after = Sums(like(sums.w), like(sums.z), like(sums.seen), sums.extra if self.alike else like(sums.w))
        late = state.late if self.alike else like(sums.w)
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
