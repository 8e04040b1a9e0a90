from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class TokenLogProbs(_message.Message):
    __slots__ = ("token", "rank", "top")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    TOP_FIELD_NUMBER: _ClassVar[int]
    token: TokenLogProb
    rank: int
    top: _containers.RepeatedCompositeFieldContainer[TokenLogProb]
    def __init__(self, token: _Optional[_Union[TokenLogProb, _Mapping]] = ..., rank: _Optional[int] = ..., top: _Optional[_Iterable[_Union[TokenLogProb, _Mapping]]] = ...) -> None: ...

class TokenLogProb(_message.Message):
    __slots__ = ("token_id", "log_prob", "text", "text_bytes")
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    LOG_PROB_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TEXT_BYTES_FIELD_NUMBER: _ClassVar[int]
    token_id: int
    log_prob: float
    text: str
    text_bytes: bytes
    def __init__(self, token_id: _Optional[int] = ..., log_prob: _Optional[float] = ..., text: _Optional[str] = ..., text_bytes: _Optional[bytes] = ...) -> None: ...
