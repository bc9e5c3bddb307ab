"""`fit(..., checkpoint=folder)`: a long fit that was killed goes on from its last checkpoint, to the same bits.

A process writes what its program hands over at a `Checkpoint` (messages.py), at most every second and so that it costs a tenth of the time at most:

    rank-0.json        the data and the settings: they must not change
    rank-0-35.known    what was learned in set-up, the neighbors' samples above all; written when it changes
    rank-0-35.state    the iterate, what was sent so far, and which `known` belongs to it

Files are written aside, synced and renamed (peer/storage/codec.py: checksums, no pickle), and readable by their owner only. The last two checkpoints
stay, since a rank of an MPI job may be killed before it has written the last one: the ranks go on from the newest that all of them have. When the fit
has ended the files are deleted; after Ctrl-C, which keeps the last iterate as the result, they stay.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import array_api_compat as aac
import numpy as np

from ..block import Block
from ..core import native
from ..core.spectrum import to_numpy
from ..core.stopping import INTERRUPTED
from ..files import PARTIAL, make_private, private, write_text
from ..messages import Checkpoint
from ..plan import Observer, Plan, Traffic
from .agreement import facts, settings_of
from .delivery import Delivery
from .peer.errors import Damaged
from .peer.storage import codec

log = logging.getLogger("dekpca")

APART = 1.0  # seconds between two checkpoints, at least
SHARE = 10.0  # and so many times what writing one takes
KEPT = 2


@dataclass(frozen=True)
class Together:
    """What the processes of a fit agree on; here one process alone."""

    rank: int = 0
    size: int = 1
    checking: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext
    texts: Callable[[str], list[str]] = lambda text: [text]  # what each process says
    from_first: Callable[[int], int] = lambda number: number


Begin = Callable[[Delivery], tuple[Observer | None, Any]]


@contextlib.contextmanager
def keeping(plan: Plan, observer: Observer | None, together: Together | None = None) -> Iterator[Begin]:
    """A function that gives the observer to run a plan with, and what to resume from; without a folder those that there are anyway."""
    if plan.checkpoint is None:
        yield lambda delivery: (observer, plan.resume)
        return
    others = together or Together()
    with contextlib.ExitStack() as opened:
        with others.checking():
            folder = opened.enter_context(Checkpoints(plan.checkpoint, facts_of(plan, others), others.rank))
        held = [set(json.loads(text)) for text in others.texts(json.dumps(folder.steps))]
        common = set.intersection(*held)
        if any(held) and not common:
            log.warning(f"{plan.checkpoint}: no checkpoint is there for all processes; the fit begins anew")
        step, resume, sent = max(common, default=0), None, None
        if common:
            with others.checking():
                resume, sent = folder.load(step)
        folder.trim()
        due, interrupted = time.monotonic() + APART, False

        def begin(delivery: Delivery) -> tuple[Observer, Any]:
            traffic = delivery.traffic
            if sent is not None:
                traffic.messages, traffic.bytes = sent["messages"], sent["bytes"]
                traffic.edge_bytes = sent["edge_bytes"]

            def observe(blocks: list[Block], requests: list[Checkpoint]) -> None:
                nonlocal step, due, interrupted
                step += 1
                interrupted = requests[0].state.verdict == INTERRUPTED  # the same at all nodes
                if others.from_first(int(time.monotonic() >= due)) or interrupted:
                    begun = time.monotonic()
                    folder.save(step, requests, traffic)
                    others.texts("")  # all have written it: no process deletes the last checkpoint that another has
                    folder.trim()
                    due = time.monotonic() + max(APART, SHARE * (time.monotonic() - begun))
                if observer is not None:
                    observer(blocks, requests)

            return observe, resume

        yield begin
        if not interrupted:
            folder.clear()


def facts_of(plan: Plan, others: Together) -> dict[str, str]:
    """What a fit that goes on must have in common with the one that began."""
    first = plan.parts[0]
    if not aac.is_numpy_array(first):
        raise ValueError(
            f"checkpoint= with {type(first).__name__}: only fits of NumPy arrays on the host can be resumed"
        )
    digest = hashlib.sha256()
    for j, part in zip(plan.nodes.tolist(), plan.parts, strict=True):
        digest.update(f"{j} {part.shape} {part.dtype}".encode())
        for start in range(0, len(part), 4096):
            digest.update(np.ascontiguousarray(to_numpy(part[start : start + 4096])).tobytes())
    known = facts(plan.network, plan.features.count, first.dtype, settings_of(plan.options))
    known |= {"data": digest.hexdigest()[:16], "columns": repr(plan.features.names), "compiled code": native.level()}
    known |= {"memory_limit": str(plan.memory_limit), "number of ranks": str(others.size)}
    return known | {"nodes of this process": str(plan.nodes.tolist())}


class Checkpoints:
    """The files of one process in a folder. Raises ValueError if they are of other data or settings, or if another process uses them."""

    def __init__(self, path: Path, known: Mapping[str, str], rank: int = 0):
        self.path, self._name = Path(path), f"rank-{rank}"
        self._known: tuple[int, Any] | None = None  # step and flattened value last written
        self._needs: dict[int, int] = {}  # checkpoints, and the `known` that belongs to each
        make_private(self.path, "rows, for checkpoint=")
        self._lock = open(self.path / f"{self._name}.lock", "w", opener=private)  # noqa: SIM115 - held as long as this is open
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._lock.close()
            raise ValueError(
                f"{self.path}: another process uses these checkpoints; end it, or use another folder"
            ) from error
        self.steps = sorted(int(file.stem.rpartition("-")[2]) for file in self.path.glob(f"{self._name}-*.state"))
        try:
            self._claim(known)
        except BaseException:
            self._lock.close()
            raise

    def __enter__(self) -> Checkpoints:
        return self

    def __exit__(self, *unused: object) -> None:
        self._lock.close()

    def _claim(self, known: Mapping[str, str]) -> None:
        facts = self.path / f"{self._name}.json"
        if not facts.exists() or not self.steps:
            write_text(facts, json.dumps(dict(known)))
            return
        before = json.loads(facts.read_text(encoding="utf-8"))
        differing = [
            _difference(what, before.get(what, "nothing"), known.get(what, "nothing"))
            for what in dict.fromkeys([*before, *known])
            if before.get(what) != known.get(what)
        ]
        if differing:
            raise ValueError(
                f"{self.path}: checkpoints of another fit: {'; '.join(differing)}; give the same, or another folder"
            )

    def load(self, step: int) -> tuple[list[tuple[Any, Any]], dict[str, Any]]:
        """(known, state) of each block, and what was sent before."""
        try:
            content: Any = codec.read(self._file(step, "state"))
            known = codec.read(self._file(content["known"], "known"))
        except Damaged as error:
            raise ValueError(f"{error}; delete the files in {self.path} to begin the fit again") from error
        self._known = content["known"], codec.flatten(known)
        self._needs = {step: content["known"]}
        return list(zip(known, content["states"], strict=True)), content["traffic"]

    def save(self, step: int, requests: Sequence[Checkpoint], traffic: Traffic) -> None:
        """Returns when it is on disk."""
        flat = codec.flatten([request.known for request in requests])
        if self._known is None or not codec.same(flat, self._known[1]):
            codec.write(self._file(step, "known"), flat)
            self._known = step, flat
        sent = {"messages": traffic.messages, "bytes": traffic.bytes, "edge_bytes": traffic.edge_bytes}
        value = {"known": self._known[0], "states": [request.state for request in requests], "traffic": sent}
        codec.write(self._file(step, "state"), codec.flatten(value))
        self._needs[step] = self._known[0]

    def trim(self) -> None:
        """Delete all but the last checkpoints, as far as they were written or loaded here."""
        self._needs = dict(sorted(self._needs.items())[-KEPT:])
        wanted = {self._file(step, "state") for step in self._needs}
        wanted |= {self._file(step, "known") for step in self._needs.values()}
        for file in [*self.path.glob(f"{self._name}-*"), *self.path.glob(PARTIAL.format(f"{self._name}*"))]:
            if file not in wanted:
                file.unlink()

    def clear(self) -> None:
        """The fit has ended: nothing of it is left."""
        self._needs = {}
        self.trim()
        (self.path / f"{self._name}.json").unlink()
        (self.path / f"{self._name}.lock").unlink()

    def _file(self, step: int, kind: str) -> Path:
        return self.path / f"{self._name}-{step}.{kind}"


def _difference(what: str, before: str, now: str) -> str:
    """Of texts of several lines, such as the edges of a network, the lines that only one has."""
    old, new = before.splitlines(), now.splitlines()
    gone, come = (", ".join(line for line in one if line not in other) for one, other in ((old, new), (new, old)))
    return f"{what} was {_short(gone or before)} and is {_short(come or now)}"


def _short(text: str) -> str:
    return text if len(text) < 200 else f"{text[:200]}..."
