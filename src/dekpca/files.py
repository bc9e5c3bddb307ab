"""Atomic writes of files, readable by their owner only unless they reveal nothing about rows; folders of such files."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

PRIVATE = 0o600  # a file with rows, or from which rows could be inferred
PUBLIC = 0o644
EXPOSED = stat.S_IRWXG | stat.S_IRWXO
PARTIAL = ".{}-*.part"  # temporary file that a killed process leaves of the file {}


@contextmanager
def atomic_write(path: str | os.PathLike[str], mode: int = PRIVATE) -> Iterator[IO[bytes]]:
    """A binary file that replaces the one under `path` when the block ends without an error; `mode` is minus the umask."""
    target = Path(path)
    with _naming(target):
        # mkstemp makes a file that only its owner can read, whatever the umask
        handle, aside = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}-", suffix=".part")
        try:
            with os.fdopen(handle, "wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.chmod(aside, mode & ~_umask())
            os.replace(aside, target)
            _sync(target.parent)
        except BaseException:
            with suppress(OSError):
                os.unlink(aside)
            raise


def write_text(path: str | os.PathLike[str], text: str, mode: int = PRIVATE) -> None:
    """Write a text file atomically."""
    with atomic_write(path, mode) as file:
        file.write(text.encode())


def private(path: str, flags: int) -> int:
    """An `opener` for open: mode 600, whatever the umask; a link is not followed, since somebody else may have put it there."""
    return os.open(path, flags | os.O_NOFOLLOW, PRIVATE)


def make_private(folder: Path, what: str) -> None:
    """Make a folder that only its owner can read or enter, or check an existing one. `what` describes its content."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        mode = stat.S_IMODE(folder.stat().st_mode)
    except OSError as error:
        raise ValueError(f"{folder}: cannot be a folder for {what} ({error.strerror}); choose another") from error
    if mode & EXPOSED:
        exposed = f"others may read or enter it (mode {mode:04o})"
        raise ValueError(f"{folder}: {exposed}, and it will hold {what}; chmod 700 {folder}")


def _sync(folder: Path) -> None:
    """A renamed file survives a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Add the name of the file to errors such as a full disk or a missing folder."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, f"cannot be written ({error.strerror})", str(path)) from error


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
