"""Models, limits and status of services, as they report them."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from draftwire._types.chat_format import ChatFormat
from draftwire._types.from_message import read
from draftwire._types.planner_status import PlannerStatus
from draftwire._types.speculation import AcceptanceCount, SpeculationGain
from draftwire._types.step_times import StepTimes
from draftwire.v1 import verifier_service_pb2 as pb


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """The model a service has loaded."""

    model_id: str
    """Directory name or hub id it was loaded from."""
    architecture: str
    """Class name of its architecture, for example ``LlamaForCausalLM``."""
    parameters: int
    """Number of parameters."""
    vocab_size: int
    """Number of token ids; valid ids are below it."""
    context_length: int
    """Most tokens of prompt and output together."""
    dtype: str
    """Data type of the weights: ``float32``, ``bfloat16``, ``float16`` or ``int8``."""
    device: str
    """Device it runs on: ``cpu``, ``cuda:0``, ..."""
    tokenizer_sha256: str
    """SHA-256 (hex) of the tokenizer; tokenizers with equal hashes are interchangeable."""
    eos_token_ids: list[int]
    """Token ids that end a sequence."""
    bit_exact: bool
    """Whether the load-time self-test found logits to be bit-identical alone and in every batch tried."""
    fingerprint: str
    """Hash (hex) of the weights, their data type, that of the KV cache if it is not the model's own, and the tokenizer;
    equal hashes mean the same model. Empty if the service does not report it."""
    numerics: str = field(default="", kw_only=True)
    """Hash (hex) of everything that determines the bits of a result: kernels, libraries, device, and the outcome of a
    trial computation. Verifiers with equal fingerprints and numerics give the same tokens. Empty for drafters, and if
    the service does not report it."""
    numerics_description: str = field(default="", kw_only=True)
    """Human-readable description of ``numerics``."""
    kv_dtype: str = field(default="", kw_only=True)
    """Data type of keys and values in the KV cache: ``float32``, ``bfloat16``, ``float16`` or ``q8_0``. Empty if the
    service does not report it."""
    kernels: str = field(default="", kw_only=True)
    """Kernels that compute: on a CPU those in use, such as ``avx2``, ``avx512bf16`` or ``i8mm`` (``torch``: without the
    compiled library), or the type of another device, such as ``cuda``. Empty if the service does not report it."""
    kernels_advice: str = field(default="", kw_only=True)
    """Human-readable advice on what would be faster on the same machine. Empty if the service knows of nothing."""
    draft_tokenizer_sha256: str = field(default="", kw_only=True)
    """Hash (hex) of the draft model's own tokenizer if the drafter translates, that is, if it is not the one of
    ``tokenizer_sha256``; empty otherwise."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a service for each peer."""

    max_sequences: int
    """Most open sequences."""
    max_tree_nodes: int
    """Most live nodes in the token tree of a sequence."""
    max_message_bytes: int
    """Largest message, in bytes."""
    max_sequence_tokens: int
    """Most tokens of prompt and output together."""


@dataclass(frozen=True, slots=True)
class PrefixCacheStatus:
    """Status of a verifier's prefix cache. Counts begin at the verifier's start."""

    cached_slots: int
    """KV slots that only the cache holds; they are freed as sequences need them."""
    queried_tokens: int
    """Tokens of admitted sequences that were looked up."""
    hit_tokens: int
    """Tokens found among those looked up."""
    evicted_tokens: int
    """Tokens evicted from the cache."""

    @property
    def hit_rate(self) -> float:
        """Tokens found / tokens looked up, in [0, 1]; 0.0 if nothing was looked up."""
        return self.hit_tokens / self.queried_tokens if self.queried_tokens else 0.0


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """Status of a verifier's engine: its load, where its time goes, and its planner."""

    running_sequences: int
    """Sequences that are running."""
    waiting_requests: int
    """Requests that wait for admission."""
    used_slots: int
    """KV slots in use."""
    total_slots: int
    """Total number of KV slots."""
    preemptions: int
    """Number of times since the start that a sequence lost its KV slots to others and was recomputed."""
    times: StepTimes
    """Time of its steps by phase."""
    planner: PlannerStatus
    """Status of its planner."""
    prefix_cache: PrefixCacheStatus
    """Status of its prefix cache."""
    acceptance: list[AcceptanceCount]
    """Counts of each acceptance rule that was in effect for a request."""
    gain: SpeculationGain
    """Gain of drafting where the planner decides."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """The engine of a verifier, and what it refuses."""

    engine: str
    """Name of the engine that runs the target: ``draftwire`` or ``vllm``."""
    refused: list[str]
    """Methods, and paths of a GenerateRequest's fields, that it refuses; a plus sign joins a combination of fields."""
    adapters: list[str]
    """Names of the LoRA adapters that requests may name."""


@dataclass(frozen=True, slots=True)
class VerifierInfo(ModelInfo):
    """The target model of a verifier, and the verifier itself."""

    build: str
    """Build of the verifier."""
    limits: Limits
    """The verifier's limits for each client."""
    engine: EngineStatus = field(repr=False)  # it fills pages
    """Current status of its engine."""
    started_at: datetime | None = None
    """Time of its start (UTC), at which its counts begin; None if it does not report it."""
    chat_format: ChatFormat | None = None
    """The chat template's account of an assistant's answers; None if it has none or does not report it."""
    capabilities: Capabilities | None = None
    """The verifier's engine and what it refuses; None if the verifier does not report it."""


def read_verifier_info(message: pb.GetModelInfoResponse) -> VerifierInfo:
    """Returns a ``VerifierInfo`` from the response to GetModelInfo."""
    return read(VerifierInfo, message.model, message)
