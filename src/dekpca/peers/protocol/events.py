"""Events of a neighbor, and the actions that follow. Immutable: they can be logged and replayed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from typing import Any, NamedTuple

from .handshake import HandshakeSettings
from .membership import Record
from .views import Kept, Key, Status


class Phase(StrEnum):
    """The phase of a node, as in its heartbeats."""

    MEETING = "meeting"  # the network is not known yet
    SETUP = "setting up"
    ITERATING = "iterating"
    FINISHING = "finishing"  # has its answer, but not all acknowledgements
    FINISHED = "done"
    REFUSING = "refusing"  # cannot resume its run, and stays only to send the reason


class Refusal(Enum):
    """Reasons for refusing a call."""

    UNKNOWN = "a caller without a name"
    STRANGER = "not a neighbor"
    SETTINGS = "other settings, another run or another protocol"
    MESSAGE = "a message that the protocol does not allow"
    QUOTA = "too many bytes of unfinished messages"
    LATER = "to be tried again"


class Refused(Exception):
    """A call that is refused."""

    def __init__(self, why: Refusal, text: str):
        super().__init__(text)
        self.why = why


# ---------------------------------------------------------------------- events from the connections to a neighbor
class Answered(NamedTuple):
    """The neighbor has answered a call of this node."""


class Unreachable(NamedTuple):
    """A connection to the neighbor has failed."""

    why: str


class HandshakeReceived(NamedTuple):
    settings: HandshakeSettings
    records: Mapping[str, Record]


@dataclass(frozen=True)
class Heartbeat:
    """The state of a node, as sent to a neighbor."""

    silence: float = 0.0  # seconds since the receiver last answered the sender
    phase: str = Phase.MEETING
    iteration: int = 0
    finished: bool = False
    stop_reason: str = ""
    stops_all: bool = False
    kind: str = ""
    idle: float = 0.0
    waits_for: tuple[str, ...] = ()
    view: str = ""  # of the sender's program
    process: int = 0  # a new number after each start of the node
    statuses: Mapping[str, Status] = field(default_factory=dict)  # statuses of nodes that the receiver may not have


class HeartbeatAnswered(NamedTuple):
    """The neighbor has answered this heartbeat of ours."""

    sent: Heartbeat


class Opening(NamedTuple):
    """The neighbor's state of our messages, in a view: it has these rounds on disk."""

    held: frozenset[int]
    view: Key


class Acknowledged(NamedTuple):
    """The neighbor has these rounds of ours, in a view, on disk."""

    rounds: tuple[int, ...]
    view: Key


class ChunkSent(NamedTuple):
    size: int


class ChunkReceived(NamedTuple):
    size: int
    new: bool  # False for a duplicate


class MessageStored(NamedTuple):
    """A message of the neighbor is complete, and can be read."""

    round: int


class MessageBroken(NamedTuple):
    """A message of the neighbor was not completed; so many bytes of it were received."""

    size: int


class WeRefused(NamedTuple):
    """We have refused the neighbor's handshake, with the reason."""

    error: Exception


class TheyRefused(NamedTuple):
    """The neighbor has refused a call of ours."""

    why: Refusal
    text: str


class FinishSaved(NamedTuple):
    """The finish notice of the neighbor is on disk."""


# ---------------------------------------------------------------------- events that follow from the above, or are about this node
class Turn(Enum):
    """What moves the states of a neighbor, beside the events above."""

    JOINED = "a handshake with equal settings is complete"
    STOP_NOTICE = "the neighbor stops, and has sent the reason"
    STOPS_TOO = "while this node stops, the neighbor has sent that it stops for good as well"
    WE_STOP = "this node stops"
    WE_FINISH = "this node has its answer, and all acknowledgements"
    NOTICE_DELIVERED = "the neighbor knows that this node has finished or stops"


# ---------------------------------------------------------------------- actions
class Log(NamedTuple):
    level: int  # of logging
    text: str
    about: Mapping[str, Any] = {}


class SaveFinished(NamedTuple):
    """Save to disk that this neighbor has finished; then report FinishSaved, and only then answer it."""

    name: str


class SaveViews(NamedTuple):
    """Save this to disk; then call `views_saved` of the protocol, and only then send another heartbeat."""

    kept: Kept


class SaveStatuses(NamedTuple):
    """Save these statuses of other nodes to disk, before the actions that follow."""

    statuses: Mapping[str, Status]


class WakeProgram(NamedTuple):
    """Wake the program: an event that it may wait for has occurred."""


class Send(NamedTuple):
    """Wake the clients of these neighbors; `heartbeat`: send a heartbeat at once."""

    names: tuple[str, ...]
    heartbeat: bool = False


Action = Log | SaveFinished | SaveViews | SaveStatuses | WakeProgram | Send
