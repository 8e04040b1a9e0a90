"""One reading of a verifier."""

from __future__ import annotations

from dataclasses import dataclass

from draftwire._types.drafter import Drafter
from draftwire._types.model import VerifierInfo


@dataclass(frozen=True, slots=True)
class Sample:
    """What a verifier told at one time."""

    at: float
    """When, by ``time.monotonic``, in seconds."""
    info: VerifierInfo
    """The verifier."""
    drafters: list[Drafter]
    """Its drafters, oldest first."""

    @property
    def tokens(self) -> int:
        """Tokens committed since the verifier's start, of all requests."""
        return sum(count.tokens for count in self.info.engine.acceptance)

    @property
    def requests(self) -> int:
        """Requests that have begun since the verifier's start."""
        return sum(count.requests for count in self.info.engine.acceptance)

    def follows(self, earlier: Sample) -> bool:
        """Whether its counts go on from an earlier sample's, so that differences tell rates."""
        same_start = self.info.started_at == earlier.info.started_at
        # One that does not tell its start is known by counts that have shrunk.
        return same_start and self.info.engine.times.steps >= earlier.info.engine.times.steps and self.at > earlier.at
