"""The drafter's side of the handshake: its own hello, and the checks of the verifier's."""

import asyncio
from typing import Any

from drafter_service.settings import DrafterSettings
from draftwire.v1 import drafter_service_pb2, model_info_pb2
from draftwire.v1.error_reason_pb2 import ErrorReason
from draftwire.v1.features_pb2 import FeatureMap
from draftwire_core.runtime.errors import ServiceError, failed_precondition
from draftwire_core.runtime.process.logs import get_logger
from draftwire_core.runtime.rpc.handshake import (
    CAPABILITY_DISTRIBUTIONS,
    CAPABILITY_FEATURES,
    CAPABILITY_GATHERING,
    CAPABILITY_HIDDEN_STATES,
    CAPABILITY_PING,
    check_peer,
    introduce,
    shown,
)
from draftwire_core.runtime.rpc.message_stream import MessageStream

log = get_logger(__name__)

MOST_TOKENS = 1 << 20
"""Limit on the tokens of an opening, for drafters that follow a text of any length."""
_HANDSHAKE_SECONDS = 10.0
"""Time that a verifier has to send its hello and read the answer."""


def own_hello(
    settings: DrafterSettings,
    model: model_info_pb2.ModelInfo,
    *,
    slots: int | None,
    features: FeatureMap | None = None,
) -> model_info_pb2.PeerInfo:
    """Builds this drafter's hello. slots: of its KV cache; None if it drafts from the target's last hidden states.
    features: those it drafts from, if any; a drafter without them has a draft model or nothing that reads a text."""
    capabilities = [CAPABILITY_PING, CAPABILITY_GATHERING]
    if slots is None:
        capabilities.append(CAPABILITY_HIDDEN_STATES)
    elif features is not None:
        capabilities.append(CAPABILITY_FEATURES)
    elif not model.draft_tokenizer_sha256:  # a translating drafter draws from other tokens than it proposes
        capabilities.append(CAPABILITY_DISTRIBUTIONS)
    hello = introduce(
        model,
        model_info_pb2.Limits(
            max_sequences=settings.max_sequences,
            max_tree_nodes=settings.max_tree_nodes,
            max_message_bytes=settings.max_message_bytes,
            # A draft model reads the last tokens of a text that is longer than its context or its KV cache. What reads
            # a feature next to each token refuses one that would not fit into an empty cache for its length.
            max_sequence_tokens=MOST_TOKENS
            if features is None or slots is None
            else min(model.context_length, slots - settings.max_tree_nodes),
        ),
        capabilities,
    )
    if features is not None:
        hello.features.CopyFrom(features)
    return hello


async def greet(stream: MessageStream[Any, Any], own: model_info_pb2.PeerInfo, name: str = "") -> int | None:
    """Reads the verifier's hello and answers it. Returns the number of token ids that both sides have, or None if the
    verifier left.

    name: the verifier's name for the log.

    Raises ServiceError if the two sides are incompatible, and StreamBroken.
    """
    try:
        async with asyncio.timeout(_HANDSHAKE_SECONDS):
            message = await stream.read()
            if message is None:
                return None
            if message.WhichOneof("message") != "hello":
                raise handshake_expected(f"the first message must be hello, got {message.WhichOneof('message')}")
            check_peer(own, message.hello)
            _check_states(own, message.hello)
            await stream.write(drafter_service_pb2.DraftResponse(hello=own))
    except TimeoutError as error:
        raise handshake_expected(f"no handshake within {_HANDSHAKE_SECONDS:g} seconds") from error
    hello = message.hello
    log.info("verifier connected", verifier=name, build=shown(hello.build), model=shown(hello.model.model_id))
    return _shared_vocab_size(own, message.hello)


def handshake_expected(message: str) -> ServiceError:
    """Returns FAILED_PRECONDITION: an unexpected hello, or a missing one."""
    return failed_precondition(ErrorReason.ERROR_REASON_HANDSHAKE_EXPECTED, message)


def _check_states(own: model_info_pb2.PeerInfo, verifier: model_info_pb2.PeerInfo) -> None:
    """Raises ServiceError if this drafter needs hidden states or features and the verifier sends none."""
    for capability, what in ((CAPABILITY_HIDDEN_STATES, "hidden states"), (CAPABILITY_FEATURES, "features")):
        if capability in own.capabilities and capability not in verifier.capabilities:
            raise failed_precondition(
                ErrorReason.ERROR_REASON_PROTOCOL_MISMATCH,
                f"the verifier ({shown(verifier.build) or 'unnamed'}) lacks the capability {capability}, but "
                f"{own.model.model_id} drafts only from {what}",
            )


def _shared_vocab_size(own: model_info_pb2.PeerInfo, verifier: model_info_pb2.PeerInfo) -> int:
    """Returns the number of token ids that exist on both sides."""
    sizes = [peer.model.vocab_size for peer in (own, verifier) if peer.model.vocab_size]
    return min(sizes)
