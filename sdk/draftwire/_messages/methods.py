"""The RPCs that the SDK calls: typed path, request and response of each."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from google.protobuf.message import Message

from draftwire.v1 import drafter_pool_service_pb2 as pool
from draftwire.v1 import drafter_service_pb2 as drafter
from draftwire.v1 import features_pb2 as features
from draftwire.v1 import verifier_service_pb2 as verifier

RequestT = TypeVar("RequestT", bound=Message)
ResponseT = TypeVar("ResponseT", bound=Message)

RECEIPT = (("draftwire-receipt", "1"),)
"""Initial metadata that a verifier sends when it has received a Generate or Verify request."""


@dataclass(frozen=True, slots=True)
class Method(Generic[RequestT, ResponseT]):
    """One RPC. The generated stubs contain the same, but without types."""

    service: str
    """Full name of the service."""
    name: str
    """Name of the method."""
    request: type[RequestT]
    """Class of its requests."""
    response: type[ResponseT]
    """Class of its responses."""
    repeatable: bool = True
    """Whether the call is idempotent, so that it may be repeated after a lost connection."""
    stays: bool = False
    """Whether the call is repeated only at the same verifier, because it changes something there."""

    @property
    def path(self) -> str:
        """The gRPC path."""
        return f"/{self.service}/{self.name}"


_VERIFIER = "draftwire.v1.VerifierService"
_POOL = "draftwire.v1.DrafterPoolService"
_DRAFTER = "draftwire.v1.DrafterService"

GENERATE = Method(_VERIFIER, "Generate", verifier.GenerateRequest, verifier.GenerateResponse)
VERIFY = Method(_VERIFIER, "Verify", verifier.VerifyRequest, verifier.VerifyResponse)
TOKENIZE = Method(_VERIFIER, "Tokenize", verifier.TokenizeRequest, verifier.TokenizeResponse)
DETOKENIZE = Method(_VERIFIER, "Detokenize", verifier.DetokenizeRequest, verifier.DetokenizeResponse)
GET_MODEL_INFO = Method(_VERIFIER, "GetModelInfo", verifier.GetModelInfoRequest, verifier.GetModelInfoResponse)
SCORE = Method(_VERIFIER, "Score", verifier.ScoreRequest, verifier.ScoreResponse)
FOLLOW_TRAFFIC = Method(_VERIFIER, "FollowTraffic", verifier.FollowTrafficRequest, verifier.FollowTrafficResponse)

LIST_DRAFTERS = Method(_POOL, "ListDrafters", pool.ListDraftersRequest, pool.ListDraftersResponse)
WATCH_DRAFTERS = Method(_POOL, "WatchDrafters", pool.WatchDraftersRequest, pool.WatchDraftersResponse)
ATTACH_DRAFTER = Method(_POOL, "AttachDrafter", pool.AttachDrafterRequest, pool.AttachDrafterResponse)
DETACH_DRAFTER = Method(_POOL, "DetachDrafter", pool.DetachDrafterRequest, pool.DetachDrafterResponse, repeatable=False)
SWAP_DRAFTER = Method(_POOL, "SwapDrafter", pool.SwapDrafterRequest, pool.SwapDrafterResponse, stays=True)
START_ROLLOUT = Method(_POOL, "StartRollout", pool.StartRolloutRequest, pool.StartRolloutResponse, stays=True)
FINISH_ROLLOUT = Method(_POOL, "FinishRollout", pool.FinishRolloutRequest, pool.FinishRolloutResponse, repeatable=False)
LIST_ROLLOUTS = Method(_POOL, "ListRollouts", pool.ListRolloutsRequest, pool.ListRolloutsResponse)
REPORT_LEARNING = Method(_POOL, "ReportLearning", pool.ReportLearningRequest, pool.ReportLearningResponse, stays=True)

DRAFT = Method(_DRAFTER, "Draft", drafter.DraftRequest, drafter.DraftResponse, repeatable=False)
GET_FEATURE_WEIGHTS = Method(
    _DRAFTER, "GetFeatureWeights", features.GetFeatureWeightsRequest, features.GetFeatureWeightsResponse
)
LOAD_MODEL = Method(_DRAFTER, "LoadModel", drafter.LoadModelRequest, drafter.LoadModelResponse)
GET_DRAFTER_INFO = Method(
    _DRAFTER,
    "GetModelInfo",
    drafter.DrafterServiceGetModelInfoRequest,
    drafter.DrafterServiceGetModelInfoResponse,
)


def has_receipt(metadata: Iterable[tuple[str, Any]] | None) -> bool:
    """Returns whether a call's initial metadata confirm that a verifier has received the request."""
    return any(key == RECEIPT[0][0] for key, _ in metadata or ())
