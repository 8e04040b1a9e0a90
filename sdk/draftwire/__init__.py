"""draftwire: speculative decoding over the wire.

    from draftwire import Client

    client = Client("localhost:50051")
    print(client.generate("def fib(n):", max_tokens=64).text)

``Client`` and ``AsyncClient`` talk to a verifier service; the generated contract is in ``draftwire.v1``.
"""

import os

# A server that goes away is news for the caller, not a log line of the gRPC library, which reads this when imported.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")

from draftwire._async.client import AsyncClient
from draftwire._async.drafters import AsyncDrafters
from draftwire._async.generations import AsyncGenerationStream
from draftwire._auth.bearer_token import TokenFile, TokenSource
from draftwire._auth.tls import Tls
from draftwire._calls.async_transport import AsyncStream
from draftwire._calls.failover import RetryPolicy
from draftwire._calls.spreading import SpreadPolicy
from draftwire._calls.transport import Stream
from draftwire._messages.conversation import Messages, Tools
from draftwire._messages.health import Health
from draftwire._messages.requests import Prompt
from draftwire._messages.scoring import Prediction
from draftwire._messages.tokenization import Tokenization
from draftwire._messages.traffic import ServedRequest, Traffic
from draftwire._sync.client import Client
from draftwire._sync.drafters import Drafters
from draftwire._sync.generations import GenerationStream
from draftwire._types.chat_format import CallArgumentStyle, CallSpelling, ChatFormat, ToolCallFormat
from draftwire._types.drafter import Drafter, DrafterState, Swap
from draftwire._types.drafter_service import DrafterServiceInfo, ModelLoad, ModelLoadState, VerifierShare
from draftwire._types.generation import (
    Chunk,
    FinishReason,
    Generation,
    PromptReport,
    RejectedDraft,
    TokenLogProb,
    TokenLogProbs,
    Usage,
)
from draftwire._types.learning import LearnerActivity, Learning, LearningRound
from draftwire._types.model import Capabilities, EngineStatus, Limits, ModelInfo, PrefixCacheStatus, VerifierInfo
from draftwire._types.options import BatchOptions, GenerateOptions
from draftwire._types.planner_status import AcceptanceClass, Calibration, PlannerStatus
from draftwire._types.rollout import Rollout, RolloutSide, RolloutState
from draftwire._types.speculation import (
    Acceptance,
    AcceptanceCount,
    DrafterShare,
    Planning,
    Preset,
    Speculation,
    SpeculationGain,
    SpeculationStats,
)
from draftwire._types.step_times import StepCost, StepTimes
from draftwire._types.verifier import Verifier, VerifierStatus
from draftwire.errors import (
    AtCapacityError,
    BusyError,
    ContextExceededError,
    DeadlineExceededError,
    DrafterExistsError,
    DrafterNotFoundError,
    DrafterUnreachableError,
    DraftwireError,
    EmptyPromptError,
    ErrorReason,
    FailedPreconditionError,
    FieldViolation,
    IdleError,
    InternalError,
    InvalidArgumentError,
    InvalidFieldError,
    MessageTooLargeError,
    ModelMismatchError,
    NotEnabledError,
    NotFoundError,
    NothingAllowedError,
    NumericsMismatchError,
    PermissionDeniedError,
    ProtocolMismatchError,
    RequestCancelledError,
    ResourceExhaustedError,
    RolloutNotFoundError,
    ShuttingDownError,
    TokenizerMismatchError,
    TokenOutOfRangeError,
    UnauthenticatedError,
    UnavailableError,
    UnimplementedError,
    UnsupportedDrafterError,
)
from draftwire.version import __version__

__all__ = [
    "Acceptance",
    "AcceptanceClass",
    "AcceptanceCount",
    "AsyncClient",
    "AsyncDrafters",
    "AsyncGenerationStream",
    "AsyncStream",
    "AtCapacityError",
    "BatchOptions",
    "BusyError",
    "Calibration",
    "CallArgumentStyle",
    "CallSpelling",
    "Capabilities",
    "ChatFormat",
    "Chunk",
    "Client",
    "ContextExceededError",
    "DeadlineExceededError",
    "Drafter",
    "DrafterExistsError",
    "DrafterNotFoundError",
    "DrafterServiceInfo",
    "DrafterShare",
    "DrafterState",
    "DrafterUnreachableError",
    "Drafters",
    "DraftwireError",
    "EmptyPromptError",
    "EngineStatus",
    "ErrorReason",
    "FailedPreconditionError",
    "FieldViolation",
    "FinishReason",
    "GenerateOptions",
    "Generation",
    "GenerationStream",
    "Health",
    "IdleError",
    "InternalError",
    "InvalidArgumentError",
    "InvalidFieldError",
    "LearnerActivity",
    "Learning",
    "LearningRound",
    "Limits",
    "MessageTooLargeError",
    "Messages",
    "ModelInfo",
    "ModelLoad",
    "ModelLoadState",
    "ModelMismatchError",
    "NotEnabledError",
    "NotFoundError",
    "NothingAllowedError",
    "NumericsMismatchError",
    "PermissionDeniedError",
    "PlannerStatus",
    "Planning",
    "Prediction",
    "PrefixCacheStatus",
    "Preset",
    "Prompt",
    "PromptReport",
    "ProtocolMismatchError",
    "RejectedDraft",
    "RequestCancelledError",
    "ResourceExhaustedError",
    "RetryPolicy",
    "Rollout",
    "RolloutNotFoundError",
    "RolloutSide",
    "RolloutState",
    "ServedRequest",
    "ShuttingDownError",
    "Speculation",
    "SpeculationGain",
    "SpeculationStats",
    "SpreadPolicy",
    "StepCost",
    "StepTimes",
    "Stream",
    "Swap",
    "Tls",
    "TokenFile",
    "TokenLogProb",
    "TokenLogProbs",
    "TokenOutOfRangeError",
    "TokenSource",
    "Tokenization",
    "TokenizerMismatchError",
    "ToolCallFormat",
    "Tools",
    "Traffic",
    "UnauthenticatedError",
    "UnavailableError",
    "UnimplementedError",
    "UnsupportedDrafterError",
    "Usage",
    "Verifier",
    "VerifierInfo",
    "VerifierShare",
    "VerifierStatus",
    "__version__",
]


def __dir__() -> list[str]:
    """Returns the public names, so that completion does not offer the modules behind them."""
    return __all__
