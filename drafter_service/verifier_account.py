"""What a drafter has done for each of its verifiers."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from drafter_service.verifier_weights import DEFAULT_WEIGHT


class VerifierAccount:
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


class VerifierAccounts:
    """Accounts of the verifiers that have a stream, whatever model serves it."""

    def __init__(self, weights: Mapping[str, float]) -> None:
        """weights: by name, of those that have another one than 1."""
        self._weights = weights
        self._accounts: dict[str, VerifierAccount] = {}

    def __iter__(self) -> Iterator[VerifierAccount]:
        return iter(self._accounts.values())

    @contextmanager
    def stream(self, name: str) -> Iterator[VerifierAccount]:
        """A verifier has one stream more until the `with` is left."""
        account = self._accounts.get(name)
        if account is None:
            account = self._accounts[name] = VerifierAccount(name, self._weights.get(name, DEFAULT_WEIGHT))
        account.streams += 1
        try:
            yield account
        finally:
            account.streams -= 1
            if not account.streams:
                del self._accounts[name]
