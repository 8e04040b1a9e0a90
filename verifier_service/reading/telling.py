"""Reads when a request ends and which log-probabilities it reports."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from draftwire.v1.verifier_service_pb2 import GenerateRequest
from draftwire_core.runtime.errors import invalid_field

_MAX_STOP_TOKENS = 64
_MAX_ALTERNATIVES = 64
_LONGEST_SECONDS = 366 * 86400


def read_stop_tokens(request: GenerateRequest, check_tokens: Callable[[str, Sequence[int]], None]) -> frozenset[int]:
    """Reads the tokens that end the output. Raises ServiceError."""
    tokens = request.stop_token_ids
    if len(tokens) > _MAX_STOP_TOKENS:
        raise invalid_field("stop_token_ids", f"has {len(tokens)} tokens; at most {_MAX_STOP_TOKENS} are allowed")
    check_tokens("stop_token_ids", tokens)
    return frozenset(tokens)


def read_max_time(request: GenerateRequest) -> float | None:
    """Reads the time limit of a request in seconds; None sets no limit. Raises ServiceError."""
    if not request.HasField("max_time"):
        return None
    seconds = request.max_time.seconds + request.max_time.nanos / 1e9
    if not 0 < seconds <= _LONGEST_SECONDS:
        raise invalid_field("max_time", f"must be above 0 and at most {_LONGEST_SECONDS} seconds, got {seconds:g}")
    return seconds


def read_log_probs(request: GenerateRequest, field: Literal["log_probs", "prompt_log_probs"]) -> int | None:
    """Reads how many of the likeliest tokens to report; None reports no log-probabilities. Raises ServiceError."""
    if not request.HasField(field):
        return None
    number: int = getattr(request, field)
    if number > _MAX_ALTERNATIVES:
        raise invalid_field(field, f"must be at most {_MAX_ALTERNATIVES}, got {number}")
    return number
