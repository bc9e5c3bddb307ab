"""What a node's program yields to its engine, and what comes back.

The program speaks for a block of nodes at once (block.py). An engine carries messages between neighbors and nothing
else: these few types are all that passes between the two.

    Say          a message of its own for each neighbor spoken to    -> the messages that arrive, stacked
    Say(alike)   the same, with some rows that all neighbors hear    -> the messages that arrive, and those rows: Slots of either
    Say(common)  one array that all nodes hold alike, passed on      -> the array, or None if none arrives
    Tell         the same message to every neighbor                  -> Heard: the neighbors' messages, each held once
    Total        a sum over all nodes, rows from all nodes (Rows)    -> the result, or None: then it goes from neighbor to neighbor
    Checkpoint   all that is needed to go on from here               -> True if somebody asked this node to stop
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import array_api_compat as aac
import numpy as np

Array = Any


@dataclass(frozen=True, eq=False)
class Edges:
    """Directed edges seen from a block: `rows` are nodes of the block, `slots` their neighbors (slot 0: the node itself).

    Compared by identity, so that an engine can remember the route of edges it has seen before.
    """

    rows: np.ndarray
    slots: np.ndarray

    def __len__(self) -> int:
        return len(self.rows)


@dataclass(frozen=True, eq=False)
class Say:
    """Along each edge of `to` goes one array of `payload`; along each edge of `hear` one of `shape` arrives.

    `payload` has one leading axis for the edges, then the rows of the message. Only the first `lengths` rows of each
    are real, the others padding that need not travel; of what arrives the first `arriving` rows are, and it is padded
    with zeros, or cut, to `shape`. (None: all rows.) Both ends know the length of every message, so none has to be sent.
    Messages to slot 0 stay at home and cost nothing. An edge not in `to` is silent.

    With `alike` (B, rows, ...) every node says the same rows to all its neighbors, ahead of those of `payload`, and hears theirs; all
    edges speak then. An engine need not copy anything: the answer says where to find what arrives of `payload`, and those rows. One that
    does copy delivers `joined()` and answers `split(...)` of what arrives.
    """

    kind: str
    payload: Array | None
    to: Edges
    hear: Edges
    shape: tuple[int, ...]
    lengths: np.ndarray | None = None
    arriving: np.ndarray | None = None
    common: bool = False
    alike: Array | None = None

    def joined(self) -> Say:
        """The same with the common rows in each message."""
        if self.alike is None or self.payload is None or self.lengths is None or self.arriving is None:
            raise RuntimeError("nothing to join")
        xp = aac.array_namespace(self.payload)
        rows = xp.take(self.alike, xp.asarray(self.to.rows, device=aac.device(self.alike)), axis=0)
        m = self.alike.shape[1]
        return replace(
            self,
            payload=xp.concat([rows, self.payload], axis=1),
            shape=(m + self.shape[0], *self.shape[1:]),
            lengths=m + self.lengths,
            arriving=m + self.arriving,
            alike=None,
        )

    def split(self, arrived: Array) -> tuple[Slots, Slots]:
        """What arrives of `joined()`, as an answer to this."""
        assert self.alike is not None
        m, n_slots = self.alike.shape[1], arrived.shape[0] // self.alike.shape[0]
        return Slots.stacked(arrived[:, m:, ...], n_slots), Slots.stacked(arrived[:, :m, ...], n_slots)


@dataclass(frozen=True, eq=False)
class Slots:
    """What the nodes of a block heard, wherever it lies: slot s of node b heard `rows[place[b * d + s]]`."""

    rows: Array
    place: Array
    n_slots: int

    @classmethod
    def stacked(cls, rows: Array, n_slots: int) -> Slots:
        """In order."""
        return cls(rows, aac.array_namespace(rows).arange(rows.shape[0], device=aac.device(rows)), n_slots)

    def slots(self, nodes: slice) -> Array:
        """What some nodes heard in each slot: (b, d, rows, ...)."""
        xp = aac.array_namespace(self.rows)
        found = xp.take(self.rows, self.place[nodes.start * self.n_slots : nodes.stop * self.n_slots], axis=0)
        return xp.reshape(found, (nodes.stop - nodes.start, self.n_slots, *self.rows.shape[1:]))


@dataclass(frozen=True, eq=False)
class Tell:
    """Each node of the block tells all its neighbors the same: `payload` (B, rows, ...), the first `lengths` rows real.

    Whoever hears a node must know how many rows it tells: one for each of its samples.
    """

    kind: str
    payload: Array
    lengths: np.ndarray


@dataclass(frozen=True, eq=False)
class Total:
    """The sum of `value` (length,) over all blocks of the network is wanted by all, or (size,) that the root makes of it (`finish`).

    An engine whose processes trust each other adds up as it likes, and counts the messages that a sum along the tree takes. Between peers the
    answer is None, and the nodes' own messages do it (collectives.py).
    """

    kind: str
    value: Array
    finish: Callable[[Array], Array] | None
    size: int


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows that some nodes give are wanted by all, in the order of the nodes' names. `counts` (J,) says how many each gives; `rows` are the
    block's, node by node. As for `Total`, the answer may be None."""

    kind: str
    rows: Array
    counts: np.ndarray


@dataclass(frozen=True, eq=False)
class Heard:
    """What the neighbors told: a few pools of distinct messages, and for each node and slot where to look.

    Slot s of node b heard `pools[pool[b, s]][row[b, s]]`; slot 0 is what the node told itself. A message that many
    nodes heard is held once.
    """

    pools: tuple[Array, ...]
    pool: np.ndarray
    row: np.ndarray

    def narrowed(self) -> Heard:
        """With only those pools and messages that some slot heard."""
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
class Checkpoint:
    """The state after an iteration: `known` came from others during set-up, `state` is the iterate. Both may be kept as they are."""

    known: Any
    state: Any
