from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class AcceptanceRule(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ACCEPTANCE_RULE_UNSPECIFIED: _ClassVar[AcceptanceRule]
    ACCEPTANCE_RULE_COUPLED: _ClassVar[AcceptanceRule]
    ACCEPTANCE_RULE_REJECTION: _ClassVar[AcceptanceRule]
    ACCEPTANCE_RULE_TYPICAL: _ClassVar[AcceptanceRule]
    ACCEPTANCE_RULE_THRESHOLD: _ClassVar[AcceptanceRule]

class AcceptancePreset(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ACCEPTANCE_PRESET_UNSPECIFIED: _ClassVar[AcceptancePreset]
    ACCEPTANCE_PRESET_AUTO: _ClassVar[AcceptancePreset]
    ACCEPTANCE_PRESET_CODE: _ClassVar[AcceptancePreset]
    ACCEPTANCE_PRESET_JSON: _ClassVar[AcceptancePreset]
    ACCEPTANCE_PRESET_NARRATIVE: _ClassVar[AcceptancePreset]

class DraftPlanning(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DRAFT_PLANNING_UNSPECIFIED: _ClassVar[DraftPlanning]
    DRAFT_PLANNING_AUTO: _ClassVar[DraftPlanning]
    DRAFT_PLANNING_ALWAYS: _ClassVar[DraftPlanning]
ACCEPTANCE_RULE_UNSPECIFIED: AcceptanceRule
ACCEPTANCE_RULE_COUPLED: AcceptanceRule
ACCEPTANCE_RULE_REJECTION: AcceptanceRule
ACCEPTANCE_RULE_TYPICAL: AcceptanceRule
ACCEPTANCE_RULE_THRESHOLD: AcceptanceRule
ACCEPTANCE_PRESET_UNSPECIFIED: AcceptancePreset
ACCEPTANCE_PRESET_AUTO: AcceptancePreset
ACCEPTANCE_PRESET_CODE: AcceptancePreset
ACCEPTANCE_PRESET_JSON: AcceptancePreset
ACCEPTANCE_PRESET_NARRATIVE: AcceptancePreset
DRAFT_PLANNING_UNSPECIFIED: DraftPlanning
DRAFT_PLANNING_AUTO: DraftPlanning
DRAFT_PLANNING_ALWAYS: DraftPlanning

class Prediction(_message.Message):
    __slots__ = ("text", "token_ids")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    text: str
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, text: _Optional[str] = ..., token_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class SpeculationOptions(_message.Message):
    __slots__ = ("enabled", "drafter", "max_draft_tokens", "acceptance", "labels", "drafters", "drafter_names", "prediction", "planning", "preset", "threshold", "posterior_threshold", "posterior_alpha", "dynamic_temperature")
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    ENABLED_FIELD_NUMBER: _ClassVar[int]
    DRAFTER_FIELD_NUMBER: _ClassVar[int]
    MAX_DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ACCEPTANCE_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    DRAFTERS_FIELD_NUMBER: _ClassVar[int]
    DRAFTER_NAMES_FIELD_NUMBER: _ClassVar[int]
    PREDICTION_FIELD_NUMBER: _ClassVar[int]
    PLANNING_FIELD_NUMBER: _ClassVar[int]
    PRESET_FIELD_NUMBER: _ClassVar[int]
    THRESHOLD_FIELD_NUMBER: _ClassVar[int]
    POSTERIOR_THRESHOLD_FIELD_NUMBER: _ClassVar[int]
    POSTERIOR_ALPHA_FIELD_NUMBER: _ClassVar[int]
    DYNAMIC_TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    enabled: bool
    drafter: str
    max_draft_tokens: int
    acceptance: AcceptanceRule
    labels: _containers.ScalarMap[str, str]
    drafters: int
    drafter_names: _containers.RepeatedScalarFieldContainer[str]
    prediction: Prediction
    planning: DraftPlanning
    preset: AcceptancePreset
    threshold: float
    posterior_threshold: float
    posterior_alpha: float
    dynamic_temperature: bool
    def __init__(self, enabled: bool = ..., drafter: _Optional[str] = ..., max_draft_tokens: _Optional[int] = ..., acceptance: _Optional[_Union[AcceptanceRule, str]] = ..., labels: _Optional[_Mapping[str, str]] = ..., drafters: _Optional[int] = ..., drafter_names: _Optional[_Iterable[str]] = ..., prediction: _Optional[_Union[Prediction, _Mapping]] = ..., planning: _Optional[_Union[DraftPlanning, str]] = ..., preset: _Optional[_Union[AcceptancePreset, str]] = ..., threshold: _Optional[float] = ..., posterior_threshold: _Optional[float] = ..., posterior_alpha: _Optional[float] = ..., dynamic_temperature: bool = ...) -> None: ...

class SpeculationStats(_message.Message):
    __slots__ = ("steps", "draft_tokens", "accepted_tokens", "stale_nodes", "drafters", "hits", "acceptance", "preset", "threshold", "posterior_threshold", "posterior_alpha", "lossless", "drafts", "accepted_per_position", "planning")
    STEPS_FIELD_NUMBER: _ClassVar[int]
    DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    STALE_NODES_FIELD_NUMBER: _ClassVar[int]
    DRAFTERS_FIELD_NUMBER: _ClassVar[int]
    HITS_FIELD_NUMBER: _ClassVar[int]
    ACCEPTANCE_FIELD_NUMBER: _ClassVar[int]
    PRESET_FIELD_NUMBER: _ClassVar[int]
    THRESHOLD_FIELD_NUMBER: _ClassVar[int]
    POSTERIOR_THRESHOLD_FIELD_NUMBER: _ClassVar[int]
    POSTERIOR_ALPHA_FIELD_NUMBER: _ClassVar[int]
    LOSSLESS_FIELD_NUMBER: _ClassVar[int]
    DRAFTS_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_PER_POSITION_FIELD_NUMBER: _ClassVar[int]
    PLANNING_FIELD_NUMBER: _ClassVar[int]
    steps: int
    draft_tokens: int
    accepted_tokens: int
    stale_nodes: int
    drafters: _containers.RepeatedCompositeFieldContainer[DrafterStats]
    hits: int
    acceptance: AcceptanceRule
    preset: AcceptancePreset
    threshold: float
    posterior_threshold: float
    posterior_alpha: float
    lossless: bool
    drafts: int
    accepted_per_position: _containers.RepeatedScalarFieldContainer[int]
    planning: DraftPlanning
    def __init__(self, steps: _Optional[int] = ..., draft_tokens: _Optional[int] = ..., accepted_tokens: _Optional[int] = ..., stale_nodes: _Optional[int] = ..., drafters: _Optional[_Iterable[_Union[DrafterStats, _Mapping]]] = ..., hits: _Optional[int] = ..., acceptance: _Optional[_Union[AcceptanceRule, str]] = ..., preset: _Optional[_Union[AcceptancePreset, str]] = ..., threshold: _Optional[float] = ..., posterior_threshold: _Optional[float] = ..., posterior_alpha: _Optional[float] = ..., lossless: bool = ..., drafts: _Optional[int] = ..., accepted_per_position: _Optional[_Iterable[int]] = ..., planning: _Optional[_Union[DraftPlanning, str]] = ...) -> None: ...

class DrafterStats(_message.Message):
    __slots__ = ("name", "draft_tokens", "accepted_tokens")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    name: str
    draft_tokens: int
    accepted_tokens: int
    def __init__(self, name: _Optional[str] = ..., draft_tokens: _Optional[int] = ..., accepted_tokens: _Optional[int] = ...) -> None: ...
