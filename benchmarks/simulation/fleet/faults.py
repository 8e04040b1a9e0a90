"""Faults and swaps of a fleet, with their times."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Literal

Kind = Literal["drafter fails", "verifier fails", "drafter is swapped", "verifier is restarted"]


@dataclass(frozen=True, order=True)
class Fault:
    """One fault or swap."""

    at: float
    """Time in seconds."""
    kind: Kind
    index: int
    """Index of the drafter or verifier."""
    seconds: float
    """Seconds for which the service is away."""


def failures(kind: Kind, count: int, each: float, away: float, until: float, seed: str) -> list[Fault]:
    """Returns failures of `count` services, each of which fails once in `each` seconds on average, at random, for
    `away` seconds."""
    rng = random.Random(f"{seed} {kind}")
    found: list[Fault] = []
    for index in range(count):
        at = rng.expovariate(1 / each)
        while at < until:
            found.append(Fault(at, kind, index, away))
            at += away + rng.expovariate(1 / each)
    return sorted(found)


def rolling(kind: Kind, count: int, start: float, pause: float, away: float) -> list[Fault]:
    """Returns restarts of one service after another, each when the previous one has been back for `pause` seconds."""
    return [Fault(start + index * (pause + away), kind, index, away) for index in range(count)]
