"""The shares of a drafter's verifiers: the weight of each, and what the drafter has done for it."""

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

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


class VerifierShare:
    """The weight of one verifier, and counts since the first of its open streams. Used in the event loop only."""

    __slots__ = ("name", "nodes", "preemptions", "rows", "streams", "weight")

    def __init__(self, name: str, weight: float) -> None:
        self.name = name
        """Name of its token or, where none is asked for, its host."""
        self.weight = weight
        self.streams = 0
        """Open streams."""
        self.rows = 0
        """Rows of the draft model's steps."""
        self.nodes = 0
        """Nodes proposed."""
        self.preemptions = 0
        """Times a sequence gave up its KV slots to others."""


class VerifierShares:
    """Shares of the verifiers that have a stream, whatever model serves it."""

    def __init__(self, weights: Mapping[str, float]) -> None:
        """weights: by name, of those that have another one than 1."""
        self._weights = weights
        self._shares: dict[str, VerifierShare] = {}

    def __iter__(self) -> Iterator[VerifierShare]:
        return iter(self._shares.values())

    @contextmanager
    def stream(self, name: str) -> Iterator[VerifierShare]:
        """Count one more stream of a verifier until the `with` is left."""
        share = self._shares.get(name)
        if share is None:
            share = self._shares[name] = VerifierShare(name, self._weights.get(name, DEFAULT_WEIGHT))
        share.streams += 1
        try:
            yield share
        finally:
            share.streams -= 1
            if not share.streams:
                del self._shares[name]
