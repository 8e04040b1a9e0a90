from draftwire.v1 import features_pb2 as _features_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ModelInfo(_message.Message):
    __slots__ = ("model_id", "architecture", "parameters", "vocab_size", "context_length", "dtype", "device", "tokenizer_sha256", "eos_token_ids", "bit_exact", "fingerprint", "draft_tokenizer_sha256", "numerics", "numerics_description", "kv_dtype", "kernels", "kernels_advice")
    MODEL_ID_FIELD_NUMBER: _ClassVar[int]
    ARCHITECTURE_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_LENGTH_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    TOKENIZER_SHA256_FIELD_NUMBER: _ClassVar[int]
    EOS_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    BIT_EXACT_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    DRAFT_TOKENIZER_SHA256_FIELD_NUMBER: _ClassVar[int]
    NUMERICS_FIELD_NUMBER: _ClassVar[int]
    NUMERICS_DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    KV_DTYPE_FIELD_NUMBER: _ClassVar[int]
    KERNELS_FIELD_NUMBER: _ClassVar[int]
    KERNELS_ADVICE_FIELD_NUMBER: _ClassVar[int]
    model_id: str
    architecture: str
    parameters: int
    vocab_size: int
    context_length: int
    dtype: str
    device: str
    tokenizer_sha256: str
    eos_token_ids: _containers.RepeatedScalarFieldContainer[int]
    bit_exact: bool
    fingerprint: str
    draft_tokenizer_sha256: str
    numerics: str
    numerics_description: str
    kv_dtype: str
    kernels: str
    kernels_advice: str
    def __init__(self, model_id: _Optional[str] = ..., architecture: _Optional[str] = ..., parameters: _Optional[int] = ..., vocab_size: _Optional[int] = ..., context_length: _Optional[int] = ..., dtype: _Optional[str] = ..., device: _Optional[str] = ..., tokenizer_sha256: _Optional[str] = ..., eos_token_ids: _Optional[_Iterable[int]] = ..., bit_exact: bool = ..., fingerprint: _Optional[str] = ..., draft_tokenizer_sha256: _Optional[str] = ..., numerics: _Optional[str] = ..., numerics_description: _Optional[str] = ..., kv_dtype: _Optional[str] = ..., kernels: _Optional[str] = ..., kernels_advice: _Optional[str] = ...) -> None: ...

class PeerInfo(_message.Message):
    __slots__ = ("protocol_revision", "min_protocol_revision", "build", "capabilities", "model", "limits", "features")
    PROTOCOL_REVISION_FIELD_NUMBER: _ClassVar[int]
    MIN_PROTOCOL_REVISION_FIELD_NUMBER: _ClassVar[int]
    BUILD_FIELD_NUMBER: _ClassVar[int]
    CAPABILITIES_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    protocol_revision: int
    min_protocol_revision: int
    build: str
    capabilities: _containers.RepeatedScalarFieldContainer[str]
    model: ModelInfo
    limits: Limits
    features: _features_pb2.FeatureMap
    def __init__(self, protocol_revision: _Optional[int] = ..., min_protocol_revision: _Optional[int] = ..., build: _Optional[str] = ..., capabilities: _Optional[_Iterable[str]] = ..., model: _Optional[_Union[ModelInfo, _Mapping]] = ..., limits: _Optional[_Union[Limits, _Mapping]] = ..., features: _Optional[_Union[_features_pb2.FeatureMap, _Mapping]] = ...) -> None: ...

class Limits(_message.Message):
    __slots__ = ("max_sequences", "max_tree_nodes", "max_message_bytes", "max_sequence_tokens")
    MAX_SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    MAX_TREE_NODES_FIELD_NUMBER: _ClassVar[int]
    MAX_MESSAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_SEQUENCE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    max_sequences: int
    max_tree_nodes: int
    max_message_bytes: int
    max_sequence_tokens: int
    def __init__(self, max_sequences: _Optional[int] = ..., max_tree_nodes: _Optional[int] = ..., max_message_bytes: _Optional[int] = ..., max_sequence_tokens: _Optional[int] = ...) -> None: ...
