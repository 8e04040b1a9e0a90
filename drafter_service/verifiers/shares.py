"""Fair sharing of a drafter among its verifiers: a weight for each, and counts of the work done for it."""

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

LEAST_WEIGHT, MOST_WEIGHT = 0.01, 100.0
DEFAULT_WEIGHT = 1.0
"""Weight of a verifier without an entry."""


def parse_weights(entries: Iterable[str]) -> dict[str, float]:
    """Parses entries NAME=WEIGHT into weights by name. Raises ValueError with the first invalid one."""
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
    """Counts of one verifier, which start again when it connects without another open stream. Used in the event loop
    only."""

    __slots__ = ("name", "nodes", "preemptions", "rows", "streams", "weight")

    def __init__(self, name: str, weight: float) -> None:
        self.name = name
        """Name of the verifier's token, or its host if tokens are not required."""
        self.weight = weight
        self.streams = 0
        """Number of open streams."""
        self.rows = 0
        """Rows of the draft model's steps computed for the verifier."""
        self.nodes = 0
        """Number of nodes proposed."""
        self.preemptions = 0
        """Number of times that a sequence gave up its KV slots to others."""


class VerifierShares:
    """Shares of the verifiers that have a stream, across all models."""

    def __init__(self, weights: Mapping[str, float]) -> None:
        """weights: weights by verifier name; DEFAULT_WEIGHT for all others."""
        self._weights = weights
        self._shares: dict[str, VerifierShare] = {}

    def __iter__(self) -> Iterator[VerifierShare]:
        return iter(self._shares.values())

    @contextmanager
    def stream(self, name: str) -> Iterator[VerifierShare]:
        """Counts a stream of a verifier until the `with` is left, and yields the verifier's share."""
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
