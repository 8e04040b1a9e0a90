"""News from the host engine's thread for the event loop, merged until fetched: no more than the requests' tokens."""

from __future__ import annotations

from dataclasses import dataclass, field

from draftwire_core.adapters.common.adapted_request import AdaptedOrder
from draftwire_core.adapters.common.feature_taps import FeatureRows


@dataclass(slots=True)
class RequestNews:
    """News of one request."""

    begun: AdaptedOrder | None = None
    """Order of a new request; None for a known one."""
    tokens: list[int] = field(default_factory=list)
    """All tokens of a new request; for a known one, the tokens committed since the last news."""
    sources: list[str | None] = field(default_factory=list)
    """Source of each committed token; None for the target's own tokens."""
    drafted: dict[str, int] = field(default_factory=dict)
    """Number of verified draft tokens by source."""
    features: list[FeatureRows] = field(default_factory=list)
    """Features of tokens, each piece of those that one step computed."""
    ended: bool = False


@dataclass(slots=True)
class StepNews:
    """News of all requests."""

    requests: dict[int, RequestNews] = field(default_factory=dict)

    def of(self, sequence_id: int) -> RequestNews:
        """Returns the news of one request, created if there is none."""
        return self.requests.setdefault(sequence_id, RequestNews())
