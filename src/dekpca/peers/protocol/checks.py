"""Checks of what a neighbor sends, before memory or disk is allocated: pure functions of bytes, without sockets.

Functions return a value that the protocol allows, or raise ProtocolError.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np
from google.protobuf.message import DecodeError, Message

from ...network import Network
from ...privacy.settings import MOST_RECORD
from ...scores import BINS
from ...settings import Options
from ...solvers.sums.judge import largest_sum
from ...solvers.sums.judging_rows import JUDGES
from ...solvers.sums.moments import EXTRA
from ..errors import NEW_RUN, ProtocolError
from . import wire_pb2 as wire
from .events import HandshakeReceived, Heartbeat
from .handshake import MOST_COLUMN, MOST_COLUMNS, MOST_SETTING, MOST_SETTINGS, HandshakeSettings
from .membership import MOST_NODES, Record
from .text import NAME, is_showable
from .view_messages import unpack_status

PROTOCOL = 16  # raised by every incompatible change
CHUNK = 1 << 18  # bytes: a few dozen saturate a fast link, and one does not block a slow link for long
MOST_RECEIVED = 1 << 20  # bytes of one gRPC message; records of thousands of nodes fit
MOST_AXES = 3
MOST_RUN = 200  # characters of a run id
MOST_WAITS = 20  # names in a heartbeat: some of the nodes that a node waits for
MOST_ROWS = 1 << 40  # of a node; sums of rows stay exact
WAITING = 16  # messages of a neighbor that may wait for the program; then backpressure until the program has caught up
# Rounds of a node with unacknowledged messages, which may be lost when a neighbor is killed.
UNSYNCED = 500
BROKEN_OFF = 100  # times the largest message: bytes of incomplete messages of a neighbor between two complete ones
DTYPES = {"<f8": 8, "<f4": 4, "<u8": 8}
SEALED = "<u8"  # of sums under masks, and of key records
KINDS = {
    "sizes", "columns", "axes", "clusters", "landmarks", "moments", "judge", "fingerprint", "mean", "power", "spectrum", "check",
    "data", "rho", "share", "view", "values", "deflate", "keys", "scores",
}  # all that docs/explanation/privacy.md lists  # fmt: skip

M = TypeVar("M", bound=Message)


class MessageHead(NamedTuple):
    """The header of a message of the program: its identity, dtype and shape. Within a run, round and sender identify it."""

    round: int
    kind: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Bytes."""
        return DTYPES[self.dtype] * math.prod(self.shape)


@dataclass(frozen=True)
class Limits:
    """Limits for messages of rounds that the program has not reached yet."""

    run: str
    dtype: str
    largest: int  # bytes
    ahead: int  # rounds
    sealed: bool = False  # sums are integers under masks

    @classmethod
    def of(cls, run: str, dtype: str, options: Options, sizes: np.ndarray, n_columns: int, network: Network) -> Limits:
        """From the settings and the sizes of all nodes."""
        m, q = (options.max_landmarks if options.grow else options.n_landmarks), options.n_columns
        # No other solver sends what grows with the rows of a node.
        n = 0 if options.projection is None else int(sizes.max())
        p = m if options.n_components < 1 else max(q, int(options.n_components)) + EXTRA
        numbers = max(
            n * n_columns,  # data
            4 * (m + 64) * (n_columns + 3),  # clusters, landmarks: pieces of clusters, four times the new landmarks
            0 if options.random_features else m * m + m + 4,  # moments
            3 + 2 * p + m + m * p,  # directions
            largest_sum(p),  # judge
            60 * n_columns + 60,  # axes, columns
            512,  # sizes (powers of two), fingerprint
            0 if options.contamination is None else BINS,  # scores
            0 if options.kernel.has_sketch or not options.share_rows else 4 * JUDGES * (n_columns + 2),  # judging rows
            (m + n) * q,  # share, view, values
            2 + q + m * q,  # power
            1 + 4 * q * q + 3 * q + m * q,  # spectrum, check
            0 if options.projection is None else (network.n_edges + len(sizes)) * q,  # signs, of the paper's update
            len(sizes),  # counts
        )
        largest = numbers * DTYPES["<f8"]
        if options.sealed:
            released = [] if options.privacy is None else options.private_options().releases(n_columns, len(sizes))
            numbers = 1 + max([numbers, *(r.numbers for r in released)])  # a word to check that masks cancel
            largest = max(numbers * DTYPES[SEALED], len(sizes) * MOST_RECORD)
        # A network sum ends when all nodes have contributed, so no node is further ahead than the next ones.
        return cls(run, dtype, largest, 8 * (network.depth + 2) + UNSYNCED, options.sealed)


def parse(kind: type[M], data: Any) -> M:
    """Bytes as a message of the wire format."""
    if not isinstance(data, bytes) or len(data) > MOST_RECEIVED:
        raise ProtocolError(f"a message that is no {kind.__name__}")
    try:
        return kind.FromString(data)
    except DecodeError as error:
        raise ProtocolError(f"a message of {len(data)} bytes that is no {kind.__name__}") from error


def check_head(head: wire.Head, sender: str, limits: Limits, expected: MessageHead | None, reached: int) -> MessageHead:
    """The header of a message: exactly the `expected` one, or within the limits for later rounds. `reached` is the program's round."""
    said = f"round {head.round}, {head.kind[:40]!r} of {head.dtype[:10]!r} {list(head.shape)[:6]}"
    if head.run != limits.run:
        raise ProtocolError(f"a message of another run, {head.run[:80]!r}; this is {limits.run!r}")
    if head.sender != sender:
        raise ProtocolError(f"a message of node {head.sender[:80]!r}, but the certificate is that of {sender!r}")
    dtypes = (limits.dtype, "<f8", SEALED) if limits.sealed else (limits.dtype, "<f8")
    if head.kind not in KINDS or head.dtype not in dtypes or len(head.shape) > MOST_AXES:
        raise ProtocolError(f"{said}: no message of this protocol in {limits.dtype}")
    size = DTYPES[head.dtype] * math.prod(head.shape)
    if size > limits.largest:
        raise ProtocolError(f"{said}: {size} bytes, where no message of this run has more than {limits.largest}")
    if not 1 <= head.round <= reached + limits.ahead:
        raise ProtocolError(f"{said}: this node is in round {reached}, and nobody can be so far from it")
    message = MessageHead(head.round, head.kind, head.dtype, tuple(head.shape))
    if expected is not None and message != expected:
        raise ProtocolError(f"{said}: expected {expected.kind!r} of {expected.dtype!r} {list(expected.shape)}")
    return message


def check_chunk(chunk: wire.Chunk, size: int, held: int) -> int:
    """Check a chunk of a message of `size` bytes of which `held` were received; returns the new count. All but the last are of full size: every
    chunk counts as progress, and takes a row of the database."""
    if chunk.offset != held:
        raise ProtocolError(f"a chunk at byte {chunk.offset}, expected byte {held}")
    after = held + len(chunk.data)
    if after != min(size, held + CHUNK):
        raise ProtocolError(
            f"a chunk of {len(chunk.data)} bytes at byte {held} of {size}; all but the last have {CHUNK}"
        )
    return after


def check_handshake(handshake: wire.Handshake) -> HandshakeReceived:
    values = {setting.name: setting.value for setting in handshake.settings}
    texts = [text for pair in values.items() for text in pair]
    if len(values) > MOST_SETTINGS or not all(is_showable(text, MOST_SETTING) for text in texts):
        raise ProtocolError(f"a handshake with {len(values)} settings: too many, too long, or not printable")
    columns = tuple(handshake.columns)
    if sum(len(name) + 4 for name in columns) > MOST_COLUMNS or not all(is_showable(n, MOST_COLUMN) for n in columns):
        raise ProtocolError(f"a handshake with {len(columns)} column names: too long, or not printable")
    records: dict[str, Record] = {}
    if len(handshake.records) > MOST_NODES:
        raise ProtocolError(f"{len(handshake.records)} records of nodes, more than the {MOST_NODES} allowed")
    for record in handshake.records:
        if len(record.neighbors) >= MOST_NODES:
            raise ProtocolError(f"a node with {len(record.neighbors)} neighbors, where {MOST_NODES} nodes are allowed")
        names = (record.name, *record.neighbors)
        if not all(map(NAME.fullmatch, names)) or len(set(names)) < len(names) or not 1 <= record.rows <= MOST_ROWS:
            raise ProtocolError(f"a malformed record of node {record.name[:80]!r}")
        records[record.name] = tuple(record.neighbors), int(record.rows)
    return HandshakeReceived(HandshakeSettings(values, columns), records)


def check_heartbeat(beat: wire.Heartbeat) -> Heartbeat:
    seconds = (beat.silence, beat.idle)
    texts = all(map(is_showable, (beat.stop_reason, beat.phase, beat.kind, beat.view)))
    if not all(math.isfinite(s) and s >= 0 for s in seconds) or not texts:
        raise ProtocolError("a malformed heartbeat")
    if len(beat.waits_for) > MOST_WAITS or not all(map(NAME.fullmatch, beat.waits_for)):
        raise ProtocolError(f"a heartbeat with {len(beat.waits_for)} nodes waited for: too many, or no names of nodes")
    statuses = dict(map(unpack_status, beat.statuses))
    return Heartbeat(
        beat.silence, beat.phase, beat.iteration, beat.finished, beat.stop_reason, beat.stops_all, beat.kind, beat.idle, tuple(beat.waits_for),
        beat.view, beat.process, statuses,
    )  # fmt: skip


def check_expected(sender: str, came: MessageHead, expected: MessageHead) -> None:
    """Compare a message that arrived early with the expected header, when the program reaches its round."""
    if came != expected:
        sent, due = (f"{head.kind!r} of {head.dtype} {list(head.shape)}" for head in (came, expected))
        raise ProtocolError(f"node {sender} sent {sent} in round {came.round}, expected {due}; {NEW_RUN}")


def metadata(run: str, name: str) -> tuple[tuple[str, str | bytes], ...]:
    """The metadata of every call."""
    return ("dekpca-protocol", str(PROTOCOL)), ("dekpca-run-bin", run.encode()), ("dekpca-node-bin", name.encode())


def read_metadata(given: Mapping[str, Any]) -> tuple[str, str, str]:
    """Protocol, run and node of a call; empty if absent."""
    said = (given.get(key, b"") for key in ("dekpca-protocol", "dekpca-run-bin", "dekpca-node-bin"))
    protocol, run, node = (x.decode(errors="replace") if isinstance(x, bytes) else str(x) for x in said)
    return protocol, run, node
