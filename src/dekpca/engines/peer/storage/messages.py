"""Messages of neighbors: on disk before they are acknowledged, and read from there when the program asks for them.

The program reads a message as soon as it is whole; it need not wait for the disk. A message that is lost before it was synced was not
acknowledged, and the neighbor sends it again. All writing is done by a thread, so that a slow disk does not hold up heartbeats; it commits
once for everybody that waits.
"""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from ..protocol.checks import MessageHead
from .database import Database, checksum

Then = Callable[[Exception | None], None]


@dataclass(eq=False)
class Stored:
    """A message on disk: its head, and the rows that its bytes are in."""

    sender: str
    head: MessageHead
    rows: list[int] = field(default_factory=list)
    held: int = 0  # bytes so far


@dataclass(frozen=True)
class Chunk:
    """Some bytes of a message. `attempt` tells apart two tries to send the same message."""

    sender: str
    head: MessageHead
    attempt: int
    start: int
    data: bytes


class MessageLog:
    """The messages of a node's neighbors. `whole(sender, round)` is called, in another thread, for each that is complete."""

    def __init__(self, database: Database, whole: Callable[[str, int], None] = lambda sender, round: None):
        self.database, self.whole = database, whole
        self.messages: dict[tuple[str, int], Stored] = {}  # (sender, round)
        self.failed: Exception | None = None
        self._partial: dict[tuple[str, int, int], Stored] = {}
        self._next = 1
        self._lock = threading.Lock()  # of the dictionaries above
        self._queue: queue.SimpleQueue[Chunk | tuple[str, int, int] | Then | None] = queue.SimpleQueue()
        self._load()
        self._thread = threading.Thread(target=self._work, name="storage", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._queue.put(None)
        self._thread.join()

    # ------------------------------------------------------------------ writing
    def append(self, chunk: Chunk) -> None:
        """Returns at once; an error is raised by the next call, and told to those that wait for `sync`."""
        if self.failed is not None:
            raise self.failed
        self._queue.put(chunk)

    def sync(self, then: Then) -> None:
        """`then` is called, in another thread, when all that was appended is on disk, or with what kept it from there."""
        self._queue.put(then)

    @property
    def backlog(self) -> int:
        """Chunks in memory that the disk has not taken yet."""
        return self._queue.qsize()

    def forget(self, through: int) -> None:
        """Nothing up to this round will be asked for again."""
        with self._lock:
            old = [key for key in self.messages if key[1] <= through]
            rows = [row for key in old for row in self.messages.pop(key).rows]
        self._delete(rows)

    def drop_partial(self, sender: str, round: int, attempt: int) -> None:
        """The rest of this message will not come."""
        self._queue.put((sender, round, attempt))

    def _drop(self, key: tuple[str, int, int]) -> None:
        with self._lock:
            message = self._partial.pop(key, None)
        if message is not None:
            self._delete(message.rows)

    def _delete(self, rows: list[int]) -> None:
        for row in rows:
            self.database.write("DELETE FROM chunk WHERE id = ?", [row])

    def _work(self) -> None:
        """The thread that writes."""
        while True:
            jobs = [self._queue.get()]
            while not self._queue.empty():
                jobs.append(self._queue.get())
            waiting: list[Then] = []
            for job in jobs:
                if isinstance(job, Chunk):
                    self._guarded(partial(self._insert, job))
                elif isinstance(job, tuple):
                    self._guarded(partial(self._drop, job))
                elif job is not None:
                    waiting.append(job)
            if waiting:
                self._guarded(self.database.commit)
            for then in waiting:
                then(self.failed)
            if None in jobs:
                return

    def _guarded(self, work: Callable[[], None]) -> None:
        if self.failed is None:
            try:
                work()
            except Exception as error:  # raised by the next call, and told to all that wait
                self.failed = error

    def _insert(self, chunk: Chunk) -> None:
        head, row, self._next = chunk.head, self._next, self._next + 1
        shape = json.dumps(head.shape)
        named = (chunk.sender, head.round, chunk.attempt, head.kind, head.dtype, shape, chunk.start)
        self.database.write(
            "INSERT INTO chunk VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", [row, *named, chunk.data, checksum(*named, chunk.data)]
        )  # fmt: skip
        self._note(chunk.sender, chunk.attempt, head, chunk.start, len(chunk.data), row)

    def _note(self, sender: str, attempt: int, head: MessageHead, start: int, length: int, row: int) -> None:
        """Note where a chunk is. A message that is complete counts from now on, the first of several copies."""
        key = sender, head.round, attempt
        extra: list[int] = []
        complete = False
        with self._lock:
            if start == 0:
                self._partial[key] = Stored(sender, head)
            message = self._partial.get(key)
            if message is None or message.held != start:
                extra = [row, *(self._partial.pop(key).rows if key in self._partial else [])]
            else:
                message.rows.append(row)
                message.held += length
                if message.held == head.size:
                    del self._partial[key]
                    if (sender, head.round) in self.messages:
                        extra = message.rows
                    else:
                        complete = True
                        self.messages[sender, head.round] = message
        self._delete(extra)
        if complete:
            self.whole(sender, head.round)

    # ------------------------------------------------------------------ reading
    def held(self, sender: str) -> list[int]:
        """Rounds of the messages of a neighbor that are here."""
        with self._lock:
            return sorted(round for other, round in self.messages if other == sender)

    def find(self, sender: str, round: int) -> MessageHead | None:
        with self._lock:
            message = self.messages.get((sender, round))
        return None if message is None else message.head

    def read(self, sender: str, round: int, into: memoryview) -> None:
        """The bytes of a message; `into` has just their length."""
        with self._lock:
            message = self.messages[sender, round]
        start = 0
        for row in message.rows:
            found = self.database.read(f"SELECT {COLUMNS} FROM chunk WHERE id = ?", [row])
            if len(found) != 1 or checksum(*found[0][:-1]) != found[0][-1] or found[0][-3] != start:
                raise self.database.damaged(f"the message of node {sender} in round {round}")
            data = found[0][-2]
            into[start : start + len(data)] = data
            start += len(data)

    def _load(self) -> None:
        """What is there from before a restart."""
        found = []
        for row, *named, data, crc in self.database.each(f"SELECT id, {COLUMNS} FROM chunk ORDER BY id"):
            if checksum(*named, data) != crc:
                raise self.database.damaged(f"the message of node {named[0]} in round {named[1]}")
            found.append((row, *named, len(data)))
        for row, sender, round, attempt, kind, dtype, shape, start, length in found:
            self._note(sender, attempt, MessageHead(round, kind, dtype, tuple(json.loads(shape))), start, length, row)
            self._next = row + 1
        for key in list(self._partial):  # the rest of these will not come
            self._drop(key)
        self.database.commit()


COLUMNS = "sender, round, attempt, kind, dtype, shape, start, data, crc"
