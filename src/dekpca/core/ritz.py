"""Rayleigh-Ritz: separation and order of the columns, and the eigenvalues."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import array_api_compat as aac
import numpy as np

from .spectrum import CUTOFF, eps, flip_signs

Array = Any


def rotation(moments: Array) -> Array:
    """The orthogonal R (k, k) that maps the columns to components, largest first.

    `moments` (k, k) is the sum over all nodes of g_j' g_j, where g_j are the values of w_j on X_j.
    """
    xp = aac.array_namespace(moments)
    _, basis = xp.linalg.eigh(0.5 * (moments + xp.matrix_transpose(moments)))
    return flip_signs(xp.flip(basis, axis=-1))


@dataclass(frozen=True, eq=False)
class PairSums:
    """A node's part of the network sum that `separate` reads; q columns, m shared coordinates, leading axis nodes.

    G are the values of the columns on samples, P_p = psi_p' G_p their landmark part. The kernel matrix of all the data has the parts
    psi psi' and rest. For both parts a node sums over its own pairs of samples, and over its share of the pairs
    between two nodes of its neighborhood.
    """

    trace: Array  # (B,)
    squares: Array  # (B, q, q): G'G
    rest_alone: Array  # (B, q, q): G' rest G over each sample with itself
    rest_within: Array  # (B, q, q): over pairs of different samples of a node
    rest_between: Array  # (B, q, q): over pairs of samples of two nodes
    marks_alone: Array  # (B, q): the diagonals of G' psi psi' G over the same pairs
    marks_within: Array
    marks_between: Array
    marks: Array  # (B, m, q): P; summed over all nodes it gives psi psi' over all pairs

    def pack(self) -> Array:
        """As vectors (B, ...)."""
        xp = aac.array_namespace(self.squares)
        parts = (getattr(self, f.name) for f in fields(self))
        return xp.concat([xp.reshape(x, (x.shape[0], -1)) for x in parts], axis=1)

    @classmethod
    def unpack(cls, total: Array, q: int) -> PairSums:
        """The sum over all nodes, as a `PairSums` without the leading axis."""
        xp = aac.array_namespace(total)
        shapes: list[tuple[int, ...]] = [*[(q, q)] * 4, *[(q,)] * 3, (-1, q)]
        ends = np.cumsum([1] + [q * q] * 4 + [q] * 3)
        pieces = [total[a:b] for a, b in zip(ends, [*ends[1:], total.shape[0]], strict=True)]
        return cls(total[0], *(xp.reshape(piece, shape) for piece, shape in zip(pieces, shapes, strict=True)))


@dataclass(frozen=True)
class PairCounts:
    """Numbers of ordered pairs of different samples: within a node, between two nodes of some neighborhood, and others."""

    within: float
    between: float
    far: float


def separate(total: Array, q: int, k: int, pairs: PairCounts, mix: bool) -> Array:
    """Rayleigh-Ritz with the kernel matrix K of all the data: trace, k eigenvalues and a (q, k) matrix, as one vector.

    The eigenvalues of the pencil (G'K G, G'G) are second-order accurate in the error of the span of G and do not
    depend on its scale. (The Ritz values G'G alone are too large, the landmarks' own eigenvalues too small.) The
    landmark part of K is known exactly for all pairs; the rest, for pairs within some neighborhood. Other pairs are
    modelled as a mixture of pairs within a node and pairs between two nodes of a neighborhood, with proportions
    fitted to the landmark part; without landmarks, as the latter alone.

    The columns times the matrix are components whose squared values sum to their eigenvalue. Without `mix` the
    columns (separated by deflation) are only scaled and sorted.
    """
    xp = aac.array_namespace(total)
    seen = PairSums.unpack(total, q)
    shared = xp.matrix_transpose(seen.marks) @ seen.marks
    moments = shared + seen.rest_alone + seen.rest_within + seen.rest_between
    if pairs.far and pairs.between:
        mixing = _like_within(seen, shared, k, pairs) if pairs.within else 0.0
        moments = moments + seen.rest_between * ((1.0 - mixing) * pairs.far / pairs.between)
        moments = moments + seen.rest_within * (mixing * pairs.far / max(pairs.within, 1.0))
    squares = seen.squares
    if not mix:
        eye = xp.eye(q, dtype=total.dtype, device=aac.device(total))
        squares, moments = squares * eye, moments * eye
    values, components = resolve(moments, squares, k)
    return xp.concat([total[:1], values, xp.reshape(components, (-1,))])


def resolve(moments: Array, squares: Array, k: int) -> tuple[Array, Array]:
    """The k leading eigenvalues of the pencil (`moments` = G'K G, `squares` = G'G), and the (q, k) matrix that maps columns to components."""
    xp = aac.array_namespace(moments)
    white = _whitener(0.5 * (squares + xp.matrix_transpose(squares)))
    inner = xp.matrix_transpose(white) @ moments @ white
    values, basis = xp.linalg.eigh(0.5 * (inner + xp.matrix_transpose(inner)))
    values = xp.clip(xp.flip(values)[:k], min=0.0)
    components = (white @ xp.flip(basis, axis=-1)[:, :k]) * xp.sqrt(values)
    # columns differ in scale; the sign depends on their contributions
    weighed = components * xp.sqrt(xp.clip(xp.linalg.diagonal(squares), min=0.0))[:, None]
    return values, xp.where(flip_signs(weighed) == weighed, components, -components)


def power_step(basis: Array, image: Array, k: int) -> tuple[Array, Array, float]:
    """Ritz values and vectors of C in the span of an orthonormal `basis`, given `image` = C basis, and the worst relative residual of the first k."""
    xp = aac.array_namespace(basis)
    inner = xp.matrix_transpose(basis) @ image
    values, turn = xp.linalg.eigh(0.5 * (inner + xp.matrix_transpose(inner)))
    values, turn = xp.clip(xp.flip(values), min=0.0), xp.flip(turn, axis=-1)
    vectors = flip_signs(basis @ turn)
    turn = xp.matrix_transpose(basis) @ vectors
    missed = xp.linalg.vector_norm(image @ turn - vectors * values, axis=0)[:k]
    least = max(CUTOFF, 100 * eps(values)) * float(values[0])  # smaller values are rounding, and count as converged
    size = xp.clip(values[:k], min=max(least, float(xp.finfo(values.dtype).smallest_normal)))
    return values, vectors, float(xp.max(missed / size))


def _like_within(seen: PairSums, shared: Array, k: int, pairs: PairCounts) -> float:
    """The fraction of the unknown pairs, from 0 to 1, that resemble pairs within nodes, fitted to the landmark part."""
    xp = aac.array_namespace(shared)
    whole = xp.linalg.diagonal(shared)[:k]
    unit = xp.where(whole > 0, 1.0 / xp.where(whole > 0, whole, xp.ones_like(whole)), xp.zeros_like(whole))
    within, between = (
        float(xp.sum(part[:k] * unit))
        for part in (seen.marks_within / max(pairs.within, 1.0), seen.marks_between / pairs.between)
    )
    rest = whole - seen.marks_alone[:k] - seen.marks_within[:k] - seen.marks_between[:k]
    far = float(xp.sum(rest * unit)) / pairs.far
    return min(1.0, max(0.0, (far - between) / (within - between))) if within > between else 0.0


def _whitener(square: Array) -> Array:
    """W (q, q) with W' square W = 1; columns of zeros where the rank is not full."""
    xp = aac.array_namespace(square)
    size = xp.sqrt(xp.clip(xp.linalg.diagonal(square), min=0.0))
    unit = xp.where(size > 0, 1.0 / xp.where(size > 0, size, xp.ones_like(size)), xp.zeros_like(size))
    values, basis = xp.linalg.eigh(square * unit[:, None] * unit[None, :])
    keep = values > square.shape[0] * 10 * eps(square)
    root = xp.where(keep, 1.0 / xp.sqrt(xp.where(keep, values, xp.ones_like(values))), xp.zeros_like(values))
    return unit[:, None] * basis * root[None, :]


def whitener(squares: np.ndarray) -> np.ndarray:
    """W (p, q) with W' squares W = 1; directions that are rounding are dropped."""
    size = np.sqrt(np.maximum(np.diagonal(squares), 0.0))
    unit = np.where(size > 0, 1.0 / np.where(size > 0, size, 1.0), 0.0)
    values, basis = np.linalg.eigh(squares * unit[:, None] * unit[None, :])
    keep = values > len(squares) * 100 * eps(squares) * max(values[-1], 0.0)
    return unit[:, None] * basis[:, keep] / np.sqrt(values[keep])


def span_error(a: np.ndarray, b: np.ndarray, cross: np.ndarray) -> float:
    """sin^2 of the largest angle between the spans of A and B, from A'A, B'B and A'B."""
    cosines = np.linalg.svd(whitener(a).T @ cross @ whitener(b), compute_uv=False)
    return float(1.0 - min(cosines[-1], 1.0) ** 2) if len(cosines) == len(a) else 1.0
