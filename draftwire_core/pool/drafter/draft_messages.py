"""Conversions between messages of a Draft stream and the types of the verifier and the engine."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator
from dataclasses import asdict

import grpc
import torch
from google.rpc import status_pb2

from draftwire.v1 import sampling_pb2
from draftwire.v1.drafter_service_pb2 import DraftRequest, OpenSequence
from draftwire.v1.error_reason_pb2 import ErrorReason
from draftwire.v1.features_pb2 import FeatureBatch
from draftwire.v1.proposal_pb2 import Proposal as ProposalMessage
from draftwire.v1.speculation_pb2 import AcceptanceRule
from draftwire.v1.verdict_pb2 import HiddenState
from draftwire_core.engine.engine.step_result import SequenceFeatures
from draftwire_core.engine.sampling.sampling_params import SamplingParams
from draftwire_core.engine.tree.proposal import Proposal, ProposalError, ProposalFault
from draftwire_core.engine.tree.token_tree import DraftDistribution
from draftwire_core.pool.drafter.speculated_request import SpeculatedRequest
from draftwire_core.runtime.errors import ServiceError, failed_precondition
from draftwire_core.runtime.rpc.handshake import printable
from draftwire_core.runtime.rpc.message_stream import StreamBroken

_CHUNK_TOKENS = 16384
_FEATURE_BYTES = 1 << 20
"""Most bytes of features in one message, unless one piece is larger."""
_MAX_STATUS_TEXT = 1000
_MAX_STATUS_BYTES = 8192
_LONGEST_RETRY_SECONDS = 60.0


class Dropped(enum.Enum):
    """The reason that a drafter no longer drafts for a sequence."""

    LOST = "the stream ended"
    OUT_OF_STEP = "it fell out of step, and may be asked again at once"
    FULL = "it has no room, and may be asked again when it said"
    REFUSED = "it cannot, or may not, draft for the sequence"


def openings(request: SpeculatedRequest, epoch: int, max_tree_nodes: int) -> Iterator[DraftRequest]:
    """Yields the chunks that open a sequence with its committed tokens."""
    acceptance = AcceptanceRule.ACCEPTANCE_RULE_REJECTION if request.order.acceptance.draws else None
    for offset in range(0, len(request.tokens), _CHUNK_TOKENS):
        yield DraftRequest(
            open=OpenSequence(
                sequence_id=request.sequence_id,
                epoch=epoch,
                sampling=tell_sampling(request.order.sampling),
                committed_length=len(request.tokens),
                offset=offset,
                token_ids=request.tokens[offset : offset + _CHUNK_TOKENS],
                max_tree_nodes=max_tree_nodes,
                max_length=request.order.max_length,
                acceptance=acceptance,
                dynamic_temperature=request.order.dynamic_temperature,
                request_id="" if offset else request.order.request_id,
                trace_context=None if offset else request.span.context,
            )
        )


def feature_batches(features: Iterable[tuple[int, SequenceFeatures]]) -> Iterator[tuple[FeatureBatch, int]]:
    """Yields messages with features and the bytes of their values. features: with the epochs of their sequences'
    openings."""
    batch, size = FeatureBatch(), 0
    for epoch, each in features:
        if size and size + len(each.values) > _FEATURE_BYTES:
            yield batch, size
            batch, size = FeatureBatch(), 0
        batch.features.add(
            sequence_id=each.sequence_id, epoch=epoch, first_position=each.first_position, values=each.values
        )
        size += len(each.values)
    if size:
        yield batch, size


def tell_sampling(params: SamplingParams) -> sampling_pb2.SamplingParams:
    """Converts sampling parameters for a drafter.

    Logit edits are left out. They would add lists of tokens to every opening, and a guess that they rule out is simply
    not accepted.
    """
    return sampling_pb2.SamplingParams(**asdict(params))


def hidden_state(state: torch.Tensor | None) -> HiddenState | None:
    """Converts a hidden state [hidden] of the target, on the host, for a verdict; None for None."""
    if state is None:
        return None
    values: bytes = state.contiguous().view(torch.uint8).numpy().tobytes()
    return HiddenState(dtype=str(state.dtype).removeprefix("torch."), values=values)


def proposal(message: ProposalMessage, *, gathered: bool) -> Proposal:
    """Converts a drafter's proposal for the engine. gathered: whether its nodes were held back during a step."""
    return Proposal(
        committed_length=message.committed_length,
        first_node_id=message.first_node_id,
        token_ids=list(message.token_ids),
        parent_ids=list(message.parent_ids),
        log_probs=list(message.log_probs),
        distributions=[
            (each.parent_id, DraftDistribution(list(each.token_ids), list(each.probabilities)))
            for each in message.distributions
        ],
        last=message.last,
        gathered=gathered,
    )


def proposal_error(error: ProposalError) -> ServiceError:
    """Returns the error sent to a drafter for a proposal that the engine refused."""
    if error.fault is ProposalFault.CREDIT_EXCEEDED:
        return ServiceError(grpc.StatusCode.RESOURCE_EXHAUSTED, ErrorReason.ERROR_REASON_CREDIT_EXCEEDED, str(error))
    return ServiceError(grpc.StatusCode.INVALID_ARGUMENT, ErrorReason.ERROR_REASON_MALFORMED_PROPOSAL, str(error))


def bounded(status: status_pb2.Status) -> status_pb2.Status:
    """Bounds a drafter's error for the list of drafters: its size, and its message to printable characters."""
    kept = status_pb2.Status(code=status.code, message=printable(status.message[:_MAX_STATUS_TEXT]))
    if status.ByteSize() <= _MAX_STATUS_BYTES:
        kept.details.extend(status.details)
    return kept


def handshake_fault(message: str) -> ServiceError:
    """Returns FAILED_PRECONDITION: the drafter's first message is not a handshake, or a later one is."""
    return failed_precondition(ErrorReason.ERROR_REASON_HANDSHAKE_EXPECTED, message)


def breaks_protocol(error: StreamBroken | ServiceError) -> bool:
    """Whether a conversation ended by a protocol fault of the drafter: a misplaced message, an unreadable message, or a
    flood. Incompatible models are not a fault, nor is an error that the drafter reports about this side."""
    if isinstance(error, ServiceError):
        return error.reason in (
            ErrorReason.ERROR_REASON_HANDSHAKE_EXPECTED,
            ErrorReason.ERROR_REASON_CREDIT_EXCEEDED,
        )
    return error.code in (grpc.StatusCode.INTERNAL, grpc.StatusCode.DATA_LOSS)


def retry_seconds(error: StreamBroken | ServiceError, otherwise: float) -> float:
    """Returns the retry delay that the drafter asks for, within bounds; `otherwise` if it names none."""
    asked = error.retry_seconds if isinstance(error, StreamBroken) else None
    return otherwise if asked is None else min(max(asked, 0.1), _LONGEST_RETRY_SECONDS)
