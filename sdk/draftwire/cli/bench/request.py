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
    """Tokens that came in one chunk."""

    seconds: float
    """Since the request was sent, by the caller's clock."""
    tokens: int
    """How many."""


@dataclass(frozen=True, slots=True)
class Request:
    """What came of a request, timed where it was asked for."""

    arrivals: tuple[Arrival, ...]
    """When its tokens came."""
    token_ids: tuple[int, ...]
    """Its output."""
    stats: SpeculationStats
    """What speculation did for it."""

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
        """Seconds from each token to the next, the first chunk's among themselves left out. Tokens that come in one
        chunk share the time since the last one: of n tokens after t seconds each has t / n."""
        return [
            (later.seconds - earlier.seconds) / later.tokens
            for earlier, later in self._pairs()
            for _ in range(later.tokens)
        ]

    def _pairs(self) -> Sequence[tuple[Arrival, Arrival]]:
        return list(zip(self.arrivals, self.arrivals[1:], strict=False))


async def run_request(client: AsyncClient, prompt: str, options: GenerateOptions) -> Request:
    """Runs a request to its end.

    Raises:
        DraftwireError: it failed.
    """
    began = time.perf_counter()
    arrivals: list[Arrival] = []
    async with client.stream(prompt, **options) as stream:
        async for chunk in stream:
            if chunk.token_ids:
                arrivals.append(Arrival(time.perf_counter() - began, len(chunk.token_ids)))
    result = stream.result
    return Request(tuple(arrivals), tuple(result.token_ids), result.speculation)
