"""The feature space of a block: data received by its nodes, and the matrices that follow from it and their samples.

Messages are sent in program.py only.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import array_api_compat as aac
import numpy as np

from .block import Block, pad_rows, take
from .core import landmarks, spectrum
from .core.centering import Columns, center_blocks, center_rows
from .core.chunks import by_nodes, chunks_of, row_bytes, run_chunks
from .core.consensus import OwnSpace
from .core.gram import NeighborhoodGram, Pool, neighborhood_gram
from .core.landmarks import Landmarks, RandomFeatures, node_random
from .core.spectrum import Factor, to_numpy, transposed
from .kernels import Kernel
from .messages import Heard
from .options import Options

Array = Any


@dataclass(eq=False)
class Known:
    """Data that the block received during set-up; all else can be recomputed from it and the own samples."""

    gamma: float
    fill: Array | None = None  # (M,) mean of each column, which replaces missing values
    columns: Columns | None = None  # scales that standardize all samples
    points: Array | None = None  # the landmarks (m, M)
    kinds: list[tuple[str, int]] = field(default_factory=list)  # their kinds, in order, and how many of each
    mean: Array | None = None  # of psi over the network (m,)
    directions: Array | None = None  # where to start: principal directions in landmark coordinates (m, <= k)
    landmark_values: Array | None = None  # and their eigenvalues
    stages: list[tuple[int, float, float]] = field(
        default_factory=list
    )  # numbers of landmarks, the estimated error of each, and its bound
    samples: Heard | None = None  # of each node and its neighbors, as sent
    rho: Array | None = None  # (B, d) penalties that the neighbors put on this node's z
    removed: list[Heard] = field(
        default_factory=list
    )  # directions removed by deflation, one for each finished component

    def kernel(self, options: Options) -> Kernel:
        return replace(options.kernel, gamma=self.gamma)


@dataclass(eq=False)
class Coordinates:
    """The landmarks (None: no landmarks) and psi of the own samples (B, n, m), uncentred until `center`; padding is zero."""

    marks: Landmarks | RandomFeatures | None
    raw: Array
    squares: Array | None = None  # of the own samples (Kernel.squares), if computed for psi

    @classmethod
    def of(cls, block: Block, options: Options, known: Known) -> Coordinates:
        kernel = known.kernel(options)
        if options.random_features:
            drawn = random_features(block, kernel, options.n_landmarks, options.seed)
            psi = drawn.coordinates(kernel, block.samples)
            landmarks.check_finite(psi, [f"node {name}" for name in block.names], kernel)
            return cls(drawn, block.masked(psi))
        if known.points is None:
            return cls(None, block.array(np.zeros((*block.samples.shape[:2], 0))))
        marks = Landmarks.of(known.points, kernel)
        psi, squares = marks.with_squares(kernel, block.samples)
        return cls(marks, block.masked(psi), squares)

    def centered(self, block: Block, options: Options, known: Known, nodes: slice | None = None) -> Array:
        """psi of some nodes, or of all, with the network's mean, or the node's own, subtracted."""
        if nodes is None:
            work = row_bytes(self.raw)
            return by_nodes(lambda j: (self.centered(block, options, known, j),), block.n_nodes, work, self.raw)[0]
        raw = self.raw[nodes, ...]
        if options.centering == "local":
            return center_rows(raw, block.mask[nodes, :])
        return raw if known.mean is None else block.masked(raw - known.mean, nodes)

    def center(self, block: Block, options: Options, known: Known) -> Array:
        """psi of all nodes, centred in place: `raw`, which is as large as many Gram blocks, is overwritten."""

        def some(nodes: slice) -> None:
            self.raw[nodes, ...] = self.centered(block, options, known, nodes)

        run_chunks(some, chunks_of(block.n_nodes, row_bytes(self.raw), self.raw), self.raw)
        return self.raw


@dataclass(frozen=True, eq=False)
class Space:
    """The block's feature space, computed from samples and `Known`."""

    own: OwnSpace
    gram: Factor  # of K_j = psi psi' + rest; a backend may overwrite it
    neighborhood: NeighborhoodGram
    sites: Heard  # the samples of each slot
    clean_rest: Array  # (B, n, n) of the own samples without noise
    trace: Array  # (B,) of K_j, without noise
    scale: Array  # (B,) the size that rounding is relative to
    rho: Array | None  # (B,) penalties from the nodes' spectra; None for a schedule


def random_features(block: Block, kernel: Kernel, count: int, seed: int) -> RandomFeatures:
    """The same `count` features at every node."""
    drawn = kernel.frequencies(block.samples.shape[2], count // 2, landmarks.shared_seed(seed, "features"))
    return RandomFeatures(block.array(drawn))


def with_noise(block: Block, options: Options) -> Array:
    """The samples as the neighbors get them, with exchange noise."""
    level = options.exchange_noise
    if not level:
        return block.samples
    noise = np.zeros(block.samples.shape)
    seed = options.seed if options.private_seed is None else options.private_seed
    for b, (name, size) in enumerate(zip(block.names, block.own_sizes, strict=True)):
        noise[b, :size] = node_random(seed, name, "noise").standard_normal((size, noise.shape[2]))
    if level.decibel is None:
        return block.samples + level.deviation * block.array(noise)
    xp = aac.array_namespace(block.samples)
    entries = block.array(block.own_sizes * noise.shape[2])
    power = xp.sum(block.samples * block.samples, axis=(1, 2)) / entries
    return block.samples + xp.sqrt(power * 10 ** (-level.decibel / 10))[:, None, None] * block.array(noise)


def build_space(block: Block, options: Options, known: Known, coordinates: Coordinates) -> Space:
    """Gram blocks of all neighborhoods, factors of the own ones, penalties."""
    xp = aac.array_namespace(block.samples)
    kernel, raw = known.kernel(options), coordinates.raw
    # the only node of a network has no neighbors
    sites = known.samples or Heard((block.samples,), *np.zeros((2, block.n_nodes, 1), dtype=np.int64))
    sites = sites.narrowed()
    pools = [_pool(block, sites, p, kernel, coordinates) for p in range(len(sites.pools))]
    local_means = options.centering == "local"
    neighborhood = neighborhood_gram(pools, sites.pool, sites.row, block.n_near, kernel, local_means, block.gram_bytes)
    rest = neighborhood.own(block.samples.shape[1])
    owners = [f"node {name}" for name in block.names]
    landmarks.check_finite(rest, owners, kernel)
    scale = xp.max(kernel.diagonal(block.samples) * block.mask, axis=1)

    def rest_between(others: Array, coordinates_of_others: Array) -> Array:
        blocks = (kernel.gram(block.samples, others) - raw @ transposed(coordinates_of_others)) * block.mask[:, None, :]
        blocks = blocks * block.mask[:, :, None]
        return center_blocks(blocks, block.mask, block.mask) if local_means else blocks

    sent = with_noise(block, options)
    noisy = sent is not block.samples and known.samples is not None
    reach = clean = None
    if noisy:
        seen = raw if coordinates.marks is None else coordinates.marks.coordinates(kernel, sent)
        reach, clean = rest_between(sent, seen), rest_between(block.samples, raw)
    # Gram blocks that are not stored are computed later from uncentred psi
    psi = (coordinates.center if neighborhood.stored else coordinates.centered)(block, options, known)
    own, gram = own_space(block, psi, rest, reach, scale)
    landmarks.check_kernel(block.samples, gram, block.own_sizes, owners, kernel, len(block.network) == 1)
    rho = _penalties(options, block.n_slots, gram, block.array(block.own_sizes), scale)
    rest = rest if clean is None else clean
    if clean is None:
        trace = xp.sum(xp.linalg.diagonal(gram.matrix), axis=1)
    else:
        trace = xp.sum(xp.linalg.diagonal(rest), axis=1) + xp.sum(psi * psi, axis=(1, 2))
    undeflated = xp.maximum(gram.top, scale)
    return Space(own, gram, neighborhood, sites, rest, trace, undeflated, None if rho is None else block.array(rho))


def own_space(block: Block, psi: Array, rest: Array, reach: Array | None, scale: Array) -> tuple[OwnSpace, Factor]:
    """The spans of the nodes, and their K_j."""
    sizes = block.array(block.own_sizes)
    rest_factor = Factor(rest, sizes, scale)
    if reach is None and not psi.shape[2]:
        return OwnSpace(psi, rest, rest_factor.inverse), rest_factor
    seen = rest if reach is None else reach @ rest_factor.inverse @ transposed(reach)
    (gram,) = by_nodes(
        lambda j: (psi[j, ...] @ transposed(psi[j, ...]) + seen[j, ...],), block.n_nodes, row_bytes(rest), rest
    )
    return OwnSpace(psi, rest, rest_factor.inverse, reach), Factor(gram, sizes, scale)


def _pool(block: Block, sites: Heard, number: int, kernel: Kernel, coordinates: Coordinates) -> Pool:
    """Sites of one pool, with their landmark coordinates."""
    samples, marks = sites.pools[number], coordinates.marks
    xp = aac.array_namespace(samples)
    size = np.zeros(samples.shape[0], dtype=np.int64)
    here = sites.pool == number
    size[sites.row[here]] = block.near_sizes[here]
    rows = min(samples.shape[1], block.n_near)
    mask = block.array(np.arange(rows) < size[:, None])
    squares: Array | None = None
    if samples is block.samples:
        psi, squares = coordinates.raw[:, :rows, :], coordinates.squares
    elif isinstance(marks, Landmarks):
        # the same code as for own samples: a resumed run has these among received samples, and needs the same bits
        psi, squares = marks.with_squares(kernel, samples[:, :rows, :])
    else:
        psi = xp.zeros((samples.shape[0], rows, 0), dtype=samples.dtype, device=aac.device(samples))
    samples = samples[:, :rows, :]
    squares = kernel.squares(samples) if squares is None else squares[:, :rows]
    return Pool(samples, psi, mask, bool((size >= rows).all()), squares)


def _penalties(options: Options, n_slots: int, gram: Factor, sizes: Array, scale: Array) -> np.ndarray | None:
    top, n, unit = (to_numpy(x).astype(np.float64) for x in (gram.top, sizes, scale))
    # A node whose K_j is zero follows its neighbors: any positive penalty works, and k(x, x) has the right scale.
    top = np.where(top > 10 * n * spectrum.eps(gram.top) * unit, top, np.where(unit > 0, unit, 1.0))
    xp = aac.array_namespace(gram.matrix)

    def cubes() -> np.ndarray:
        traces = xp.sum((gram.matrix @ gram.matrix) * gram.matrix, axis=(1, 2))
        return np.maximum(to_numpy(traces).astype(np.float64), top**3)

    return options.rho.of_spectrum(top, cubes, n_slots)


def deflate(block: Block, space: Space, removed: Heard) -> Space:
    """The space after every node has removed its component from its samples."""
    neighborhood = space.neighborhood.deflated(removed.narrowed().pools)
    reach = space.own.reach
    if reach is not None:
        mine = pad_rows(by_slot(block, removed)[:, 0, ...], block.samples.shape[1], axis=1)
        reach = reach - (reach @ mine) @ transposed(space.own.rest @ mine)
    own, gram = own_space(block, space.own.psi, neighborhood.own(block.samples.shape[1]), reach, space.scale)
    return replace(space, own=own, gram=gram, neighborhood=neighborhood)


def by_slot(block: Block, heard: Heard) -> Array:
    """Received rows, one array for each slot: (B, d, n_near, ...)."""
    xp = aac.array_namespace(block.samples)
    starts = np.concatenate([[0], np.cumsum([p.shape[0] for p in heard.pools])])
    together = xp.concat([pad_rows(p, block.n_near, axis=1) for p in heard.pools])
    found = take(together, (starts[heard.pool] + heard.row).ravel())
    return xp.reshape(found, (block.n_nodes, block.n_slots, *found.shape[1:]))
