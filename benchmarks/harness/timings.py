"""Timing of one request, and rates over several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Timing:
    """One request, timed by its caller."""

    seconds: float
    """Seconds from the request to its end."""
    decode_seconds: float
    """Seconds from its first tokens to its end, so without the prompt."""
    decode_tokens: int
    """Tokens after the first ones."""
    token_ids: tuple[int, ...]
    steps: int
    draft_tokens: int
    accepted_tokens: int


def decode_rate(timings: Sequence[Timing]) -> float:
    """Returns the tokens per second after the prompts."""
    return sum(t.decode_tokens for t in timings) / sum(t.decode_seconds for t in timings)


def whole_rate(timings: Sequence[Timing]) -> float:
    """Returns the tokens per second, prompts included."""
    return sum(len(t.token_ids) for t in timings) / sum(t.seconds for t in timings)


def acceptance_length(timings: Sequence[Timing]) -> float:
    """Returns the tokens per verification, including the bonus token."""
    return sum(len(t.token_ids) for t in timings) / sum(t.steps for t in timings)


def acceptance_rate(timings: Sequence[Timing]) -> float:
    """Returns the accepted share of the verified draft tokens; 0 without any."""
    return sum(t.accepted_tokens for t in timings) / max(1, sum(t.draft_tokens for t in timings))
