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

class Fact(_message.Message):
    __slots__ = ("what", "value")
    WHAT_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    what: str
    value: str
    def __init__(self, what: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...

class Greeting(_message.Message):
    __slots__ = ("facts", "records", "columns")
    FACTS_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    facts: _containers.RepeatedCompositeFieldContainer[Fact]
    records: _containers.RepeatedCompositeFieldContainer[Record]
    columns: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, facts: _Optional[_Iterable[_Union[Fact, _Mapping]]] = ..., records: _Optional[_Iterable[_Union[Record, _Mapping]]] = ..., columns: _Optional[_Iterable[str]] = ...) -> None: ...

class Head(_message.Message):
    __slots__ = ("run", "sender", "round", "kind", "dtype", "shape", "soon")
    RUN_FIELD_NUMBER: _ClassVar[int]
    SENDER_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    SOON_FIELD_NUMBER: _ClassVar[int]
    run: str
    sender: str
    round: int
    kind: str
    dtype: str
    shape: _containers.RepeatedScalarFieldContainer[int]
    soon: bool
    def __init__(self, run: _Optional[str] = ..., sender: _Optional[str] = ..., round: _Optional[int] = ..., kind: _Optional[str] = ..., dtype: _Optional[str] = ..., shape: _Optional[_Iterable[int]] = ..., soon: bool = ...) -> None: ...

class Piece(_message.Message):
    __slots__ = ("head", "offset", "data")
    HEAD_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    head: Head
    offset: int
    data: bytes
    def __init__(self, head: _Optional[_Union[Head, _Mapping]] = ..., offset: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class Receipt(_message.Message):
    __slots__ = ("opening", "through", "held", "rounds")
    OPENING_FIELD_NUMBER: _ClassVar[int]
    THROUGH_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    ROUNDS_FIELD_NUMBER: _ClassVar[int]
    opening: bool
    through: int
    held: _containers.RepeatedScalarFieldContainer[int]
    rounds: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, opening: bool = ..., through: _Optional[int] = ..., held: _Optional[_Iterable[int]] = ..., rounds: _Optional[_Iterable[int]] = ...) -> None: ...

class Beat(_message.Message):
    __slots__ = ("silence", "phase", "iteration", "done", "stopped", "contagious", "kind", "idle", "waits_for")
    SILENCE_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    ITERATION_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    STOPPED_FIELD_NUMBER: _ClassVar[int]
    CONTAGIOUS_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    IDLE_FIELD_NUMBER: _ClassVar[int]
    WAITS_FOR_FIELD_NUMBER: _ClassVar[int]
    silence: float
    phase: str
    iteration: int
    done: bool
    stopped: str
    contagious: bool
    kind: str
    idle: float
    waits_for: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, silence: _Optional[float] = ..., phase: _Optional[str] = ..., iteration: _Optional[int] = ..., done: bool = ..., stopped: _Optional[str] = ..., contagious: bool = ..., kind: _Optional[str] = ..., idle: _Optional[float] = ..., waits_for: _Optional[_Iterable[str]] = ...) -> None: ...

class Entry(_message.Message):
    __slots__ = ("sender", "round", "attempt", "kind", "dtype", "shape", "offset")
    SENDER_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    sender: str
    round: int
    attempt: int
    kind: str
    dtype: str
    shape: _containers.RepeatedScalarFieldContainer[int]
    offset: int
    def __init__(self, sender: _Optional[str] = ..., round: _Optional[int] = ..., attempt: _Optional[int] = ..., kind: _Optional[str] = ..., dtype: _Optional[str] = ..., shape: _Optional[_Iterable[int]] = ..., offset: _Optional[int] = ...) -> None: ...
