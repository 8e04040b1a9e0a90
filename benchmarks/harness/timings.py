"""Timing of one request, and rates over several."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from draftwire import AsyncClient, Speculation


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
    held: tuple[float, ...] = ()
    """Seconds of each call of the proposer that the engine waits in; empty where it is not timed."""


async def through_services(client: AsyncClient, prompt: Sequence[int], max_tokens: int, drafted: bool) -> Timing:
    """Runs a request through the services."""
    first, first_count = 0.0, 0
    started = time.perf_counter()
    speculation = Speculation(enabled=drafted)
    stream = client.stream(
        prompt, max_tokens=max_tokens, temperature=0.0, seed=0, ignore_eos=True, speculation=speculation
    )
    async with stream:
        async for chunk in stream:
            if not first_count:
                first, first_count = time.perf_counter(), len(chunk.token_ids)
    ended = time.perf_counter()
    result = stream.result
    return Timing(
        ended - started,
        ended - first,
        len(result.token_ids) - first_count,
        tuple(result.token_ids),
        result.speculation.steps,
        result.speculation.draft_tokens,
        result.speculation.accepted_tokens,
    )


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
