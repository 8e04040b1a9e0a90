"""Requests of a fleet, and their arrival times."""

from __future__ import annotations

import random
from dataclasses import dataclass, field


@dataclass(eq=False, slots=True)
class Request:
    """One request, wherever it currently is."""

    number: int
    at: float
    """Arrival time in seconds."""
    prompt: int
    """Number of prompt tokens."""
    output: int
    """Number of tokens to generate."""
    home: int | None = None
    """Verifier that its client tries first; None for the least busy one."""
    chance: float = 0.0
    """Its own random number in [0, 1), see Cells.trace."""
    cursor: int = 0
    """Position of its steps in the traces."""
    produced: int = 0
    pending: int = 0
    """Tokens to compute before the next one can be sampled, in addition to the last."""
    last: float = field(default=0.0)
    """Time of the request, or of its last tokens."""
    first: float = 0.0
    """Time of its first tokens."""
    drafted_from: float = 0.0
    """Time at which its drafter has caught up."""
    retry_at: float = 0.0
    """Time of the next search for a drafter."""
    moves: int = 0
    """Number of times it continued at another verifier."""

    @property
    def length(self) -> int:
        """Tokens that a verifier or drafter must read to continue it."""
        return self.prompt + self.produced


def arrivals(rate: float, seconds: float, prompt: int, output: int, seed: str) -> list[Request]:
    """Returns requests for so many seconds, at `rate` per second on average, with random intervals (a Poisson process).

    Lengths range from half of the given tokens to one and a half times. The same seed gives the same requests.
    """
    rng = random.Random(seed)
    found: list[Request] = []
    at = rng.expovariate(rate)
    while at < seconds:
        found.append(_request(rng, len(found), at, _length(rng, prompt), _length(rng, output)))
        at += rng.expovariate(rate)
    return found


def given(lengths: list[tuple[int, int]], seed: str) -> list[Request]:
    """Returns requests with the given lengths of prompt and output, all arriving at once."""
    rng = random.Random(seed)
    return [_request(rng, number, 0.0, prompt, output) for number, (prompt, output) in enumerate(lengths)]


def _request(rng: random.Random, number: int, at: float, prompt: int, output: int) -> Request:
    return Request(number, at, prompt, output, chance=rng.random(), cursor=rng.randrange(1 << 30))


def _length(rng: random.Random, tokens: int) -> int:
    return rng.randint(max(1, tokens // 2), max(1, tokens * 3 // 2))
