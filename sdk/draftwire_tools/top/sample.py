"""One reading of a verifier."""

from __future__ import annotations

from dataclasses import dataclass

from draftwire._types.drafter import Drafter
from draftwire._types.model import VerifierInfo


@dataclass(frozen=True, slots=True)
class Sample:
    """One reading of a verifier."""

    at: float
    """Time of the reading in seconds, by ``time.monotonic``."""
    info: VerifierInfo
    """The verifier."""
    drafters: list[Drafter]
    """The pool's drafters, oldest first."""

    @property
    def tokens(self) -> int:
        """Tokens committed since the verifier's start, of all requests."""
        return sum(count.tokens for count in self.info.engine.acceptance)

    @property
    def requests(self) -> int:
        """Requests that have begun since the verifier's start."""
        return sum(count.requests for count in self.info.engine.acceptance)

    def follows(self, earlier: Sample) -> bool:
        """Returns whether its counts continue an earlier sample's, so that differences are rates."""
        same_start = self.info.started_at == earlier.info.started_at
        # A restart of a verifier that does not report its start shows as counts that have shrunk.
        return same_start and self.info.engine.times.steps >= earlier.info.engine.times.steps and self.at > earlier.at
