from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class FeatureMap(_message.Message):
    __slots__ = ("layers", "hidden_size", "width", "dtype", "norm_states", "norm_each_state", "norm_features", "norm_epsilon", "weights_dtype", "weights_sha256", "target_architectures", "unmapped", "window")
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    HIDDEN_SIZE_FIELD_NUMBER: _ClassVar[int]
    WIDTH_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    NORM_STATES_FIELD_NUMBER: _ClassVar[int]
    NORM_EACH_STATE_FIELD_NUMBER: _ClassVar[int]
    NORM_FEATURES_FIELD_NUMBER: _ClassVar[int]
    NORM_EPSILON_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_DTYPE_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_SHA256_FIELD_NUMBER: _ClassVar[int]
    TARGET_ARCHITECTURES_FIELD_NUMBER: _ClassVar[int]
    UNMAPPED_FIELD_NUMBER: _ClassVar[int]
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    layers: _containers.RepeatedScalarFieldContainer[int]
    hidden_size: int
    width: int
    dtype: str
    norm_states: bool
    norm_each_state: bool
    norm_features: bool
    norm_epsilon: float
    weights_dtype: str
    weights_sha256: str
    target_architectures: _containers.RepeatedScalarFieldContainer[str]
    unmapped: bool
    window: int
    def __init__(self, layers: _Optional[_Iterable[int]] = ..., hidden_size: _Optional[int] = ..., width: _Optional[int] = ..., dtype: _Optional[str] = ..., norm_states: bool = ..., norm_each_state: bool = ..., norm_features: bool = ..., norm_epsilon: _Optional[float] = ..., weights_dtype: _Optional[str] = ..., weights_sha256: _Optional[str] = ..., target_architectures: _Optional[_Iterable[str]] = ..., unmapped: bool = ..., window: _Optional[int] = ...) -> None: ...

class FeatureBatch(_message.Message):
    __slots__ = ("features",)
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    features: _containers.RepeatedCompositeFieldContainer[TokenFeatures]
    def __init__(self, features: _Optional[_Iterable[_Union[TokenFeatures, _Mapping]]] = ...) -> None: ...

class TokenFeatures(_message.Message):
    __slots__ = ("sequence_id", "epoch", "first_position", "values")
    SEQUENCE_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    FIRST_POSITION_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    sequence_id: int
    epoch: int
    first_position: int
    values: bytes
    def __init__(self, sequence_id: _Optional[int] = ..., epoch: _Optional[int] = ..., first_position: _Optional[int] = ..., values: _Optional[bytes] = ...) -> None: ...

class GetFeatureWeightsRequest(_message.Message):
    __slots__ = ("weights_sha256",)
    WEIGHTS_SHA256_FIELD_NUMBER: _ClassVar[int]
    weights_sha256: str
    def __init__(self, weights_sha256: _Optional[str] = ...) -> None: ...

class GetFeatureWeightsResponse(_message.Message):
    __slots__ = ("values",)
    VALUES_FIELD_NUMBER: _ClassVar[int]
    values: bytes
    def __init__(self, values: _Optional[bytes] = ...) -> None: ...
