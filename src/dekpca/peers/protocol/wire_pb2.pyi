from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Record(_message.Message):
    __slots__ = ("name", "neighbors", "rows")
    NAME_FIELD_NUMBER: _ClassVar[int]
    NEIGHBORS_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    name: str
    neighbors: _containers.RepeatedScalarFieldContainer[str]
    rows: int
    def __init__(self, name: _Optional[str] = ..., neighbors: _Optional[_Iterable[str]] = ..., rows: _Optional[int] = ...) -> None: ...

class Setting(_message.Message):
    __slots__ = ("name", "value")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: str
    def __init__(self, name: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...

class Handshake(_message.Message):
    __slots__ = ("settings", "records", "columns")
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    settings: _containers.RepeatedCompositeFieldContainer[Setting]
    records: _containers.RepeatedCompositeFieldContainer[Record]
    columns: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, settings: _Optional[_Iterable[_Union[Setting, _Mapping]]] = ..., records: _Optional[_Iterable[_Union[Record, _Mapping]]] = ..., columns: _Optional[_Iterable[str]] = ...) -> None: ...

class Head(_message.Message):
    __slots__ = ("run", "sender", "round", "kind", "dtype", "shape")
    RUN_FIELD_NUMBER: _ClassVar[int]
    SENDER_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    run: str
    sender: str
    round: int
    kind: str
    dtype: str
    shape: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, run: _Optional[str] = ..., sender: _Optional[str] = ..., round: _Optional[int] = ..., kind: _Optional[str] = ..., dtype: _Optional[str] = ..., shape: _Optional[_Iterable[int]] = ...) -> None: ...

class Chunk(_message.Message):
    __slots__ = ("head", "offset", "data", "view")
    HEAD_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    VIEW_FIELD_NUMBER: _ClassVar[int]
    head: Head
    offset: int
    data: bytes
    view: str
    def __init__(self, head: _Optional[_Union[Head, _Mapping]] = ..., offset: _Optional[int] = ..., data: _Optional[bytes] = ..., view: _Optional[str] = ...) -> None: ...

class Acknowledgement(_message.Message):
    __slots__ = ("opening", "held", "rounds")
    OPENING_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    ROUNDS_FIELD_NUMBER: _ClassVar[int]
    opening: bool
    held: _containers.RepeatedScalarFieldContainer[int]
    rounds: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, opening: bool = ..., held: _Optional[_Iterable[int]] = ..., rounds: _Optional[_Iterable[int]] = ...) -> None: ...

class Refusal(_message.Message):
    __slots__ = ("status", "text")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    status: str
    text: str
    def __init__(self, status: _Optional[str] = ..., text: _Optional[str] = ...) -> None: ...

class Heartbeat(_message.Message):
    __slots__ = ("silence", "phase", "iteration", "finished", "stop_reason", "stops_all", "kind", "idle", "waits_for", "view", "process", "statuses", "answer")
    SILENCE_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    ITERATION_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    STOP_REASON_FIELD_NUMBER: _ClassVar[int]
    STOPS_ALL_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    IDLE_FIELD_NUMBER: _ClassVar[int]
    WAITS_FOR_FIELD_NUMBER: _ClassVar[int]
    VIEW_FIELD_NUMBER: _ClassVar[int]
    PROCESS_FIELD_NUMBER: _ClassVar[int]
    STATUSES_FIELD_NUMBER: _ClassVar[int]
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    silence: float
    phase: str
    iteration: int
    finished: bool
    stop_reason: str
    stops_all: bool
    kind: str
    idle: float
    waits_for: _containers.RepeatedScalarFieldContainer[str]
    view: str
    process: int
    statuses: _containers.RepeatedCompositeFieldContainer[Status]
    answer: bool
    def __init__(self, silence: _Optional[float] = ..., phase: _Optional[str] = ..., iteration: _Optional[int] = ..., finished: bool = ..., stop_reason: _Optional[str] = ..., stops_all: bool = ..., kind: _Optional[str] = ..., idle: _Optional[float] = ..., waits_for: _Optional[_Iterable[str]] = ..., view: _Optional[str] = ..., process: _Optional[int] = ..., statuses: _Optional[_Iterable[_Union[Status, _Mapping]]] = ..., answer: bool = ...) -> None: ...

class Lost(_message.Message):
    __slots__ = ("name", "since")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    name: str
    since: float
    def __init__(self, name: _Optional[str] = ..., since: _Optional[float] = ...) -> None: ...

class Edge(_message.Message):
    __slots__ = ("a", "b")
    A_FIELD_NUMBER: _ClassVar[int]
    B_FIELD_NUMBER: _ClassVar[int]
    a: str
    b: str
    def __init__(self, a: _Optional[str] = ..., b: _Optional[str] = ...) -> None: ...

class ViewKey(_message.Message):
    __slots__ = ("number", "proposer")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    PROPOSER_FIELD_NUMBER: _ClassVar[int]
    number: int
    proposer: str
    def __init__(self, number: _Optional[int] = ..., proposer: _Optional[str] = ...) -> None: ...

class View(_message.Message):
    __slots__ = ("key", "lost", "broken", "fallback")
    KEY_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    BROKEN_FIELD_NUMBER: _ClassVar[int]
    FALLBACK_FIELD_NUMBER: _ClassVar[int]
    key: ViewKey
    lost: _containers.RepeatedCompositeFieldContainer[Lost]
    broken: _containers.RepeatedCompositeFieldContainer[Edge]
    fallback: _containers.RepeatedCompositeFieldContainer[Edge]
    def __init__(self, key: _Optional[_Union[ViewKey, _Mapping]] = ..., lost: _Optional[_Iterable[_Union[Lost, _Mapping]]] = ..., broken: _Optional[_Iterable[_Union[Edge, _Mapping]]] = ..., fallback: _Optional[_Iterable[_Union[Edge, _Mapping]]] = ...) -> None: ...

class Status(_message.Message):
    __slots__ = ("name", "version", "view", "answered", "ballot", "vote", "final", "down", "fallback", "entered", "proof")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    VIEW_FIELD_NUMBER: _ClassVar[int]
    ANSWERED_FIELD_NUMBER: _ClassVar[int]
    BALLOT_FIELD_NUMBER: _ClassVar[int]
    VOTE_FIELD_NUMBER: _ClassVar[int]
    FINAL_FIELD_NUMBER: _ClassVar[int]
    DOWN_FIELD_NUMBER: _ClassVar[int]
    FALLBACK_FIELD_NUMBER: _ClassVar[int]
    ENTERED_FIELD_NUMBER: _ClassVar[int]
    PROOF_FIELD_NUMBER: _ClassVar[int]
    name: str
    version: int
    view: View
    answered: ViewKey
    ballot: ViewKey
    vote: ViewKey
    final: ViewKey
    down: _containers.RepeatedScalarFieldContainer[str]
    fallback: _containers.RepeatedScalarFieldContainer[str]
    entered: View
    proof: bytes
    def __init__(self, name: _Optional[str] = ..., version: _Optional[int] = ..., view: _Optional[_Union[View, _Mapping]] = ..., answered: _Optional[_Union[ViewKey, _Mapping]] = ..., ballot: _Optional[_Union[ViewKey, _Mapping]] = ..., vote: _Optional[_Union[ViewKey, _Mapping]] = ..., final: _Optional[_Union[ViewKey, _Mapping]] = ..., down: _Optional[_Iterable[str]] = ..., fallback: _Optional[_Iterable[str]] = ..., entered: _Optional[_Union[View, _Mapping]] = ..., proof: _Optional[bytes] = ...) -> None: ...
