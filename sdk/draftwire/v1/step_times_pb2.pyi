import datetime

from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class StepTimes(_message.Message):
    __slots__ = ("steps", "plan", "layout", "forward", "sample", "walk", "wire", "wait", "event_loop", "draft", "rollback", "cpu_around_forward")
    STEPS_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    FORWARD_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_FIELD_NUMBER: _ClassVar[int]
    WALK_FIELD_NUMBER: _ClassVar[int]
    WIRE_FIELD_NUMBER: _ClassVar[int]
    WAIT_FIELD_NUMBER: _ClassVar[int]
    EVENT_LOOP_FIELD_NUMBER: _ClassVar[int]
    DRAFT_FIELD_NUMBER: _ClassVar[int]
    ROLLBACK_FIELD_NUMBER: _ClassVar[int]
    CPU_AROUND_FORWARD_FIELD_NUMBER: _ClassVar[int]
    steps: int
    plan: _duration_pb2.Duration
    layout: _duration_pb2.Duration
    forward: _duration_pb2.Duration
    sample: _duration_pb2.Duration
    walk: _duration_pb2.Duration
    wire: _duration_pb2.Duration
    wait: _duration_pb2.Duration
    event_loop: _duration_pb2.Duration
    draft: _duration_pb2.Duration
    rollback: _duration_pb2.Duration
    cpu_around_forward: _duration_pb2.Duration
    def __init__(self, steps: _Optional[int] = ..., plan: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., layout: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., forward: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., sample: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., walk: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., wire: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., wait: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., event_loop: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., draft: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., rollback: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., cpu_around_forward: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...
