"""A plan of faults, with their times and targets, drawn from a seed in advance."""

from __future__ import annotations

import random
from typing import NamedTuple

PHASE_SECONDS = 15.0
"""Length of a phase in seconds. Every other phase has drafter faults only, so that their effect on streams is seen
separately."""
VERIFIER_SHARE = 0.3
"""Share of verifier faults in the other phases."""

DRAFTER_FAULTS = {
    "kill drafter": 2,
    "stop drafter": 2,
    "partition drafter": 2,
    "cut drafter": 2,
    "delay drafter": 2,
    "corrupt drafter": 2,
    "swap": 3,
    "detach": 2,
}
"""Weights by kind. A swap and a detachment are not faults of a drafter, but may affect a stream in the same way."""
VERIFIER_FAULTS = {
    "kill verifier": 2,
    "stop verifier": 1,
    "partition verifier": 1,
    "cut verifier": 2,
    "delay verifier": 1,
}

_SECONDS = {
    "stop": (0.5, 5.0),
    "partition": (0.5, 5.0),
    "delay": (1.0, 4.0),
    "corrupt": (0.5, 2.0),
}
_AMOUNTS = {
    "delay": (0.02, 0.2),  # seconds, one way
    "corrupt": (1e-4, 1e-3),  # probability per byte
    "swap": (0.0, 1.0),  # selects the drafter
    "detach": (0.0, 1.0),
}


class Fault(NamedTuple):
    """One planned fault."""

    number: int
    at: float
    """Earliest start in seconds after the beginning: a fault waits while another one has its target."""
    kind: str
    target: int
    """Index of the drafter, or of the verifier for verifier faults, swaps and detachments."""
    seconds: float
    """Duration in seconds; 0 for an instantaneous fault."""
    amount: float

    @property
    def of_verifier(self) -> bool:
        """Whether it may break a stream, rather than only slow it down."""
        return self.kind in VERIFIER_FAULTS


def plan(seed: int, faults: int, seconds: float, drafters: int, verifiers: int) -> list[Fault]:
    """Returns a plan of `faults` faults, spread evenly but at random over the time."""
    rng = random.Random(seed)
    planned = []
    for number, at in enumerate(sorted(rng.uniform(0.0, seconds) for _ in range(faults))):
        mixed = int(at / PHASE_SECONDS) % 2 == 1
        kinds = VERIFIER_FAULTS if mixed and rng.random() < VERIFIER_SHARE else DRAFTER_FAULTS
        kind = rng.choices(list(kinds), list(kinds.values()))[0]
        action = kind.split()[0]
        on_verifier = kinds is VERIFIER_FAULTS or action in ("swap", "detach")
        target = rng.randrange(verifiers if on_verifier else drafters)
        lasts = rng.uniform(*_SECONDS.get(action, (0.0, 0.0)))
        planned.append(Fault(number, at, kind, target, lasts, rng.uniform(*_AMOUNTS.get(action, (0.0, 0.0)))))
    return planned
