"""What can happen to a neighbor (events), and what must be done then (actions). Small and frozen: they can be logged, compared and replayed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from typing import Any

from .handshake import HandshakeSettings
from .membership import Record
from .views import Kept, Key, Status


class Phase(StrEnum):
    """How far a node is, as heartbeats say."""

    MEETING = "meeting"  # the network is not known yet
    SETUP = "setting up"
    ITERATING = "iterating"
    FINISHING = "finishing"  # it has its answer, but not all acknowledgements
    FINISHED = "done"
    REFUSING = "refusing"  # it cannot resume its run, and stays only to say why


class Refusal(Enum):
    """Why a call is refused."""

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


# ---------------------------------------------------------------------- events: what the connections to a neighbor report
@dataclass(frozen=True)
class Answered:
    """It has answered a call of ours."""


@dataclass(frozen=True)
class Unreachable:
    """A connection to it has failed."""

    why: str


@dataclass(frozen=True)
class HandshakeReceived:
    settings: HandshakeSettings
    records: Mapping[str, Record]


@dataclass(frozen=True)
class HandshakeSent:
    """It has our records of these nodes."""

    names: frozenset[str]


@dataclass(frozen=True)
class Heartbeat:
    """What a node says of itself."""

    silence: float = 0.0  # seconds since the receiver last answered it
    phase: str = Phase.MEETING
    iteration: int = 0
    finished: bool = False
    stop_reason: str = ""
    stops_all: bool = False
    kind: str = ""
    idle: float = 0.0
    waits_for: tuple[str, ...] = ()
    view: str = ""  # that the sender's program runs in
    process: int = 0  # tells apart the processes of a node that is started again
    statuses: Mapping[str, Status] = field(
        default_factory=dict
    )  # of nodes; new to the receiver, as far as the sender knows


@dataclass(frozen=True)
class HeartbeatAnswered:
    """It has heard this heartbeat of ours."""

    sent: Heartbeat


@dataclass(frozen=True)
class Opening:
    """What it holds of ours, in a view: it needs nothing up to round `through`, and has these rounds."""

    through: int
    held: frozenset[int]
    view: Key


@dataclass(frozen=True)
class Acknowledged:
    """It has these rounds of ours, in a view, on disk."""

    rounds: tuple[int, ...]
    view: Key


@dataclass(frozen=True)
class ChunkSent:
    size: int


@dataclass(frozen=True)
class ChunkReceived:
    size: int
    new: bool  # not of a message that we hold already


@dataclass(frozen=True)
class MessageStored:
    """A message of it is complete, and can be read."""

    round: int


@dataclass(frozen=True)
class MessageBroken:
    """A message of it ended early; so many bytes of it had come."""

    size: int


@dataclass(frozen=True)
class WeRefused:
    """We have refused its handshake, and told it why."""

    error: Exception


@dataclass(frozen=True)
class TheyRefused:
    """It has refused a call of ours."""

    why: Refusal
    text: str


@dataclass(frozen=True)
class FinishSaved:
    """That it has finished is on disk."""


# ---------------------------------------------------------------------- events: what follows from the above, or happens to this node
@dataclass(frozen=True)
class Joined:
    """The handshake is complete: same run, same settings."""


@dataclass(frozen=True)
class StopNotice:
    """It says why it stops."""


@dataclass(frozen=True)
class StopsToo:
    """It says, while this node stops, that it stops for good as well."""


@dataclass(frozen=True)
class WeStop:
    """This node stops."""


@dataclass(frozen=True)
class WeFinish:
    """This node has its answer, and all acknowledgements."""


@dataclass(frozen=True)
class NoticeDelivered:
    """It has heard that this node finished or stops."""


# ---------------------------------------------------------------------- actions
@dataclass(frozen=True)
class Log:
    level: int  # of logging
    text: str
    about: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class SaveFinished:
    """Keep on disk that this neighbor has finished; then report FinishSaved, and only then answer it."""

    name: str


@dataclass(frozen=True)
class SaveViews:
    """Keep this on disk; then tell the protocol (`views_saved`), and only then send another heartbeat."""

    kept: Kept


@dataclass(frozen=True)
class Call:
    """Call these fallback neighbors from now on."""

    names: tuple[str, ...]


@dataclass(frozen=True)
class WakeProgram:
    """Something happened that the program may wait for."""


@dataclass(frozen=True)
class Send:
    """There is something to send to these neighbors; `heartbeat`: at once, and not with the next heartbeat."""

    names: tuple[str, ...]
    heartbeat: bool = False


Action = Log | SaveFinished | SaveViews | Call | WakeProgram | Send
