"""Reads a ScoreRequest: checks every field."""

from __future__ import annotations

from dataclasses import dataclass

from draftwire.v1.error_reason_pb2 import ErrorReason
from draftwire.v1.verifier_service_pb2 import ScoreRequest
from draftwire_core.runtime.errors import invalid_field, refused_field
from verifier_service.reading.request import RequestReader

MOST_TOP = 256
"""Most tokens reported of one distribution."""


@dataclass(frozen=True, slots=True)
class ScoreOrder:
    """A checked text to be scored."""

    tokens: list[int]
    first: int
    """First position whose distribution is requested."""
    top: int
    """Number of tokens to report of each distribution."""
    states: bool = False
    """Whether to report hidden states."""


def read_score(request: ScoreRequest, reader: RequestReader, longest: int) -> ScoreOrder:
    """Checks a request. longest: most tokens of a text. Raises ServiceError with INVALID_ARGUMENT."""
    number = len(request.token_ids)
    if not number:
        raise refused_field(ErrorReason.ERROR_REASON_EMPTY_PROMPT, "token_ids", "has no tokens")
    if number > longest:
        raise refused_field(
            ErrorReason.ERROR_REASON_CONTEXT_EXCEEDED,
            "token_ids",
            f"has {number} tokens; at most {longest} can be scored",
        )
    tokens = list(request.token_ids)
    reader.check_tokens("token_ids", tokens)
    if not 1 <= request.top <= MOST_TOP:
        raise invalid_field("top", f"must be from 1 to {MOST_TOP}, got {request.top}")
    first = request.first_position if request.HasField("first_position") else 1
    if not 1 <= first <= len(tokens):
        raise invalid_field("first_position", f"must be from 1 to the number of token_ids, {len(tokens)}, got {first}")
    return ScoreOrder(tokens, first, request.top, request.states)
