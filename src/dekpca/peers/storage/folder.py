"""The folder of a run: the data that a node needs to resume after it was killed.

    lock             held by the process that runs the node
    run.db           messages of the neighbors, secrets of this node, and facts:
      run              run id, node, settings and fingerprint of the data: they must not change
      network          the membership records of all nodes, once all are known
      seed             private randomness of this node
      fit              a name for this node's private fit in its owner's ledger
      releases         what was released with noise, by view: it stays when a view is forgotten
      ended            kind and text of an end after which the run cannot go on: keys and noise are deleted
      finished         neighbors that have their answer
      views            the promises of this node about views (protocol/views.py), and the view of its program
      view             the view of the messages and secrets
      status of NAME   the latest status of another node that this one has heard of

A restart runs the program from its start. What it heard before comes from the message log; its own messages are sent
again, and neighbors that have them ignore them.
"""

from __future__ import annotations

import base64
import fcntl
import logging
import secrets
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from ...files import PARTIAL, make_private, private
from ..errors import KINDS, NEW_RUN, Changed, Damaged, OlderCopy, PeerError
from ..protocol.handshake import COLUMNS
from ..protocol.membership import Record
from ..protocol.view_messages import pack_kept, pack_status, unpack_kept, unpack_stored
from ..protocol.views import Kept, Status, View
from .database import Database, checksum
from .messages import MessageLog

log = logging.getLogger("dekpca.peer")


class RunFolder:
    """The folder, for one process at a time. `path` None: all is in a `database` that the caller has opened."""

    messages: MessageLog

    def __init__(self, path: Path | None, database: Database | None = None):
        self.path = path
        self._open = ExitStack()
        if database is not None:
            self.database = database
        if path is not None:
            make_private(path, "messages of your neighbors, and keys")
            try:
                lock = open(path / "lock", "w", opener=private)  # noqa: SIM115 - held as long as the process
            except OSError as error:
                raise ValueError(f"{path / 'lock'}: {error.strerror}; use another folder") from error
            self._open.callback(lock.close)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                self.close()
                text = "another process runs this node; use that one, or end it first"
                raise ValueError(f"{path}: {text}") from error

    def open(self, facts: Mapping[str, str]) -> None:
        """Begin or resume the run that these facts describe. Raises Changed or Damaged."""
        if self.path is not None:
            for left in self.path.glob(PARTIAL.format("*")):
                left.unlink()
            self.database = Database(self.path)
            self._open.callback(self.database.close)
        self.claim(facts)
        ended = self.database.fact("ended")
        if ended is not None:
            kind, text, told = ended
            text = f"{text} (this node ended so before, and its keys are deleted; {NEW_RUN})"
            raise KINDS.get(kind, Damaged)(text, told=told)
        if not self._in_view():  # killed before `wipe` was complete
            self._forget_view(self.views.program)
        self.messages = MessageLog(self.database)
        self._open.callback(lambda: self.messages.close())

    def close(self) -> None:
        self._open.close()

    # ------------------------------------------------------------------ facts
    def claim(self, facts: Mapping[str, str]) -> None:
        """Begin or resume the run that these facts describe."""
        before = self._once("run", lambda: dict(facts))
        names = [what for what in dict.fromkeys([*before, *facts]) if before.get(what) != facts.get(what)]
        if names:
            if "run" in names:  # the fingerprint of the columns is one in this run
                names = [what for what in names if what != COLUMNS]
            was = [f"{what} was {before.get(what, 'nothing')} and is {facts.get(what, 'nothing')}" for what in names]
            remedy = "use the same and start again, or begin a new run, with another folder and another run id"
            told = f"begun with other settings, and not the same any more: {', '.join(names)}"
            raise Changed(f"{self.path}: begun with other settings: {'; '.join(was)}; {remedy}", told=told)

    def private_seed(self) -> int:
        """A secret seed of this node, the same after a restart."""
        return self._once("seed", lambda: secrets.randbits(120))

    def _once(self, name: str, make: Callable[[], Any]) -> Any:
        """A fact that is made when it is first asked for, and stays."""
        if self.database.fact(name) is None:
            self.database.keep({name: make()})
        return self.database.fact(name)

    def secret(self, name: str, make: Callable[[], bytes]) -> bytes:
        """A secret of this node for the program in this view; the same after a restart, and deleted with the view."""
        for crc, data in self.database.read("SELECT crc, data FROM secret WHERE name = ?", [name]):
            if checksum(name, data) != crc:
                raise self.database.damaged(f"its {name!r}")
            return bytes(data)
        made = make()
        self.database.write("INSERT INTO secret VALUES (?, ?, ?)", [name, checksum(name, made), made])
        self.database.commit()  # before it is used
        return made

    def forget_secrets(self) -> None:
        """The run is over: after this, the folder cannot be used to unmask recorded sums."""
        self.database.wipe(["secret"])

    def end(self, error: PeerError) -> None:
        """The run cannot go on after this error: if anything was sent under masks, secrets are deleted, and a start after that ends with the same
        error. Before all keys of a view are checked nothing was, and the owner may correct what the error names. An older copy of a folder stays one.
        """
        has_keys = "SELECT 1 FROM secret WHERE name = 'checked records'"
        if not hasattr(self, "database") or not (isinstance(error, OlderCopy) or self.database.read(has_keys)):
            return
        if self._in_view():
            self.database.keep({"ended": [type(error).__name__, str(error), error.told]})
        self.forget_secrets()

    def _in_view(self) -> bool:
        """Whether messages and secrets are of the view that the program runs in: killed in between, they are of the one before."""
        return (self.database.fact("view") or str(View())) == str(self.views.program)

    # ------------------------------------------------------------------ releases with noise
    @property
    def fit(self) -> str:
        """A name for this node's private fit, the same after a restart and in all views."""
        return self._once("fit", lambda: secrets.token_hex(16))

    @property
    def releases(self) -> dict[str, list[dict[str, Any]]]:
        """Entries of a ledger, by the view in which they were released."""
        return self.database.fact("releases") or {}

    def keep_release(self, view: str, entries: list[dict[str, Any]]) -> None:
        """Returns when it is on disk: before anything of it is sent."""
        if view not in self.releases:
            self.database.keep({"releases": self.releases | {view: entries}})

    @property
    def records(self) -> dict[str, Record]:
        """The records of all nodes, if they were complete."""
        return {name: (tuple(around), rows) for name, (around, rows) in (self.database.fact("network") or {}).items()}

    def keep_records(self, records: Mapping[str, Record]) -> None:
        self._once("network", lambda: records)

    @property
    def finished(self) -> list[str]:
        """Neighbors that have their answer."""
        return self.database.fact("finished") or []

    def keep_finished(self, name: str) -> None:
        """Returns when it is on disk."""
        self.database.keep({"finished": sorted({*self.finished, name})})

    # ------------------------------------------------------------------ views
    @property
    def views(self) -> Kept:
        found = self.database.fact("views")
        return Kept() if found is None else unpack_kept([base64.b64decode(part) for part in found])

    def keep_views(self, name: str, kept: Kept) -> None:
        """Returns when it is on disk."""
        self.database.keep({"views": [base64.b64encode(part).decode() for part in pack_kept(name, kept)]})

    @property
    def statuses(self) -> dict[str, Status]:
        """The latest statuses of other nodes that this one has heard of, by name."""
        names = self.database.read("SELECT name FROM fact WHERE name LIKE 'status of %'")
        return dict(unpack_stored(base64.b64decode(self.database.fact(name))) for (name,) in names)

    def keep_statuses(self, statuses: Mapping[str, Status]) -> None:
        """Returns when they are on disk."""
        packed = {name: pack_status(name, status).SerializeToString() for name, status in statuses.items()}
        self.database.keep({f"status of {n}": base64.b64encode(data).decode() for n, data in packed.items()})

    def wipe(self, view: View) -> None:
        """The program restarts in this view: messages and secrets of an earlier one, which hold rows of lost nodes, are deleted."""
        self.messages.close()
        self._forget_view(view)
        self.messages = MessageLog(self.database)

    def _forget_view(self, view: View) -> None:
        self.database.wipe(["chunk", "secret"])
        self.database.keep({"view": str(view)})  # last: if killed before, the wipe is repeated
