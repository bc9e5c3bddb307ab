"""The folder of a run: the data that a node needs to resume after it was killed.

    lock             held by the process that runs the node
    run.db           messages of the neighbors, the last two checkpoints, and facts:
      run              run id, node, settings and fingerprint of the data: they must not change
      network          the membership records of all nodes, once all are known
      seed             private randomness of this node
      fit              a name for this node's private fit in its owner's ledger
      releases         what was released with noise, by view: it stays when a view is forgotten
      ended            kind and text of an end after which the run cannot go on: keys and noise are deleted
      finished         neighbors that have their answer
      checkpoints      [generation, round, generation of the data from set-up], oldest first
      views            the promises of this node about views (protocol/views.py), and the view of its program
      view             the view of the messages and checkpoints
      trimmed          messages before the oldest checkpoint were deleted: the run cannot restart from the beginning

A restart runs the program from the newest intact checkpoint. Received messages come from the message log; its own
messages are sent again. So a checkpoint is written only when the neighbors have acknowledged all messages sent
before it.
"""

from __future__ import annotations

import base64
import fcntl
import io
import json
import logging
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ....files import PARTIAL, make_private, private
from ..errors import KINDS, NEW_RUN, Changed, Damaged, PeerError
from ..protocol.membership import Record
from ..protocol.view_messages import pack_kept, unpack_kept
from ..protocol.views import Kept, View
from . import codec
from .database import Database
from .messages import MessageLog

log = logging.getLogger("dekpca.peer")

COPIES = ("a", "b")  # of the data from set-up: it is written once, and both checkpoints need it
KEPT = 2  # checkpoints
PART = 1 << 20  # bytes of a value in one row


@dataclass
class Saved:
    """The state of a run: all that is needed to resume."""

    round: int = 0
    known: Any = None
    state: Any = None
    last_sent: dict[str, int] = field(default_factory=dict)
    traffic: dict[str, Any] = field(default_factory=dict)


class RunFolder:
    """The folder, for one process at a time."""

    database: Database
    messages: MessageLog

    def __init__(self, path: Path):
        self.path = path
        make_private(path, "rows of your neighbors")
        self._lock = open(path / "lock", "w", opener=private)  # noqa: SIM115 - held as long as the process
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._lock.close()
            raise ValueError(f"{path}: another process runs this node; end it first, or use another folder") from error
        self._open: list[Callable[[], None]] = [self._lock.close]
        self._kept: list[tuple[int, int, int]] = []  # generation, round, generation of `known`; oldest first
        self._known: tuple[int, Any] | None = None  # generation and flattened value last written

    def open(self, facts: Mapping[str, str]) -> Saved:
        """Begin or resume the run that these facts describe; returns its state. Raises Changed or Damaged."""
        for left in self.path.glob(PARTIAL.format("*")):
            left.unlink()
        self.database = Database(self.path)
        self._open.append(self.database.close)
        self.claim(facts)
        ended = self._fact("ended")
        if ended is not None:
            kind, text, told = ended
            raise KINDS.get(kind, Damaged)(
                f"{text} (this node ended so before, and its keys are deleted; {NEW_RUN})", told=told
            )
        if not self._in_view():  # killed before `wipe` was complete
            self._forget_view(self.views.program)
        self.messages = MessageLog(self.database)
        self._open.append(lambda: self.messages.close())
        return self.load()

    def close(self) -> None:
        while self._open:
            self._open.pop()()

    # ------------------------------------------------------------------ facts
    def claim(self, facts: Mapping[str, str]) -> None:
        """Begin or resume the run that these facts describe."""
        before = self._fact("run")
        if before is None:
            self._keep("run", dict(facts))
            return
        differing = [
            f"{what} was {before.get(what, 'nothing')} and is {facts.get(what, 'nothing')}"
            for what in dict.fromkeys([*before, *facts])
            if before.get(what) != facts.get(what)
        ]
        if differing:
            names = ", ".join(what for what in dict.fromkeys([*before, *facts]) if before.get(what) != facts.get(what))
            raise Changed(
                f"{self.path}: begun with other settings: {'; '.join(differing)}; use the same and start again, "
                "or begin a new run, with another folder and another run id",
                told=f"begun with other settings, and not the same any more: {names}",
            )

    def private_seed(self) -> int:
        """A secret seed of this node, the same after a restart."""
        seed = self._fact("seed")
        if seed is None:
            seed = secrets.randbits(120)
            self._keep("seed", seed)
        return int(seed)

    def secret(self, name: str, make: Callable[[], bytes]) -> bytes:
        """A secret of this node for the program in this view; the same after a restart, and deleted with the view."""
        kept = f"secret-{name}"
        if self._has_secret(name):
            return bytes(self._read(kept).tobytes())
        made = make()
        with self.database.lock:  # the writer thread must not commit a part of it
            self._write(kept, codec.flatten(np.frombuffer(made, dtype=np.uint8)))
            self.database.commit()  # before it is used
        return made

    def forget_secrets(self) -> None:
        """The run is over: after this, the folder cannot be used to unmask recorded sums."""
        self.database.wipe(["value"])

    def end(self, error: PeerError) -> None:
        """The run cannot go on after this error: if anything was sent under masks, secrets are deleted, and a start after that ends with the same
        error. Before all keys of a view are known nothing was, and the owner may correct what the error names.
        """
        if not hasattr(self, "database") or not self._has_secret("public keys"):
            return
        if self._in_view():
            self._keep("ended", [type(error).__name__, str(error), error.told])
        self.forget_secrets()

    def _in_view(self) -> bool:
        """Whether messages and secrets are of the view that the program runs in: killed in between, they are of the one before."""
        return (self._fact("view") or str(View())) == str(self.views.program)

    def _has_secret(self, name: str) -> bool:
        return bool(self.database.read("SELECT 1 FROM value WHERE name = ? LIMIT 1", [f"secret-{name}"]))

    # ------------------------------------------------------------------ releases with noise
    @property
    def fit(self) -> str:
        """A name for this node's private fit, the same after a restart and in all views."""
        name = self._fact("fit")
        if name is None:
            name = secrets.token_hex(16)
            self._keep("fit", name)
        return str(name)

    @property
    def releases(self) -> dict[str, list[dict[str, Any]]]:
        """Entries of a ledger, by the view in which they were released."""
        return self._fact("releases") or {}

    def keep_release(self, view: str, entries: list[dict[str, Any]]) -> None:
        """Returns when it is on disk: before anything of it is sent."""
        if view not in self.releases:
            self._keep("releases", self.releases | {view: entries})

    @property
    def records(self) -> dict[str, Record]:
        """The records of all nodes, if they were complete."""
        return {name: (tuple(around), rows) for name, (around, rows) in (self._fact("network") or {}).items()}

    def keep_records(self, records: Mapping[str, Record]) -> None:
        if self._fact("network") is None:
            self._keep("network", records)

    @property
    def finished(self) -> list[str]:
        """Neighbors that have their answer."""
        return self._fact("finished") or []

    def keep_finished(self, name: str) -> None:
        """Returns when it is on disk."""
        self._keep("finished", sorted({*self.finished, name}))

    # ------------------------------------------------------------------ views
    @property
    def views(self) -> Kept:
        found = self._fact("views")
        return Kept() if found is None else unpack_kept([base64.b64decode(part) for part in found])

    def keep_views(self, name: str, kept: Kept) -> None:
        """Returns when it is on disk."""
        self._keep("views", [base64.b64encode(part).decode() for part in pack_kept(name, kept)])

    def wipe(self, view: View) -> None:
        """The program restarts in this view: messages and checkpoints of an earlier one, which hold rows of lost nodes, are deleted."""
        self.messages.close()
        self._forget_view(view)
        self.messages = MessageLog(self.database)

    def _forget_view(self, view: View) -> None:
        self.database.wipe(["chunk", "value"])
        for name in ("checkpoints", "trimmed"):
            self.database.write("DELETE FROM fact WHERE name = ?", [name])
        self._kept, self._known = [], None
        self._keep("view", str(view))  # last: if killed before, the wipe is repeated

    def _fact(self, name: str) -> Any:
        value = self.database.fact(name)
        return None if value is None else json.loads(value)

    def _keep(self, name: str, value: Any) -> None:
        self.database.set_fact(name, json.dumps(value))
        self.database.commit()

    # ------------------------------------------------------------------ checkpoints
    @property
    def through(self) -> int:
        """Messages up to this round are not needed by any stored checkpoint."""
        return self._kept[0][1] if self._kept and self._fact("trimmed") else 0

    def load(self) -> Saved:
        """The newest intact checkpoint, or the start."""
        kept = [(int(g), int(r), int(k)) for g, r, k in self._fact("checkpoints") or []]
        found: Saved | None = None
        for generation, round, known in reversed(kept):
            try:
                content = self._read(f"checkpoint-{generation}")
                learned = self._read_known(known)
            except Damaged as error:
                about = {"file": f"checkpoint-{generation}", "why": str(error)}
                log.warning("checkpoint refused, trying the one before", extra=about)
                continue
            self._kept.insert(0, (generation, round, known))
            if found is None:
                found = Saved(round, learned, content["state"], content["last_sent"], content["traffic"])
                self._known = known, codec.flatten(learned)
        if found is None and self._fact("trimmed"):
            raise self.database.damaged(f"all {len(kept)} checkpoints")
        return found or Saved()

    def save(self, saved: Saved) -> None:
        """Write a checkpoint; returns when it is on disk."""
        generation = 1 + max([g for g, _, _ in self._kept], default=0)
        flat = codec.flatten(saved.known)
        if self._known is None or not codec.same(flat, self._known[1]):
            for copy in COPIES:
                self._write(f"known-{generation}.{copy}", flat)
            self._known = generation, flat
        value = {"state": saved.state, "last_sent": saved.last_sent, "traffic": saved.traffic}
        self._write(f"checkpoint-{generation}", codec.flatten(value))
        self._kept = [*self._kept, (generation, saved.round, self._known[0])][-KEPT:]
        if len(self._kept) == KEPT and not self._fact("trimmed"):
            self.database.set_fact("trimmed", json.dumps(True))
        self._keep("checkpoints", self._kept)

    def trim(self) -> None:
        """Delete messages that are not needed. Neighbors must know `through` first: otherwise missing messages would count as lost."""
        if self.through:
            names = [f"checkpoint-{g}" for g, _, _ in self._kept]
            names += [f"known-{k}.{copy}" for k in {k for _, _, k in self._kept} for copy in COPIES]
            self.database.write(f"DELETE FROM value WHERE name NOT IN ({', '.join('?' * len(names))})", names)
            self.messages.forget(self.through)

    def _write(self, name: str, flat: Any) -> None:
        self.database.write("DELETE FROM value WHERE name = ?", [name])
        codec.write_to(_Parts(self.database, name), flat)

    def _read(self, name: str) -> Any:
        sizes = self.database.read("SELECT start, length(data) FROM value WHERE name = ? ORDER BY start", [name])
        stream = io.BufferedReader(_Parts(self.database, name), PART)
        return codec.read_from(stream, sum(size for _, size in sizes), f"{self.database.path}, {name}")

    def _read_known(self, generation: int) -> Any:
        for copy in COPIES[:-1]:
            try:
                return self._read(f"known-{generation}.{copy}")
            except Damaged as error:
                log.warning("a copy is damaged, trying the other", extra={"why": str(error)})
        return self._read(f"known-{generation}.{COPIES[-1]}")


class _Parts(io.RawIOBase):
    """A value in the database, as a stream: rows of at most PART bytes."""

    def __init__(self, database: Database, name: str):
        self.database, self.name, self.at = database, name, 0

    def readable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        data = memoryview(data)
        for start in range(0, len(data), PART):
            part = data[start : start + PART]
            self.database.write("INSERT INTO value VALUES (?, ?, ?)", [self.name, self.at, part])
            self.at += len(part)
        return len(data)

    def readinto(self, into: Any) -> int:
        """Read from the row that contains this position."""
        found = self.database.read(
            "SELECT start, data FROM value WHERE name = ? AND start <= ? ORDER BY start DESC LIMIT 1", [self.name, self.at]
        )  # fmt: skip
        data = found[0][1][self.at - found[0][0] :][: len(into)] if found else b""
        into[: len(data)] = data
        self.at += len(data)
        return len(data)
