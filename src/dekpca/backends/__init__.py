"""The arithmetic of one iteration, by two backends: arrays.py, the reference, and compiled.py, which is faster where it applies.

program.py calls the four methods of a `Backend` in this order, once an iteration. Both backends read and write the same `Iterate`,
send the same messages and agree to rounding. Any other state of a backend follows from the iterate, so that a run
resumed from a checkpoint has the same bits.
"""

from __future__ import annotations

from typing import Any, Protocol

from ..core.consensus import Iterate, Penalties
from ..core.spectrum import Factor
from ..core.stopping import Progress
from ..messages import Slots
from ..options import Options
from ..space import Space
from .arrays import Arrays
from .compiled import Compiled

Array = Any
Outgoing = tuple[Array, Array]  # rows for each neighbor (B, d, n, k), and shared coordinates for all of them (B, m, k)
Arrived = tuple[Slots, Slots]  # the same from the neighbors


class Backend(Protocol):
    """The steps of an iteration. `rho` are its penalties."""

    def shares(self, it: Iterate, rho: Penalties) -> Outgoing:
        """The change of its neighbors' z that each node wants: dual + rho (w - P z), over the own samples divided by rho's factor."""

    def z_step(self, it: Iterate, heard: Arrived, rho: Penalties) -> Outgoing:
        """The new z, from the shares that arrived. Returns the views: its values on the samples of each neighbor."""

    def w_step(self, it: Iterate, heard: Arrived, rho: Penalties) -> None:
        """P z from the views that arrived; the new w, exactly, and the new multipliers."""

    def measure(self, it: Iterate) -> Progress:
        """Distances of the last w from its neighbors' z, from the w before, and from that at the last check."""


class Response:
    """(r_j - 2 K_j)^-1, where r_j is the sum of the penalties on node j's w; recomputed only when penalties change."""

    def __init__(self, gram: Factor, overwrite: bool):
        self.gram, self.overwrite = gram, overwrite
        self.weights: tuple[float, float] | None = None
        self.matrices: Array = None

    def __call__(self, rho: Penalties) -> Array:
        if self.weights != (rho.neighbor, rho.own):
            self.matrices = self.gram.response(rho.on_w, in_place=self.overwrite)
            self.weights = rho.neighbor, rho.own
        return self.matrices


def backend_for(options: Options, space: Space, it: Iterate, rho: Penalties) -> Backend:
    """The fastest backend for these settings and arrays; `rho` are the penalties of the first iteration. May overwrite `space.gram`."""
    by_slot = it.shared_dual.seen.shape[1] > 1
    if by_slot != options.diagnostics:
        raise ValueError("a run must be resumed with the diagnostics it was begun with")
    # With constant penalties only (r - 2K)^-1 is needed, so K is overwritten; deflation (the paper's update) needs K again.
    overwrite = rho.constant and options.anchored and space.gram.matrix is not space.own.rest
    response = Response(space.gram, overwrite)
    response(rho)
    if options.anchored and not options.diagnostics and Compiled.applies(space):
        return Compiled(space, it, options.n_components, response)
    return Arrays(space, options, response)
