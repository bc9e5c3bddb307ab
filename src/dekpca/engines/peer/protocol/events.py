"""Events of a neighbor, and the actions that follow. Small and frozen: they can be logged, compared and replayed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from typing import Any

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
@dataclass(frozen=True)
class Answered:
    """The neighbor has answered a call of this node."""


@dataclass(frozen=True)
class Unreachable:
    """A connection to the neighbor has failed."""

    why: str


@dataclass(frozen=True)
class HandshakeReceived:
    settings: HandshakeSettings
    records: Mapping[str, Record]


@dataclass(frozen=True)
class HandshakeSent:
    """The neighbor has our records of these nodes."""

    names: frozenset[str]


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


@dataclass(frozen=True)
class HeartbeatAnswered:
    """The neighbor has answered this heartbeat of ours."""

    sent: Heartbeat


@dataclass(frozen=True)
class Opening:
    """The neighbor's state of our messages, in a view: it needs none up to round `through`, and has these rounds."""

    through: int
    held: frozenset[int]
    view: Key


@dataclass(frozen=True)
class Acknowledged:
    """The neighbor has these rounds of ours, in a view, on disk."""

    rounds: tuple[int, ...]
    view: Key


@dataclass(frozen=True)
class ChunkSent:
    size: int


@dataclass(frozen=True)
class ChunkReceived:
    size: int
    new: bool  # False for a duplicate


@dataclass(frozen=True)
class MessageStored:
    """A message of the neighbor is complete, and can be read."""

    round: int


@dataclass(frozen=True)
class MessageBroken:
    """A message of the neighbor was not completed; so many bytes of it were received."""

    size: int


@dataclass(frozen=True)
class WeRefused:
    """We have refused the neighbor's handshake, with the reason."""

    error: Exception


@dataclass(frozen=True)
class TheyRefused:
    """The neighbor has refused a call of ours."""

    why: Refusal
    text: str


@dataclass(frozen=True)
class FinishSaved:
    """The finish notice of the neighbor is on disk."""


# ---------------------------------------------------------------------- events that follow from the above, or are about this node
@dataclass(frozen=True)
class Joined:
    """The handshake is complete: same run, same settings."""


@dataclass(frozen=True)
class StopNotice:
    """The neighbor stops, and has sent the reason."""


@dataclass(frozen=True)
class StopsToo:
    """While this node stops, the neighbor has sent that it stops for good as well."""


@dataclass(frozen=True)
class WeStop:
    """This node stops."""


@dataclass(frozen=True)
class WeFinish:
    """This node has its answer, and all acknowledgements."""


@dataclass(frozen=True)
class NoticeDelivered:
    """The neighbor knows that this node has finished or stops."""


# ---------------------------------------------------------------------- actions
@dataclass(frozen=True)
class Log:
    level: int  # of logging
    text: str
    about: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class SaveFinished:
    """Save to disk that this neighbor has finished; then report FinishSaved, and only then answer it."""

    name: str


@dataclass(frozen=True)
class SaveViews:
    """Save this to disk; then call `views_saved` of the protocol, and only then send another heartbeat."""

    kept: Kept


@dataclass(frozen=True)
class Call:
    """Call these fallback neighbors from now on."""

    names: tuple[str, ...]


@dataclass(frozen=True)
class WakeProgram:
    """Wake the program: an event that it may wait for has occurred."""


@dataclass(frozen=True)
class Send:
    """Wake the clients of these neighbors; `heartbeat`: send a heartbeat at once."""

    names: tuple[str, ...]
    heartbeat: bool = False


Action = Log | SaveFinished | SaveViews | Call | WakeProgram | Send
