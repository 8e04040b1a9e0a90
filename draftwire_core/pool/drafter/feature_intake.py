"""The pool's interface to a verifier that can send features of its target's hidden states."""

from __future__ import annotations

from typing import Protocol

from draftwire.v1.features_pb2 import FeatureMap


class FeatureIntake(Protocol):
    """Makes the features that drafters read. Called in the event loop."""

    async def prepare(self, source: str, address: str, features: FeatureMap) -> None:
        """Begins to make what the drafter at an address reads; returns when passes do. `ProposalSink.forget` ends it.

        Raises ServiceError for features that this target does not have, and StreamBroken if the drafter does not send
        its weights.
        """

    def sent(self, source: str, count: int | None = None) -> None:
        """Reports that `count` bytes of features have been written to a drafter, or dropped; None for all that were
        made for it."""
