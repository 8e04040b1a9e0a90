import datetime

from draftwire.v1 import calibration_pb2 as _calibration_pb2
from draftwire.v1 import step_cost_pb2 as _step_cost_pb2
from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class PlannerStatus(_message.Message):
    __slots__ = ("step_costs", "calibrations", "steps", "sequences", "draft_tokens", "last_draft_tokens", "waits", "wait_time", "expected_tokens", "committed_tokens", "probe_rows")
    STEP_COSTS_FIELD_NUMBER: _ClassVar[int]
    CALIBRATIONS_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    LAST_DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    WAITS_FIELD_NUMBER: _ClassVar[int]
    WAIT_TIME_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PROBE_ROWS_FIELD_NUMBER: _ClassVar[int]
    step_costs: _containers.RepeatedCompositeFieldContainer[_step_cost_pb2.StepCost]
    calibrations: _containers.RepeatedCompositeFieldContainer[_calibration_pb2.Calibration]
    steps: int
    sequences: int
    draft_tokens: int
    last_draft_tokens: int
    waits: int
    wait_time: _duration_pb2.Duration
    expected_tokens: float
    committed_tokens: int
    probe_rows: int
    def __init__(self, step_costs: _Optional[_Iterable[_Union[_step_cost_pb2.StepCost, _Mapping]]] = ..., calibrations: _Optional[_Iterable[_Union[_calibration_pb2.Calibration, _Mapping]]] = ..., steps: _Optional[int] = ..., sequences: _Optional[int] = ..., draft_tokens: _Optional[int] = ..., last_draft_tokens: _Optional[int] = ..., waits: _Optional[int] = ..., wait_time: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., expected_tokens: _Optional[float] = ..., committed_tokens: _Optional[int] = ..., probe_rows: _Optional[int] = ...) -> None: ...
