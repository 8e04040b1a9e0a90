"""draftwire: speculative decoding over the wire.

    from draftwire import Client

    client = Client("localhost:50051")
    print(client.generate("def fib(n):", max_tokens=64).text)

``Client`` and ``AsyncClient`` talk to a verifier service; the generated contract is in ``draftwire.v1``.
"""

from draftwire.acceptance import AcceptanceCount
from draftwire.async_client import AsyncClient, AsyncGenerationStream
from draftwire.async_drafters import AsyncDrafters
from draftwire.async_transport import AsyncStream
from draftwire.calibration import AcceptanceClass, Calibration
from draftwire.client import Client, GenerationStream
from draftwire.drafter import Drafter, DrafterState, Swap
from draftwire.drafter_service import DrafterServiceInfo, ModelLoad, ModelLoadState, VerifierShare
from draftwire.drafters import Drafters
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
from draftwire.failover import RetryPolicy
from draftwire.generation import Chunk, FinishReason, Generation, RejectedDraft, Usage
from draftwire.health import Health
from draftwire.logprobs import PromptReport, TokenLogProb, TokenLogProbs
from draftwire.model import EngineStatus, Limits, ModelInfo, PrefixCacheStatus, VerifierInfo
from draftwire.options import BatchOptions, GenerateOptions
from draftwire.planner_status import PlannerStatus
from draftwire.requests import Messages, Prompt
from draftwire.rollout import Rollout, RolloutSide, RolloutState
from draftwire.scoring import Prediction
from draftwire.speculation import Acceptance, DrafterShare, Preset, Speculation, SpeculationStats
from draftwire.spreading import SpreadPolicy
from draftwire.step_cost import StepCost
from draftwire.step_times import StepTimes
from draftwire.tls import Tls
from draftwire.token import TokenFile, TokenSource
from draftwire.tokenization import Tokenization
from draftwire.traffic import ServedRequest, Traffic
from draftwire.transport import Stream
from draftwire.verifier import Verifier, VerifierStatus
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
    """Return the public names: the modules behind them are no part of what completion should offer."""
    return __all__
