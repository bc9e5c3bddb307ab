"""The local engine: all nodes in one process, in a few blocks; a round of messages is one gather on the device.

It delivers what the programs say and nothing more. It counts what each node sends, since on one machine nobody else
would.
"""

from __future__ import annotations

import signal
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import array_api_compat as aac
import numpy as np

from ..answer import Answer
from ..block import Block, make_blocks, pad_rows
from ..messages import Checkpoint, Edges, Heard, Say, Tell
from ..network import Network
from ..options import Options
from ..program import program

Array = Any
Observer = Callable[[list[Block], list[Checkpoint]], None]


@dataclass
class Traffic:
    """What each node sent, by phase: (J,) messages and bytes."""

    n_nodes: int
    messages: dict[str, np.ndarray] = field(default_factory=dict)
    bytes: dict[str, np.ndarray] = field(default_factory=dict)

    def add(self, kind: str, messages: np.ndarray, sizes: np.ndarray) -> None:
        if kind not in self.messages:
            self.messages[kind] = np.zeros(self.n_nodes, dtype=np.int64)
            self.bytes[kind] = np.zeros(self.n_nodes, dtype=np.int64)
        self.messages[kind] += messages
        self.bytes[kind] += sizes


@dataclass
class Outcome:
    """The answers of the blocks, and what was sent."""

    answers: list[Answer]
    traffic: Traffic


@dataclass(frozen=True, eq=False)
class Route:
    """For each receiving block: which message of which block goes where; and what the senders pay for a row."""

    pieces: list[list[tuple[int, Array]]]  # receiving block -> (sending block, places in its payload)
    order: list[Array | None]  # how to put the pieces in the order of `hear`
    messages: np.ndarray  # (J,) that leave each node
    senders: list[np.ndarray]  # sending block -> node of each message, -1 for those that stay at home


class Post:
    """Delivers rounds of messages between blocks that hold all nodes of the network."""

    def __init__(self, blocks: Sequence[Block]):
        self.blocks = blocks
        self.network = blocks[0].network
        self.traffic = Traffic(len(self.network))
        self._routes: dict[tuple[Any, ...], Route] = {}
        self._home = np.empty((len(self.network), 2), dtype=np.int64)  # node -> block, row
        for i, block in enumerate(blocks):
            self._home[block.nodes] = np.stack([np.full(block.n_nodes, i), np.arange(block.n_nodes)], axis=1)

    def say(self, says: Sequence[Say]) -> list[Array | None]:
        kinds = {(s.kind, s.common) for s in says}
        if len(kinds) > 1:
            raise RuntimeError(f"the nodes of one network say different things at once: {sorted(kinds)}")
        route = self._route(says)
        if says[0].common:
            return self._pass_on(says, route)
        self._count(says, route)
        return [self._deliver(i, says, route) for i in range(len(says))]

    def tell(self, tells: Sequence[Tell]) -> list[Heard]:
        pools = tuple(t.payload for t in tells)
        for block, told in zip(self.blocks, tells, strict=True):
            heard = np.zeros(len(self.network), dtype=np.int64)
            heard[block.nodes] = block.n_slots - 1
            row_bytes = _row_bytes(told.payload, 2)
            sizes = np.zeros_like(heard)
            sizes[block.nodes] = told.lengths * row_bytes * (block.n_slots - 1)
            self.traffic.add(told.kind, heard, sizes)
        return [Heard(pools, self._home[block.slots, 0], self._home[block.slots, 1]) for block in self.blocks]

    def _route(self, says: Sequence[Say]) -> Route:
        key = tuple(edges for s in says for edges in (s.to, s.hear))
        if key not in self._routes:
            self._routes[key] = self._make_route([s.to for s in says], [s.hear for s in says])
        return self._routes[key]

    def _make_route(self, to: Sequence[Edges], hear: Sequence[Edges]) -> Route:
        J = len(self.network)
        spoken_at, spoken_by, keys, senders = [], [], [], []
        messages = np.zeros(J, dtype=np.int64)
        for i, (block, edges) in enumerate(zip(self.blocks, to, strict=True)):
            a, b = block.nodes[edges.rows], block.slots[edges.rows, edges.slots]
            keys.append(a * J + b)
            spoken_by.append(np.full(len(edges), i))
            spoken_at.append(np.arange(len(edges)))
            senders.append(np.where(a == b, -1, a))
            np.add.at(messages, a[a != b], 1)
        key, block_of, place = (np.concatenate(x) for x in (keys, spoken_by, spoken_at))
        by_key = np.argsort(key)
        pieces, order = [], []
        for block, edges in zip(self.blocks, hear, strict=True):
            a, b = block.slots[edges.rows, edges.slots], block.nodes[edges.rows]
            wanted = a * J + b
            found = (
                by_key[np.minimum(np.searchsorted(key, wanted, sorter=by_key), max(0, len(key) - 1))]
                if len(key)
                else wanted
            )
            if len(wanted) and (not len(key) or not (key[found] == wanted).all()):
                silent = int(np.flatnonzero(key[found] != wanted)[0]) if len(key) else 0
                names = self.network.names
                raise RuntimeError(
                    f"node {names[b[silent]]} waits for node {names[a[silent]]}, which says nothing in this round"
                )
            sources = np.unique(block_of[found]) if len(wanted) else np.empty(0, dtype=np.int64)
            at = [np.flatnonzero(block_of[found] == i) for i in sources]
            device = self.blocks[0].samples
            pieces.append([(int(i), _index(device, place[found[x]])) for i, x in zip(sources, at, strict=True)])
            order.append(_index(device, np.argsort(np.concatenate(at))) if len(at) > 1 else None)
        return Route(pieces, order, messages, senders)

    def _deliver(self, receiver: int, says: Sequence[Say], route: Route) -> Array:
        shape = says[receiver].shape
        xp = aac.array_namespace(self.blocks[receiver].samples)
        arrived = []
        for sender, places in route.pieces[receiver]:
            got = xp.take(says[sender].payload, places, axis=0)
            arrived.append(pad_rows(got, shape[0], axis=1) if got.shape[1] != shape[0] else got)
        if not arrived:
            like = self.blocks[receiver].samples
            return xp.zeros((0, *shape), dtype=like.dtype, device=aac.device(like))
        if route.order[receiver] is None:
            return arrived[0]
        return xp.take(xp.concat(arrived), route.order[receiver], axis=0)

    def _pass_on(self, says: Sequence[Say], route: Route) -> list[Array | None]:
        sizes = np.zeros(len(self.network), dtype=np.int64)
        for s, senders in zip(says, route.senders, strict=True):
            if s.payload is not None and len(senders):
                np.add.at(sizes, senders, _row_bytes(s.payload, 0))
        self.traffic.add(says[0].kind, route.messages, sizes)
        return [says[pieces[0][0]].payload if pieces else None for pieces in route.pieces]

    def _count(self, says: Sequence[Say], route: Route) -> None:
        sizes = np.zeros(len(self.network), dtype=np.int64)
        for s, senders in zip(says, route.senders, strict=True):
            leaving = senders >= 0
            if s.payload is None or not leaving.any():
                continue
            rows = np.full(len(senders), s.payload.shape[1]) if s.lengths is None else s.lengths
            np.add.at(sizes, senders[leaving], rows[leaving] * _row_bytes(s.payload, 2))
        self.traffic.add(says[0].kind, route.messages, sizes)


def run(
    parts: Sequence[Array], network: Network, options: Options, observer: Observer | None = None, resume: Any = None
) -> Outcome:
    """Run the program for all nodes; `parts` are their samples (n_j, M), of one dtype on one device.

    `observer` sees every checkpoint. `resume` is a list with a (known, state) for each block, as a checkpoint held it.
    Ctrl-C during the iterations makes the nodes stop at their next check, with the last iterate as the result; a second
    one ends at once.
    """
    return drive(make_blocks(parts, network), options, observer, resume)


def drive(
    blocks: list[Block],
    options: Options,
    observer: Observer | None = None,
    resume: Any = None,
    script: Callable[..., Any] = program,
) -> Outcome:
    """As `run`, for blocks already made; `script` may wrap the program, to time it for one."""
    post = Post(blocks)
    scripts = [script(block, options, None if resume is None else resume[i]) for i, block in enumerate(blocks)]
    # an iteration that overflows is noticed by the program itself; NumPy need not add its voice
    with _interrupts() as interrupt, np.errstate(over="ignore", invalid="ignore"):
        try:
            replies: list[Any] = [None] * len(scripts)
            requests: list[Any] = [next(s) for s in scripts]
            while True:
                if isinstance(requests[0], Say):
                    replies = post.say(requests)
                elif isinstance(requests[0], Tell):
                    replies = list(post.tell(requests))
                else:
                    interrupt["armed"] = True
                    if observer is not None:
                        observer(blocks, requests)
                    replies = [interrupt["asked"]] * len(blocks)
                requests = [s.send(reply) for s, reply in zip(scripts, replies, strict=True)]
        except StopIteration as first:
            answers = [first.value]
            answers += [_finish(s, reply) for s, reply in zip(scripts[1:], replies[1:], strict=True)]
    return Outcome(answers, post.traffic)


def _finish(script: Any, reply: Any) -> Answer:
    """All blocks end in the same round."""
    try:
        script.send(reply)
    except StopIteration as end:
        return end.value
    raise RuntimeError("the nodes of one network do not end together")


@contextmanager
def _interrupts() -> Iterator[dict[str, bool]]:
    """Ctrl-C asks the program to stop once there is an iterate to keep; before that, and the second time, it interrupts."""
    flags: dict[str, bool] = defaultdict(bool)
    if threading.current_thread() is not threading.main_thread():
        yield flags
        return

    def on_interrupt(signum: int, frame: Any) -> None:
        if flags["asked"] or not flags["armed"]:
            raise KeyboardInterrupt
        flags["asked"] = True

    before = signal.getsignal(signal.SIGINT)
    if before is not signal.default_int_handler:  # somebody else already handles it
        yield flags
        return
    signal.signal(signal.SIGINT, on_interrupt)
    try:
        yield flags
    finally:
        signal.signal(signal.SIGINT, before)


def _index(like: Array, places: np.ndarray) -> Array:
    xp = aac.array_namespace(like)
    return xp.asarray(places, device=aac.device(like))


def _row_bytes(x: Array, leading: int) -> int:
    """Bytes behind the first `leading` axes."""
    return int(np.prod(x.shape[leading:])) * aac.array_namespace(x).finfo(x.dtype).bits // 8
