import datetime

from draftwire.v1 import calibration_pb2 as _calibration_pb2
from draftwire.v1 import features_pb2 as _features_pb2
from draftwire.v1 import model_info_pb2 as _model_info_pb2
from draftwire.v1 import proposal_pb2 as _proposal_pb2
from draftwire.v1 import sampling_pb2 as _sampling_pb2
from draftwire.v1 import speculation_pb2 as _speculation_pb2
from draftwire.v1 import step_cost_pb2 as _step_cost_pb2
from draftwire.v1 import step_times_pb2 as _step_times_pb2
from draftwire.v1 import trace_context_pb2 as _trace_context_pb2
from draftwire.v1 import verdict_pb2 as _verdict_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.rpc import status_pb2 as _status_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ModelLoadState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MODEL_LOAD_STATE_UNSPECIFIED: _ClassVar[ModelLoadState]
    MODEL_LOAD_STATE_LOADING: _ClassVar[ModelLoadState]
    MODEL_LOAD_STATE_SERVING: _ClassVar[ModelLoadState]
    MODEL_LOAD_STATE_FAILED: _ClassVar[ModelLoadState]
MODEL_LOAD_STATE_UNSPECIFIED: ModelLoadState
MODEL_LOAD_STATE_LOADING: ModelLoadState
MODEL_LOAD_STATE_SERVING: ModelLoadState
MODEL_LOAD_STATE_FAILED: ModelLoadState

class DraftRequest(_message.Message):
    __slots__ = ("hello", "open", "verdicts", "close", "sequence_error", "ping", "features", "step_begun")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    OPEN_FIELD_NUMBER: _ClassVar[int]
    VERDICTS_FIELD_NUMBER: _ClassVar[int]
    CLOSE_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_ERROR_FIELD_NUMBER: _ClassVar[int]
    PING_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    STEP_BEGUN_FIELD_NUMBER: _ClassVar[int]
    hello: _model_info_pb2.PeerInfo
    open: OpenSequence
    verdicts: _verdict_pb2.VerdictBatch
    close: CloseSequences
    sequence_error: SequenceError
    ping: Ping
    features: _features_pb2.FeatureBatch
    step_begun: StepBegun
    def __init__(self, hello: _Optional[_Union[_model_info_pb2.PeerInfo, _Mapping]] = ..., open: _Optional[_Union[OpenSequence, _Mapping]] = ..., verdicts: _Optional[_Union[_verdict_pb2.VerdictBatch, _Mapping]] = ..., close: _Optional[_Union[CloseSequences, _Mapping]] = ..., sequence_error: _Optional[_Union[SequenceError, _Mapping]] = ..., ping: _Optional[_Union[Ping, _Mapping]] = ..., features: _Optional[_Union[_features_pb2.FeatureBatch, _Mapping]] = ..., step_begun: _Optional[_Union[StepBegun, _Mapping]] = ...) -> None: ...

class DraftResponse(_message.Message):
    __slots__ = ("hello", "opened", "proposals", "sequence_error", "pong", "replaced")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    OPENED_FIELD_NUMBER: _ClassVar[int]
    PROPOSALS_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_ERROR_FIELD_NUMBER: _ClassVar[int]
    PONG_FIELD_NUMBER: _ClassVar[int]
    REPLACED_FIELD_NUMBER: _ClassVar[int]
    hello: _model_info_pb2.PeerInfo
    opened: SequenceOpened
    proposals: _proposal_pb2.ProposalBatch
    sequence_error: SequenceError
    pong: Pong
    replaced: ModelReplaced
    def __init__(self, hello: _Optional[_Union[_model_info_pb2.PeerInfo, _Mapping]] = ..., opened: _Optional[_Union[SequenceOpened, _Mapping]] = ..., proposals: _Optional[_Union[_proposal_pb2.ProposalBatch, _Mapping]] = ..., sequence_error: _Optional[_Union[SequenceError, _Mapping]] = ..., pong: _Optional[_Union[Pong, _Mapping]] = ..., replaced: _Optional[_Union[ModelReplaced, _Mapping]] = ...) -> None: ...

class Ping(_message.Message):
    __slots__ = ("number",)
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    number: int
    def __init__(self, number: _Optional[int] = ...) -> None: ...

class Pong(_message.Message):
    __slots__ = ("number",)
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    number: int
    def __init__(self, number: _Optional[int] = ...) -> None: ...

class StepBegun(_message.Message):
    __slots__ = ("seconds",)
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    seconds: float
    def __init__(self, seconds: _Optional[float] = ...) -> None: ...

class ModelReplaced(_message.Message):
    __slots__ = ("model",)
    MODEL_FIELD_NUMBER: _ClassVar[int]
    model: _model_info_pb2.ModelInfo
    def __init__(self, model: _Optional[_Union[_model_info_pb2.ModelInfo, _Mapping]] = ...) -> None: ...

class OpenSequence(_message.Message):
    __slots__ = ("sequence_id", "epoch", "sampling", "committed_length", "offset", "token_ids", "max_tree_nodes", "max_length", "acceptance", "dynamic_temperature", "request_id", "trace_context")
    SEQUENCE_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_LENGTH_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    MAX_TREE_NODES_FIELD_NUMBER: _ClassVar[int]
    MAX_LENGTH_FIELD_NUMBER: _ClassVar[int]
    ACCEPTANCE_FIELD_NUMBER: _ClassVar[int]
    DYNAMIC_TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TRACE_CONTEXT_FIELD_NUMBER: _ClassVar[int]
    sequence_id: int
    epoch: int
    sampling: _sampling_pb2.SamplingParams
    committed_length: int
    offset: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    max_tree_nodes: int
    max_length: int
    acceptance: _speculation_pb2.AcceptanceRule
    dynamic_temperature: bool
    request_id: str
    trace_context: _trace_context_pb2.TraceContext
    def __init__(self, sequence_id: _Optional[int] = ..., epoch: _Optional[int] = ..., sampling: _Optional[_Union[_sampling_pb2.SamplingParams, _Mapping]] = ..., committed_length: _Optional[int] = ..., offset: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., max_tree_nodes: _Optional[int] = ..., max_length: _Optional[int] = ..., acceptance: _Optional[_Union[_speculation_pb2.AcceptanceRule, str]] = ..., dynamic_temperature: bool = ..., request_id: _Optional[str] = ..., trace_context: _Optional[_Union[_trace_context_pb2.TraceContext, _Mapping]] = ...) -> None: ...

class SequenceOpened(_message.Message):
    __slots__ = ("sequence_id", "epoch")
    SEQUENCE_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    sequence_id: int
    epoch: int
    def __init__(self, sequence_id: _Optional[int] = ..., epoch: _Optional[int] = ...) -> None: ...

class CloseSequences(_message.Message):
    __slots__ = ("sequence_ids",)
    SEQUENCE_IDS_FIELD_NUMBER: _ClassVar[int]
    sequence_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, sequence_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class SequenceError(_message.Message):
    __slots__ = ("sequence_id", "epoch", "status")
    SEQUENCE_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    sequence_id: int
    epoch: int
    status: _status_pb2.Status
    def __init__(self, sequence_id: _Optional[int] = ..., epoch: _Optional[int] = ..., status: _Optional[_Union[_status_pb2.Status, _Mapping]] = ...) -> None: ...

class LoadModelRequest(_message.Message):
    __slots__ = ("model", "request_id", "wait")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    WAIT_FIELD_NUMBER: _ClassVar[int]
    model: str
    request_id: str
    wait: bool
    def __init__(self, model: _Optional[str] = ..., request_id: _Optional[str] = ..., wait: bool = ...) -> None: ...

class LoadModelResponse(_message.Message):
    __slots__ = ("load",)
    LOAD_FIELD_NUMBER: _ClassVar[int]
    load: ModelLoad
    def __init__(self, load: _Optional[_Union[ModelLoad, _Mapping]] = ...) -> None: ...

class ModelLoad(_message.Message):
    __slots__ = ("model", "request_id", "state", "error", "started_at")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    STARTED_AT_FIELD_NUMBER: _ClassVar[int]
    model: str
    request_id: str
    state: ModelLoadState
    error: _status_pb2.Status
    started_at: _timestamp_pb2.Timestamp
    def __init__(self, model: _Optional[str] = ..., request_id: _Optional[str] = ..., state: _Optional[_Union[ModelLoadState, str]] = ..., error: _Optional[_Union[_status_pb2.Status, _Mapping]] = ..., started_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class DrafterServiceGetModelInfoRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DrafterServiceGetModelInfoResponse(_message.Message):
    __slots__ = ("info", "last_load", "status")
    INFO_FIELD_NUMBER: _ClassVar[int]
    LAST_LOAD_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    info: _model_info_pb2.PeerInfo
    last_load: ModelLoad
    status: DrafterStatus
    def __init__(self, info: _Optional[_Union[_model_info_pb2.PeerInfo, _Mapping]] = ..., last_load: _Optional[_Union[ModelLoad, _Mapping]] = ..., status: _Optional[_Union[DrafterStatus, _Mapping]] = ...) -> None: ...

class DrafterStatus(_message.Message):
    __slots__ = ("streams", "open_sequences", "used_slots", "total_slots", "tasks", "times", "step_costs", "classes", "drafted_nodes", "verifiers")
    STREAMS_FIELD_NUMBER: _ClassVar[int]
    OPEN_SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    USED_SLOTS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_SLOTS_FIELD_NUMBER: _ClassVar[int]
    TASKS_FIELD_NUMBER: _ClassVar[int]
    TIMES_FIELD_NUMBER: _ClassVar[int]
    STEP_COSTS_FIELD_NUMBER: _ClassVar[int]
    CLASSES_FIELD_NUMBER: _ClassVar[int]
    DRAFTED_NODES_FIELD_NUMBER: _ClassVar[int]
    VERIFIERS_FIELD_NUMBER: _ClassVar[int]
    streams: int
    open_sequences: int
    used_slots: int
    total_slots: int
    tasks: int
    times: _step_times_pb2.StepTimes
    step_costs: _containers.RepeatedCompositeFieldContainer[_step_cost_pb2.StepCost]
    classes: _containers.RepeatedCompositeFieldContainer[_calibration_pb2.AcceptanceClass]
    drafted_nodes: int
    verifiers: _containers.RepeatedCompositeFieldContainer[VerifierShare]
    def __init__(self, streams: _Optional[int] = ..., open_sequences: _Optional[int] = ..., used_slots: _Optional[int] = ..., total_slots: _Optional[int] = ..., tasks: _Optional[int] = ..., times: _Optional[_Union[_step_times_pb2.StepTimes, _Mapping]] = ..., step_costs: _Optional[_Iterable[_Union[_step_cost_pb2.StepCost, _Mapping]]] = ..., classes: _Optional[_Iterable[_Union[_calibration_pb2.AcceptanceClass, _Mapping]]] = ..., drafted_nodes: _Optional[int] = ..., verifiers: _Optional[_Iterable[_Union[VerifierShare, _Mapping]]] = ...) -> None: ...

class VerifierShare(_message.Message):
    __slots__ = ("name", "weight", "streams", "open_sequences", "waiting_sequences", "used_slots", "rows", "drafted_nodes", "preemptions")
    NAME_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    STREAMS_FIELD_NUMBER: _ClassVar[int]
    OPEN_SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    WAITING_SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    USED_SLOTS_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    DRAFTED_NODES_FIELD_NUMBER: _ClassVar[int]
    PREEMPTIONS_FIELD_NUMBER: _ClassVar[int]
    name: str
    weight: float
    streams: int
    open_sequences: int
    waiting_sequences: int
    used_slots: int
    rows: int
    drafted_nodes: int
    preemptions: int
    def __init__(self, name: _Optional[str] = ..., weight: _Optional[float] = ..., streams: _Optional[int] = ..., open_sequences: _Optional[int] = ..., waiting_sequences: _Optional[int] = ..., used_slots: _Optional[int] = ..., rows: _Optional[int] = ..., drafted_nodes: _Optional[int] = ..., preemptions: _Optional[int] = ...) -> None: ...
