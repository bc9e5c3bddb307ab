"""The folder of a run: checkpoints, the journal, and what must not change between two starts.

    run.json         which run, which node, which settings and data
    network.json     the records of all nodes, once all are known
    seed             private randomness of this node
    checkpoint-G     state after an iteration, what it was told since the start (known-*), and the round; the last two are kept
    journal-G        messages that came after checkpoint G was taken
    done.json        neighbors that have finished

A restart takes the newest good checkpoint and runs the program again from there; what it hears comes from the journal, what it says is sent
again. So a checkpoint is written only when the neighbors have acknowledged all that was said before it: nothing older need be said again.
"""

from __future__ import annotations

import fcntl
import json
import logging
import re
import secrets
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import NEW_RUN, Changed, Damaged
from ..protocol.membership import Record
from . import codec
from .journal import Journal

log = logging.getLogger("dekpca.peer")

CHECKPOINT = re.compile(r"checkpoint-(\d+)\.bin")
COPIES = ("a", "b")  # of what is known: it is written once, and both checkpoints need it
KEPT = 2
EXPOSED = stat.S_IRWXG | stat.S_IRWXO


@dataclass
class Saved:
    """Where a run stands: all that is needed to go on."""

    round: int = 0
    known: Any = None
    state: Any = None
    last_sent: dict[str, int] = field(default_factory=dict)
    traffic: dict[str, Any] = field(default_factory=dict)


class Store:
    """The folder, for one process at a time."""

    def __init__(self, folder: Path):
        self.folder = folder
        make_private(folder)
        self._lock = open(folder / "lock", "w", opener=codec.private)  # noqa: SIM115 - held as long as the process
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._lock.close()
            raise ValueError(
                f"{folder}: another process runs this node; end it first, or use another folder"
            ) from error
        self.journal = Journal(folder, opened=False)
        self._next = 1
        self._kept: list[tuple[int, int, int]] = []  # generation, round, generation of what is known; oldest first
        self._known: tuple[int, Any] | None = None  # generation and flattened value last written

    def open(self, facts: Mapping[str, str]) -> Saved:
        """Begin the run that these facts describe, or go on with it; returns where it stands. Raises Changed or Damaged."""
        for left in self.folder.glob("*.tmp"):
            left.unlink()
        self.claim(facts)
        self.journal = Journal(self.folder)
        self._next = 1 + max([self.journal.generation, *self._generations()])
        return self.load()

    def close(self) -> None:
        self.journal.close()
        self._lock.close()

    # ------------------------------------------------------------------ what must not change
    def claim(self, facts: Mapping[str, str]) -> None:
        """Begin the run that these facts describe, or go on with it."""
        path = self.folder / "run.json"
        if not path.exists():
            codec.write_text(path, json.dumps(dict(facts), indent=1))
            return
        before = self._read_object(path)
        differing = [
            f"{what} was {before.get(what, 'nothing')} and is {facts.get(what, 'nothing')}"
            for what in dict.fromkeys([*before, *facts])
            if before.get(what) != facts.get(what)
        ]
        if differing:
            raise Changed(
                f"{self.folder}: begun with other settings: {'; '.join(differing)}; use the same and start again, "
                "or begin a new run, with another folder and another run id"
            )

    def _read_object(self, path: Path) -> dict[str, Any]:
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except (ValueError, RecursionError) as error:
            raise Damaged(f"{path}: damaged; {NEW_RUN}") from error
        if not isinstance(content, dict):
            raise Damaged(f"{path}: damaged; {NEW_RUN}")
        return content

    def private_seed(self) -> int:
        """Randomness that nobody else knows, the same after a restart."""
        path = self.folder / "seed"
        if not path.exists():
            codec.write_text(path, str(secrets.randbits(120)))
        try:
            return int(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise Damaged(f"{path}: damaged; {NEW_RUN}") from error

    @property
    def records(self) -> dict[str, Record]:
        """Of all nodes, if they were all known once."""
        path = self.folder / "network.json"
        if not path.exists():
            return {}
        content = self._read_object(path)
        try:
            return {name: (tuple(map(str, around)), int(rows)) for name, (around, rows) in content.items()}
        except (ValueError, TypeError) as error:
            raise Damaged(f"{path}: damaged; {NEW_RUN}") from error

    def keep_records(self, records: Mapping[str, Record]) -> None:
        if not (self.folder / "network.json").exists():
            codec.write_text(self.folder / "network.json", json.dumps(records))

    # ------------------------------------------------------------------ checkpoints
    @property
    def through(self) -> int:
        """Nothing up to this round will be asked for again, whichever of the kept checkpoints is used."""
        return self._kept[0][1] if self._trimmed.exists() and self._kept else 0

    @property
    def _trimmed(self) -> Path:
        """There once it takes a checkpoint to go on: the journal does not reach back to the start any more."""
        return self.folder / "trimmed"

    def load(self) -> Saved:
        """The newest good checkpoint, or the start."""
        generations = sorted(self._generations(), reverse=True)
        found: Saved | None = None
        for generation in generations:
            try:
                content = codec.read(self._path(generation))
                known = self._read_known(content["known"])
            except Damaged as error:
                log.warning(
                    "checkpoint refused, trying the one before",
                    extra={"file": f"checkpoint-{generation}", "why": str(error)},
                )
                continue
            self._kept.insert(0, (generation, content["round"], content["known"]))
            if found is None:
                found = Saved(content["round"], known, content["state"], content["last_sent"], content["traffic"])
                self._known = content["known"], codec.flatten(known)
        if found is None:
            if self._trimmed.exists():
                raise Damaged(f"{self.folder}: none of the {len(generations)} checkpoints is good; {NEW_RUN}")
            return Saved()
        return found

    def save(self, saved: Saved) -> None:
        """Write a checkpoint, and begin a new journal."""
        generation, self._next = self._next, self._next + 1
        flat = codec.flatten(saved.known)
        if self._known is None or not codec.same(flat, self._known[1]):
            for copy in COPIES:
                codec.write(self._known_path(generation, copy), flat)
            self._known = generation, flat
        value = {
            "round": saved.round,
            "known": self._known[0],
            "state": saved.state,
            "last_sent": saved.last_sent,
            "traffic": saved.traffic,
        }
        codec.write(self._path(generation), codec.flatten(value))
        self._kept.append((generation, saved.round, self._known[0]))
        self.journal.rotate()
        if len(self._kept) >= KEPT and not self._trimmed.exists():
            codec.write_text(self._trimmed, "")
        del self._kept[:-KEPT]

    def trim(self) -> None:
        """Delete what is not needed any more. Neighbors must be told `through` before: they take what is neither said nor here for lost."""
        if not self.through:
            return
        kept = {self._path(g).name for g, _, _ in self._kept}
        kept |= {self._known_path(k, copy).name for _, _, k in self._kept for copy in COPIES}
        for path in self.folder.glob("*.bin"):
            if path.name.startswith(("checkpoint-", "known-")) and path.name not in kept:
                path.unlink()
        self.journal.forget(self.through)

    def _read_known(self, generation: int) -> Any:
        problem: Damaged | None = None
        for copy in COPIES:
            try:
                return codec.read(self._known_path(generation, copy))
            except Damaged as error:
                problem = error
        assert problem is not None
        raise problem

    def _generations(self) -> list[int]:
        return [int(m[1]) for p in self.folder.iterdir() if (m := CHECKPOINT.fullmatch(p.name))]

    def _path(self, generation: int) -> Path:
        return self.folder / f"checkpoint-{generation}.bin"

    def _known_path(self, generation: int, copy: str) -> Path:
        return self.folder / f"known-{generation}.{copy}.bin"


def make_private(folder: Path) -> None:
    """A folder that only its owner can read or enter; an existing one must be so."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        mode = stat.S_IMODE(folder.stat().st_mode)
    except OSError as error:
        raise ValueError(
            f"{folder}: cannot be used as the folder of a run ({error.strerror}); choose another"
        ) from error
    if mode & EXPOSED:
        raise ValueError(
            f"{folder}: others may read or enter it (mode {mode:04o}), and it holds rows of your neighbors; chmod 700 {folder}"
        )
