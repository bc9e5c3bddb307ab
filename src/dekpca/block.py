"""Blocks: nodes that one process computes together, padded to one shape.

A block holds nodes with the same number of neighbors and about the same number of samples. A peer is a block of one.
A block has all that its program may know: the samples of its nodes, and the topology (names, tree, sizes). Index
arithmetic is NumPy on the host; the samples may be on any device.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import array_api_compat as aac
import numpy as np

from .messages import Edges, Exchange
from .network import Network

Array = Any

SIZE_RATIO = (
    1.5  # nodes whose sizes differ by less share a block: at worst a padded Gram block is 1.5^2 times too large
)


@dataclass(eq=False)
class Block:
    """B nodes with d slots each (slot 0 is the node itself, then its neighbors by name)."""

    network: Network
    sizes: np.ndarray  # samples of every node of the network
    nodes: np.ndarray  # (B,) numbers of the hosted nodes
    slots: np.ndarray  # (B, d) node numbers
    samples: Array  # (B, n, M), zeros below a node's own rows
    n_near: int  # most samples in a slot
    borrowed: bool = False  # the samples are a view of the user's array
    gram_bytes: float = math.inf  # limit for stored Gram blocks; the others are recomputed at each use
    flat: bool = False  # samples are (1, rows, M), those of all nodes without padding (`flat_block`)
    order: np.ndarray | None = (
        None  # of a flat block: positions of the nodes' rows in the samples, node by node; None: in this order already
    )
    sealer: Any = None  # privacy.masks.Sealer of a block of one node: network sums leave it under masks

    @cached_property
    def names(self) -> list[str]:
        return [self.network.names[j] for j in self.nodes]

    @property
    def n_nodes(self) -> int:
        return int(self.slots.shape[0])

    @property
    def n_slots(self) -> int:
        return int(self.slots.shape[1])

    @cached_property
    def own_sizes(self) -> np.ndarray:
        """(B,) samples of each hosted node."""
        return self.sizes[self.nodes]

    @cached_property
    def near_sizes(self) -> np.ndarray:
        """(B, d) samples behind each slot."""
        return self.sizes[self.slots]

    @cached_property
    def said_sizes(self) -> np.ndarray:
        """(B * d,) samples of the node itself, for each slot."""
        return np.repeat(self.own_sizes, self.n_slots)

    @cached_property
    def everywhere(self) -> Edges:
        """All slots of all nodes, in the order of a (B, d, ...) array."""
        rows, slots = np.divmod(np.arange(self.slots.size), self.n_slots)
        return Edges(rows, slots)

    @cached_property
    def mask(self) -> Array:
        """(B, n): 1 for a sample, 0 for padding."""
        if self.flat:
            return self.array(np.ones(self.samples.shape[:2]))
        return self.array(np.arange(self.samples.shape[1]) < self.own_sizes[:, None])

    def masked(self, x: Array, nodes: slice = slice(None)) -> Array:
        """x (b, n, ...) of some nodes with zeros for padding."""
        if self.flat or int(self.own_sizes.min()) == self.samples.shape[1]:  # no padding
            return x
        return x * self.mask[nodes, :, None]

    def array(self, values: Any) -> Array:
        """Host numbers as an array on the device of the samples, in their dtype."""
        xp = aac.array_namespace(self.samples)
        host = np.asarray(values, dtype=np.float64)
        return xp.asarray(host, dtype=self.samples.dtype, device=aac.device(self.samples))

    def exchange(self, kind: str, own: Array, shared: Array, back: bool = False) -> Exchange:
        """With all neighbors: `own` (B, d, ...) has rows for the sender's samples or, in the reply, for the
        receiver's; `shared` has rows in shared coordinates."""
        sent, near = self.said_sizes, self.near_sizes.ravel()
        if back:
            return Exchange(kind, own, shared, lengths=near, arriving=sent, rows=self.samples.shape[1])
        return Exchange(kind, own, shared, lengths=sent, arriving=near, rows=self.n_near)


def make_blocks(
    parts: Sequence[Array], network: Network, nodes: Sequence[int] | None = None, sizes: Any = None, apart: bool = False
) -> list[Block]:
    """Sort the hosted nodes into blocks.

    `parts` are the samples (n_j, M) of the nodes numbered `nodes` (default: of all nodes, in order), all of one dtype
    on one device. `sizes` are the sample counts of all nodes of the network (default: those of `parts`). `apart`: a block for each node.
    """
    hosted = np.arange(len(parts)) if nodes is None else np.asarray(nodes, dtype=np.int64)
    sizes = np.asarray(part_sizes(parts) if sizes is None else sizes, dtype=np.int64)
    blocks = []
    for degree in np.unique(network.degrees[hosted]):
        alike = np.flatnonzero(network.degrees[hosted] == degree)
        slots = np.column_stack([hosted[alike], network.neighborhoods(hosted[alike])])
        most = sizes[slots].max(axis=1)
        classes = np.stack([size_class(sizes[hosted[alike]]), size_class(most)], axis=1)
        kinds, kind = np.unique(classes, axis=0, return_inverse=True) if not apart else (classes, np.arange(len(alike)))
        for number in range(len(kinds)):
            members = np.flatnonzero(kind.ravel() == number)
            blocks.append((alike[members], slots[members], int(most[members].max())))
    blocks.sort(key=lambda block: block[0][0])
    return [
        Block(
            network=network,
            sizes=sizes,
            nodes=hosted[members],
            slots=slots,
            samples=_stack(parts, members),
            n_near=most,
            borrowed=isinstance(parts, Dealt) and parts.lends(members),
        )
        for members, slots, most in blocks
    ]


def size_class(n: Any) -> Any:
    """Nodes whose numbers of samples are of one class may be padded to one shape."""
    return np.ceil(np.log(n) / np.log(SIZE_RATIO)).astype(np.int64)


class Dealt(Sequence[Array]):
    """The parts of one array: the rows of X of each node. With `borrow`, X is not copied if the rows are in order."""

    def __init__(self, X: Array, rows: Sequence[np.ndarray], borrow: bool = False):
        self.X, self.rows, self.borrow = X, rows, borrow

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: Any) -> Array:
        return take(self.X, self.rows[index])

    def together(self, members: np.ndarray) -> Array:
        """The parts of some nodes, padded with zeros to one shape."""
        xp = aac.array_namespace(self.X)
        sizes = np.array([len(self.rows[i]) for i in members])
        longest, shape = int(sizes.max()), (len(members), int(sizes.max()), self.X.shape[1])
        flat = np.concatenate([self.rows[i] for i in members])
        if self.lends(members):
            return xp.reshape(self.X[int(flat[0]) : int(flat[0]) + len(flat), :], shape)
        if (sizes == longest).all():
            return xp.reshape(take(self.X, flat), shape)
        real = np.arange(longest) < sizes[:, None]
        places = np.zeros(real.shape, dtype=np.int64)
        places[real] = flat
        there = xp.asarray(real.astype(np.float64)[..., None], dtype=self.X.dtype, device=aac.device(self.X))
        return xp.reshape(take(self.X, places.ravel()), shape) * there

    def lends(self, members: np.ndarray) -> bool:
        """Whether the parts of these nodes can be views of X: of equal size and consecutive."""
        if not self.borrow or len({len(self.rows[i]) for i in members}) > 1:
            return False
        flat = np.concatenate([self.rows[i] for i in members])
        return bool((flat == np.arange(flat[0], flat[0] + len(flat))).all())


def part_sizes(parts: Sequence[Array]) -> np.ndarray:
    """How many rows each part has."""
    return np.array([len(rows) for rows in parts.rows] if isinstance(parts, Dealt) else [p.shape[0] for p in parts])


def _stack(parts: Sequence[Array], members: np.ndarray) -> Array:
    if isinstance(parts, Dealt):
        return parts.together(members)
    some = [parts[i] for i in members]
    xp = aac.array_namespace(*some)
    longest = max(p.shape[0] for p in some)
    return xp.stack([pad_rows(p, longest) for p in some])


def pad_rows(x: Array, rows: int, axis: int = 0) -> Array:
    """x with zeros below, or cut, so that `axis` has `rows` entries."""
    have = x.shape[axis]
    if have >= rows:
        return x[(slice(None),) * axis + (slice(0, rows), ...)]
    xp = aac.array_namespace(x)
    gap = (*x.shape[:axis], rows - have, *x.shape[axis + 1 :])
    return xp.concat([x, xp.zeros(gap, dtype=x.dtype, device=aac.device(x))], axis=axis)


def flat_block(
    parts: Sequence[Array], network: Network, nodes: Sequence[int] | None = None, sizes: Any = None
) -> Block:
    """All hosted nodes as one block, for programs that only sum over rows: no padding, and dealt rows are not copied.

    Arguments as for `make_blocks`. Such a block has no slots for neighbors.
    """
    hosted = np.arange(len(parts)) if nodes is None else np.asarray(nodes, dtype=np.int64)
    sizes = np.asarray(part_sizes(parts) if sizes is None else sizes, dtype=np.int64)
    order, borrowed = None, False
    if isinstance(parts, Dealt):
        order = np.concatenate(parts.rows)
        borrowed = len(order) == parts.X.shape[0]
        together = parts.X if borrowed else take(parts.X, order)
        if not borrowed or (order == np.arange(len(order))).all():
            order = None
    else:
        together = parts[0] if len(parts) == 1 else aac.array_namespace(*parts).concat(list(parts))
    return Block(
        network=network,
        sizes=sizes,
        nodes=hosted,
        slots=hosted[:, None],
        samples=together[None, ...],
        n_near=int(sizes[hosted].max()),
        borrowed=borrowed,
        flat=True,
        order=order,
    )


class FlatRows:
    """The rows of a block's nodes without padding: of its samples, or of any array (B, n, ...) with a row for each sample.

    `X` has them in any order; `at` has the positions of a node's rows.
    """

    def __init__(self, block: Block, samples: Array):
        xp = aac.array_namespace(samples)
        self.order = block.order
        if block.flat or int(block.own_sizes.min()) == samples.shape[1]:
            self.X = xp.reshape(samples, (-1, samples.shape[2]))
        else:
            self.X = xp.concat([samples[b, : int(size), :] for b, size in enumerate(block.own_sizes)])
        self.starts = np.concatenate([[0], np.cumsum(block.own_sizes)])

    def at(self, places: np.ndarray) -> np.ndarray:
        """Positions in X of rows that are numbered node by node."""
        return places if self.order is None else self.order[places]

    def of(self, b: int) -> Array:
        """The rows of one node."""
        if self.order is not None:
            return take(self.X, self.at(np.arange(self.starts[b], self.starts[b + 1])))
        return self.X[int(self.starts[b]) : int(self.starts[b + 1]), :]


def take(x: Array, index: np.ndarray) -> Array:
    """x[index] along the first axis, `index` being host numbers."""
    xp = aac.array_namespace(x)
    return xp.take(x, xp.asarray(index, device=aac.device(x)), axis=0)
