"""The solver for random features: block power iterations, each with one network sum.

The covariance C of the features, m x m, is too large for a network sum; the nodes sum C V, m x (k + p), instead. No
points are shared, not even landmarks.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import array_api_compat as aac
from scipy.special import ndtri

from .answer import Answer
from .block import Block
from .collectives import network_sum
from .core import landmarks, ritz
from .core.chunks import by_nodes, row_bytes
from .core.spectrum import eps, sane, transposed
from .core.stopping import CONVERGED, DIVERGED, GO_ON, INTERRUPTED, VERDICTS
from .kernels import uniform
from .messages import Checkpoint, Script
from .options import Options
from .space import Coordinates, Known

Array = Any


@dataclass(eq=False)
class PowerState:
    """The iterate: a basis (m, k + p), orthonormal except for the first one; after the last iteration sorted by eigenvalue."""

    iteration: int
    basis: Array
    values: Array
    verdict: int
    history: dict[str, list[Array]]


def feature_answer(
    block: Block, options: Options, known: Known, coordinates: Coordinates, state: PowerState | None
) -> Script:
    """The leading eigenvectors of the covariance of all the data's features."""
    psi = coordinates.center(block, options, known)
    xp = aac.array_namespace(psi)
    m, q, k = psi.shape[2], options.n_columns, options.n_components
    if state is None:
        start = block.array(ndtri(uniform((m, q), landmarks.shared_seed(options.seed, "power"))))
        state = PowerState(0, start, start[0, :] * 0, GO_ON, {"residual": []})

    while True:
        asked = yield Checkpoint(known, replace(state, history={"residual": list(state.history["residual"])}))
        if state.verdict or state.iteration >= options.max_iter:
            break
        basis, first, last = state.basis, state.iteration == 0, state.iteration + 1 == options.max_iter

        def through(j: slice, basis: Array = basis) -> tuple[Array]:
            return (transposed(psi[j, ...]) @ (psi[j, ...] @ basis),)

        (image,) = by_nodes(through, block.n_nodes, row_bytes(psi), psi)
        total_image = xp.reshape(xp.sum(image, axis=0), (-1,))
        mine = xp.concat([total_image[:1] * 0 + float(bool(asked)), total_image])

        def improve(total: Array, basis: Array = basis, first: bool = first, last: bool = last) -> Array:
            image = xp.reshape(total[1:], basis.shape)
            if first:  # orthonormalized at the root only
                basis, triangle = xp.linalg.qr(basis)
                image = transposed(xp.linalg.solve(transposed(triangle), transposed(image)))
            good = bool(xp.all(sane(total)))
            values, vectors, residual = ritz.power_step(basis, image, k) if good else (basis[0, :] * 0, basis, 0.0)
            verdict = DIVERGED
            if good:
                verdict = CONVERGED if residual**2 <= options.tol else INTERRUPTED if float(total[0]) else GO_ON
            after = vectors if verdict or last else xp.linalg.qr(image)[0]
            said = xp.asarray([float(verdict), residual], dtype=psi.dtype, device=aac.device(psi))
            return xp.concat([said, values, xp.reshape(after, (-1,))])

        # columns of the basis have unit norm; entries of the random start are below 9
        bound = 9.0 * m**0.5 * 4 * float(block.sizes.sum())
        found = yield from network_sum(block, "power", mine, improve, 2 + q + m * q, bound=bound)
        state.history["residual"].append(xp.broadcast_to(found[1], (block.n_nodes,)))
        state = replace(
            state,
            iteration=state.iteration + 1,
            basis=xp.reshape(found[2 + q :], (m, q)),
            values=found[2 : 2 + q],
            verdict=int(found[0]),
        )

    own = xp.reshape(xp.sum(psi * psi), (1,))
    trace = yield from network_sum(block, "spectrum", own, bound=5.0 * float(block.sizes.sum()))
    values, directions = landmarks.drop_empty(state.values, state.basis, 100 * eps(psi), float(block.sizes.sum()))
    return Answer(
        block=block,
        known=known,
        kernel=known.kernel(options),
        marks=coordinates.marks,
        sites=None,
        w=xp.broadcast_to(directions[None, :, :k], (block.n_nodes, m, k)),
        z=None,
        eigenvalues=values[:k],
        trace=trace[0],
        n_iter=state.iteration,
        runs=[(VERDICTS[state.verdict] or "max_iter", state.iteration)],
        history={"residual": xp.stack(state.history["residual"])},
    )
