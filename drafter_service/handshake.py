"""What a drafter says of itself in its first message, and what follows from the verifier's."""

from drafter_service.settings import DrafterSettings
from draftwire.v1 import model_info_pb2
from service_runtime.handshake import introduce


def own_hello(settings: DrafterSettings, model: model_info_pb2.ModelInfo) -> model_info_pb2.PeerInfo:
    """What this drafter says of itself."""
    return introduce(
        model,
        model_info_pb2.Limits(
            max_sequences=settings.max_sequences,
            max_tree_nodes=settings.max_tree_nodes,
            max_message_bytes=settings.max_message_bytes,
            # A sequence that would not fit into an empty KV cache is refused for its length, not for want of room.
            max_sequence_tokens=min(model.context_length, settings.kv_slots - settings.max_tree_nodes),
        ),
    )


def shared_vocab_size(own: model_info_pb2.PeerInfo, verifier: model_info_pb2.PeerInfo) -> int:
    """Ids below it exist on both sides."""
    sizes = [peer.model.vocab_size for peer in (own, verifier) if peer.model.vocab_size]
    return min(sizes)
