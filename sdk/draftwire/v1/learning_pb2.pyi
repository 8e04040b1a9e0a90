import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class LearnerActivity(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    LEARNER_ACTIVITY_UNSPECIFIED: _ClassVar[LearnerActivity]
    LEARNER_ACTIVITY_COLLECTING: _ClassVar[LearnerActivity]
    LEARNER_ACTIVITY_TRAINING: _ClassVar[LearnerActivity]
    LEARNER_ACTIVITY_TRYING: _ClassVar[LearnerActivity]
LEARNER_ACTIVITY_UNSPECIFIED: LearnerActivity
LEARNER_ACTIVITY_COLLECTING: LearnerActivity
LEARNER_ACTIVITY_TRAINING: LearnerActivity
LEARNER_ACTIVITY_TRYING: LearnerActivity

class LearningStatus(_message.Message):
    __slots__ = ("activity", "version", "collected_tokens", "rounds", "first_agreement", "agreement", "last_round", "reported_at")
    ACTIVITY_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    COLLECTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ROUNDS_FIELD_NUMBER: _ClassVar[int]
    FIRST_AGREEMENT_FIELD_NUMBER: _ClassVar[int]
    AGREEMENT_FIELD_NUMBER: _ClassVar[int]
    LAST_ROUND_FIELD_NUMBER: _ClassVar[int]
    REPORTED_AT_FIELD_NUMBER: _ClassVar[int]
    activity: LearnerActivity
    version: int
    collected_tokens: int
    rounds: int
    first_agreement: float
    agreement: float
    last_round: LearningRound
    reported_at: _timestamp_pb2.Timestamp
    def __init__(self, activity: _Optional[_Union[LearnerActivity, str]] = ..., version: _Optional[int] = ..., collected_tokens: _Optional[int] = ..., rounds: _Optional[int] = ..., first_agreement: _Optional[float] = ..., agreement: _Optional[float] = ..., last_round: _Optional[_Union[LearningRound, _Mapping]] = ..., reported_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class LearningRound(_message.Message):
    __slots__ = ("version", "promoted", "reason", "agreement_before", "agreement_after", "held_out_tokens", "accepted_per_step_before", "accepted_per_step_after", "ended_at", "speed_ratio")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PROMOTED_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    AGREEMENT_BEFORE_FIELD_NUMBER: _ClassVar[int]
    AGREEMENT_AFTER_FIELD_NUMBER: _ClassVar[int]
    HELD_OUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_PER_STEP_BEFORE_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_PER_STEP_AFTER_FIELD_NUMBER: _ClassVar[int]
    ENDED_AT_FIELD_NUMBER: _ClassVar[int]
    SPEED_RATIO_FIELD_NUMBER: _ClassVar[int]
    version: int
    promoted: bool
    reason: str
    agreement_before: float
    agreement_after: float
    held_out_tokens: int
    accepted_per_step_before: float
    accepted_per_step_after: float
    ended_at: _timestamp_pb2.Timestamp
    speed_ratio: float
    def __init__(self, version: _Optional[int] = ..., promoted: bool = ..., reason: _Optional[str] = ..., agreement_before: _Optional[float] = ..., agreement_after: _Optional[float] = ..., held_out_tokens: _Optional[int] = ..., accepted_per_step_before: _Optional[float] = ..., accepted_per_step_after: _Optional[float] = ..., ended_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., speed_ratio: _Optional[float] = ...) -> None: ...
