"""Which verifiers get more of a drafter than others, and which less."""

import math
from collections.abc import Iterable

LEAST_WEIGHT, MOST_WEIGHT = 0.01, 100.0
DEFAULT_WEIGHT = 1.0
"""Of a verifier that is not named."""


def parse_weights(entries: Iterable[str]) -> dict[str, float]:
    """Weights by name, of entries NAME=WEIGHT. Raises ValueError that shows the first wrong one."""
    weights: dict[str, float] = {}
    for entry in entries:
        name, _, text = entry.rpartition("=")
        try:
            weight = float(text)
        except ValueError:
            weight = math.nan
        if not name or not LEAST_WEIGHT <= weight <= MOST_WEIGHT:
            raise ValueError(f"must be NAME=WEIGHT, a weight from {LEAST_WEIGHT:g} to {MOST_WEIGHT:g}, got {entry!r}")
        if name in weights:
            raise ValueError(f"names {name!r} twice")
        weights[name] = weight
    return weights
