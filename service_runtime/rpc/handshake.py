"""The first message of each side of a Draft stream: who it is, and whether the two can work together."""

from collections.abc import Sequence

from draftwire._types.quoting import shortened
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
CAPABILITY_HIDDEN_STATES = "hidden-states"
"""A drafter with it drafts from the target's last hidden states, a verifier with it sends them to such drafters."""
CAPABILITY_DISTRIBUTIONS = "distributions"
"""A drafter with it draws its tokens, and says from what, for sequences that are opened with the rule of rejection."""
_MOST_SHOWN = 128
"""Characters of what the other side says of itself that go into messages and logs."""


def introduce(model: ModelInfo, limits: Limits, capabilities: Sequence[str] = ()) -> PeerInfo:
    """What a service says of itself. `capabilities` are published names, `CAPABILITY_...`."""
    return PeerInfo(
        protocol_revision=PROTOCOL_REVISION,
        min_protocol_revision=MIN_PROTOCOL_REVISION,
        build=f"draftwire {__version__}",
        model=model,
        limits=limits,
        capabilities=capabilities,
    )


def shown(text: str) -> str:
    """What a peer said, cut to a length that fits a message or a line of the log."""
    return printable(shortened(text, _MOST_SHOWN))


def printable(text: str) -> str:
    """What a peer said, without what would do something in a terminal, as line ends and escapes."""
    return (
        text
        if text.isprintable()
        else "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in text)
    )


def unprintable_field(peer: PeerInfo) -> str | None:
    """Name of a field of a handshake that has a text which is not printable; None where all are."""
    for place, message in (("", peer), ("model.", peer.model)):
        for field, value in message.ListFields():
            texts = [value] if isinstance(value, str) else value if field.name == "capabilities" else ()
            if not all(text.isprintable() for text in texts):
                return f"{place}{field.name}"
    return None


def check_peer(own: PeerInfo, other: PeerInfo) -> None:
    """Raises ServiceError (FAILED_PRECONDITION) if the two sides cannot work together.

    Another vocabulary size is no reason: models pad the same tokenizer's vocabulary differently. Nor is a missing
    tokenizer hash, as of a person with a debugging tool or of heads without a tokenizer: a wrong drafter costs speed,
    never a token.
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
            f"the tokenizer of {their_id} ({their_hash}) is not that of {ours.model_id} ({ours.tokenizer_sha256})",
            own_model=ours.model_id,
            own_tokenizer_sha256=ours.tokenizer_sha256,
            other_model=their_id,
            other_tokenizer_sha256=their_hash,
        )
