"""Fair shares of a drafter among its verifiers: weights, and an account of the drafting time of each."""

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
    """Counts of one verifier since its first stream of those that are open now. Used in the event loop only."""

    __slots__ = ("name", "nodes", "preemptions", "rows", "streams", "weight")

    def __init__(self, name: str, weight: float) -> None:
        self.name = name
        """Name of its token or, where none is asked for, its host."""
        self.weight = weight
        self.streams = 0
        """Open ones."""
        self.rows = 0
        """Of the draft model's steps."""
        self.nodes = 0
        """Proposed."""
        self.preemptions = 0
        """Times a sequence gave up its KV slots to others."""


class VerifierShares:
    """Accounts of the verifiers that have a stream, whatever model serves it."""

    def __init__(self, weights: Mapping[str, float]) -> None:
        """weights: by name, of those that have another one than 1."""
        self._weights = weights
        self._accounts: dict[str, VerifierShare] = {}

    def __iter__(self) -> Iterator[VerifierShare]:
        return iter(self._accounts.values())

    @contextmanager
    def stream(self, name: str) -> Iterator[VerifierShare]:
        """A verifier has one stream more until the `with` is left."""
        account = self._accounts.get(name)
        if account is None:
            account = self._accounts[name] = VerifierShare(name, self._weights.get(name, DEFAULT_WEIGHT))
        account.streams += 1
        try:
            yield account
        finally:
            account.streams -= 1
            if not account.streams:
                del self._accounts[name]
