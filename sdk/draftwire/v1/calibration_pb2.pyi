import datetime

from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class AcceptanceClass(_message.Message):
    __slots__ = ("rank", "above", "acceptance", "observations")
    RANK_FIELD_NUMBER: _ClassVar[int]
    ABOVE_FIELD_NUMBER: _ClassVar[int]
    ACCEPTANCE_FIELD_NUMBER: _ClassVar[int]
    OBSERVATIONS_FIELD_NUMBER: _ClassVar[int]
    rank: int
    above: float
    acceptance: float
    observations: float
    def __init__(self, rank: _Optional[int] = ..., above: _Optional[float] = ..., acceptance: _Optional[float] = ..., observations: _Optional[float] = ...) -> None: ...

class Calibration(_message.Message):
    __slots__ = ("drafter", "classes", "first_acceptance", "response_time", "proposal_interval")
    DRAFTER_FIELD_NUMBER: _ClassVar[int]
    CLASSES_FIELD_NUMBER: _ClassVar[int]
    FIRST_ACCEPTANCE_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_TIME_FIELD_NUMBER: _ClassVar[int]
    PROPOSAL_INTERVAL_FIELD_NUMBER: _ClassVar[int]
    drafter: str
    classes: _containers.RepeatedCompositeFieldContainer[AcceptanceClass]
    first_acceptance: float
    response_time: _duration_pb2.Duration
    proposal_interval: _duration_pb2.Duration
    def __init__(self, drafter: _Optional[str] = ..., classes: _Optional[_Iterable[_Union[AcceptanceClass, _Mapping]]] = ..., first_acceptance: _Optional[float] = ..., response_time: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., proposal_interval: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...
