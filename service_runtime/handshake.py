"""The first message of each side of a Draft stream: who it is, and whether the two can work together."""

from draftwire.v1.error_reason_pb2 import ErrorReason
from draftwire.v1.model_info_pb2 import Limits, ModelInfo, PeerInfo
from draftwire.version import __version__
from service_runtime.errors import failed_precondition

PROTOCOL_REVISION = 1
"""Newest protocol revision this build speaks."""
MIN_PROTOCOL_REVISION = 1
"""Oldest one it still speaks."""
CAPABILITY_PING = "ping"
"""A drafter with it answers every Ping with a Pong, between two steps of whatever drafts."""


def introduce(model: ModelInfo, limits: Limits) -> PeerInfo:
    """What a service says of itself."""
    return PeerInfo(
        protocol_revision=PROTOCOL_REVISION,
        min_protocol_revision=MIN_PROTOCOL_REVISION,
        build=f"draftwire {__version__}",
        model=model,
        limits=limits,
    )


def check_peer(own: PeerInfo, other: PeerInfo) -> None:
    """Raises ServiceError (FAILED_PRECONDITION) if the two sides cannot work together.

    Another vocabulary size is no reason: models pad the same tokenizer's vocabulary differently. Nor is a missing
    tokenizer hash, as of a person with a debugging tool: a wrong drafter costs speed, never a token.
    """
    if other.protocol_revision < own.min_protocol_revision or other.min_protocol_revision > own.protocol_revision:
        raise failed_precondition(
            ErrorReason.ERROR_REASON_PROTOCOL_MISMATCH,
            f"the other side ({other.build or 'unnamed'}) speaks protocol revisions {other.min_protocol_revision} to "
            f"{other.protocol_revision}, this one {own.min_protocol_revision} to {own.protocol_revision}",
        )
    ours, theirs = own.model, other.model
    if theirs.tokenizer_sha256 and theirs.tokenizer_sha256 != ours.tokenizer_sha256:
        raise failed_precondition(
            ErrorReason.ERROR_REASON_TOKENIZER_MISMATCH,
            f"the tokenizer of {theirs.model_id} ({theirs.tokenizer_sha256}) is not that of {ours.model_id} "
            f"({ours.tokenizer_sha256})",
            own_model=ours.model_id,
            own_tokenizer_sha256=ours.tokenizer_sha256,
            other_model=theirs.model_id,
            other_tokenizer_sha256=theirs.tokenizer_sha256,
        )
