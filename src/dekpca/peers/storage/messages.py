"""Messages of neighbors: on disk before they are acknowledged, and read from there by the program.

The program can read a message when it is complete, without waiting for the disk. A message that is lost before the
sync was not acknowledged, and the neighbor retransmits it. A writer thread does all writes, so that a slow disk does
not delay heartbeats. It writes in batches, when a sender waits for an acknowledgement or there is much to write:
waking up for each message would take the processor from the program just when it continues. Uncommitted data is read
from memory.
"""

from __future__ import annotations

import json
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..protocol.checks import MessageHead
from ..protocol.events import Refusal, Refused
from .database import Database, checksum

BATCH = 16  # chunks that are written even if nobody waits
COLUMNS = "sender, round, attempt, kind, dtype, shape, start, data, crc"


@dataclass(frozen=True)
class Chunk:
    """Some bytes of a message. `attempt` distinguishes transmissions of the same message."""

    sender: str
    head: MessageHead
    attempt: int
    start: int
    data: bytes


@dataclass(eq=False)
class Stored:
    """A message: its header, and the database rows with its bytes."""

    head: MessageHead
    rows: list[int] = field(default_factory=list)
    held: int = 0  # bytes so far


class MessageLog:
    """The messages of a node's neighbors."""

    def __init__(self, database: Database):
        self.database = database
        self.failed: Exception | None = None
        self._messages: dict[tuple[str, int], Stored] = {}  # (sender, round)
        self._partial: dict[tuple[str, int, int], Stored] = {}  # (sender, round, attempt)
        self._unwritten: dict[int, Chunk] = {}  # by row
        self._useless: list[int] = []  # rows to delete
        self._next = 1  # row
        self._lock = threading.Lock()  # of all of the above
        self._writer = ThreadPoolExecutor(1, "storage")
        self._load()

    def close(self) -> None:
        with suppress(Refused):  # closed already
            self.sync()
        self._writer.shutdown()

    # ------------------------------------------------------------------ writing
    def append(self, chunk: Chunk) -> bool:
        """Returns at once whether this completes a message; an error is raised by the next call, and by the futures of `sync`."""
        if self.failed is not None:
            raise self.failed
        with self._lock:
            row, self._next = self._next, self._next + 1
            self._unwritten[row] = chunk
            complete = self._note(chunk, len(chunk.data), row)
            much = len(self._unwritten) % BATCH == 0
        if much:
            self.sync()
        return complete

    def sync(self) -> Future[None]:
        """Done when all appended chunks are on disk."""
        try:
            return self._writer.submit(self.write)
        except RuntimeError as error:
            raise Refused(Refusal.LATER, "messages of an earlier view") from error

    @property
    def backlog(self) -> int:
        """Number of chunks in memory that are not written yet."""
        return len(self._unwritten)

    def drop_partial(self, sender: str, round: int, attempt: int) -> None:
        """Drop an incomplete message: its rest will not arrive."""
        with self._lock:
            message = self._partial.pop((sender, round, attempt), None)
            if message is not None:
                self._useless += message.rows

    def _note(self, chunk: Chunk, length: int, row: int) -> bool:
        """Record the row of a chunk; returns whether it completes a message. Rows of duplicates, or out of order, are useless."""
        key = chunk.sender, chunk.head.round, chunk.attempt
        if chunk.start == 0:
            self._partial[key] = Stored(chunk.head)
        message = self._partial.get(key)
        if message is None or message.held != chunk.start:
            self._useless.append(row)
            return False
        message.rows.append(row)
        message.held += length
        if message.held < chunk.head.size:
            return False
        del self._partial[key]
        if self._messages.setdefault((chunk.sender, chunk.head.round), message) is not message:
            self._useless += message.rows
            return False
        return True

    def write(self) -> None:
        """Write all appended chunks, in one transaction; returns when they are on disk. The first error is that of all later calls."""
        with self.database.lock:
            with self._lock:
                chunks = dict(self._unwritten)
                useless, self._useless = self._useless, []
            try:
                if self.failed is None:
                    for row, chunk in chunks.items():
                        self._insert(row, chunk)
                    for row in useless:
                        self.database.write("DELETE FROM chunk WHERE id = ?", [row])
                    self.database.commit()
            except Exception as error:
                self.failed = error
            with self._lock:
                for row in chunks:
                    del self._unwritten[row]
        if self.failed is not None:
            raise self.failed

    def _insert(self, row: int, chunk: Chunk) -> None:
        head, shape = chunk.head, json.dumps(chunk.head.shape)
        named = chunk.sender, head.round, chunk.attempt, head.kind, head.dtype, shape, chunk.start
        values = [row, *named, chunk.data, checksum(*named, chunk.data)]
        self.database.write(f"INSERT INTO chunk VALUES ({', '.join('?' * len(values))})", values)

    # ------------------------------------------------------------------ reading
    def held(self, sender: str) -> list[int]:
        """Rounds of the stored messages of a neighbor."""
        with self._lock:
            return sorted(round for other, round in self._messages if other == sender)

    def find(self, sender: str, round: int) -> MessageHead | None:
        with self._lock:
            message = self._messages.get((sender, round))
        return None if message is None else message.head

    def read(self, sender: str, round: int, into: memoryview) -> None:
        """Read the bytes of a message into `into`, which has exactly their length."""
        with self._lock:
            rows = list(self._messages[sender, round].rows)
            ready = {row: self._unwritten[row].data for row in rows if row in self._unwritten}
        start = 0
        for row in rows:
            data = ready.pop(row) if row in ready else self._read_row(sender, round, row, start)
            into[start : start + len(data)] = data
            start += len(data)

    def _read_row(self, sender: str, round: int, row: int, start: int) -> bytes:
        found = self.database.read(f"SELECT {COLUMNS} FROM chunk WHERE id = ?", [row])
        if len(found) != 1 or checksum(*found[0][:-1]) != found[0][-1] or found[0][-3] != start:
            raise self.database.damaged(f"the message of node {sender} in round {round}")
        return found[0][-2]

    def _load(self) -> None:
        """Load messages from before a restart."""
        for row, *named, data, crc in self.database.each(f"SELECT id, {COLUMNS} FROM chunk ORDER BY id"):
            if checksum(*named, data) != crc:
                raise self.database.damaged(f"the message of node {named[0]} in round {named[1]}")
            sender, round, attempt, kind, dtype, shape, start = named
            chunk = Chunk(sender, MessageHead(round, kind, dtype, tuple(json.loads(shape))), attempt, start, b"")
            self._note(chunk, len(data), row)
            self._next = row + 1
        for key in [*self._partial]:
            self.drop_partial(*key)
        self.write()


def raw_bytes(a: np.ndarray) -> memoryview:
    """The memory of a contiguous array."""
    flat: Any = a.reshape(-1).view(np.uint8)
    return memoryview(flat)
