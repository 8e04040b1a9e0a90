"""Requests that run side by side, and their rate while all of them decode."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from draftwire import AsyncClient, BatchOptions, Speculation


class Arrival(NamedTuple):
    """Tokens that arrived together."""

    at: float
    """Seconds, by time.perf_counter."""
    tokens: int


def gaps(arrivals: Sequence[Arrival]) -> list[float]:
    """Returns the seconds from each token to the next; 0 between tokens that arrived together."""
    found: list[float] = []
    for before, arrival in pairwise(arrivals):
        found += [arrival.at - before.at] + [0.0] * (arrival.tokens - 1)
    return found


@dataclass(frozen=True)
class Stream:
    """Outcome of one request."""

    arrivals: tuple[Arrival, ...]
    token_ids: tuple[int, ...]
    steps: int
    draft_tokens: int
    accepted_tokens: int
    hits: int
    asked_at: float = 0.0
    """Seconds, by time.perf_counter."""
    prompt_tokens: int = 0
    cached_tokens: int = 0

    @property
    def first_token_seconds(self) -> float:
        """Seconds from the request to its first token."""
        return self.arrivals[0].at - self.asked_at

    @property
    def gaps(self) -> list[float]:
        """Seconds from each token to the next; 0 between tokens that arrived together."""
        return gaps(self.arrivals)


@dataclass(frozen=True)
class StreamBatch:
    """Requests that were sent at once.

    Rates cover the window in which all of them decode: from the last one's first tokens to the first one's end. Prompts
    are the same work whoever drafts, and a batch in which some requests have ended is a smaller batch.
    """

    streams: tuple[Stream, ...]

    @property
    def window(self) -> tuple[float, float]:
        """Start and end of the window. Raises ValueError if one request ended before another one began."""
        start = max(stream.arrivals[0].at for stream in self.streams)
        end = min(stream.arrivals[-1].at for stream in self.streams)
        if end <= start:
            raise ValueError(f"{len(self.streams)} requests never ran all at once: they need more tokens")
        return start, end

    @property
    def seconds(self) -> float:
        """Length of the window in seconds."""
        start, end = self.window
        return end - start

    @property
    def tokens(self) -> float:
        """Tokens in the window. A stream's tokens are spread over the time since its last ones."""
        start, end = self.window
        total = 0.0
        for stream in self.streams:
            for before, arrival in zip(stream.arrivals, stream.arrivals[1:], strict=False):
                inside = min(arrival.at, end) - max(before.at, start)
                if inside > 0:
                    total += arrival.tokens * inside / (arrival.at - before.at)
        return total

    @property
    def whole_rate(self) -> float:
        """Tokens per second from the first request to the end of the last, prompts included."""
        start = min(stream.asked_at for stream in self.streams)
        end = max(stream.arrivals[-1].at for stream in self.streams)
        return sum(len(stream.token_ids) for stream in self.streams) / (end - start)

    @property
    def token_ids(self) -> tuple[tuple[int, ...], ...]:
        """The outputs."""
        return tuple(stream.token_ids for stream in self.streams)


async def run_batch(
    client: AsyncClient, prompts: Sequence[Sequence[int]], options: BatchOptions, speculation: Speculation
) -> StreamBatch:
    """Runs a request for each prompt, all at once; the seed is the prompt's number."""
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(run_stream(client, prompt, seed, options, speculation))
            for seed, prompt in enumerate(prompts)
        ]
    return StreamBatch(tuple(task.result() for task in tasks))


async def run_stream(
    client: AsyncClient, prompt: Sequence[int], seed: int, options: BatchOptions, speculation: Speculation
) -> Stream:
    """Runs one request."""
    arrivals: list[Arrival] = []
    asked_at = time.perf_counter()
    async with client.stream(prompt, seed=seed, ignore_eos=True, speculation=speculation, **options) as stream:
        async for chunk in stream:
            arrivals.append(Arrival(time.perf_counter(), len(chunk.token_ids)))
    result = stream.result
    counts = result.speculation
    return Stream(
        tuple(arrivals),
        tuple(result.token_ids),
        counts.steps,
        counts.draft_tokens,
        counts.accepted_tokens,
        counts.hits,
        asked_at,
        len(prompt),
        result.usage.cached_tokens,
    )


def quantile(values: Sequence[float], share: float) -> float:
    """Returns the smallest value that at least `share` of the values do not exceed. Raises IndexError if there are
    none."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]
