"""One measured request."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from draftwire._async.client import AsyncClient
from draftwire._types.options import GenerateOptions
from draftwire._types.speculation import SpeculationStats


class Arrival(NamedTuple):
    """The arrival of a chunk."""

    seconds: float
    """Seconds since the request was sent, by the caller's clock."""
    tokens: int
    """Number of its tokens."""


@dataclass(frozen=True, slots=True)
class Request:
    """The outcome of a request, timed at the caller."""

    arrivals: tuple[Arrival, ...]
    """Arrivals of its chunks."""
    token_ids: tuple[int, ...]
    """Its output."""
    stats: SpeculationStats
    """Its speculation statistics."""

    @property
    def first_token_seconds(self) -> float:
        """Time to the first token."""
        return self.arrivals[0].seconds

    @property
    def chunk_gaps(self) -> list[float]:
        """Seconds from each chunk to the next."""
        return [later.seconds - earlier.seconds for earlier, later in self._pairs()]

    @property
    def token_gaps(self) -> list[float]:
        """Seconds between tokens, except within the first chunk. The n tokens of a chunk that arrives after t seconds
        have t / n each."""
        return [
            (later.seconds - earlier.seconds) / later.tokens
            for earlier, later in self._pairs()
            for _ in range(later.tokens)
        ]

    def _pairs(self) -> Sequence[tuple[Arrival, Arrival]]:
        return list(zip(self.arrivals, self.arrivals[1:], strict=False))


async def run_request(client: AsyncClient, prompt: str, options: GenerateOptions) -> Request:
    """Runs a request to completion.

    Raises:
        DraftwireError: the request failed.
    """
    began = time.perf_counter()
    arrivals: list[Arrival] = []
    async with client.stream(prompt, **options) as stream:
        async for chunk in stream:
            if chunk.token_ids:
                arrivals.append(Arrival(time.perf_counter() - began, len(chunk.token_ids)))
    result = stream.result
    return Request(tuple(arrivals), tuple(result.token_ids), result.speculation)
