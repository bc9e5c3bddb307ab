"""The requests that a node's program yields to its engine, and the replies.

A program computes a block of nodes at once (block.py). There is one small type for each request:

    Exchange            rows for each neighbor, and rows for all of them    -> (Slots, Slots): what arrived of either
    NeighborBroadcast   the same rows to every neighbor                     -> Heard: the neighbors' rows, each held once
    Reduce              the sum over all nodes, finished by the root        -> the result, an array
    Gather              rows from all nodes                                 -> the rows, in the order of the nodes' names
    Broadcast           an array that the root has                          -> the array
    Checkpoint          all that is needed to go on from here               -> True if somebody asked this node to stop

An engine without reduction, gather and broadcast builds them from messages along the edges of a tree
(engines/tree.py): the type `Send`, which no program yields.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

import array_api_compat as aac
import numpy as np

Array = Any


@dataclass(frozen=True, eq=False)
class Exchange:
    """Every node sends each neighbor rows of its own, after rows that are the same for all its neighbors.

    `own` is (B, d, rows, ...), where slot 0 is the node's own; `shared` is (B, m, ...). Of the rows to a slot the
    first `lengths` (B * d,) are real, of the rows from it the first `arriving`: both ends know the length of every
    message. Padding is not sent; rows that arrive are padded with zeros to `rows` rows.
    """

    kind: str
    own: Array
    shared: Array
    lengths: np.ndarray
    arriving: np.ndarray
    rows: int

    def along(self, edges: Edges) -> Send:
        """The `own` rows as one message for each of `edges`, those of all slots."""
        flat = aac.array_namespace(self.own).reshape(self.own, (-1, *self.own.shape[2:]))
        return Send(self.kind, flat, edges, edges, self.lengths, self.arriving, self.rows)

    def joined(self, edges: Edges) -> Send:
        """The same request with the shared rows first."""
        xp, m, send = aac.array_namespace(self.own), self.shared.shape[1], self.along(edges)
        shared = xp.take(self.shared, xp.asarray(edges.rows, device=aac.device(self.shared)), axis=0)
        payload = xp.concat([shared, send.payload], axis=1)
        return Send(self.kind, payload, edges, edges, m + self.lengths, m + self.arriving, m + self.rows)

    def split(self, arrived: Array) -> tuple[Slots, Slots]:
        """The reply to this, given the reply to `joined`."""
        m, n_slots = self.shared.shape[1], self.own.shape[1]
        return Slots.stacked(arrived[:, m:, ...], n_slots), Slots.stacked(arrived[:, :m, ...], n_slots)


@dataclass(frozen=True, eq=False)
class Slots:
    """The rows that arrived at the nodes of a block, without a copy: slot s of node b received `rows[place[b * d + s]]`."""

    rows: Array
    place: Array
    n_slots: int

    @classmethod
    def stacked(cls, rows: Array, n_slots: int) -> Slots:
        """In order."""
        return cls(rows, aac.array_namespace(rows).arange(rows.shape[0], device=aac.device(rows)), n_slots)

    def slots(self, nodes: slice) -> Array:
        """The rows of each slot of some nodes: (b, d, rows, ...)."""
        xp = aac.array_namespace(self.rows)
        found = xp.take(self.rows, self.place[nodes.start * self.n_slots : nodes.stop * self.n_slots], axis=0)
        return xp.reshape(found, (nodes.stop - nodes.start, self.n_slots, *self.rows.shape[1:]))


@dataclass(frozen=True, eq=False)
class NeighborBroadcast:
    """Every node sends all its neighbors the same rows, one for each of its samples: `rows` (B, n, ...), padded as the samples are."""

    kind: str
    rows: Array


@dataclass(frozen=True, eq=False)
class Heard:
    """Messages of the neighbors: a few pools of distinct messages, and indices into them for each node and slot.

    Slot s of node b received `pools[pool[b, s]][row[b, s]]`; slot 0 is the node's own. A message to many nodes is stored once.
    """

    pools: tuple[Array, ...]
    pool: np.ndarray
    row: np.ndarray

    def narrowed(self) -> Heard:
        """With only the pools and messages that some slot received."""
        numbers, pool = np.unique(self.pool, return_inverse=True)
        pools, row = [], self.row.copy()
        for number in numbers:
            here = self.pool == number
            used, row[here] = np.unique(self.row[here], return_inverse=True)
            messages = self.pools[number]
            if len(used) < messages.shape[0]:
                xp = aac.array_namespace(messages)
                messages = xp.take(messages, xp.asarray(used, device=aac.device(messages)), axis=0)
            pools.append(messages)
        return Heard(tuple(pools), pool.reshape(self.pool.shape), row)


@dataclass(frozen=True, eq=False)
class Reduce:
    """The sum of `value` (length,) over all blocks of the network. The root transforms it (`finish`) into the array (size,) that all nodes get.

    Only the root does so, since results of several nodes might differ in signs or rounding. Engines may add in any order.
    """

    kind: str
    value: Array
    finish: Callable[[Array], Array]
    size: int
    dtype: Any = None  # of the result; None: that of the samples


@dataclass(frozen=True, eq=False)
class Gather:
    """Rows from all nodes: `rows` are the block's, node by node, `counts` (J,) is the number of rows of each node of the network."""

    kind: str
    rows: Array
    counts: np.ndarray


@dataclass(frozen=True, eq=False)
class Broadcast:
    """An array of `shape` from the root to all nodes; only the root calls `make`."""

    kind: str
    make: Callable[[], Array]
    shape: tuple[int, ...]
    dtype: Any = None  # None: that of the samples


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """The state after an iteration: `known` came from others during set-up, `state` is the iterate. Both may be kept without a copy."""

    known: Any
    state: Any


Script = Generator[
    Exchange | NeighborBroadcast | Reduce | Gather | Broadcast | Checkpoint, Any, Any
]  # a program, or a part of one


@dataclass(frozen=True, eq=False)
class Edges:
    """Directed edges seen from a block: `rows` are nodes of the block, `slots` their neighbors (slot 0: the node itself).

    Compared by identity, so that an engine can cache the route of edges.
    """

    rows: np.ndarray
    slots: np.ndarray

    def __len__(self) -> int:
        return len(self.rows)


@dataclass(frozen=True, eq=False)
class Send:
    """A message along each edge of `to`; one is expected along each edge of `hear`, and none along other edges.

    `payload` is (edges of `to`, rows, ...). Of each sent message the first `lengths` rows are real, of each received
    one the first `arriving`. The reply is an array (edges of `hear`, rows, ...), padded with zeros.
    """

    kind: str
    payload: Array
    to: Edges
    hear: Edges
    lengths: np.ndarray
    arriving: np.ndarray
    rows: int

    @property
    def shape(self) -> tuple[int, ...]:
        """Of each message in the reply."""
        return (self.rows, *self.payload.shape[2:])
