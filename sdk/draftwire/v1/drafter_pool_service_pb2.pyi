import datetime

from draftwire.v1 import learning_pb2 as _learning_pb2
from draftwire.v1 import model_info_pb2 as _model_info_pb2
from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.rpc import status_pb2 as _status_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DrafterState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DRAFTER_STATE_UNSPECIFIED: _ClassVar[DrafterState]
    DRAFTER_STATE_CONNECTING: _ClassVar[DrafterState]
    DRAFTER_STATE_READY: _ClassVar[DrafterState]
    DRAFTER_STATE_DRAINING: _ClassVar[DrafterState]
    DRAFTER_STATE_UNREACHABLE: _ClassVar[DrafterState]
    DRAFTER_STATE_SUSPENDED: _ClassVar[DrafterState]
    DRAFTER_STATE_INCOMPATIBLE: _ClassVar[DrafterState]

class RolloutState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ROLLOUT_STATE_UNSPECIFIED: _ClassVar[RolloutState]
    ROLLOUT_STATE_RUNNING: _ClassVar[RolloutState]
    ROLLOUT_STATE_PROMOTED: _ClassVar[RolloutState]
    ROLLOUT_STATE_WITHDRAWN: _ClassVar[RolloutState]
DRAFTER_STATE_UNSPECIFIED: DrafterState
DRAFTER_STATE_CONNECTING: DrafterState
DRAFTER_STATE_READY: DrafterState
DRAFTER_STATE_DRAINING: DrafterState
DRAFTER_STATE_UNREACHABLE: DrafterState
DRAFTER_STATE_SUSPENDED: DrafterState
DRAFTER_STATE_INCOMPATIBLE: DrafterState
ROLLOUT_STATE_UNSPECIFIED: RolloutState
ROLLOUT_STATE_RUNNING: RolloutState
ROLLOUT_STATE_PROMOTED: RolloutState
ROLLOUT_STATE_WITHDRAWN: RolloutState

class Drafter(_message.Message):
    __slots__ = ("name", "address", "state", "model", "sequences", "draft_tokens", "accepted_tokens", "stale_nodes", "step_time", "response_time", "attached_at", "last_error", "announced", "labels", "accepted_per_second", "trusted", "lossy_draft_tokens", "lossy_accepted_tokens", "resting", "learning")
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    STALE_NODES_FIELD_NUMBER: _ClassVar[int]
    STEP_TIME_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_TIME_FIELD_NUMBER: _ClassVar[int]
    ATTACHED_AT_FIELD_NUMBER: _ClassVar[int]
    LAST_ERROR_FIELD_NUMBER: _ClassVar[int]
    ANNOUNCED_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    TRUSTED_FIELD_NUMBER: _ClassVar[int]
    LOSSY_DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    LOSSY_ACCEPTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    RESTING_FIELD_NUMBER: _ClassVar[int]
    LEARNING_FIELD_NUMBER: _ClassVar[int]
    name: str
    address: str
    state: DrafterState
    model: _model_info_pb2.ModelInfo
    sequences: int
    draft_tokens: int
    accepted_tokens: int
    stale_nodes: int
    step_time: _duration_pb2.Duration
    response_time: _duration_pb2.Duration
    attached_at: _timestamp_pb2.Timestamp
    last_error: _status_pb2.Status
    announced: bool
    labels: _containers.ScalarMap[str, str]
    accepted_per_second: float
    trusted: bool
    lossy_draft_tokens: int
    lossy_accepted_tokens: int
    resting: bool
    learning: _learning_pb2.LearningStatus
    def __init__(self, name: _Optional[str] = ..., address: _Optional[str] = ..., state: _Optional[_Union[DrafterState, str]] = ..., model: _Optional[_Union[_model_info_pb2.ModelInfo, _Mapping]] = ..., sequences: _Optional[int] = ..., draft_tokens: _Optional[int] = ..., accepted_tokens: _Optional[int] = ..., stale_nodes: _Optional[int] = ..., step_time: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., response_time: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., attached_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., last_error: _Optional[_Union[_status_pb2.Status, _Mapping]] = ..., announced: bool = ..., labels: _Optional[_Mapping[str, str]] = ..., accepted_per_second: _Optional[float] = ..., trusted: bool = ..., lossy_draft_tokens: _Optional[int] = ..., lossy_accepted_tokens: _Optional[int] = ..., resting: bool = ..., learning: _Optional[_Union[_learning_pb2.LearningStatus, _Mapping]] = ...) -> None: ...

class AttachDrafterRequest(_message.Message):
    __slots__ = ("address", "name", "labels", "trusted", "lease", "renewal")
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    TRUSTED_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    RENEWAL_FIELD_NUMBER: _ClassVar[int]
    address: str
    name: str
    labels: _containers.ScalarMap[str, str]
    trusted: bool
    lease: _duration_pb2.Duration
    renewal: bool
    def __init__(self, address: _Optional[str] = ..., name: _Optional[str] = ..., labels: _Optional[_Mapping[str, str]] = ..., trusted: bool = ..., lease: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., renewal: bool = ...) -> None: ...

class AttachDrafterResponse(_message.Message):
    __slots__ = ("drafter",)
    DRAFTER_FIELD_NUMBER: _ClassVar[int]
    drafter: Drafter
    def __init__(self, drafter: _Optional[_Union[Drafter, _Mapping]] = ...) -> None: ...

class DetachDrafterRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class DetachDrafterResponse(_message.Message):
    __slots__ = ("drafter",)
    DRAFTER_FIELD_NUMBER: _ClassVar[int]
    drafter: Drafter
    def __init__(self, drafter: _Optional[_Union[Drafter, _Mapping]] = ...) -> None: ...

class SwapDrafterRequest(_message.Message):
    __slots__ = ("old_name", "new_name", "request_id")
    OLD_NAME_FIELD_NUMBER: _ClassVar[int]
    NEW_NAME_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    old_name: str
    new_name: str
    request_id: str
    def __init__(self, old_name: _Optional[str] = ..., new_name: _Optional[str] = ..., request_id: _Optional[str] = ...) -> None: ...

class SwapDrafterResponse(_message.Message):
    __slots__ = ("drafter", "moved_sequences")
    DRAFTER_FIELD_NUMBER: _ClassVar[int]
    MOVED_SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    drafter: Drafter
    moved_sequences: int
    def __init__(self, drafter: _Optional[_Union[Drafter, _Mapping]] = ..., moved_sequences: _Optional[int] = ...) -> None: ...

class RolloutSide(_message.Message):
    __slots__ = ("name", "sequences", "steps", "draft_tokens", "accepted_tokens", "sequence_steps", "drafting_time")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_STEPS_FIELD_NUMBER: _ClassVar[int]
    DRAFTING_TIME_FIELD_NUMBER: _ClassVar[int]
    name: str
    sequences: int
    steps: int
    draft_tokens: int
    accepted_tokens: int
    sequence_steps: int
    drafting_time: _duration_pb2.Duration
    def __init__(self, name: _Optional[str] = ..., sequences: _Optional[int] = ..., steps: _Optional[int] = ..., draft_tokens: _Optional[int] = ..., accepted_tokens: _Optional[int] = ..., sequence_steps: _Optional[int] = ..., drafting_time: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class Rollout(_message.Message):
    __slots__ = ("old", "new", "share", "state", "reason", "started_at", "ended_at")
    OLD_FIELD_NUMBER: _ClassVar[int]
    NEW_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    STARTED_AT_FIELD_NUMBER: _ClassVar[int]
    ENDED_AT_FIELD_NUMBER: _ClassVar[int]
    old: RolloutSide
    new: RolloutSide
    share: float
    state: RolloutState
    reason: str
    started_at: _timestamp_pb2.Timestamp
    ended_at: _timestamp_pb2.Timestamp
    def __init__(self, old: _Optional[_Union[RolloutSide, _Mapping]] = ..., new: _Optional[_Union[RolloutSide, _Mapping]] = ..., share: _Optional[float] = ..., state: _Optional[_Union[RolloutState, str]] = ..., reason: _Optional[str] = ..., started_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., ended_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class StartRolloutRequest(_message.Message):
    __slots__ = ("old_name", "new_name", "share")
    OLD_NAME_FIELD_NUMBER: _ClassVar[int]
    NEW_NAME_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    old_name: str
    new_name: str
    share: float
    def __init__(self, old_name: _Optional[str] = ..., new_name: _Optional[str] = ..., share: _Optional[float] = ...) -> None: ...

class StartRolloutResponse(_message.Message):
    __slots__ = ("rollout",)
    ROLLOUT_FIELD_NUMBER: _ClassVar[int]
    rollout: Rollout
    def __init__(self, rollout: _Optional[_Union[Rollout, _Mapping]] = ...) -> None: ...

class FinishRolloutRequest(_message.Message):
    __slots__ = ("new_name", "promote")
    NEW_NAME_FIELD_NUMBER: _ClassVar[int]
    PROMOTE_FIELD_NUMBER: _ClassVar[int]
    new_name: str
    promote: bool
    def __init__(self, new_name: _Optional[str] = ..., promote: bool = ...) -> None: ...

class FinishRolloutResponse(_message.Message):
    __slots__ = ("rollout",)
    ROLLOUT_FIELD_NUMBER: _ClassVar[int]
    rollout: Rollout
    def __init__(self, rollout: _Optional[_Union[Rollout, _Mapping]] = ...) -> None: ...

class ListRolloutsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListRolloutsResponse(_message.Message):
    __slots__ = ("rollouts",)
    ROLLOUTS_FIELD_NUMBER: _ClassVar[int]
    rollouts: _containers.RepeatedCompositeFieldContainer[Rollout]
    def __init__(self, rollouts: _Optional[_Iterable[_Union[Rollout, _Mapping]]] = ...) -> None: ...

class ListDraftersRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListDraftersResponse(_message.Message):
    __slots__ = ("drafters",)
    DRAFTERS_FIELD_NUMBER: _ClassVar[int]
    drafters: _containers.RepeatedCompositeFieldContainer[Drafter]
    def __init__(self, drafters: _Optional[_Iterable[_Union[Drafter, _Mapping]]] = ...) -> None: ...

class WatchDraftersRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class WatchDraftersResponse(_message.Message):
    __slots__ = ("drafters",)
    DRAFTERS_FIELD_NUMBER: _ClassVar[int]
    drafters: _containers.RepeatedCompositeFieldContainer[Drafter]
    def __init__(self, drafters: _Optional[_Iterable[_Union[Drafter, _Mapping]]] = ...) -> None: ...

class RegisterDrafterRequest(_message.Message):
    __slots__ = ("address", "name", "leaving", "labels")
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    LEAVING_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    address: str
    name: str
    leaving: bool
    labels: _containers.ScalarMap[str, str]
    def __init__(self, address: _Optional[str] = ..., name: _Optional[str] = ..., leaving: bool = ..., labels: _Optional[_Mapping[str, str]] = ...) -> None: ...

class RegisterDrafterResponse(_message.Message):
    __slots__ = ("heartbeat_interval",)
    HEARTBEAT_INTERVAL_FIELD_NUMBER: _ClassVar[int]
    heartbeat_interval: _duration_pb2.Duration
    def __init__(self, heartbeat_interval: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class ReportLearningRequest(_message.Message):
    __slots__ = ("drafter_name", "learning")
    DRAFTER_NAME_FIELD_NUMBER: _ClassVar[int]
    LEARNING_FIELD_NUMBER: _ClassVar[int]
    drafter_name: str
    learning: _learning_pb2.LearningStatus
    def __init__(self, drafter_name: _Optional[str] = ..., learning: _Optional[_Union[_learning_pb2.LearningStatus, _Mapping]] = ...) -> None: ...

class ReportLearningResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
