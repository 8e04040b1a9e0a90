"""The handshake of a Draft stream: each side introduces itself, and checks whether the two can work together."""

from collections.abc import Sequence

import grpc

from draftwire._types.quoting import shortened
from draftwire.v1.error_reason_pb2 import ErrorReason
from draftwire.v1.model_info_pb2 import Limits, ModelInfo, PeerInfo
from draftwire.version import __version__
from draftwire_core.runtime.errors import failed_precondition

PROTOCOL_REVISION = 1
"""Newest protocol revision that this build speaks."""
MIN_PROTOCOL_REVISION = 1
"""Oldest protocol revision that this build speaks."""
CAPABILITY_PING = "ping"
"""A drafter with it answers every Ping with a Pong, between two of its drafting steps."""
CAPABILITY_GATHERING = "gathering"
"""A drafter with it may be told that a step has begun, and gathers its nodes while the step runs."""
CAPABILITY_HIDDEN_STATES = "hidden-states"
"""A drafter with it drafts from the target's last hidden states; a verifier with it sends them to such drafters."""
CAPABILITY_DISTRIBUTIONS = "distributions"
"""A drafter with it samples its tokens and reports their distributions, for sequences with the rejection rule."""
CAPABILITY_FEATURES = "features"
"""A drafter with it drafts from features of the target's hidden states; a verifier with it sends them."""
_INCOMPATIBLE = ("TOKENIZER_MISMATCH", "PROTOCOL_MISMATCH", "UNSUPPORTED_DRAFTER")
_TEXTS = ("capabilities", "target_architectures")
"""Repeated fields of texts."""
_MOST_SHOWN = 128
"""Most characters of a peer's own texts that go into messages and logs."""


def introduce(model: ModelInfo, limits: Limits, capabilities: Sequence[str] = ()) -> PeerInfo:
    """Returns how a service introduces itself. capabilities: published names, `CAPABILITY_...`."""
    return PeerInfo(
        protocol_revision=PROTOCOL_REVISION,
        min_protocol_revision=MIN_PROTOCOL_REVISION,
        build=f"draftwire {__version__}",
        model=model,
        limits=limits,
        capabilities=capabilities,
    )


def shown(text: str) -> str:
    """Returns a peer's text, truncated and made printable for messages and logs."""
    return printable(shortened(text, _MOST_SHOWN))


def printable(text: str) -> str:
    """Returns a peer's text without characters that act on a terminal, such as line ends and escapes."""
    return (
        text
        if text.isprintable()
        else "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in text)
    )


def unprintable_field(peer: PeerInfo) -> str | None:
    """Returns the name of a handshake field whose text is not printable; None if all are."""
    for place, message in (("", peer), ("model.", peer.model), ("features.", peer.features)):
        for field, value in message.ListFields():
            texts = [value] if isinstance(value, str) else value if field.name in _TEXTS else ()
            if not all(text.isprintable() for text in texts):
                return f"{place}{field.name}"
    return None


def incompatible(code: grpc.StatusCode, reason: str | None) -> bool:
    """Whether an error says that a drafter cannot draft for a target, so that only another model helps. reason: its
    published name."""
    return code is grpc.StatusCode.FAILED_PRECONDITION and reason in _INCOMPATIBLE


def check_peer(own: PeerInfo, other: PeerInfo) -> None:
    """Raises ServiceError (FAILED_PRECONDITION) if the two sides cannot work together.

    A different vocabulary size is allowed: models pad the same tokenizer's vocabulary differently. So is a missing
    tokenizer hash, as from a debugging tool or from heads without a tokenizer: a wrong drafter costs speed, never a
    token.
    """
    if other.protocol_revision < own.min_protocol_revision or other.min_protocol_revision > own.protocol_revision:
        raise failed_precondition(
            ErrorReason.ERROR_REASON_PROTOCOL_MISMATCH,
            f"the other side ({shown(other.build) or 'unnamed'}) speaks protocol revisions "
            f"{other.min_protocol_revision} to {other.protocol_revision}, this one {own.min_protocol_revision} to "
            f"{own.protocol_revision}",
        )
    ours, theirs = own.model, other.model
    if ours.tokenizer_sha256 and theirs.tokenizer_sha256 not in ("", ours.tokenizer_sha256):
        their_id, their_hash = shown(theirs.model_id), shown(theirs.tokenizer_sha256)
        raise failed_precondition(
            ErrorReason.ERROR_REASON_TOKENIZER_MISMATCH,
            f"{their_id} has another tokenizer than {ours.model_id}; start the drafter with --target-tokenizer and the "
            f"target's model, so that it translates (tokenizers {their_hash} and {ours.tokenizer_sha256})",
            own_model=ours.model_id,
            own_tokenizer_sha256=ours.tokenizer_sha256,
            other_model=their_id,
            other_tokenizer_sha256=their_hash,
        )
