import datetime

from draftwire.v1 import model_info_pb2 as _model_info_pb2
from draftwire.v1 import planner_status_pb2 as _planner_status_pb2
from draftwire.v1 import proposal_pb2 as _proposal_pb2
from draftwire.v1 import sampling_pb2 as _sampling_pb2
from draftwire.v1 import speculation_pb2 as _speculation_pb2
from draftwire.v1 import speculation_gain_pb2 as _speculation_gain_pb2
from draftwire.v1 import step_times_pb2 as _step_times_pb2
from draftwire.v1 import structured_output_pb2 as _structured_output_pb2
from draftwire.v1 import token_log_probs_pb2 as _token_log_probs_pb2
from draftwire.v1 import verdict_pb2 as _verdict_pb2
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

class FinishReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FINISH_REASON_UNSPECIFIED: _ClassVar[FinishReason]
    FINISH_REASON_STOP: _ClassVar[FinishReason]
    FINISH_REASON_LENGTH: _ClassVar[FinishReason]
    FINISH_REASON_DEADLINE: _ClassVar[FinishReason]

class CallArgumentStyle(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CALL_ARGUMENT_STYLE_UNSPECIFIED: _ClassVar[CallArgumentStyle]
    CALL_ARGUMENT_STYLE_OBJECT: _ClassVar[CallArgumentStyle]
    CALL_ARGUMENT_STYLE_JSON: _ClassVar[CallArgumentStyle]
    CALL_ARGUMENT_STYLE_PARAMETERS: _ClassVar[CallArgumentStyle]
    CALL_ARGUMENT_STYLE_KEYWORDS: _ClassVar[CallArgumentStyle]
    CALL_ARGUMENT_STYLE_BARE_KEYS: _ClassVar[CallArgumentStyle]

class ToolCallFormat(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TOOL_CALL_FORMAT_UNSPECIFIED: _ClassVar[ToolCallFormat]
    TOOL_CALL_FORMAT_HERMES: _ClassVar[ToolCallFormat]
    TOOL_CALL_FORMAT_LLAMA: _ClassVar[ToolCallFormat]
    TOOL_CALL_FORMAT_MISTRAL: _ClassVar[ToolCallFormat]
    TOOL_CALL_FORMAT_MISTRAL_ARGS: _ClassVar[ToolCallFormat]
    TOOL_CALL_FORMAT_HARMONY: _ClassVar[ToolCallFormat]
    TOOL_CALL_FORMAT_SPELLED: _ClassVar[ToolCallFormat]
FINISH_REASON_UNSPECIFIED: FinishReason
FINISH_REASON_STOP: FinishReason
FINISH_REASON_LENGTH: FinishReason
FINISH_REASON_DEADLINE: FinishReason
CALL_ARGUMENT_STYLE_UNSPECIFIED: CallArgumentStyle
CALL_ARGUMENT_STYLE_OBJECT: CallArgumentStyle
CALL_ARGUMENT_STYLE_JSON: CallArgumentStyle
CALL_ARGUMENT_STYLE_PARAMETERS: CallArgumentStyle
CALL_ARGUMENT_STYLE_KEYWORDS: CallArgumentStyle
CALL_ARGUMENT_STYLE_BARE_KEYS: CallArgumentStyle
TOOL_CALL_FORMAT_UNSPECIFIED: ToolCallFormat
TOOL_CALL_FORMAT_HERMES: ToolCallFormat
TOOL_CALL_FORMAT_LLAMA: ToolCallFormat
TOOL_CALL_FORMAT_MISTRAL: ToolCallFormat
TOOL_CALL_FORMAT_MISTRAL_ARGS: ToolCallFormat
TOOL_CALL_FORMAT_HARMONY: ToolCallFormat
TOOL_CALL_FORMAT_SPELLED: ToolCallFormat

class TokenIds(_message.Message):
    __slots__ = ("ids",)
    IDS_FIELD_NUMBER: _ClassVar[int]
    ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, ids: _Optional[_Iterable[int]] = ...) -> None: ...

class GenerateRequest(_message.Message):
    __slots__ = ("request_id", "text", "token_ids", "messages", "sampling", "max_tokens", "ignore_eos", "stop", "speculation", "resume_token_ids", "resumable", "min_tokens", "stop_token_ids", "include_stop", "max_time", "log_probs", "prompt_log_probs", "echo", "structured_output", "prefix_cache", "report_rejected", "special_tokens", "fit_max_tokens", "suffix", "private", "adapter")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    IGNORE_EOS_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    SPECULATION_FIELD_NUMBER: _ClassVar[int]
    RESUME_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    RESUMABLE_FIELD_NUMBER: _ClassVar[int]
    MIN_TOKENS_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_STOP_FIELD_NUMBER: _ClassVar[int]
    MAX_TIME_FIELD_NUMBER: _ClassVar[int]
    LOG_PROBS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOG_PROBS_FIELD_NUMBER: _ClassVar[int]
    ECHO_FIELD_NUMBER: _ClassVar[int]
    STRUCTURED_OUTPUT_FIELD_NUMBER: _ClassVar[int]
    PREFIX_CACHE_FIELD_NUMBER: _ClassVar[int]
    REPORT_REJECTED_FIELD_NUMBER: _ClassVar[int]
    SPECIAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    FIT_MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SUFFIX_FIELD_NUMBER: _ClassVar[int]
    PRIVATE_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    text: str
    token_ids: TokenIds
    messages: ChatMessages
    sampling: _sampling_pb2.SamplingParams
    max_tokens: int
    ignore_eos: bool
    stop: _containers.RepeatedScalarFieldContainer[str]
    speculation: _speculation_pb2.SpeculationOptions
    resume_token_ids: _containers.RepeatedScalarFieldContainer[int]
    resumable: bool
    min_tokens: int
    stop_token_ids: _containers.RepeatedScalarFieldContainer[int]
    include_stop: bool
    max_time: _duration_pb2.Duration
    log_probs: int
    prompt_log_probs: int
    echo: bool
    structured_output: _structured_output_pb2.StructuredOutput
    prefix_cache: bool
    report_rejected: bool
    special_tokens: bool
    fit_max_tokens: bool
    suffix: str
    private: bool
    adapter: str
    def __init__(self, request_id: _Optional[str] = ..., text: _Optional[str] = ..., token_ids: _Optional[_Union[TokenIds, _Mapping]] = ..., messages: _Optional[_Union[ChatMessages, _Mapping]] = ..., sampling: _Optional[_Union[_sampling_pb2.SamplingParams, _Mapping]] = ..., max_tokens: _Optional[int] = ..., ignore_eos: bool = ..., stop: _Optional[_Iterable[str]] = ..., speculation: _Optional[_Union[_speculation_pb2.SpeculationOptions, _Mapping]] = ..., resume_token_ids: _Optional[_Iterable[int]] = ..., resumable: bool = ..., min_tokens: _Optional[int] = ..., stop_token_ids: _Optional[_Iterable[int]] = ..., include_stop: bool = ..., max_time: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., log_probs: _Optional[int] = ..., prompt_log_probs: _Optional[int] = ..., echo: bool = ..., structured_output: _Optional[_Union[_structured_output_pb2.StructuredOutput, _Mapping]] = ..., prefix_cache: bool = ..., report_rejected: bool = ..., special_tokens: bool = ..., fit_max_tokens: bool = ..., suffix: _Optional[str] = ..., private: bool = ..., adapter: _Optional[str] = ...) -> None: ...

class ChatMessages(_message.Message):
    __slots__ = ("messages", "tools", "chat_template_kwargs", "add_generation_prompt", "continue_final_message")
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    TOOLS_FIELD_NUMBER: _ClassVar[int]
    CHAT_TEMPLATE_KWARGS_FIELD_NUMBER: _ClassVar[int]
    ADD_GENERATION_PROMPT_FIELD_NUMBER: _ClassVar[int]
    CONTINUE_FINAL_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedCompositeFieldContainer[ChatMessage]
    tools: _containers.RepeatedCompositeFieldContainer[ChatTool]
    chat_template_kwargs: str
    add_generation_prompt: bool
    continue_final_message: bool
    def __init__(self, messages: _Optional[_Iterable[_Union[ChatMessage, _Mapping]]] = ..., tools: _Optional[_Iterable[_Union[ChatTool, _Mapping]]] = ..., chat_template_kwargs: _Optional[str] = ..., add_generation_prompt: bool = ..., continue_final_message: bool = ...) -> None: ...

class ChatTool(_message.Message):
    __slots__ = ("name", "description", "parameters")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    name: str
    description: str
    parameters: str
    def __init__(self, name: _Optional[str] = ..., description: _Optional[str] = ..., parameters: _Optional[str] = ...) -> None: ...

class ChatMessage(_message.Message):
    __slots__ = ("role", "content", "tool_calls", "tool_call_id", "name", "reasoning")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    TOOL_CALLS_FIELD_NUMBER: _ClassVar[int]
    TOOL_CALL_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    REASONING_FIELD_NUMBER: _ClassVar[int]
    role: str
    content: str
    tool_calls: _containers.RepeatedCompositeFieldContainer[ChatToolCall]
    tool_call_id: str
    name: str
    reasoning: str
    def __init__(self, role: _Optional[str] = ..., content: _Optional[str] = ..., tool_calls: _Optional[_Iterable[_Union[ChatToolCall, _Mapping]]] = ..., tool_call_id: _Optional[str] = ..., name: _Optional[str] = ..., reasoning: _Optional[str] = ...) -> None: ...

class ChatToolCall(_message.Message):
    __slots__ = ("id", "name", "arguments")
    ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ARGUMENTS_FIELD_NUMBER: _ClassVar[int]
    id: str
    name: str
    arguments: str
    def __init__(self, id: _Optional[str] = ..., name: _Optional[str] = ..., arguments: _Optional[str] = ...) -> None: ...

class GenerateResponse(_message.Message):
    __slots__ = ("started", "chunk", "finished", "prompt")
    STARTED_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    started: GenerateStarted
    chunk: GenerateChunk
    finished: GenerateFinished
    prompt: PromptReport
    def __init__(self, started: _Optional[_Union[GenerateStarted, _Mapping]] = ..., chunk: _Optional[_Union[GenerateChunk, _Mapping]] = ..., finished: _Optional[_Union[GenerateFinished, _Mapping]] = ..., prompt: _Optional[_Union[PromptReport, _Mapping]] = ...) -> None: ...

class PromptReport(_message.Message):
    __slots__ = ("text", "token_ids", "token_texts", "text_offsets", "log_probs")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_TEXTS_FIELD_NUMBER: _ClassVar[int]
    TEXT_OFFSETS_FIELD_NUMBER: _ClassVar[int]
    LOG_PROBS_FIELD_NUMBER: _ClassVar[int]
    text: str
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    token_texts: _containers.RepeatedScalarFieldContainer[str]
    text_offsets: _containers.RepeatedScalarFieldContainer[int]
    log_probs: _containers.RepeatedCompositeFieldContainer[_token_log_probs_pb2.TokenLogProbs]
    def __init__(self, text: _Optional[str] = ..., token_ids: _Optional[_Iterable[int]] = ..., token_texts: _Optional[_Iterable[str]] = ..., text_offsets: _Optional[_Iterable[int]] = ..., log_probs: _Optional[_Iterable[_Union[_token_log_probs_pb2.TokenLogProbs, _Mapping]]] = ...) -> None: ...

class GenerateStarted(_message.Message):
    __slots__ = ("request_id", "prompt_tokens", "seed", "prompt_token_ids", "model_fingerprint", "requests", "numerics", "left_out")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    MODEL_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    NUMERICS_FIELD_NUMBER: _ClassVar[int]
    LEFT_OUT_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    prompt_tokens: int
    seed: int
    prompt_token_ids: _containers.RepeatedScalarFieldContainer[int]
    model_fingerprint: str
    requests: int
    numerics: str
    left_out: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, request_id: _Optional[str] = ..., prompt_tokens: _Optional[int] = ..., seed: _Optional[int] = ..., prompt_token_ids: _Optional[_Iterable[int]] = ..., model_fingerprint: _Optional[str] = ..., requests: _Optional[int] = ..., numerics: _Optional[str] = ..., left_out: _Optional[_Iterable[str]] = ...) -> None: ...

class GenerateChunk(_message.Message):
    __slots__ = ("token_ids", "text", "sources", "drafters", "token_texts", "text_offsets", "log_probs", "rejected")
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    SOURCES_FIELD_NUMBER: _ClassVar[int]
    DRAFTERS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_TEXTS_FIELD_NUMBER: _ClassVar[int]
    TEXT_OFFSETS_FIELD_NUMBER: _ClassVar[int]
    LOG_PROBS_FIELD_NUMBER: _ClassVar[int]
    REJECTED_FIELD_NUMBER: _ClassVar[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    text: str
    sources: _containers.RepeatedScalarFieldContainer[int]
    drafters: _containers.RepeatedScalarFieldContainer[str]
    token_texts: _containers.RepeatedScalarFieldContainer[str]
    text_offsets: _containers.RepeatedScalarFieldContainer[int]
    log_probs: _containers.RepeatedCompositeFieldContainer[_token_log_probs_pb2.TokenLogProbs]
    rejected: _containers.RepeatedCompositeFieldContainer[RejectedDraft]
    def __init__(self, token_ids: _Optional[_Iterable[int]] = ..., text: _Optional[str] = ..., sources: _Optional[_Iterable[int]] = ..., drafters: _Optional[_Iterable[str]] = ..., token_texts: _Optional[_Iterable[str]] = ..., text_offsets: _Optional[_Iterable[int]] = ..., log_probs: _Optional[_Iterable[_Union[_token_log_probs_pb2.TokenLogProbs, _Mapping]]] = ..., rejected: _Optional[_Iterable[_Union[RejectedDraft, _Mapping]]] = ...) -> None: ...

class RejectedDraft(_message.Message):
    __slots__ = ("token_id", "text", "source", "position", "depth")
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    DEPTH_FIELD_NUMBER: _ClassVar[int]
    token_id: int
    text: str
    source: int
    position: int
    depth: int
    def __init__(self, token_id: _Optional[int] = ..., text: _Optional[str] = ..., source: _Optional[int] = ..., position: _Optional[int] = ..., depth: _Optional[int] = ...) -> None: ...

class VerifyRequest(_message.Message):
    __slots__ = ("start", "proposal")
    START_FIELD_NUMBER: _ClassVar[int]
    PROPOSAL_FIELD_NUMBER: _ClassVar[int]
    start: VerifyStart
    proposal: _proposal_pb2.Proposal
    def __init__(self, start: _Optional[_Union[VerifyStart, _Mapping]] = ..., proposal: _Optional[_Union[_proposal_pb2.Proposal, _Mapping]] = ...) -> None: ...

class VerifyStart(_message.Message):
    __slots__ = ("request", "tokenizer_sha256")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    TOKENIZER_SHA256_FIELD_NUMBER: _ClassVar[int]
    request: GenerateRequest
    tokenizer_sha256: str
    def __init__(self, request: _Optional[_Union[GenerateRequest, _Mapping]] = ..., tokenizer_sha256: _Optional[str] = ...) -> None: ...

class VerifyResponse(_message.Message):
    __slots__ = ("opened", "verdict", "event", "refused")
    OPENED_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    EVENT_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    opened: VerifyOpened
    verdict: _verdict_pb2.Verdict
    event: GenerateResponse
    refused: _status_pb2.Status
    def __init__(self, opened: _Optional[_Union[VerifyOpened, _Mapping]] = ..., verdict: _Optional[_Union[_verdict_pb2.Verdict, _Mapping]] = ..., event: _Optional[_Union[GenerateResponse, _Mapping]] = ..., refused: _Optional[_Union[_status_pb2.Status, _Mapping]] = ...) -> None: ...

class VerifyOpened(_message.Message):
    __slots__ = ("token_ids", "sampling", "max_tree_nodes", "max_length", "vocab_size")
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    MAX_TREE_NODES_FIELD_NUMBER: _ClassVar[int]
    MAX_LENGTH_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    sampling: _sampling_pb2.SamplingParams
    max_tree_nodes: int
    max_length: int
    vocab_size: int
    def __init__(self, token_ids: _Optional[_Iterable[int]] = ..., sampling: _Optional[_Union[_sampling_pb2.SamplingParams, _Mapping]] = ..., max_tree_nodes: _Optional[int] = ..., max_length: _Optional[int] = ..., vocab_size: _Optional[int] = ...) -> None: ...

class GenerateFinished(_message.Message):
    __slots__ = ("finish_reason", "text", "usage", "speculation", "stop", "stop_token_id")
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    SPECULATION_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    finish_reason: FinishReason
    text: str
    usage: Usage
    speculation: _speculation_pb2.SpeculationStats
    stop: str
    stop_token_id: int
    def __init__(self, finish_reason: _Optional[_Union[FinishReason, str]] = ..., text: _Optional[str] = ..., usage: _Optional[_Union[Usage, _Mapping]] = ..., speculation: _Optional[_Union[_speculation_pb2.SpeculationStats, _Mapping]] = ..., stop: _Optional[str] = ..., stop_token_id: _Optional[int] = ...) -> None: ...

class Usage(_message.Message):
    __slots__ = ("prompt_tokens", "completion_tokens", "first_token_seconds", "total_seconds", "cached_tokens")
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    COMPLETION_TOKENS_FIELD_NUMBER: _ClassVar[int]
    FIRST_TOKEN_SECONDS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_SECONDS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    prompt_tokens: int
    completion_tokens: int
    first_token_seconds: float
    total_seconds: float
    cached_tokens: int
    def __init__(self, prompt_tokens: _Optional[int] = ..., completion_tokens: _Optional[int] = ..., first_token_seconds: _Optional[float] = ..., total_seconds: _Optional[float] = ..., cached_tokens: _Optional[int] = ...) -> None: ...

class TokenizeRequest(_message.Message):
    __slots__ = ("text", "add_special_tokens", "messages")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    ADD_SPECIAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    text: str
    add_special_tokens: bool
    messages: ChatMessages
    def __init__(self, text: _Optional[str] = ..., add_special_tokens: bool = ..., messages: _Optional[_Union[ChatMessages, _Mapping]] = ...) -> None: ...

class TokenizeResponse(_message.Message):
    __slots__ = ("token_ids", "text_offsets", "token_texts")
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    TEXT_OFFSETS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_TEXTS_FIELD_NUMBER: _ClassVar[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    text_offsets: _containers.RepeatedScalarFieldContainer[int]
    token_texts: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, token_ids: _Optional[_Iterable[int]] = ..., text_offsets: _Optional[_Iterable[int]] = ..., token_texts: _Optional[_Iterable[str]] = ...) -> None: ...

class DetokenizeRequest(_message.Message):
    __slots__ = ("token_ids", "skip_special_tokens")
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    SKIP_SPECIAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    skip_special_tokens: bool
    def __init__(self, token_ids: _Optional[_Iterable[int]] = ..., skip_special_tokens: bool = ...) -> None: ...

class DetokenizeResponse(_message.Message):
    __slots__ = ("text",)
    TEXT_FIELD_NUMBER: _ClassVar[int]
    text: str
    def __init__(self, text: _Optional[str] = ...) -> None: ...

class GetModelInfoRequest(_message.Message):
    __slots__ = ("chat_template_kwargs",)
    CHAT_TEMPLATE_KWARGS_FIELD_NUMBER: _ClassVar[int]
    chat_template_kwargs: str
    def __init__(self, chat_template_kwargs: _Optional[str] = ...) -> None: ...

class GetModelInfoResponse(_message.Message):
    __slots__ = ("model", "build", "limits", "engine", "started_at", "chat_format", "capabilities")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    BUILD_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    STARTED_AT_FIELD_NUMBER: _ClassVar[int]
    CHAT_FORMAT_FIELD_NUMBER: _ClassVar[int]
    CAPABILITIES_FIELD_NUMBER: _ClassVar[int]
    model: _model_info_pb2.ModelInfo
    build: str
    limits: _model_info_pb2.Limits
    engine: EngineStatus
    started_at: _timestamp_pb2.Timestamp
    chat_format: ChatFormat
    capabilities: Capabilities
    def __init__(self, model: _Optional[_Union[_model_info_pb2.ModelInfo, _Mapping]] = ..., build: _Optional[str] = ..., limits: _Optional[_Union[_model_info_pb2.Limits, _Mapping]] = ..., engine: _Optional[_Union[EngineStatus, _Mapping]] = ..., started_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., chat_format: _Optional[_Union[ChatFormat, _Mapping]] = ..., capabilities: _Optional[_Union[Capabilities, _Mapping]] = ...) -> None: ...

class Capabilities(_message.Message):
    __slots__ = ("engine", "refused", "adapters")
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    ADAPTERS_FIELD_NUMBER: _ClassVar[int]
    engine: str
    refused: _containers.RepeatedScalarFieldContainer[str]
    adapters: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, engine: _Optional[str] = ..., refused: _Optional[_Iterable[str]] = ..., adapters: _Optional[_Iterable[str]] = ...) -> None: ...

class ChatFormat(_message.Message):
    __slots__ = ("tool_calls", "reasoning_begin", "reasoning_end", "reasoning_open", "marker_ids", "special_markers", "template_variables", "spelling", "content_begin", "content_end")
    class MarkerIdsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    TOOL_CALLS_FIELD_NUMBER: _ClassVar[int]
    REASONING_BEGIN_FIELD_NUMBER: _ClassVar[int]
    REASONING_END_FIELD_NUMBER: _ClassVar[int]
    REASONING_OPEN_FIELD_NUMBER: _ClassVar[int]
    MARKER_IDS_FIELD_NUMBER: _ClassVar[int]
    SPECIAL_MARKERS_FIELD_NUMBER: _ClassVar[int]
    TEMPLATE_VARIABLES_FIELD_NUMBER: _ClassVar[int]
    SPELLING_FIELD_NUMBER: _ClassVar[int]
    CONTENT_BEGIN_FIELD_NUMBER: _ClassVar[int]
    CONTENT_END_FIELD_NUMBER: _ClassVar[int]
    tool_calls: ToolCallFormat
    reasoning_begin: str
    reasoning_end: str
    reasoning_open: bool
    marker_ids: _containers.ScalarMap[str, int]
    special_markers: bool
    template_variables: _containers.RepeatedScalarFieldContainer[str]
    spelling: CallSpelling
    content_begin: str
    content_end: str
    def __init__(self, tool_calls: _Optional[_Union[ToolCallFormat, str]] = ..., reasoning_begin: _Optional[str] = ..., reasoning_end: _Optional[str] = ..., reasoning_open: bool = ..., marker_ids: _Optional[_Mapping[str, int]] = ..., special_markers: bool = ..., template_variables: _Optional[_Iterable[str]] = ..., spelling: _Optional[_Union[CallSpelling, _Mapping]] = ..., content_begin: _Optional[str] = ..., content_end: _Optional[str] = ...) -> None: ...

class CallSpelling(_message.Message):
    __slots__ = ("style", "begin", "call_begin", "name_end", "call_end", "separator", "end", "name_key", "arguments_key", "id_key", "key_begin", "key_end", "value_end", "quote")
    STYLE_FIELD_NUMBER: _ClassVar[int]
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    CALL_BEGIN_FIELD_NUMBER: _ClassVar[int]
    NAME_END_FIELD_NUMBER: _ClassVar[int]
    CALL_END_FIELD_NUMBER: _ClassVar[int]
    SEPARATOR_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    NAME_KEY_FIELD_NUMBER: _ClassVar[int]
    ARGUMENTS_KEY_FIELD_NUMBER: _ClassVar[int]
    ID_KEY_FIELD_NUMBER: _ClassVar[int]
    KEY_BEGIN_FIELD_NUMBER: _ClassVar[int]
    KEY_END_FIELD_NUMBER: _ClassVar[int]
    VALUE_END_FIELD_NUMBER: _ClassVar[int]
    QUOTE_FIELD_NUMBER: _ClassVar[int]
    style: CallArgumentStyle
    begin: str
    call_begin: str
    name_end: str
    call_end: str
    separator: str
    end: str
    name_key: str
    arguments_key: str
    id_key: str
    key_begin: str
    key_end: str
    value_end: str
    quote: str
    def __init__(self, style: _Optional[_Union[CallArgumentStyle, str]] = ..., begin: _Optional[str] = ..., call_begin: _Optional[str] = ..., name_end: _Optional[str] = ..., call_end: _Optional[str] = ..., separator: _Optional[str] = ..., end: _Optional[str] = ..., name_key: _Optional[str] = ..., arguments_key: _Optional[str] = ..., id_key: _Optional[str] = ..., key_begin: _Optional[str] = ..., key_end: _Optional[str] = ..., value_end: _Optional[str] = ..., quote: _Optional[str] = ...) -> None: ...

class EngineStatus(_message.Message):
    __slots__ = ("running_sequences", "waiting_requests", "used_slots", "total_slots", "preemptions", "tasks", "times", "planner", "prefix_cache", "acceptance", "gain")
    RUNNING_SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    WAITING_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    USED_SLOTS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_SLOTS_FIELD_NUMBER: _ClassVar[int]
    PREEMPTIONS_FIELD_NUMBER: _ClassVar[int]
    TASKS_FIELD_NUMBER: _ClassVar[int]
    TIMES_FIELD_NUMBER: _ClassVar[int]
    PLANNER_FIELD_NUMBER: _ClassVar[int]
    PREFIX_CACHE_FIELD_NUMBER: _ClassVar[int]
    ACCEPTANCE_FIELD_NUMBER: _ClassVar[int]
    GAIN_FIELD_NUMBER: _ClassVar[int]
    running_sequences: int
    waiting_requests: int
    used_slots: int
    total_slots: int
    preemptions: int
    tasks: int
    times: _step_times_pb2.StepTimes
    planner: _planner_status_pb2.PlannerStatus
    prefix_cache: PrefixCacheStatus
    acceptance: _containers.RepeatedCompositeFieldContainer[AcceptanceCount]
    gain: _speculation_gain_pb2.SpeculationGain
    def __init__(self, running_sequences: _Optional[int] = ..., waiting_requests: _Optional[int] = ..., used_slots: _Optional[int] = ..., total_slots: _Optional[int] = ..., preemptions: _Optional[int] = ..., tasks: _Optional[int] = ..., times: _Optional[_Union[_step_times_pb2.StepTimes, _Mapping]] = ..., planner: _Optional[_Union[_planner_status_pb2.PlannerStatus, _Mapping]] = ..., prefix_cache: _Optional[_Union[PrefixCacheStatus, _Mapping]] = ..., acceptance: _Optional[_Iterable[_Union[AcceptanceCount, _Mapping]]] = ..., gain: _Optional[_Union[_speculation_gain_pb2.SpeculationGain, _Mapping]] = ...) -> None: ...

class PrefixCacheStatus(_message.Message):
    __slots__ = ("cached_slots", "queried_tokens", "hit_tokens", "evicted_tokens")
    CACHED_SLOTS_FIELD_NUMBER: _ClassVar[int]
    QUERIED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    HIT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    EVICTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    cached_slots: int
    queried_tokens: int
    hit_tokens: int
    evicted_tokens: int
    def __init__(self, cached_slots: _Optional[int] = ..., queried_tokens: _Optional[int] = ..., hit_tokens: _Optional[int] = ..., evicted_tokens: _Optional[int] = ...) -> None: ...

class AcceptanceCount(_message.Message):
    __slots__ = ("rule", "requests", "tokens", "draft_tokens", "accepted_tokens")
    RULE_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    rule: _speculation_pb2.AcceptanceRule
    requests: int
    tokens: int
    draft_tokens: int
    accepted_tokens: int
    def __init__(self, rule: _Optional[_Union[_speculation_pb2.AcceptanceRule, str]] = ..., requests: _Optional[int] = ..., tokens: _Optional[int] = ..., draft_tokens: _Optional[int] = ..., accepted_tokens: _Optional[int] = ...) -> None: ...

class ScoreRequest(_message.Message):
    __slots__ = ("token_ids", "top", "first_position", "states")
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    TOP_FIELD_NUMBER: _ClassVar[int]
    FIRST_POSITION_FIELD_NUMBER: _ClassVar[int]
    STATES_FIELD_NUMBER: _ClassVar[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    top: int
    first_position: int
    states: bool
    def __init__(self, token_ids: _Optional[_Iterable[int]] = ..., top: _Optional[int] = ..., first_position: _Optional[int] = ..., states: bool = ...) -> None: ...

class ScoreResponse(_message.Message):
    __slots__ = ("first_position", "top", "token_ids", "log_probs", "states")
    FIRST_POSITION_FIELD_NUMBER: _ClassVar[int]
    TOP_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LOG_PROBS_FIELD_NUMBER: _ClassVar[int]
    STATES_FIELD_NUMBER: _ClassVar[int]
    first_position: int
    top: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    log_probs: _containers.RepeatedScalarFieldContainer[float]
    states: bytes
    def __init__(self, first_position: _Optional[int] = ..., top: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., log_probs: _Optional[_Iterable[float]] = ..., states: _Optional[bytes] = ...) -> None: ...

class FollowTrafficRequest(_message.Message):
    __slots__ = ("likeliest",)
    LIKELIEST_FIELD_NUMBER: _ClassVar[int]
    likeliest: bool
    def __init__(self, likeliest: bool = ...) -> None: ...

class FollowTrafficResponse(_message.Message):
    __slots__ = ("requests", "dropped")
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    requests: _containers.RepeatedCompositeFieldContainer[ServedRequest]
    dropped: int
    def __init__(self, requests: _Optional[_Iterable[_Union[ServedRequest, _Mapping]]] = ..., dropped: _Optional[int] = ...) -> None: ...

class ServedRequest(_message.Message):
    __slots__ = ("prompt_token_ids", "token_ids", "speculation", "drafters", "top", "top_token_ids", "top_log_probs")
    PROMPT_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    SPECULATION_FIELD_NUMBER: _ClassVar[int]
    DRAFTERS_FIELD_NUMBER: _ClassVar[int]
    TOP_FIELD_NUMBER: _ClassVar[int]
    TOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    TOP_LOG_PROBS_FIELD_NUMBER: _ClassVar[int]
    prompt_token_ids: _containers.RepeatedScalarFieldContainer[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    speculation: _speculation_pb2.SpeculationStats
    drafters: _containers.RepeatedScalarFieldContainer[str]
    top: int
    top_token_ids: _containers.RepeatedScalarFieldContainer[int]
    top_log_probs: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, prompt_token_ids: _Optional[_Iterable[int]] = ..., token_ids: _Optional[_Iterable[int]] = ..., speculation: _Optional[_Union[_speculation_pb2.SpeculationStats, _Mapping]] = ..., drafters: _Optional[_Iterable[str]] = ..., top: _Optional[int] = ..., top_token_ids: _Optional[_Iterable[int]] = ..., top_log_probs: _Optional[_Iterable[float]] = ...) -> None: ...
