"""A request, and the drafters that may draft for it."""

from __future__ import annotations

from dataclasses import dataclass, field

from draftwire_core.pool.drafter.pooled_drafter import PooledDrafter
from draftwire_core.pool.drafter.speculated_request import SpeculatedRequest


@dataclass(slots=True, eq=False)
class DraftedRequest:
    """A running request that uses drafters."""

    request: SpeculatedRequest
    names: dict[str, str]
    """The only drafters allowed, by the names in the request; empty allows any. A swap puts in the new drafter."""
    number: int
    """Maximum number of drafters that draft for the request at once, if it names none."""
    avoided: set[PooledDrafter] = field(default_factory=set)
    """Drafters that cannot draft for the request: they refused it, or the verifier refused their proposal."""
    reopened: int = 0
    """Number of times that the request was reopened with a drafter that had fallen out of sync."""
    over: bool = False

    @property
    def sequence_id(self) -> int:
        """The request's sequence number."""
        return self.request.sequence_id

    @property
    def wanted(self) -> int:
        """Number of drafters that are to draft for the request at once."""
        return len(set(self.names.values())) or self.number

    def takes(self, drafter: PooledDrafter) -> bool:
        """Whether a drafter may draft for the request."""
        return (
            drafter not in self.avoided
            and (not self.names or drafter.name in self.names.values())
            and self.request.order.labels.items() <= drafter.labels.items()
            and (drafter.draws or not self.request.order.acceptance.draws)
        )
