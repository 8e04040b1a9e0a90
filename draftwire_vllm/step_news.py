"""What vLLM's thread has to tell the event loop, joined until it is fetched: at most the requests' own tokens."""

from __future__ import annotations

from dataclasses import dataclass, field

from draftwire_vllm.adapted_request import AdaptedOrder


@dataclass(slots=True)
class RequestNews:
    """Of one request."""

    begun: AdaptedOrder | None = None
    """It is new."""
    tokens: list[int] = field(default_factory=list)
    """Of a new one all, else those committed since the last news."""
    sources: list[str | None] = field(default_factory=list)
    """For each committed token the drafter that drafted it, None for the target's own."""
    drafted: dict[str, int] = field(default_factory=dict)
    """Draft tokens that were verified, by source."""
    ended: bool = False


@dataclass(slots=True)
class StepNews:
    """Of all."""

    requests: dict[int, RequestNews] = field(default_factory=dict)

    def of(self, sequence_id: int) -> RequestNews:
        """Those of one request, to be added to."""
        return self.requests.setdefault(sequence_id, RequestNews())
