"""The journal: messages from neighbors, on disk before they are acknowledged, and read from there when the program wants them.

It is the mailbox too: live and after a restart, what the program hears comes from these files. Pieces are appended as they arrive, in any
order of senders; a message counts when it is whole, and is acknowledged when it is synced. The program need not wait for that: if it is lost
with the machine's memory, the neighbor sends it again. A thread syncs, once for all who wait. A new file begins with every checkpoint, and an
old one is deleted when nothing in it can be needed again.

    record: <I length of entry> <I length of data> <I CRC-32 of both> entry data
"""

from __future__ import annotations

import bisect
import errno
import logging
import os
import queue
import re
import struct
import threading
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError

from ..errors import NEW_RUN, Damaged
from ..protocol import wire_pb2 as wire
from .codec import naming, sync_folder

log = logging.getLogger("dekpca.peer")

RECORD = struct.Struct("<III")
MOST_ENTRY = 1 << 16  # bytes; an entry is a few names and numbers
MOST_DATA = 1 << 21  # bytes; a piece is less, see letters.py
FILE = re.compile(r"journal-(\d+)\.bin")


class Place(NamedTuple):
    """Where a piece is: file, byte, length; the CRC of its entry, and of entry and data."""

    generation: int
    at: int
    length: int
    before: int
    crc: int


@dataclass(eq=False)
class Message:
    """A message on disk: what its head says, and where its pieces are."""

    sender: str
    round: int
    kind: str
    dtype: str
    shape: tuple[int, ...]
    size: int  # bytes of the array
    places: list[Place] = field(default_factory=list)
    held: int = 0  # bytes so far


class Journal:
    """The messages of one node's neighbors, in files of `folder`."""

    def __init__(self, folder: Path, opened: bool = True):
        """`opened` False: nothing is read or written, as for a node that only says why it does not resume."""
        self.folder = folder
        self.messages: dict[tuple[str, int], Message] = {}  # (sender, round) -> whole message
        self.failed: OSError | None = None
        self._rounds: dict[str, list[int]] = {}  # sender -> rounds of `messages`, ascending
        self._files: dict[int, int] = {}  # generation -> handle
        self._partial: dict[tuple[str, int, int], Message] = {}
        self._lock = threading.Lock()
        self._syncing = threading.Lock()
        self._queue: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.generation = self.first = 0
        self._thread = threading.Thread(target=self._sync, name="journal", daemon=True)
        if not opened:
            return
        generations = sorted(int(m[1]) for path in folder.iterdir() if (m := FILE.fullmatch(path.name)))
        try:
            for generation in generations:
                self._scan(generation, last=generation == generations[-1])
        except BaseException:
            self._close_files()
            raise
        self._partial.clear()  # nobody will send the rest of these
        self.generation = generations[-1] if generations else 0
        self.first = generations[0] if generations else 0
        self._end = self._open(self.generation)
        self._thread.start()

    def close(self) -> None:
        if self._thread.is_alive():
            self._queue.put(None)
            self._thread.join()
        self._close_files()

    def _close_files(self) -> None:
        for handle in self._files.values():
            os.close(handle)
        self._files.clear()

    # ------------------------------------------------------------------ writing
    def append(self, entry: wire.Entry, size: int, data: bytes) -> None:
        """Write a piece of a message of `size` bytes. The program may read the message when it is whole; to last, it must be synced."""
        head = entry.SerializeToString()
        before = zlib.crc32(head)
        crc = zlib.crc32(data, before)
        record = RECORD.pack(len(head), len(data), crc) + head
        with self._lock:
            if self.failed is not None:
                raise self.failed
            try:
                with naming(self._path(self.generation)):
                    written = os.pwritev(self._files[self.generation], [record, data], self._end)
                    if written != len(record) + len(data):
                        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            except OSError as error:
                self.failed = error
                raise
            at = self._end + len(record)
            self._end += written
            self._note(entry, size, Place(self.generation, at, len(data), before, crc))

    def sync(self, then: Callable[[OSError | None], None]) -> None:
        """`then` is called, in another thread, when all that was appended is on disk, or with what kept it from there."""
        self._queue.put(then)

    def rotate(self) -> None:
        """What comes from now on goes to a new file."""
        with self._lock:
            if self.failed is not None:
                raise self.failed
            with naming(self._path(self.generation)):
                os.fdatasync(self._files[self.generation])
            self._end = self._open(self.generation + 1)
            self.generation += 1
        sync_folder(self.folder)

    def forget(self, through: int) -> None:
        """Nothing up to this round will be asked for again: delete the files that hold nothing else."""
        with self._lock:
            self.messages = {key: m for key, m in self.messages.items() if m.round > through}
            self._rounds = {name: [r for r in rounds if r > through] for name, rounds in self._rounds.items()}
            open_ = [*self.messages.values(), *self._partial.values()]
            needed = {place.generation for m in open_ for place in m.places} | {self.generation}
            with self._syncing:  # not under the feet of a sync
                for generation in [g for g in self._files if g not in needed]:
                    os.close(self._files.pop(generation))
                    self._path(generation).unlink(missing_ok=True)
            self.first = min(self._files)

    def _sync(self) -> None:
        """The thread that syncs: once for all who wait."""
        while True:
            waiting = [self._queue.get()]
            while not self._queue.empty():
                waiting.append(self._queue.get())
            if None in waiting:
                return
            try:
                with self._syncing, naming(self._path(self.generation)):
                    if self.failed is None:
                        os.fdatasync(self._files[self.generation])  # rotating syncs the one before
            except OSError as error:
                self.failed = error
            for then in waiting:
                then(self.failed)

    def _open(self, generation: int) -> int:
        """Returns where to go on writing."""
        if generation not in self._files:
            self._files[generation] = os.open(self._path(generation), os.O_RDWR | os.O_CREAT, 0o600)
        return os.lseek(self._files[generation], 0, os.SEEK_END)

    def _path(self, generation: int) -> Path:
        return self.folder / f"journal-{generation}.bin"

    # ------------------------------------------------------------------ reading
    def held(self, sender: str) -> list[int]:
        """Rounds of the messages of a neighbor that are here."""
        with self._lock:
            return list(self._rounds.get(sender, ()))

    def count_after(self, sender: str, round: int) -> int:
        """How many messages of a neighbor are here for later rounds."""
        with self._lock:
            rounds = self._rounds.get(sender, [])
            return len(rounds) - bisect.bisect_right(rounds, round)

    def find(self, sender: str, round: int) -> Message | None:
        with self._lock:
            return self.messages.get((sender, round))

    def read(self, message: Message, into: memoryview) -> None:
        """The bytes of a message; `into` has just their length."""
        start = 0
        for place in message.places:
            piece = into[start : start + place.length]
            count = os.preadv(self._files[place.generation], [piece], place.at)
            if count != place.length or zlib.crc32(piece, place.before) != place.crc:
                raise Damaged(
                    f"{self._path(place.generation)}: the message of node {message.sender} in round {message.round} is damaged; "
                    f"{NEW_RUN}"
                )
            start += place.length

    # ------------------------------------------------------------------ what is there at the start
    def _scan(self, generation: int, last: bool) -> None:
        """Find the messages in a file. Only the end of the last one may be torn: it was never acknowledged, and is cut off."""
        self._open(generation)
        path, end = self._path(generation), 0
        size = path.stat().st_size
        for entry, at, length, before, crc in self._records(path):
            self._note(entry, size_of(entry.dtype, entry.shape), Place(generation, at, length, before, crc))
            end = at + length
        if end == size:
            return
        if not last or any(True for _ in self._good_after(path, end)):
            raise Damaged(f"{path}: damaged at byte {end}; {NEW_RUN}")
        log.warning("journal: dropping what was not yet acknowledged", extra={"file": path.name, "bytes": size - end})
        os.ftruncate(self._files[generation], end)

    def _records(self, path: Path, start: int = 0) -> Iterator[tuple[wire.Entry, int, int, int, int]]:
        with open(path, "rb") as file:
            file.seek(start)
            while len(head := file.read(RECORD.size)) == RECORD.size:
                entry_size, data_size, crc = RECORD.unpack(head)
                if not 0 < entry_size <= MOST_ENTRY or data_size > MOST_DATA:
                    return
                body = file.read(entry_size + data_size)
                if len(body) < entry_size + data_size or zlib.crc32(body) != crc:
                    return
                try:
                    entry = wire.Entry.FromString(body[:entry_size])
                except DecodeError:
                    return
                yield entry, file.tell() - data_size, data_size, zlib.crc32(body[:entry_size]), crc

    def _good_after(self, path: Path, end: int) -> Iterator[int]:
        """Good records behind a bad one: then the bad one is no torn end. Looked for where the bad one says that it ends."""
        with open(path, "rb") as file:
            file.seek(end)
            head = file.read(RECORD.size)
        if len(head) == RECORD.size:
            entry_size, data_size, _ = RECORD.unpack(head)
            for _, at, *_ in self._records(path, end + RECORD.size + entry_size + data_size):
                yield at

    def _note(self, entry: wire.Entry, size: int, place: Place) -> None:
        """Note where a piece is; a message that is whole counts from now on, the first of several alike."""
        key = entry.sender, entry.round, entry.attempt
        if entry.offset == 0:
            self._partial[key] = Message(entry.sender, entry.round, entry.kind, entry.dtype, tuple(entry.shape), size)
        message = self._partial.get(key)
        if message is None or message.held != entry.offset:
            self._partial.pop(key, None)
            return
        message.places.append(place)
        message.held += place.length
        if message.held == message.size:
            del self._partial[key]
            if (entry.sender, entry.round) not in self.messages:
                self.messages[entry.sender, entry.round] = message
                bisect.insort(self._rounds.setdefault(entry.sender, []), entry.round)

    def drop_partial(self, sender: str, round: int, attempt: int) -> None:
        """Nobody will send the rest of this."""
        with self._lock:
            self._partial.pop((sender, round, attempt), None)


def size_of(dtype: str, shape: Any) -> int:
    size = int(dtype[-1])
    for n in shape:
        size *= int(n)
    return size
