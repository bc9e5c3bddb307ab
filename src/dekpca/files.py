"""Files that are there whole or not at all, readable by their owner only unless they hold nothing of anybody's rows."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

PRIVATE = 0o600  # a file with rows, or from which rows could be worked out
PUBLIC = 0o644


@contextmanager
def atomic_write(path: str | os.PathLike[str], mode: int = PRIVATE) -> Iterator[IO[bytes]]:
    """A binary file that appears under `path` when the block ends without an error: written aside, synced, renamed.

    Whatever was under `path` stays until then. `mode` is that of the file, less the umask.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "notes.txt"
    >>> with atomic_write(path) as file:
    ...     _ = file.write(b"all or nothing")
    >>> path.read_bytes(), oct(path.stat().st_mode & 0o777)
    (b'all or nothing', '0o600')
    """
    target = Path(path)
    with _naming(target):
        # mkstemp makes a file that its owner alone can read, whatever the umask
        handle, aside = tempfile.mkstemp(dir=target.parent, prefix=".dekpca-", suffix=".part")
    try:
        with _naming(target), os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.chmod(aside, mode & ~_umask())
        with _naming(target):
            os.replace(aside, target)
            sync_folder(target.parent)
    except BaseException:
        with suppress(OSError):
            os.unlink(aside)
        raise


def write_text(path: str | os.PathLike[str], text: str, mode: int = PRIVATE) -> None:
    """A text file, whole or not at all."""
    with atomic_write(path, mode) as file:
        file.write(text.encode())


def sync_folder(folder: Path) -> None:
    """So that a file that was renamed into the folder is there after a power cut."""
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """A full disk or a missing folder is an error that names the file which was to be written."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, f"cannot be written ({error.strerror})", str(path)) from error


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
