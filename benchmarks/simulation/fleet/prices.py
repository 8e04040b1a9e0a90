"""Prices of hosts, and the cost of tokens."""

from __future__ import annotations

import math
from dataclasses import dataclass

_HOUR = 3600.0


@dataclass(frozen=True)
class Prices:
    """Prices of hosts per hour, in any currency."""

    verifier: float = 2.5
    """Price of a host with the accelerator that the target needs. Assumed."""
    drafter: float = 0.4
    """Price of a host for a draft model. Assumed."""

    def __post_init__(self) -> None:
        for name in ("verifier", "drafter"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name}: {getattr(self, name)} is not a price")

    def million_tokens(self, verifiers: int, drafters: int, tokens_per_second: float) -> float:
        """Returns the cost of a million tokens; infinite if there are none."""
        hour = verifiers * self.verifier + drafters * self.drafter
        return 1e6 * hour / (_HOUR * tokens_per_second) if tokens_per_second else math.inf
