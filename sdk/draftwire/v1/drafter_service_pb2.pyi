from draftwire.v1 import model_info_pb2 as _model_info_pb2
from draftwire.v1 import proposal_pb2 as _proposal_pb2
from draftwire.v1 import sampling_pb2 as _sampling_pb2
from draftwire.v1 import verdict_pb2 as _verdict_pb2
from google.rpc import status_pb2 as _status_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DraftRequest(_message.Message):
    __slots__ = ("hello", "open", "verdicts", "close", "sequence_error")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    OPEN_FIELD_NUMBER: _ClassVar[int]
    VERDICTS_FIELD_NUMBER: _ClassVar[int]
    CLOSE_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_ERROR_FIELD_NUMBER: _ClassVar[int]
    hello: _model_info_pb2.PeerInfo
    open: OpenSequence
    verdicts: _verdict_pb2.VerdictBatch
    close: CloseSequences
    sequence_error: SequenceError
    def __init__(self, hello: _Optional[_Union[_model_info_pb2.PeerInfo, _Mapping]] = ..., open: _Optional[_Union[OpenSequence, _Mapping]] = ..., verdicts: _Optional[_Union[_verdict_pb2.VerdictBatch, _Mapping]] = ..., close: _Optional[_Union[CloseSequences, _Mapping]] = ..., sequence_error: _Optional[_Union[SequenceError, _Mapping]] = ...) -> None: ...

class DraftResponse(_message.Message):
    __slots__ = ("hello", "opened", "proposals", "sequence_error")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    OPENED_FIELD_NUMBER: _ClassVar[int]
    PROPOSALS_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_ERROR_FIELD_NUMBER: _ClassVar[int]
    hello: _model_info_pb2.PeerInfo
    opened: SequenceOpened
    proposals: _proposal_pb2.ProposalBatch
    sequence_error: SequenceError
    def __init__(self, hello: _Optional[_Union[_model_info_pb2.PeerInfo, _Mapping]] = ..., opened: _Optional[_Union[SequenceOpened, _Mapping]] = ..., proposals: _Optional[_Union[_proposal_pb2.ProposalBatch, _Mapping]] = ..., sequence_error: _Optional[_Union[SequenceError, _Mapping]] = ...) -> None: ...

class OpenSequence(_message.Message):
    __slots__ = ("sequence_id", "epoch", "sampling", "committed_length", "offset", "token_ids", "max_tree_nodes", "max_length")
    SEQUENCE_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_LENGTH_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    MAX_TREE_NODES_FIELD_NUMBER: _ClassVar[int]
    MAX_LENGTH_FIELD_NUMBER: _ClassVar[int]
    sequence_id: int
    epoch: int
    sampling: _sampling_pb2.SamplingParams
    committed_length: int
    offset: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    max_tree_nodes: int
    max_length: int
    def __init__(self, sequence_id: _Optional[int] = ..., epoch: _Optional[int] = ..., sampling: _Optional[_Union[_sampling_pb2.SamplingParams, _Mapping]] = ..., committed_length: _Optional[int] = ..., offset: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., max_tree_nodes: _Optional[int] = ..., max_length: _Optional[int] = ...) -> None: ...

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

class DrafterServiceGetModelInfoRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DrafterServiceGetModelInfoResponse(_message.Message):
    __slots__ = ("info",)
    INFO_FIELD_NUMBER: _ClassVar[int]
    info: _model_info_pb2.PeerInfo
    def __init__(self, info: _Optional[_Union[_model_info_pb2.PeerInfo, _Mapping]] = ...) -> None: ...
