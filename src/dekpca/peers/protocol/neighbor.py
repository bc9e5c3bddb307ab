"""A neighbor as a state machine, with three independent states:

    Stage    its own announcements: joined, stopped, finished
    Link     whether it answers
    Notice   whether it has the finish or stop notice of this node

Only TRANSITIONS changes them; docs/reference/protocol.md prints the table, and a test compares the two. The other fields are times and counts.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from . import events


class Stage(Enum):
    AWAITED = "no handshake since this process started"
    JOINED = "handshake complete: messages flow"
    STOPPED = "it said why it stops; it may come back"
    FINISHED = "it has its answer, and needs nothing more"


class Link(Enum):
    DOWN = "does not answer"
    UP = "answers"


class Notice(Enum):
    NONE = "this node goes on"
    FINISH = "it must hear that this node has finished"
    STOP = "it must hear why this node stops"
    STOP_REPLY = "it stops as well: it must hear that this node knows, but is not told to stop"
    DELIVERED = "it has heard"


State = Stage | Link | Notice

# (state, event) -> next state, an event being a turn or the class of what was reported. All other events change no state.
TRANSITIONS: dict[tuple[State, Any], State] = {
    (Stage.AWAITED, events.Turn.JOINED): Stage.JOINED,
    (Stage.AWAITED, events.FinishSaved): Stage.FINISHED,
    # (AWAITED, STOP_NOTICE) is absent: a node that stays only to report an error has not joined.
    (Stage.JOINED, events.Turn.STOP_NOTICE): Stage.STOPPED,
    (Stage.JOINED, events.FinishSaved): Stage.FINISHED,
    (Stage.STOPPED, events.Turn.JOINED): Stage.JOINED,
    (Stage.STOPPED, events.FinishSaved): Stage.FINISHED,
    (Link.DOWN, events.Answered): Link.UP,
    (Link.UP, events.Unreachable): Link.DOWN,
    (Notice.NONE, events.Turn.WE_FINISH): Notice.FINISH,
    (Notice.NONE, events.Turn.WE_STOP): Notice.STOP,
    (Notice.FINISH, events.Turn.WE_STOP): Notice.STOP,
    (Notice.FINISH, events.Turn.NOTICE_DELIVERED): Notice.DELIVERED,
    (Notice.STOP, events.Turn.STOPS_TOO): Notice.STOP_REPLY,
    (Notice.STOP, events.Turn.NOTICE_DELIVERED): Notice.DELIVERED,
    (Notice.STOP_REPLY, events.Turn.NOTICE_DELIVERED): Notice.DELIVERED,
    (Notice.DELIVERED, events.Turn.WE_STOP): Notice.STOP,
}


class SendWindow:
    """Messages to one neighbor, until it acknowledges them.

    Examples
    --------
    >>> window = SendWindow()
    >>> window.put(1, "a"), window.put(2, "b")
    (True, True)
    >>> window.acknowledge([1]), window.put(1, "a")  # a program that runs again says the same again
    ([1], False)
    >>> window.pending(0)
    [(2, 'b')]
    >>> window.reopen(frozenset({2}))  # the neighbor was restarted, and has lost round 1
    [1]
    >>> window.pending(0)  # round 2 need not be sent again
    []
    """

    def __init__(self) -> None:
        self.unacknowledged: dict[int, Any] = {}  # round -> message, in the order in which they were put
        self.acknowledged: set[int] = set()  # rounds

    def put(self, round: int, message: Any) -> bool:
        """Returns whether the neighbor needs this message."""
        if round in self.acknowledged:
            return False
        self.unacknowledged[round] = message
        return True

    def pending(self, after: int) -> list[tuple[int, Any]]:
        """Messages of later rounds to send."""
        return [(round, message) for round, message in self.unacknowledged.items() if round > after]

    def acknowledge(self, rounds: Iterable[int]) -> list[int]:
        """Returns the rounds that were unacknowledged."""
        taken = [round for round in rounds if self.unacknowledged.pop(round, None) is not None]
        self.acknowledged.update(taken)
        return taken

    def reopen(self, held: frozenset[int]) -> list[int]:
        """Process the neighbor's opening; returns the rounds that it has acknowledged and lost since."""
        lost = sorted(self.acknowledged - held)
        self.acknowledged |= held
        for round in self.unacknowledged.keys() & held:
            del self.unacknowledged[round]
        return lost


@dataclass(eq=False)
class Neighbor:
    """A neighbor as this node knows it. Times are those of the caller's clock."""

    name: str
    fallback: bool = False  # a fallback neighbor
    called: bool = True  # whether this node calls it
    stage: Stage = Stage.AWAITED
    link: Link = Link.DOWN
    notice: Notice = Notice.NONE
    window: SendWindow = field(default_factory=SendWindow)
    received: set[int] = field(default_factory=set)  # rounds of its messages that can be read
    knows: set[str] = field(default_factory=set)  # nodes whose records it has sent
    has: dict[str, int] = field(default_factory=dict)  # the versions of statuses that it has: sent by it, or to it
    heartbeat: events.Heartbeat = field(default_factory=events.Heartbeat)  # the last one
    beat_at: float | None = None  # when that came
    answered_at: float | None = None  # when it last answered this node
    heard_at: float | None = None  # when it first called this node
    chunk_at: float = 0.0  # when the last chunk of a message arrived
    taken_at: float = 0.0  # when it last acknowledged a message, or none was pending
    stop_reason: str = ""
    trouble: str = ""  # why it cannot be reached
    refused: str = ""  # why its last call was
    bytes_sent: int = 0
    bytes_received: int = 0
    bytes_broken: int = 0  # of incomplete messages, since the last complete one

    def apply(self, event: Any) -> bool:
        """Apply the transitions of an event; returns whether there were any."""
        before, kind = (self.stage, self.link, self.notice), event if isinstance(event, events.Turn) else type(event)
        after: Any = [TRANSITIONS.get((state, kind), state) for state in before]
        self.stage, self.link, self.notice = after
        return tuple(after) != before

    @property
    def finished(self) -> bool:
        return self.stage is Stage.FINISHED

    @property
    def up(self) -> bool:
        return self.link is Link.UP

    @property
    def joined(self) -> bool:
        """Whether there was a handshake since this process started, or the neighbor has finished, which implies a handshake."""
        return self.stage is not Stage.AWAITED

    @property
    def may_come(self) -> bool:
        """Whether the neighbor has not been up yet, as far as known, and does not have the stop notice."""
        told = self.stop_reason or self.notice is Notice.DELIVERED or self.finished
        return self.answered_at is None and not told

    def idle(self, now: float) -> float:
        """Seconds without progress there, as its last heartbeat said."""
        return 0.0 if self.beat_at is None else self.heartbeat.idle + now - self.beat_at
