"""The requests that a program yields to its engine, and the replies.

    Sum         this site's term of a sum over the whole network    -> what the root concluded from the total, an array
    Exchange    a message along edges of the network                -> the messages that arrived
    Iteration   how far an iteration is                             -> True if somebody asked it to stop

All sites make the same requests in the same order. An engine that only carries messages between neighbors builds sums
from exchanges along a tree (engines/tree.py).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Edge = tuple[int, int]  # numbers of the sender and of the receiver


@dataclass(frozen=True, eq=False)
class Sum:
    """The sum of `value` (length,) over all sites of the network. The root makes of it (`conclude`) the array (size,) that all are told.

    Only the root does so, since results of several nodes might differ in signs or rounding. Engines may add in any order.
    An empty `value`: the root tells something without a sum. `refuse(value, rows, who)` raises an error that names `who` where a value cannot be the
    sum over so many rows: members may lie.
    """

    kind: str
    value: np.ndarray
    conclude: Callable[[np.ndarray], np.ndarray]
    size: int
    dtype: np.dtype = field(default=np.dtype(np.float64))  # of the conclusion
    refuse: Callable[[np.ndarray, int, str], None] = lambda value, rows, who: None


@dataclass(frozen=True, eq=False)
class Exchange:
    """Arrays from the nodes of this site to their neighbors, and the shapes of those that come back, all of one dtype.

    The reply has an array for each edge of `expected`. Both ends know the shape of every message.
    """

    kind: str
    messages: Mapping[Edge, np.ndarray]
    expected: Mapping[Edge, tuple[int, ...]]
    dtype: np.dtype


@dataclass(frozen=True)
class Iteration:
    """After so many iterations, of at most `most`; `residual` is that of the worst node of this site, NaN before the first."""

    number: int
    most: int
    residual: float
    component: int | None = None  # counted from 1, where components are found one after the other


Script = Generator[Sum | Exchange | Iteration, Any, Any]  # a program, or a part of one
