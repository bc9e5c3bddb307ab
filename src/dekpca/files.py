"""Files that are there whole or not at all, readable by their owner only unless they hold nothing of anybody's rows; folders of such files."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

PRIVATE = 0o600  # a file with rows, or from which rows could be worked out
PUBLIC = 0o644
EXPOSED = stat.S_IRWXG | stat.S_IRWXO
PARTIAL = ".{}-*.part"  # what a process that was killed leaves of the file {}


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
        handle, aside = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}-", suffix=".part")
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


def private(path: str, flags: int) -> int:
    """As `opener` of open: whatever the umask, for the owner alone."""
    return os.open(path, flags, PRIVATE)


def make_private(folder: Path, what: str) -> None:
    """A folder that only its owner can read or enter; an existing one must be so. `what` is what it will hold."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        mode = stat.S_IMODE(folder.stat().st_mode)
    except OSError as error:
        raise ValueError(
            f"{folder}: cannot be used as a folder for {what} ({error.strerror}); choose another"
        ) from error
    if mode & EXPOSED:
        raise ValueError(
            f"{folder}: others may read or enter it (mode {mode:04o}), and it will hold {what}; chmod 700 {folder}"
        )


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
