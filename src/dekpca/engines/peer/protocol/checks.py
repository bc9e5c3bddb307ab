"""What a neighbor may send, checked before memory or disk is taken: pure functions of bytes, nothing of sockets.

Everything here either returns something that the protocol allows or raises ProtocolError.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np
from google.protobuf.message import DecodeError, Message

from ....judging import EXTRA_COLUMNS, MORE_FREQUENCIES, SIGNS, Shapes
from ....options import Options
from ..errors import ProtocolError
from . import wire_pb2 as wire
from .names import NAME
from .text import is_showable

PROTOCOL = 4  # goes up with any change that an older node would not understand
PIECE = 1 << 18  # bytes of data in a piece: a few dozen keep a fast line busy, one a slow line for a moment
MOST_RECEIVED = 1 << 20  # bytes of one gRPC message; greetings of thousands of nodes fit
MOST_AXES = 3
MOST_RUN = 200  # characters of a run id
MOST_FACTS = 100
MOST_FACT = 4096  # characters
MOST_COLUMN = 200  # characters of a column name that are shown to neighbors
MOST_COLUMNS = 1 << 15  # bytes of all of them; beyond, a fingerprint is compared
MOST_NODES = 20_000
MOST_RECORDS = MOST_RECEIVED - (1 << 16)  # bytes: all records go into one greeting, with the facts
MOST_WAITS = 20  # names in a beat: some of those that a node waits for
MOST_ROWS = 1 << 40  # of a node; sums of rows stay exact numbers
WAITING = 16  # messages of one neighbor that may wait for the program: it waits for us before it can be further ahead
BROKEN_OFF = 100  # largest messages: what a neighbor may leave unfinished, on our disk, between two checkpoints
DTYPES = {"<f8": 8, "<f4": 4}
KINDS = frozenset(
    {"landmarks", "counts", "fingerprint", "columns", "scale", "mean", "covariance", "power", "spectrum"}
    | {"sketch", "accuracy", "check", "data", "rho", "share", "view", "values", "deflate"}
)  # all that docs/privacy.md lists

M = TypeVar("M", bound=Message)


class Letter(NamedTuple):
    """The head of a message, checked."""

    round: int
    kind: str
    dtype: str
    shape: tuple[int, ...]
    size: int  # bytes


@dataclass(frozen=True)
class Limits:
    """What messages of rounds that the program has not reached yet may be at most."""

    run: str
    dtype: str
    largest: int  # bytes
    ahead: int  # rounds

    @classmethod
    def of(cls, run: str, dtype: str, options: Options, sizes: np.ndarray, n_columns: int, depth: int) -> Limits:
        """From the settings and the sizes of all nodes."""
        m, q, n = (options.max_landmarks if options.grow else options.n_landmarks), options.n_columns, int(sizes.max())
        p, k, features = q + EXTRA_COLUMNS, options.n_components, 2 * MORE_FREQUENCIES
        numbers = max(
            n * n_columns,  # data
            m * n_columns,  # landmarks
            0 if options.random_features else m * m + m + 2,  # covariance
            1 + p + m + m * p,  # directions
            (2 * features + m + p) * (p + SIGNS + 1) + p * p + SIGNS + 1,  # sketch
            Shapes(features, m, p, k).told,
            (m + n) * q,  # share, view, values
            2 + q + m * q,  # power
            (q + EXTRA_COLUMNS) * (1 + m),  # directions
            1 + max(4 * q * q + 3 * q + m * q, 2 * q * q),  # spectrum, check
            len(sizes),  # counts
            2 * n_columns,
            64,  # fingerprint
        )
        # a network sum is over when everybody has contributed: nobody is ahead of it by more than the next ones
        return cls(run, dtype, numbers * DTYPES[dtype], 8 * (depth + 2))


def parse(kind: type[M], data: Any) -> M:
    """Bytes as a message of the wire format."""
    if not isinstance(data, bytes) or len(data) > MOST_RECEIVED:
        raise ProtocolError(f"a message that is no {kind.__name__}")
    try:
        return kind.FromString(data)
    except DecodeError as error:
        raise ProtocolError(f"a message of {len(data)} bytes that is no {kind.__name__}") from error


def check_head(head: wire.Head, sender: str, limits: Limits, expected: Letter | None, reached: int) -> Letter:
    """The head of a message of `sender`, which must be just what is `expected`, or within the limits for later rounds.

    `reached` is the round that the program is in.
    """
    said = f"round {head.round}, {head.kind[:40]!r} of {head.dtype[:10]!r} {list(head.shape)[:6]}"
    if head.run != limits.run:
        raise ProtocolError(f"a message of another run, {head.run[:80]!r}; this is {limits.run!r}")
    if head.sender != sender:
        raise ProtocolError(f"a message of node {head.sender[:80]!r}, but the certificate is that of {sender!r}")
    if head.kind not in KINDS or head.dtype != limits.dtype or len(head.shape) > MOST_AXES:
        raise ProtocolError(f"{said}: no message of this protocol in {limits.dtype}")
    size = DTYPES[head.dtype] * math.prod(head.shape)
    if size > limits.largest:
        raise ProtocolError(f"{said}: {size} bytes, where no message of this run has more than {limits.largest}")
    if not 1 <= head.round <= reached + limits.ahead:
        raise ProtocolError(f"{said}: this node is in round {reached}, and nobody can be so far from it")
    letter = Letter(head.round, head.kind, head.dtype, tuple(head.shape), size)
    if expected is not None and letter != expected:
        raise ProtocolError(f"{said}: expected {expected.kind!r} of {expected.dtype!r} {list(expected.shape)}")
    return letter


def check_piece(piece: wire.Piece, size: int, held: int) -> int:
    """A piece of a message of `size` bytes of which `held` are here; returns how many are here with it."""
    if piece.offset != held:
        raise ProtocolError(f"a piece at byte {piece.offset}, expected byte {held}")
    after = held + len(piece.data)
    if after > size or len(piece.data) > PIECE or (not piece.data and size):
        raise ProtocolError(f"a piece of {len(piece.data)} bytes at byte {held} of {size}")
    return after


class Greeted(NamedTuple):
    """A greeting, checked."""

    facts: dict[str, str]
    columns: tuple[str, ...]
    records: dict[str, tuple[tuple[str, ...], int]]  # name -> neighbors, rows


def check_greeting(greeting: wire.Greeting) -> Greeted:
    facts = {fact.what: fact.value for fact in greeting.facts}
    if len(facts) > MOST_FACTS or not all(is_showable(text, MOST_FACT) for fact in facts.items() for text in fact):
        raise ProtocolError(f"a greeting with {len(facts)} settings of which some are no texts to show")
    columns = tuple(greeting.columns)
    if sum(len(name) + 4 for name in columns) > MOST_COLUMNS or not all(
        is_showable(name, MOST_COLUMN) for name in columns
    ):
        raise ProtocolError(f"a greeting with {len(columns)} column names that are too long, or no texts to show")
    records: dict[str, tuple[tuple[str, ...], int]] = {}
    if len(greeting.records) > MOST_NODES:
        raise ProtocolError(f"{len(greeting.records)} records of nodes, more than the {MOST_NODES} allowed")
    for record in greeting.records:
        if len(record.neighbors) >= MOST_NODES:
            raise ProtocolError(f"a node with {len(record.neighbors)} neighbors, where {MOST_NODES} nodes are allowed")
        names = (record.name, *record.neighbors)
        if not all(map(NAME.fullmatch, names)) or len(set(names)) < len(names) or not 1 <= record.rows <= MOST_ROWS:
            raise ProtocolError(f"a record of node {record.name[:80]!r} that makes no sense")
        records[record.name] = tuple(record.neighbors), int(record.rows)
    return Greeted(facts, columns, records)


def check_beat(beat: wire.Beat) -> wire.Beat:
    seconds = (beat.silence, beat.idle)
    if not all(math.isfinite(s) and s >= 0 for s in seconds) or not (
        is_showable(beat.stopped) and is_showable(beat.phase)
    ):
        raise ProtocolError("a beat that makes no sense")
    if len(beat.waits_for) > MOST_WAITS or not all(map(NAME.fullmatch, beat.waits_for)):
        raise ProtocolError(
            f"a beat of a node that waits for {len(beat.waits_for)} others, of which some have no names"
        )
    return beat


def metadata(run: str, name: str) -> tuple[tuple[str, str | bytes], ...]:
    """What every call says of itself before its first message."""
    return (
        ("dekpca-protocol", str(PROTOCOL)),
        ("dekpca-run-bin", run.encode()),
        ("dekpca-node-bin", name.encode()),
    )


def read_metadata(given: Mapping[str, Any]) -> tuple[str, str, str]:
    """Protocol, run and node of a call; empty where it does not say."""

    def text(key: str) -> str:
        value = given.get(key, b"")
        return value.decode(errors="replace") if isinstance(value, bytes) else str(value)

    return text("dekpca-protocol"), text("dekpca-run-bin"), text("dekpca-node-bin")
