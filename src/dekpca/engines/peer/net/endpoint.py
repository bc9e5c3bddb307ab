"""The station: what the server, the links to the neighbors and the program of a node share, and the only place where they wait for each other.

The program runs in one thread and gRPC in another. What both touch is guarded by `changed`, which is notified whenever something that
somebody may wait for has happened. Nothing here knows of sockets.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ....network import listing
from ..errors import KINDS, NEW_RUN, Damaged, Disagreement, PeerLost, ProtocolError, TooMuch
from ..protocol import wire_pb2 as wire
from ..protocol.checks import BROKEN_OFF, MOST_WAITS, WAITING, Letter, Limits
from ..protocol.membership import Record, Roster
from ..protocol.progress import Effort, Told, stuck
from ..protocol.text import showable
from ..storage.codec import write_text
from ..storage.journal import Journal, Message

log = logging.getLogger("dekpca.peer")

POLL = 0.25  # seconds between looks at the clock while waiting
FAREWELL = 3.0  # seconds in which the neighbors are told that this node stops
# Seconds in which those that have not come yet are told, too: enough for nodes that are started together, and not so long that an
# owner who has corrected the config is kept from starting again.
LATE = 60.0
REMEMBERED = 64  # acknowledgements by which a neighbor that lost its folder is known
DONE_FILE = "done.json"
REFUSING = "refusing"  # the phase of a node that does not resume, and stays only to say why


@dataclass(frozen=True)
class Timeouts:
    """Seconds."""

    peer: float = 300.0  # without an answer from a neighbor that is waited for
    start: float = 3600.0  # until a neighbor answers for the first time
    beat: float = 2.0  # between two signs of life
    progress: float = 3600.0  # until a neighbor that is alive must make progress


@dataclass(eq=False)
class Neighbor:
    """What this node knows of a neighbor."""

    name: str
    address: str
    outbox: OrderedDict[int, tuple[Letter, Sequence[memoryview]]] = field(
        default_factory=OrderedDict
    )  # not acknowledged
    acknowledged: set[int] = field(default_factory=set)  # rounds, as far as remembered
    through: int = 0  # it needs nothing up to this round
    progress: float = 0.0  # when it last took something that we had to say, or nothing was left to say
    answered: float | None = None  # when it last answered us
    heard: float | None = None  # when it first spoke to us
    silence: tuple[float, float] = (0.0, 0.0)  # how long we have not answered it, and when it said so
    told: Told = field(default_factory=Told)  # for how long nothing has moved there, and whom it waits for
    came: float = 0.0  # when a piece of a message last came
    agreed: bool = False  # we have compared settings
    knows: set[str] = field(default_factory=set)  # nodes whose records it has, as far as it said or was told
    called: Callable[[], None] = lambda: None  # what to do when it calls us: then it can be called, too
    done: bool = False  # it has its answer
    told_done: bool = False  # it knows that we have ours, or why we stop
    stops_too: bool = False  # it said so while we stop: then it need not be stopped by us
    stopped: str = ""  # why it stopped, if it said so
    up: bool = False
    trouble: str = ""  # why it cannot be reached
    phase: str = ""
    iteration: int = 0
    sent: int = 0  # bytes
    received: int = 0
    broken_off: int = 0  # bytes of messages that it did not send to their end, since the last checkpoint

    @property
    def may_come(self) -> bool:
        """Whether it has not been up yet, as far as we know, and does not know why we stop."""
        return self.answered is None and not (self.stopped or self.told_done or self.done)

    def silent(self, now: float, started: float) -> float:
        """For how long messages have not gone both ways."""
        ours = now - (started if self.answered is None else self.answered)
        theirs, when = self.silence
        return max(ours, theirs + now - when if when else 0.0)


class Station:
    """State of a node between its program and its neighbors."""

    def __init__(
        self, name: str, run: str, folder: Path, neighbors: Mapping[str, str], roster: Roster, journal: Journal, timeouts: Timeouts
    ):  # fmt: skip
        self.name, self.run, self.folder, self.timeouts = name, run, folder, timeouts
        self.neighbors = {other: Neighbor(other, address) for other, address in neighbors.items()}
        self.roster, self.journal = roster, journal
        self.started = time.monotonic()
        self.changed = threading.Condition()
        self.limits: Limits | None = None  # None: the program has not begun
        self.reached = 0  # round that the program is in
        self.reached_before = max((round for _, round in journal.messages), default=0)
        self.through = 0  # nothing up to this round will be asked for again
        self.expected: dict[str, Letter] = {}
        self.missing: set[str] = set()  # who has not been heard in this round
        self.round_begun = self.learned = self.started  # when; and when the roster last grew
        self.waits_for: set[str] = set()  # while the program waits
        self.effort = Effort()
        self.phase, self.iteration = "meeting", 0
        self.residual: float | None = None
        self.wants_receipts = False  # a checkpoint waits for them
        self.done = False
        self.error: BaseException | None = None
        self.cause = ""  # what the neighbors are told of it
        self.wake: Callable[[list[str] | None], None] = lambda names: (
            None
        )  # tell the links that there is something to do
        for name_ in self._read_done():
            if name_ in self.neighbors:
                self.neighbors[name_].done = True

    # ------------------------------------------------------------------ for the server and the links
    def fail(self, error: BaseException, cause: str | None = None) -> None:
        """The program raises this at its next wait. `cause` is what the neighbors are told, by default the text and whose error it is."""
        if cause is None:
            cause = (
                "stopped by its owner" if isinstance(error, KeyboardInterrupt) else str(error) or type(error).__name__
            )
            if not isinstance(error, (PeerLost, Disagreement)):  # these name the nodes that they are about
                cause = f"node {self.name}: {cause}"
        with self.changed:
            if self.error is None:
                self.error, self.cause = error, cause
                for neighbor in self.neighbors.values():
                    neighbor.told_done = False
            self.changed.notify_all()

    def answered(self, neighbor: Neighbor) -> None:
        came, neighbor.up = not neighbor.up, True
        neighbor.answered = time.monotonic()  # after `up`: who has answered once and is not up is not waited for
        if came:
            neighbor.trouble = neighbor.stopped = ""
            log.info("neighbor is up", extra={"peer": neighbor.name})
            with self.changed:
                self.changed.notify_all()

    def agree(self, neighbor: Neighbor) -> None:
        """We hold the same settings. What was heard from it before, perhaps only why it stopped, does not count as silence since then."""
        if not neighbor.agreed:
            neighbor.silence = 0.0, 0.0
            if neighbor.answered is not None:
                neighbor.answered = time.monotonic()
            neighbor.agreed = True
            self.learned = time.monotonic()

    def unreachable(self, neighbor: Neighbor, why: str) -> None:
        if neighbor.up or why != neighbor.trouble:
            log.log(
                logging.DEBUG if neighbor.done else logging.WARNING,
                "neighbor is down" if neighbor.up else "neighbor cannot be reached",
                extra={"peer": neighbor.name, "why": why},
            )
        neighbor.up, neighbor.trouble = False, why

    def note_beat(self, neighbor: Neighbor, beat: wire.Beat) -> None:
        """What a neighbor says of itself."""
        now = time.monotonic()
        neighbor.heard = neighbor.heard or now
        neighbor.silence = beat.silence, now
        neighbor.phase, neighbor.iteration = beat.phase, beat.iteration
        neighbor.told = Told(beat.idle, tuple(beat.waits_for), now)
        if beat.done and not neighbor.done:
            self._keep_done(neighbor)
        if beat.stopped:
            if beat.stopped != neighbor.stopped:
                log.warning("neighbor stops", extra={"peer": neighbor.name, "why": beat.stopped})
            neighbor.stopped = beat.stopped
            # whoever stops before it has begun, perhaps with wrong settings, stops only those who have not begun either
            if beat.contagious and not self.done and (self.limits is None or beat.phase != "meeting"):
                kind = KINDS.get(beat.kind, PeerLost)  # so that this node ends as the one whose error it is
                self.fail(kind(f"{beat.stopped} (says node {neighbor.name})"), beat.stopped)
            if self.error is not None:  # not if its owner interrupts it: it may come back and wait for us
                neighbor.stops_too |= beat.contagious or beat.kind in KINDS

    def beat(self, neighbor: Neighbor) -> wire.Beat:
        """What this node says of itself. Why it stops is said once: a neighbor that was corrected and started again is not stopped by it.

        Who has said the same before is told, too, but not to stop: it may have said so in an answer, and stays until it knows that we know.
        """
        now = time.monotonic()
        # until we agree it may be the silence of a former life, which the neighbor would take for one of this
        since = (neighbor.answered or neighbor.heard) if neighbor.agreed else None
        stopped = self.error is not None and not neighbor.told_done
        return wire.Beat(
            silence=0.0 if since is None else max(0.0, now - since),  # another thread may have heard it since `now`
            phase=self.phase,
            iteration=self.iteration,
            done=self.done,
            stopped=showable(self.cause) if stopped else "",
            contagious=stopped and not neighbor.stops_too and bool(getattr(self.error, "contagious", False)),
            kind=type(self.error).__name__ if stopped else "",
            idle=max(0.0, self.idle(now)),
            waits_for=sorted(self.waits_for)[:MOST_WAITS],
        )

    def idle(self, now: float) -> float:
        """Seconds for which nothing has moved here, or at those that this node waits for."""
        with self.changed:
            names = list(self.waits_for)
        if not names:
            return self.effort.computing()
        if self.limits is None:  # whoever has not been started yet has start_timeout
            return 0.0
        return self.effort.waiting(now, [n.told if n.up else None for n in map(self.neighbors.__getitem__, names)])

    def acknowledge(self, neighbor: Neighbor, rounds: Iterable[int]) -> None:
        self.effort.mark()
        with self.changed:
            neighbor.progress = time.monotonic()
            taken = [round for round in rounds if neighbor.outbox.pop(round, None) is not None]
            neighbor.acknowledged.update(taken)
            if taken and not self.missing and not neighbor.outbox:  # otherwise the program waits for something else
                self.changed.notify_all()

    def check_held(self, neighbor: Neighbor, through: int, held: set[int]) -> None:
        """What a neighbor has acknowledged it must still have: otherwise its folder was lost, and it cannot be told again."""
        with self.changed:
            lost = sorted(round for round in neighbor.acknowledged if round > through and round not in held)
            neighbor.acknowledged |= held
            neighbor.through = max(neighbor.through, through)
            for round in [r for r in neighbor.outbox if r <= through or r in held]:
                del neighbor.outbox[round]
            self.changed.notify_all()
        if lost:
            text = (
                f"node {neighbor.name} has lost what it had acknowledged (round {lost[0]} of node {self.name}): "
                f"its folder is not the one of this run; if that is lost, {NEW_RUN}"
            )
            self.fail(Damaged(text), text)

    def may_wait(self, neighbor: Neighbor, round: int) -> None:
        """Refuse a message if too many of this neighbor wait already, or broke off: they fill the disk."""
        waiting = self.journal.count_after(neighbor.name, self.furthest)
        if waiting >= WAITING:
            raise ProtocolError(f"{waiting} messages wait for this node already, no neighbor can be so far ahead")
        assert self.limits is not None
        if neighbor.broken_off > BROKEN_OFF * self.limits.largest:
            raise TooMuch(
                f"{neighbor.broken_off} bytes of messages that broke off, more than {BROKEN_OFF} of the largest; "
                f"if the line is so bad, start node {self.name} and then node {neighbor.name} again"
            )

    @property
    def furthest(self) -> int:
        """The round that the program has reached, in this process or before the last restart: others may be there still."""
        return max(self.reached, self.reached_before)

    def arrived(self, name: str = "", round: int = 0) -> None:
        """Something happened; if it is a message, the program cares when it was the last of its round."""
        with self.changed:
            if round == self.reached:
                self.missing.discard(name)
            if not round or not self.missing:
                self.changed.notify_all()

    # ------------------------------------------------------------------ for the program
    def meet(self) -> dict[str, Record]:
        """Wait until the whole network is known; returns its records."""
        try:
            while True:
                with self.changed:
                    self._raise_error()
                    missing = self.roster.missing()
                    if not missing:
                        return dict(self.roster.records)
                    around = [n for n in self.neighbors.values() if n.name in missing] or list(self.neighbors.values())
                    waited = [n for n in around if not n.done]
                    self.waits_for = {n.name for n in waited}
                    self._check_lost(waited, f"record of node {listing(sorted(missing))}")
                    self._check_meeting(sorted(missing))
                    self.changed.wait(POLL)
        finally:
            self.waits_for = set()

    def begin(self, limits: Limits, through: int, last_sent: Mapping[str, int]) -> None:
        """From now on messages of the program may come and go. Everything up to round `through` is known to be acknowledged."""
        with self.changed:
            self.limits, self.reached, self.through = limits, through, through
            for name, round in last_sent.items():
                if round:
                    self.neighbors[name].acknowledged.add(round)
            self.effort.begin(threading.get_ident())
            self.changed.notify_all()
        self.wake(list(self.neighbors))

    def exchange(
        self, round: int, sent: Iterable[tuple[str, Letter, Sequence[memoryview]]], expected: Mapping[str, Letter]
    ) -> None:
        """Begin a round: what goes out, and what will come from whom."""
        with self.changed:
            self._raise_error()
            self.reached, self.expected = round, dict(expected)
            self.missing = {name for name in expected if self.journal.find(name, round) is None}
            self.round_begun = time.monotonic()
            self.effort.mark()
            names = []
            for name, letter, data in sent:
                names.append(name)
                neighbor = self.neighbors[name]
                if not neighbor.done and round > neighbor.through and round not in neighbor.acknowledged:
                    if not neighbor.outbox:
                        neighbor.progress = time.monotonic()
                    neighbor.outbox[round] = letter, data
        self.wake(names)

    def forget(self, through: int) -> None:
        """A checkpoint was written: nothing up to this round will be asked for again."""
        with self.changed:
            self.through = through
            for neighbor in self.neighbors.values():
                neighbor.acknowledged = set(sorted(neighbor.acknowledged)[-REMEMBERED:])
                neighbor.broken_off = 0

    def receive(self, name: str, into: memoryview) -> None:
        """Wait for the message of a neighbor in this round."""
        letter, round = self.expected[name], self.reached
        message = self.journal.find(name, round)
        while message is None:
            with self.changed:
                message = self.journal.find(name, round)
                if message is None:
                    self._raise_error()
                    if self.neighbors[name].done:
                        raise Damaged(
                            f"{self.folder}: node {name} has finished, but its {letter.kind!r} of round {round} is not here: files are missing; "
                            f"bring them back, or {NEW_RUN}"
                        )
                    self.waits_for = set(self.missing)
                    self._check_lost([self.neighbors[name]], f"its {letter.kind!r} in round {round}")
                    self._check_stuck(f"its {letter.kind!r} in round {round}")
                    self.changed.wait(POLL)
        self.waits_for = set()
        _check_same(message, letter)
        self.journal.read(message, into)

    def all_acknowledged(self, through: int) -> bool:
        """Whether the neighbors have all that this node has said up to this round on disk."""
        with self.changed:
            return all(n.done or next(iter(n.outbox), through + 1) > through for n in self.neighbors.values())

    def finish(self) -> list[str]:
        """This node has its answer: stay until the neighbors have theirs. Returns those who were not heard from any more.

        It says that it is done only when all that it said is acknowledged: whoever hears that knows that nothing is missing.
        """
        gone: set[str] = set()
        begun = time.monotonic()
        while True:
            with self.changed:
                now = time.monotonic()
                silent = {n.name: n.silent(now, self.started) for n in self.neighbors.values()}
                gone |= {name for name, seconds in silent.items() if seconds > self.timeouts.peer}
                here = [n for n in self.neighbors.values() if n.name not in gone]
                for n in here:
                    if not n.done and (why := self._stuck(n, begun, now)):
                        log.warning(f"node {n.name} {why}; it is not waited for", extra={"peer": n.name})
                        gone.add(n.name)
                self.waits_for = {n.name for n in here if not n.done}
                if not self.done and not any(n.outbox and not n.done for n in here):
                    self.done, self.phase = True, "done"
                    self.wake(None)
                # a neighbor that is done and cannot be reached has left: it needs nothing more
                left = {n.name for n in here if n.done and not n.up and silent[n.name] > 2 * self.timeouts.beat}
                if self.done and all((n.done and n.told_done) or n.name in left for n in here):
                    return sorted(name for name in gone if not self.neighbors[name].done)
                self.changed.wait(POLL)

    def _raise_error(self) -> None:
        if self.journal.failed is not None:
            self.fail(self.journal.failed)
        if self.error is not None:
            raise self.error

    def _check_lost(self, waited: list[Neighbor], what: str) -> None:
        now = time.monotonic()
        for n in waited:
            # who has not agreed with us may have stayed only to say why it stops
            limit = self.timeouts.peer if n.agreed and n.answered is not None else self.timeouts.start
            silent = n.silent(now, self.started)
            if silent > limit:
                why = n.stopped or n.trouble
                raise PeerLost(
                    f"node {n.name} was not heard from for {silent:.0f} s (limit {limit:g} s), and node {self.name} waits for {what}"
                    + (f"; the last trouble: {why}" if why else "")
                )
        for n in self.neighbors.values():  # it is alive, but messages do not get through
            limit = self.timeouts.start if n.phase == "meeting" else self.timeouts.peer
            if n.outbox and not n.done and n.answered is not None and now - n.progress > limit:
                raise PeerLost(
                    f"node {n.name} has taken nothing from node {self.name} for {now - n.progress:.0f} s (limit {limit:g} s), "
                    f"though it is alive; round {next(iter(n.outbox))} is due"
                    + (f"; the last trouble: {n.trouble}" if n.trouble else "")
                )

    def _check_meeting(self, missing: list[str]) -> None:
        """Neighbors that answer, but do not help to learn the network."""
        now, start = time.monotonic(), self.timeouts.start
        for n in self.neighbors.values():
            if n.heard is not None and n.up and not n.agreed and now - n.heard > start:
                raise PeerLost(
                    f"node {n.name} answers, but has not greeted for {now - n.heard:.0f} s (limit start_timeout {start:g} s)"
                )
        most = start + self.timeouts.progress
        if now - self.learned > most:
            raise PeerLost(
                f"nothing new was heard for {now - self.learned:.0f} s (limit start_timeout and progress_timeout, {most:g} s), "
                f"and nobody has described node {listing(missing)}; start it, or take it out of its neighbors' configs"
            )

    def _check_stuck(self, what: str) -> None:
        now = time.monotonic()
        for n in [self.neighbors[name] for name in sorted(self.missing)]:
            if not n.done and (why := self._stuck(n, self.round_begun, now)):
                raise PeerLost(f"node {n.name} {why}, and node {self.name} waits for {what}; start node {n.name} again")

    def _stuck(self, n: Neighbor, since: float, now: float) -> str | None:
        """Why a neighbor that is alive is not waited for any longer; None as long as it is."""
        if not n.up or not n.told.at:
            return None
        # It can wait for its own neighbors only, and for us only if it has not acknowledged all that we have said.
        known = self.roster.records.get(n.name)
        others = {name for name in n.told.waits_for if known is None or name in known[0]}
        if self.name in others and not n.outbox:
            others.clear()
        return stuck(n.told, others, now - max(since, n.came), self.timeouts.progress, self.timeouts.start, now)

    # ------------------------------------------------------------------ who is done, also after a restart
    def _keep_done(self, neighbor: Neighbor) -> None:
        names = sorted({*self._read_done(), neighbor.name})
        write_text(self.folder / DONE_FILE, json.dumps(names))
        with self.changed:
            neighbor.done = True
            neighbor.outbox.clear()
            self.changed.notify_all()

    def _read_done(self) -> list[str]:
        try:
            names = json.loads((self.folder / DONE_FILE).read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            return []
        return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []


def _check_same(message: Message, letter: Letter) -> None:
    """A message that came before the program asked for it is only now compared with what it should be."""
    came: Any = (message.round, message.kind, message.dtype, message.shape, message.size)
    if came != tuple(letter):
        raise ProtocolError(
            f"node {message.sender} sent {message.kind!r} of {message.dtype} {list(message.shape)} in round {message.round}, "
            f"expected {letter.kind!r} of {letter.dtype} {list(letter.shape)}; {NEW_RUN}"
        )
