"""The SQLite database of a run. Committed data survives a crash or a power cut; this module adds what SQLite lacks.

- Files have mode 600 whatever the umask (SQLite gives its write-ahead log the mode of the database).
- Damage is detected: SQLite checks its structure, but not the content. So every row has a checksum.
- Errors have the types of this package: Damaged, or an OSError that names the file.

One connection, used by one thread at a time (`lock`). The connection can read written data at once; the data
survives `kill -9` and a power cut after `commit`, which syncs (synchronous=FULL).
"""

from __future__ import annotations

import errno
import json
import os
import sqlite3
import threading
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from ..errors import NEW_RUN, Damaged

FILE = "run.db"
PAGE = 1 << 14  # bytes; most rows are blobs of up to 256 KiB, some are small messages
MOST_LOG = 1 << 26  # bytes of the write-ahead log, after which it is copied to the database and restarted
PRAGMAS = (
    f"page_size={PAGE}", "journal_mode=WAL", "synchronous=FULL", f"wal_autocheckpoint={MOST_LOG // PAGE}", "temp_store=MEMORY",
    f"journal_size_limit={MOST_LOG}", "secure_delete=ON",
)  # fmt: skip
SCHEMA = """
CREATE TABLE IF NOT EXISTS fact (name TEXT PRIMARY KEY, value TEXT, crc INTEGER);
CREATE TABLE IF NOT EXISTS secret (name TEXT, crc INTEGER, data BLOB);
CREATE TABLE IF NOT EXISTS chunk (id INTEGER PRIMARY KEY, sender TEXT, round INTEGER, attempt INTEGER, kind TEXT, dtype TEXT, shape TEXT,
                                  start INTEGER, data BLOB, crc INTEGER);
"""
CORRUPT = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_FORMAT, sqlite3.SQLITE_MISMATCH}
FULL = "no space, a limit on the size of files, or a broken disk"
ERRNO = {
    sqlite3.SQLITE_FULL: (errno.ENOSPC, os.strerror(errno.ENOSPC)),
    sqlite3.SQLITE_IOERR: (errno.EIO, f"cannot be written: {FULL}"),
    sqlite3.SQLITE_NOMEM: (errno.ENOMEM, os.strerror(errno.ENOMEM)),
}


class Database:
    """The tables of one run's folder; None: in memory."""

    def __init__(self, folder: Path | None):
        self.path = Path(":memory:") if folder is None else folder / FILE
        self.lock = threading.RLock()
        if folder is not None:
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600))
        with self.translated():
            self._connection = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False)
            try:
                for pragma in PRAGMAS:
                    self._connection.execute(f"PRAGMA {pragma}")
                ((found,),) = self._connection.execute("PRAGMA quick_check(1)")
                if found != "ok":
                    raise sqlite3.DatabaseError(found)
                self._connection.executescript(f"BEGIN;{SCHEMA}COMMIT;")  # one sync, not one for each table
            except BaseException:
                self._connection.close()
                raise

    def close(self) -> None:
        """Uncommitted data is rolled back. The write-ahead log stays, as after `kill -9`: the last connection with
        write access would copy it to the database and sync both. So a read-only connection is closed last.
        """
        with self.lock, ExitStack() as last:
            with suppress(sqlite3.Error):  # if this fails, the log is copied
                reader = sqlite3.connect(f"{self.path.absolute().as_uri()}?mode=ro", uri=True)
                last.callback(reader.close)
                reader.execute("SELECT count(*) FROM fact").fetchall()
            self._connection.close()

    def write(self, statement: str, values: Sequence[Any] = ()) -> None:
        """Run a statement in the open transaction."""
        with self.lock, self.translated():
            if not self._connection.in_transaction:
                self._connection.execute("BEGIN")
            self._connection.execute(statement, values)

    def commit(self) -> None:
        """Returns when all writes are on disk."""
        with self.lock, self.translated():
            if self._connection.in_transaction:
                self._connection.execute("COMMIT")

    def wipe(self, tables: Sequence[str]) -> None:
        """Delete the content of tables; SQLite overwrites it (secure_delete). Returns when that is on disk, and not in the log any more."""
        with self.lock, self.translated():
            for table in tables:
                self.write(f"DELETE FROM {table}")
            self.commit()
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def read(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        return list(self.each(statement, values))

    def each(self, statement: str, values: Sequence[Any] = ()) -> Iterator[tuple[Any, ...]]:
        """Iterate over rows, for rows that are large together. No other thread may use the database meanwhile."""
        with self.lock, self.translated():
            yield from self._connection.execute(statement, values)

    def fact(self, name: str) -> Any:
        """A small value, None if there is none."""
        for value, crc in self.read("SELECT value, crc FROM fact WHERE name = ?", [name]):
            if checksum(name, value) != crc:
                raise self.damaged(f"its {name!r}")
            return json.loads(value)
        return None

    def keep(self, values: Mapping[str, Any]) -> None:
        """Write small values by name; returns when they, and all that was written before, are on disk."""
        for name, value in values.items():
            text = json.dumps(value)
            self.write("INSERT OR REPLACE INTO fact VALUES (?, ?, ?)", [name, text, checksum(name, text)])
        self.commit()

    def damaged(self, what: str) -> Damaged:
        return Damaged(f"{self.path}: {what} damaged; {NEW_RUN}")

    @contextmanager
    def translated(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF
            if code in CORRUPT:
                raise Damaged(f"{self.path}: damaged ({error}); {NEW_RUN}") from error
            number, text = ERRNO.get(code, (errno.EIO, str(error)))
            raise OSError(number, text, str(self.path)) from error


def checksum(*parts: Any) -> int:
    """CRC-32 of texts, numbers and bytes."""
    crc = 0
    for part in parts:
        data = part if isinstance(part, (bytes, memoryview)) else f"{part}\x1f".encode()
        crc = zlib.crc32(data, crc)
    return crc
