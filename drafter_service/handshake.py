"""The first message of each side: who it is, and whether the two can work together."""

from drafter_service.settings import DrafterSettings
from draftwire.v1 import model_info_pb2
from draftwire.v1.error_reason_pb2 import ErrorReason
from draftwire.version import __version__
from service_runtime.errors import failed_precondition

PROTOCOL_REVISION = 1
"""Newest protocol revision this service speaks."""
MIN_PROTOCOL_REVISION = 1
"""Oldest one it still speaks."""


def own_hello(settings: DrafterSettings, model: model_info_pb2.ModelInfo) -> model_info_pb2.PeerInfo:
    """What this drafter says of itself."""
    return model_info_pb2.PeerInfo(
        protocol_revision=PROTOCOL_REVISION,
        min_protocol_revision=MIN_PROTOCOL_REVISION,
        build=f"draftwire-drafter/{__version__}",
        model=model,
        limits=model_info_pb2.Limits(
            max_sequences=settings.max_sequences,
            max_tree_nodes=settings.max_tree_nodes,
            max_message_bytes=settings.max_message_bytes,
            # A sequence that would not fit into an empty KV cache is refused for its length, not for want of room.
            max_sequence_tokens=min(model.context_length, settings.kv_slots - settings.max_tree_nodes),
        ),
    )


def check_hello(own: model_info_pb2.PeerInfo, verifier: model_info_pb2.PeerInfo) -> None:
    """Raises ServiceError (FAILED_PRECONDITION) if this drafter cannot draft for the verifier.

    Another vocabulary size is no reason: models pad the same tokenizer's vocabulary differently.
    """
    if verifier.protocol_revision < own.min_protocol_revision or verifier.min_protocol_revision > own.protocol_revision:
        raise failed_precondition(
            ErrorReason.ERROR_REASON_PROTOCOL_MISMATCH,
            f"the verifier speaks protocol revisions {verifier.min_protocol_revision} to "
            f"{verifier.protocol_revision}, the drafter {own.min_protocol_revision} to {own.protocol_revision}",
        )
    theirs, ours = verifier.model, own.model
    if theirs.tokenizer_sha256 and theirs.tokenizer_sha256 != ours.tokenizer_sha256:
        raise failed_precondition(
            ErrorReason.ERROR_REASON_TOKENIZER_MISMATCH,
            f"the tokenizer of the verifier's model {theirs.model_id} ({theirs.tokenizer_sha256}) is not that of "
            f"the drafter's model {ours.model_id} ({ours.tokenizer_sha256})",
            verifier_model=theirs.model_id,
            verifier_tokenizer_sha256=theirs.tokenizer_sha256,
            drafter_model=ours.model_id,
            drafter_tokenizer_sha256=ours.tokenizer_sha256,
        )


def shared_vocab_size(own: model_info_pb2.PeerInfo, verifier: model_info_pb2.PeerInfo) -> int:
    """Ids below it exist on both sides."""
    sizes = [peer.model.vocab_size for peer in (own, verifier) if peer.model.vocab_size]
    return min(sizes)
