"""The compiled backend: the steps of arrays.py, to rounding, node by node in one pass (core/_steps.pxi).

It needs NumPy arrays, the proximal update and stored Gram blocks, without exchange noise or diagnostics. The array
backend makes a pass over memory for each operation; here a node's part of the iterate stays in the cache from the
first operation of a step to the last. Differences from the formulas:

- `w_step` also measures progress, while the node is in the cache; `measure` returns it.
- With constant penalties `w_step` also makes the next shares; `shares` returns them. A resumed run computes them
from the iterate, with the same bits.
- The memory of unreferenced large arrays is reused (`Memory`).
- With constant penalties a node's own z has the same weight as its neighbors', so `SharedDual.extra` is zero and omitted.
"""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np

from ..core import native
from ..core.chunks import guided_chunks, run_chunks
from ..core.consensus import Estimate, Functions, Iterate, Penalties, SharedDual
from ..core.stopping import NEGLIGIBLE, Progress
from ..messages import Slots
from ..space import Space

Array = Any
LINE = 64  # bytes of a cache line
LARGE = 2**22  # bytes; the C library itself reuses smaller arrays


class Memory:
    """Memory for the arrays of each iteration; that of large arrays is reused when nothing refers to them.

    The C library would return it to the system, which clears every new page: a quarter of the time of a large network.
    """

    def __init__(self) -> None:
        self.free: dict[int, list[np.ndarray]] = defaultdict(list)  # by size

    def like(self, x: Array) -> Array:
        """An uninitialized array of the same shape and dtype, aligned to a cache line."""
        free = self.free[x.nbytes]
        whole = free.pop() if free else np.empty(x.nbytes + LINE, dtype=np.uint8)
        if x.nbytes >= LARGE:
            memory, whole = whole, np.frombuffer(whole.data, dtype=np.uint8)  # the base of all views
            weakref.finalize(whole, _reclaim, weakref.ref(self), memory).atexit = False
        start = -whole.ctypes.data % LINE
        return whole[start : start + x.nbytes].view(x.dtype).reshape(x.shape)


def _reclaim(owner: weakref.ref[Memory], memory: np.ndarray) -> None:
    if (there := owner()) is not None:  # None after the iterations
        there.free[len(memory) - LINE].append(memory)


class Compiled:
    """Implements `Backend`."""

    def __init__(self, space: Space, it: Iterate, n_components: int, response: Callable[[Penalties], Array]):
        (B, d, n, k), p = it.dual.shape, it.z.near.shape[2]
        self.n_nodes, self.kept, self.dtype = B, min(k, n_components), it.dual.dtype
        self.response, self.memory = response, Memory()
        self.neighborhood = space.neighborhood  # keeps the blocks of `block_at` alive
        block_at, block_shape = self.neighborhood.blocks_of_nodes
        psi, rest, inverse = (np.ascontiguousarray(x) for x in (space.own.psi, space.own.rest, space.own.inverse))
        self.nodes = native.steps.Nodes(
            {"B": B, "d": d, "n": n, "p": p, "m": space.own.m, "k": k, "c": self.kept},
            psi=psi,
            rest=rest,
            inverse=inverse,
            block_at=block_at,
            block_shape=block_shape,
        )
        self.progress: Progress | None = None
        self.next_shares: tuple[Array, Array] | None = None

    @classmethod
    def applies(cls, space: Space) -> bool:
        return native.steps is not None and space.own.reach is None and space.neighborhood.in_memory

    def shares(self, it: Iterate, rho: Penalties) -> tuple[Array, Array]:
        made, self.next_shares = self.next_shares, None
        if made is None:  # the first iteration, a resumed one, or variable penalties
            given = {"w": it.w.w, "dual": it.dual, "seen": it.seen, "dual_w": it.shared_dual.w}
            out = self._run("shares", rho, given, {"shares": it.dual, "shared": it.z.shared})
            made = out["shares"], out["shared"]
        it.seen = None  # the next views replace it
        return made

    def z_step(self, it: Iterate, heard: tuple[Slots, Slots], rho: Penalties) -> tuple[Array, Array]:
        z, dual = it.z, it.shared_dual
        given = {"on_z": rho.on_z, "w": it.w.w, "z_shared": z.shared, "z_near": z.near, "dual_z": dual.z}
        if not rho.constant:
            given["dual_extra"] = dual.extra
        given |= _arrived("shares", heard)
        out = self._run("z_step", rho, given, {"z_shared": z.shared, "z_near": z.near, "views": z.near})
        it.z = Estimate(out["z_shared"], out["z_near"])
        return out["views"], it.z.shared

    def w_step(self, it: Iterate, heard: tuple[Slots, Slots], rho: Penalties) -> None:
        dual, at_check = it.shared_dual, it.at_check[0]
        replaced = {"w": it.w.w, "image": it.w.image, "dual": it.dual}
        replaced |= {"dual_w": dual.w, "dual_z": dual.z, "dual_seen": dual.seen}
        if not rho.constant:
            replaced["dual_extra"] = dual.extra
        given = {"on_w": rho.on_w, "response": self.response(rho), "leading": it.rotation[:, : self.kept]}
        given |= {"check_w": at_check.w, "check_image": at_check.image}
        given |= _arrived("views", heard)
        progress = np.empty((4, self.n_nodes), dtype=self.dtype)
        like = {"values": it.w.image, "seen": it.dual, "progress": progress}
        if rho.constant:
            like |= {"shares": it.dual, "shared": dual.w}
        out = self._run("w_step", rho, given | replaced, like | replaced, NEGLIGIBLE[self.dtype.itemsize * 8])

        it.w, it.values, it.dual, it.seen = Functions(out["w"], out["image"]), out["values"], out["dual"], out["seen"]
        it.shared_dual = SharedDual(out["dual_w"], out["dual_z"], out["dual_seen"], out.get("dual_extra", dual.extra))
        self.progress = Progress(*out["progress"])
        if rho.constant:
            self.next_shares = out["shares"], out["shared"]

    def measure(self, it: Iterate) -> Progress:
        assert self.progress is not None
        return self.progress

    def _run(
        self, step: str, rho: Penalties, given: dict[str, Array], like: dict[str, Array], negligible: float = 0.0
    ) -> dict[str, Array]:
        """A step for all nodes, in all threads; returns its results by name, as arrays `like` these."""
        out = {name: self.memory.like(x) for name, x in like.items()}
        arrays = {name: np.ascontiguousarray(x) for name, x in given.items()}
        arrays |= {"factors": np.ascontiguousarray(rho.factors)} | {f"out_{name}": x for name, x in out.items()}
        self.nodes.prepare(step, arrays, rho.neighbor, rho.extra, negligible)
        run_chunks(lambda nodes: self.nodes.run(nodes.start, nodes.stop), guided_chunks(self.n_nodes), rho.factors)
        self.nodes.release()
        return out


def _arrived(name: str, heard: tuple[Slots, Slots]) -> dict[str, Array]:
    own, shared = heard
    return {name: own.rows, f"{name}_at": own.place, "shared": shared.rows, "shared_at": shared.place}
