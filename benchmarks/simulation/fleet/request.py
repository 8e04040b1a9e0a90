"""Requests of a fleet, and when they come."""

from __future__ import annotations

import random
from dataclasses import dataclass, field


@dataclass(eq=False, slots=True)
class Request:
    """One request, wherever it is at the moment."""

    number: int
    at: float
    """Time of the request, in seconds."""
    prompt: int
    """Tokens."""
    output: int
    """Tokens to generate."""
    home: int | None = None
    """The verifier that its client asks first; None for whichever has least to do."""
    chance: float = 0.0
    """Its own number in [0, 1), see Cells.trace."""
    cursor: int = 0
    """Place of its steps in the traces."""
    produced: int = 0
    pending: int = 0
    """Tokens to compute before the next one can be sampled, beside the last."""
    last: float = field(default=0.0)
    """Time of the request, or of its last tokens."""
    first: float = 0.0
    """Time of its first tokens."""
    drafted_from: float = 0.0
    """Time at which its drafter has caught up with it."""
    retry_at: float = 0.0
    """Time of the next search for a drafter."""
    moves: int = 0
    """Times it went on at another verifier."""

    @property
    def length(self) -> int:
        """Tokens that a verifier or drafter has to read to go on with it."""
        return self.prompt + self.produced


def arrivals(rate: float, seconds: float, prompt: int, output: int, seed: str) -> list[Request]:
    """Requests for so many seconds, `rate` a second on average, each as far from the last as chance has it.

    Lengths are from half of the given tokens to half as much again. The same seed gives the same requests.
    """
    rng = random.Random(seed)
    found: list[Request] = []
    at = rng.expovariate(rate)
    while at < seconds:
        found.append(_request(rng, len(found), at, _length(rng, prompt), _length(rng, output)))
        at += rng.expovariate(rate)
    return found


def given(lengths: list[tuple[int, int]], seed: str) -> list[Request]:
    """Requests of the given prompts and outputs, all asked for at once."""
    rng = random.Random(seed)
    return [_request(rng, number, 0.0, prompt, output) for number, (prompt, output) in enumerate(lengths)]


def _request(rng: random.Random, number: int, at: float, prompt: int, output: int) -> Request:
    return Request(number, at, prompt, output, chance=rng.random(), cursor=rng.randrange(1 << 30))


def _length(rng: random.Random, tokens: int) -> int:
    return rng.randint(max(1, tokens // 2), max(1, tokens * 3 // 2))
