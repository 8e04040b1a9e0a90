from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Verdict(_message.Message):
    __slots__ = ("sequence_id", "epoch", "committed_length", "token_ids", "accepted", "hidden_state")
    SEQUENCE_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_LENGTH_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    HIDDEN_STATE_FIELD_NUMBER: _ClassVar[int]
    sequence_id: int
    epoch: int
    committed_length: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    accepted: int
    hidden_state: HiddenState
    def __init__(self, sequence_id: _Optional[int] = ..., epoch: _Optional[int] = ..., committed_length: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., accepted: _Optional[int] = ..., hidden_state: _Optional[_Union[HiddenState, _Mapping]] = ...) -> None: ...

class HiddenState(_message.Message):
    __slots__ = ("dtype", "values")
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    dtype: str
    values: bytes
    def __init__(self, dtype: _Optional[str] = ..., values: _Optional[bytes] = ...) -> None: ...

class VerdictBatch(_message.Message):
    __slots__ = ("verdicts", "max_tree_nodes")
    VERDICTS_FIELD_NUMBER: _ClassVar[int]
    MAX_TREE_NODES_FIELD_NUMBER: _ClassVar[int]
    verdicts: _containers.RepeatedCompositeFieldContainer[Verdict]
    max_tree_nodes: int
    def __init__(self, verdicts: _Optional[_Iterable[_Union[Verdict, _Mapping]]] = ..., max_tree_nodes: _Optional[int] = ...) -> None: ...
