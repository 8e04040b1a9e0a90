"""The stopwatch of all comparisons: requests timed at their caller, ways that take turns, ratios within each run."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Generic, NamedTuple, TypeVar

from draftwire._async.client import AsyncClient
from draftwire._types.options import GenerateOptions
from draftwire._types.speculation import NO_SPECULATION, SpeculationStats

WayT = TypeVar("WayT")
WorkT = TypeVar("WorkT")
Prompt = str | Sequence[int]


def quantile(values: Sequence[float], share: float) -> float:
    """Returns the smallest value that at least `share` of the values do not exceed. Raises IndexError if there are
    none."""
    rank = math.ceil(round(share * len(values), 9))  # 0.95 times 20 is 19
    return sorted(values)[max(0, rank - 1)]


class Planned(NamedTuple, Generic[WayT, WorkT]):
    """A planned turn of one way."""

    run: int
    """Number of the run."""
    number: int
    """Number of the work; ways are compared on the same work of the same run."""
    way: WayT
    """The way."""
    work: WorkT
    """The work of a turn."""


def turns(ways: Sequence[WayT], work: Sequence[WorkT], runs: Iterable[int]) -> Iterator[Planned[WayT, WorkT]]:
    """Returns the turns of ways that do the same work, in an order that changes from work to work and run to run."""
    for run in runs:
        for number, each in enumerate(work):
            for way in turned(ways, run + number):
                yield Planned(run, number, way, each)


def turned(ways: Sequence[WayT], by: int) -> list[WayT]:
    """Returns the ways in another order for each turn, so that what one leaves behind (heat, memory, caches) affects
    all.

    The orders are those of a balanced Latin square (Williams 1949, "Experimental designs balanced for the estimation of
    residual effects of treatments"): in as many turns as there are ways, or twice as many if that number is odd, each
    way is in each place, and follows each other one, equally often.
    """
    count = len(ways)
    zigzag = [(place + 1) // 2 if place % 2 else -(place // 2) for place in range(count)]
    order = [ways[(by + step) % count] for step in zigzag]
    return order[::-1] if count % 2 and by // count % 2 else order


class Arrival(NamedTuple):
    """Tokens that arrived together."""

    at: float
    """Seconds, by the caller's clock."""
    tokens: int
    """Number of the tokens."""


def gaps(arrivals: Sequence[Arrival]) -> list[float]:
    """Returns the seconds from each token to the next; 0 between tokens that arrived together."""
    found: list[float] = []
    for before, arrival in pairwise(arrivals):
        found += [arrival.at - before.at] + [0.0] * (arrival.tokens - 1)
    return found


@dataclass(frozen=True)
class Request:
    """The outcome of one request, timed at its caller."""

    arrivals: tuple[Arrival, ...]
    """Arrivals of its chunks that have tokens."""
    token_ids: tuple[int, ...]
    """The request's output."""
    stats: SpeculationStats = NO_SPECULATION
    """The request's speculation."""
    asked_at: float = 0.0
    """When it was sent, in seconds by the clock of its arrivals."""
    prompt_tokens: int = 0
    """Tokens of its prompt."""
    cached_tokens: int = 0
    """Of these, the tokens that were found in the prefix cache."""

    @property
    def first_token_seconds(self) -> float:
        """Seconds from the request to its first token."""
        return self.arrivals[0].at - self.asked_at

    @property
    def gaps(self) -> list[float]:
        """Seconds from each token to the next; 0 between tokens that arrived together."""
        return gaps(self.arrivals)

    @property
    def chunk_gaps(self) -> list[float]:
        """Seconds from each chunk to the next."""
        return [later.at - earlier.at for earlier, later in pairwise(self.arrivals)]

    @property
    def token_gaps(self) -> list[float]:
        """Seconds between tokens, except within the first chunk. The n tokens of a chunk that arrives after t seconds
        have t / n each."""
        pairs = pairwise(self.arrivals)
        return [(later.at - earlier.at) / later.tokens for earlier, later in pairs for _ in range(later.tokens)]


@dataclass(frozen=True)
class Batch:
    """Requests that were sent at once, often a single one.

    Rates cover the window in which all of them decode: from the last one's first tokens to the first one's end. Prompts
    are the same work whichever drafter drafts, and a batch in which some requests have ended is a smaller batch.
    """

    requests: tuple[Request, ...]
    """The requests."""

    @property
    def window(self) -> tuple[float, float]:
        """Start and end of the window. Raises ValueError if one request ended before another one began."""
        start = max(request.arrivals[0].at for request in self.requests)
        end = min(request.arrivals[-1].at for request in self.requests)
        if end <= start:
            raise ValueError(f"{len(self.requests)} requests never ran all at once: they need more tokens")
        return start, end

    @property
    def seconds(self) -> float:
        """Length of the window in seconds."""
        start, end = self.window
        return end - start

    @property
    def tokens(self) -> float:
        """Tokens in the window. A request's tokens are spread over the time since its last ones."""
        start, end = self.window
        total = 0.0
        for request in self.requests:
            for before, arrival in pairwise(request.arrivals):
                inside = min(arrival.at, end) - max(before.at, start)
                if inside > 0:
                    total += arrival.tokens * inside / (arrival.at - before.at)
        return total

    @property
    def whole_seconds(self) -> float:
        """Seconds from the first request to the end of the last, prompts included."""
        start = min(request.asked_at for request in self.requests)
        return max(request.arrivals[-1].at for request in self.requests) - start

    @property
    def token_ids(self) -> tuple[tuple[int, ...], ...]:
        """The outputs."""
        return tuple(request.token_ids for request in self.requests)


async def run_batch(client: AsyncClient, requests: Sequence[tuple[Prompt, GenerateOptions]]) -> Batch:
    """Runs requests, given by prompt and options, all at once.

    Raises:
        DraftwireError: a request failed.
    """
    return Batch(tuple(await asyncio.gather(*(run_request(client, prompt, options) for prompt, options in requests))))


async def run_request(client: AsyncClient, prompt: Prompt, options: GenerateOptions) -> Request:
    """Runs one request.

    Raises:
        DraftwireError: it failed.
    """
    arrivals: list[Arrival] = []
    asked_at = time.perf_counter()
    async with client.stream(prompt, **options) as stream:
        async for chunk in stream:
            if chunk.token_ids:
                arrivals.append(Arrival(time.perf_counter(), len(chunk.token_ids)))
    result = stream.result
    return Request(
        tuple(arrivals),
        tuple(result.token_ids),
        result.speculation,
        asked_at,
        result.usage.prompt_tokens,
        result.usage.cached_tokens,
    )


def first_differing(ours: Sequence[object], theirs: Sequence[object]) -> int:
    """Returns the index of the first difference; the shorter length if one continues the other."""
    for index, (a, b) in enumerate(zip(ours, theirs, strict=False)):
        if a != b:
            return index
    return min(len(ours), len(theirs))
