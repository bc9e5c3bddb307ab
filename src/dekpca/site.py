"""A site: the nodes that one program computes for, and their rows. The site of a peer has one node."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import array_api_compat as aac
import numpy as np

from .arrays import like, take
from .network import Network

Array = Any


@dataclass(eq=False)
class Site:
    """All that its program may know: the rows of its nodes, and the network (names, tree, sizes)."""

    network: Network
    sizes: np.ndarray  # rows of every node of the network
    nodes: np.ndarray  # numbers of the nodes here
    X: Array  # (n, columns) their rows; or data.blocks.Blocks, if they do not fit into memory
    order: Array | None = None  # positions in X of the rows, counted node by node; None: in this order already
    # node and number there of each row, if other sites have rows of the same nodes
    numbered: tuple[np.ndarray, np.ndarray] | None = None
    sealer: Any = None  # privacy.masks.Sealer of a site of one node: its terms leave it under masks

    @cached_property
    def names(self) -> list[str]:
        return [self.network.names[j] for j in self.nodes]

    @cached_property
    def own_sizes(self) -> np.ndarray:
        return self.sizes[self.nodes]

    @property
    def total(self) -> int:
        """Rows of the whole network."""
        return int(self.sizes.sum())

    @property
    def has_root(self) -> bool:
        return self.network.root in self.nodes

    @property
    def like(self) -> Array:
        """An array of the library, device and dtype of the rows."""
        return getattr(self.X, "none", self.X)

    def array(self, values: Any) -> Array:
        """Host numbers in the library, on the device and in the dtype of the rows."""
        return like(self.like, values)


class RowNumbers(Sequence[Array]):
    """The numbers of the rows of each node: so many (nodes,), one after the other, of `order`, or of 0, 1, 2, ... if that is None. `order`
    may be on the device of the rows."""

    def __init__(self, sizes: np.ndarray, order: Array | None = None):
        self.sizes, self.order, self.ends = sizes, order, np.cumsum(sizes)

    @classmethod
    def of(cls, node: np.ndarray, lengths: np.ndarray, nodes: int) -> RowNumbers:
        """From the number of the node of each run of rows, and how many rows each run has. Where the runs are in order, nothing is sorted."""
        sizes = np.bincount(node, lengths, nodes).astype(np.int64)  # exact below 2^53 rows
        in_order = (node[1:] >= node[:-1]).all()
        return cls(sizes, None if in_order else np.argsort(np.repeat(node, lengths), kind="stable"))

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, index: Any) -> Any:
        stop = self.ends[index]
        start = stop - self.sizes[index]
        return np.arange(start, stop) if self.order is None else self.order[start:stop]


class Dealt(Sequence[Array]):
    """The parts of one array: the rows of X of each node, which are copied only when a part is asked for."""

    def __init__(self, X: Array, rows: RowNumbers):
        self.X, self.rows = X, rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: Any) -> Array:
        return take(self.X, self.rows[index])


def part_sizes(parts: Sequence[Array]) -> np.ndarray:
    """How many rows each part has."""
    return parts.rows.sizes if isinstance(parts, Dealt) else np.array([p.shape[0] for p in parts])


def make_site(parts: Sequence[Array], network: Network, nodes: Sequence[int] | None = None, sizes: Any = None) -> Site:
    """All these nodes at one site; the rows of `Dealt` are not copied.

    `parts` are the rows (n_j, columns) of the nodes numbered `nodes` (default: of all nodes, in order), of one dtype on one device. `sizes`
    are the numbers of rows of all nodes of the network (default: those of `parts`).
    """
    hosted = np.arange(len(parts)) if nodes is None else np.asarray(nodes, dtype=np.int64)
    sizes = np.asarray(part_sizes(parts) if sizes is None else sizes, dtype=np.int64)
    if not isinstance(parts, Dealt):
        X = parts[0] if len(parts) == 1 else aac.array_namespace(*parts).concat(list(parts))
        return Site(network, sizes, hosted, X)
    return Site(network, sizes, hosted, parts.X, parts.rows.order)


def apart(parts: Sequence[Array], network: Network, nodes: Any = None, sizes: Any = None) -> list[Site]:
    """A site for each node; arguments as of `make_site`."""
    hosted, sizes = range(len(parts)) if nodes is None else nodes, part_sizes(parts) if sizes is None else sizes
    return [make_site([parts[i]], network, [j], sizes) for i, j in enumerate(hosted)]
