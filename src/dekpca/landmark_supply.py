"""Sources of landmarks: means of clusters of rows, rows, synthetic points, or points that all nodes have.

Generators, to be used with `yield from`. Input from other nodes is checked: the numbers of means they gave, and which points the root keeps.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import array_api_compat as aac
import numpy as np
from scipy.special import ndtri

from .block import Block, FlatRows, take
from .collectives import network_sum
from .core import landmarks
from .core.chunks import summed
from .core.clusters import LEAST_CLUSTER, ROWS_A_CLUSTER, cluster_means, grouped
from .core.landmarks import Landmarks, Offered, node_random
from .core.spectrum import eps, to_numpy, transposed
from .kernels import Kernel, uniform
from .messages import Gather, Script
from .options import Options

Array = Any

LINEAR_COMPONENTS = 50  # at most, of the Gaussian from which synthetic landmarks are drawn
# Means of fewer clusters of a node average dissimilar rows, and are worse landmarks than rows.
FEWEST_CLUSTERS = 5


@dataclass(eq=False)
class Supply:
    """Hands out landmarks: means of clusters of a node's rows, rows, or points drawn from a Gaussian; each row is used for one of them.

    All nodes know how many rows every node has given.
    """

    block: Block
    options: Options
    rows: FlatRows
    sent: FlatRows  # rows as others may see them
    clustered: np.ndarray = field(init=False)  # (J,) rows that went into means
    sampled: np.ndarray = field(init=False)  # (J,) rows given as they are
    shape: tuple[Array, Array] | None = None  # mean (M,) and spread (p, M) of all rows, for synthetic points
    stage: int = 0
    spent: bool = False  # nothing is left to hand out
    orders: dict[tuple[str, int], np.ndarray] = field(default_factory=dict)  # of the rows of a node, for each purpose

    def __post_init__(self) -> None:
        self.clustered = np.zeros_like(self.block.sizes)
        self.sampled = np.zeros_like(self.block.sizes)

    @property
    def has_rows(self) -> bool:
        """Whether rows are left: with all rows as landmarks the answer is exact."""
        may = self.kind == "samples" or (self.kind == "auto" and self.options.share_rows)
        return may and bool((self.sampled < self.block.sizes).any())

    @property
    def kind(self) -> str:
        return self.options.landmarks.kind

    def more(self, wanted: int) -> Script:
        """About so many new points, the same at every node, by kind; none if no points are left."""
        self.stage += 1
        found: dict[str, Array] = {}
        if self.options.resume is not None and self.stage == 1:
            return {"earlier": (yield from self.of_earlier_run())}
        if self.kind == "points":
            found["points"] = self.block.array(self.options.landmarks.points)
        if self.kind in ("auto", "kmeans"):
            found["kmeans"] = yield from self.means(wanted)
            wanted -= found["kmeans"].shape[0]
        rows_too = self.kind == "auto" and self.options.share_rows
        if self.kind == "samples" or (rows_too and wanted > 0):
            found["samples"] = yield from self.samples(wanted)
        if self.kind == "gaussian" or (self.kind == "auto" and not rows_too and wanted > 0):
            found["gaussian"] = yield from self.drawn(wanted)
        self.spent = self.kind == "points" or not any(points.shape[0] for points in found.values())
        return found

    def of_earlier_run(self) -> Script:
        """The landmarks of the resumed run: the first node that has them sends them to all."""
        block, options, mine = self.block, self.options, self.options.earlier
        held = np.zeros(len(block.sizes))
        if mine is not None:
            held[block.nodes] = len(mine)
        told = to_numpy(
            (yield from network_sum(block, "counts", block.array(held), bound=float(options.max_landmarks)))
        )
        sizes = np.unique(told[told != 0])
        resumed = f"resume={options.resume!r}"
        if not len(sizes):
            raise ValueError(f"{resumed}: no node has the model of that run; start a new run without resume")
        count = sizes[0]
        if len(sizes) > 1 or not (
            0 < count <= options.max_landmarks and count == np.rint(count)
        ):  # also where it is NaN
            raise ValueError(
                f"{resumed}: nodes have {', '.join(f'{n:g}' for n in sizes)} landmarks of that run, where all must have the same, "
                f"at most max_landmarks={options.max_landmarks}; resume with models of one run, or start a new run without resume"
            )
        giver = int(np.flatnonzero(told)[0])
        counts = np.zeros(len(told), dtype=np.int64)
        counts[giver] = int(count)
        rows = block.array(mine) if giver in block.nodes else self.rows.X[:0, :]
        points = yield Gather("landmarks", rows, counts)
        if mine is not None and not np.array_equal(to_numpy(points), to_numpy(block.array(mine))):
            raise ValueError(
                f"{resumed}: node {block.network.names[giver]} has other landmarks of that run than node {block.names[0]}; "
                "resume with models of one run, or start a new run without resume"
            )
        return points

    def means(self, wanted: int) -> Script:
        """Means of clusters. A node clusters rows that it has not clustered before, so that no two means share a row."""
        block = self.block
        left = block.sizes - self.clustered
        few = left < 4 * LEAST_CLUSTER
        room = np.where(few, left, left // 2)  # half is left for later stages
        most = room // (LEAST_CLUSTER + np.where(few, 0, 1))
        counts = np.minimum(self.allotted(wanted), most)
        if self.kind == "auto" and self.options.share_rows:
            counts[counts < FEWEST_CLUSTERS] = 0  # these nodes give rows instead of means
        if not counts.sum():
            return self.rows.X[:0, :]
        taken = np.where(counts > 0, np.where(few, left, np.minimum(ROWS_A_CLUSTER * counts, room)), 0)
        rows, found = self._clustered(counts, taken)
        self.clustered = self.clustered + taken
        # the number of means depends on the data: all nodes must learn it
        told = yield from network_sum(block, "counts", block.array(found), bound=float(block.sizes.sum()))
        total = to_numpy(told)
        if not ((total >= 0) & (total <= counts) & (total == np.rint(total))).all():  # also where it is NaN
            raise ValueError("a node says that it has more landmarks to give than its rows allow; start all nodes anew")
        return (yield Gather("landmarks", rows, total.astype(np.int64)))

    def _clustered(self, counts: np.ndarray, taken: np.ndarray) -> tuple[Array, np.ndarray]:
        """Means of clusters of the block's nodes, one node after the other, and how many each node of the network has (0 for other blocks').

        Node j takes the next `taken[j]` of its rows, in random order, and makes at most `counts[j]` clusters of them.
        """
        block, J = self.block, len(counts)
        nodes = block.nodes[counts[block.nodes] > 0]
        owner, clusters, sizes = grouped(counts[nodes], taken[nodes])
        if not len(owner):
            return self.rows.X[:0, :], np.zeros(J)
        places = [
            self.order("clusters", b)[self.clustered[j] : self.clustered[j] + taken[j]]
            for b, j in enumerate(block.nodes)
            if counts[j]
        ]
        real = np.arange(sizes.max()) < sizes[:, None]
        index = np.zeros(real.shape, dtype=np.int64)
        index[real] = self.rows.at(np.concatenate(places))
        rows = take(self.rows.X, index.ravel())
        xp = aac.array_namespace(rows)
        means, each = cluster_means(xp.reshape(rows, (*real.shape, rows.shape[1])), sizes, clusters)
        found = np.zeros(J)
        np.add.at(found, nodes[owner], each)
        return means, found

    def order(self, purpose: str, b: int) -> np.ndarray:
        """Positions of the rows of the block's node b (as numbered by FlatRows), in the node's random order."""
        if (purpose, b) not in self.orders:
            random = node_random(self.options.seed, self.block.names[b], purpose)
            self.orders[purpose, b] = self.rows.starts[b] + random.permutation(int(self.block.own_sizes[b]))
        return self.orders[purpose, b]

    def allotted(self, wanted: int) -> np.ndarray:
        """(J,) the share of each node in a total of `wanted`."""
        block = self.block
        return landmarks.allot(block.sizes, block.network.names, wanted, self.options.seed + self.stage)

    def drawn(self, wanted: int) -> Script:
        """Synthetic points: from a Gaussian with the mean of all rows and their leading linear principal components."""
        if self.shape is None:
            self.shape = yield from spread_of_rows(self.block, self.rows, self.options.seed)
        mean, spread = self.shape
        numbers = ndtri(
            uniform((wanted, spread.shape[0]), landmarks.shared_seed(self.options.seed, f"gaussian {self.stage}"))
        )
        return mean + self.block.array(numbers) @ spread

    def samples(self, wanted: int) -> Script:
        """Rows that were not given before."""
        block = self.block
        left = block.sizes - self.sampled
        counts = np.minimum(self.allotted(wanted), left)
        if wanted >= left.sum():
            counts = left
        places = []
        for b, j in enumerate(block.nodes):
            if counts[j]:
                places.append(np.sort(self.order("landmarks", b)[self.sampled[j] : self.sampled[j] + counts[j]]))
        self.sampled = self.sampled + counts
        rows = take(self.sent.X, self.sent.at(np.concatenate([np.zeros(0, dtype=np.int64), *places])))
        return (yield Gather("landmarks", rows, counts))


def spread_of_rows(block: Block, rows: FlatRows, seed: int) -> Script:
    """The mean (M,) of all rows and A (p, M) such that A'A is about their covariance: its leading part, by network sums of M x p numbers.

    A node with few rows adds zeros, since the sum over one row is that row.
    """
    counted = block.sizes >= LEAST_CLUSTER
    count = float(block.sizes[counted].sum())
    if not count:
        raise ValueError(
            f"share_rows=False: no node has the {LEAST_CLUSTER} rows of which a mean can be told, the largest has {block.sizes.max()}; "
            "use larger nodes, landmarks that all nodes have, or share_rows=True if rows may leave their nodes"
        )
    X = rows.X
    if not counted[block.nodes].all():
        X = take(X, rows.at(np.flatnonzero(np.repeat(counted[block.nodes], block.own_sizes))))
    xp = aac.array_namespace(X)
    width = int(X.shape[1])
    mean = (yield from network_sum(block, "scale", xp.sum(X, axis=0), bound=block.data_bound())) / count
    p = min(width, LINEAR_COMPONENTS)
    basis = xp.eye(width, dtype=X.dtype, device=aac.device(X))
    if p < width:
        start = ndtri(uniform((width, p), landmarks.shared_seed(seed, "linear")))
        basis = block.array(np.linalg.qr(start)[0])

    def image_of(basis: Array) -> Array:
        def part(rows: slice) -> tuple[Array, ...]:
            centred = X[rows, :] - mean
            return (transposed(centred) @ (centred @ basis),)

        return summed(part, X.shape[0], X)[0]

    for last in [True] if p == width else [False, False, True]:

        def improve(total: Array, basis: Array = basis, last: bool = last) -> Array:
            image = to_numpy(total).astype(np.float64).reshape(width, p) / count
            if not last:
                return block.array(np.linalg.qr(image)[0].ravel())
            inside = to_numpy(basis).astype(np.float64)
            covariance = inside.T @ image
            values, vectors = np.linalg.eigh((covariance + covariance.T) / 2)
            return block.array((inside @ vectors * np.sqrt(np.maximum(values, 0.0))).ravel())

        bound = 4.0 * width * block.data_bound(2)
        told = yield from network_sum(block, "scale", xp.reshape(image_of(basis), (-1,)), improve, width * p, bound)
        basis = xp.reshape(told, (width, p))
    return mean, transposed(basis)


def without_redundant(block: Block, kernel: Kernel, marks: Landmarks, points: Array) -> Script:
    """New points without redundant ones, in an order with a stable Cholesky factor; the root decides for all nodes.

    Returns the points and, at the root and if all were kept, their `Offered`.
    """
    least = max(landmarks.REDUNDANT, 1000 * eps(points))
    known: list[Offered] = []

    def decide(total: Array) -> Array:
        known.append(marks.offered(points, kernel))
        kept = known[0].independent(least)
        return block.array(np.concatenate([kept, np.full(points.shape[0] - len(kept), -1)]))

    places = yield from network_sum(block, "landmarks", points[0, :1] * 0, decide, points.shape[0], bound=1.0)
    told = to_numpy(places)
    kept = told[told != -1]
    inside = ((kept >= 0) & (kept < points.shape[0]) & (kept == np.rint(kept))).all()  # not where it is NaN
    if not inside or len(np.unique(kept)) < len(kept):
        raise ValueError("the root of the network keeps landmarks that there are not; start all nodes anew")
    if np.array_equal(kept, np.arange(points.shape[0])):
        return points, known[0] if known else None
    return take(points, kept.astype(np.int64)), None
