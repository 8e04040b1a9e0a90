"""Messages of the verifier."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from google.rpc import code_pb2, error_details_pb2, status_pb2

from draftwire.errors import DOMAIN, ErrorReason
from draftwire.v1 import drafter_service_pb2 as drafter
from draftwire.v1 import features_pb2, sampling_pb2, verdict_pb2

_MORE_TOKENS = 200
"""Default number of tokens that a request may have after those of its opening."""
_CREDIT = 16


def opening(sequence_id: int, tokens: Sequence[int], *, epoch: int = 1, **changes: Any) -> drafter.OpenSequence:
    """Returns an OpenSequence with all tokens in one chunk."""
    fields: dict[str, Any] = {
        "sampling": sampling_pb2.SamplingParams(temperature=0.0, seed=7),
        "committed_length": len(tokens),
        "max_length": len(tokens) + _MORE_TOKENS,
        "max_tree_nodes": _CREDIT,
    }
    return drafter.OpenSequence(sequence_id=sequence_id, epoch=epoch, token_ids=tokens, **(fields | changes))


def verdict(sequence_id: int, epoch: int, committed_length: int, tokens: Sequence[int]) -> verdict_pb2.Verdict:
    """Returns a verdict without a hidden state."""
    return verdict_pb2.Verdict(
        sequence_id=sequence_id, epoch=epoch, committed_length=committed_length, token_ids=tokens
    )


def token_features(sequence_id: int, epoch: int, first: int, values: bytes) -> features_pb2.FeatureBatch:
    """Returns features of consecutive tokens. first: position of the first one."""
    entry = features_pb2.TokenFeatures(sequence_id=sequence_id, epoch=epoch, first_position=first, values=values)
    return features_pb2.FeatureBatch(features=[entry])


def given_up(sequence_id: int, epoch: int) -> drafter.SequenceError:
    """Returns the error by which a verifier gives up a sequence whose proposal it refused."""
    status = status_pb2.Status(code=code_pb2.INVALID_ARGUMENT, message="tried by draftwire check-drafter")
    status.details.add().Pack(error_details_pb2.ErrorInfo(reason=ErrorReason.MALFORMED_PROPOSAL, domain=DOMAIN))
    return drafter.SequenceError(sequence_id=sequence_id, epoch=epoch, status=status)
