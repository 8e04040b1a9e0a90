"""A request with the drafters that it may have."""

from __future__ import annotations

from dataclasses import dataclass, field

from drafter_pool.drafter.pooled_drafter import PooledDrafter
from drafter_pool.drafter.speculated_request import SpeculatedRequest


@dataclass(slots=True, eq=False)
class DraftedRequest:
    """A running request that wants drafters."""

    request: SpeculatedRequest
    names: dict[str, str]
    """The only drafters it takes, by the names it gave; a swap puts the new one's name here. Empty: any."""
    number: int
    """Number of drafters to draft for it at once, if there are so many and it named none."""
    avoided: set[PooledDrafter] = field(default_factory=set)
    """Drafters that cannot draft for it: they refused it, or it refused their proposal."""
    reopened: int = 0
    """Number of times that it was opened again with a drafter that fell out of step."""
    over: bool = False

    @property
    def sequence_id(self) -> int:
        """Number of its sequence."""
        return self.request.sequence_id

    @property
    def wanted(self) -> int:
        """Number of drafters to draft for it at once."""
        return len(set(self.names.values())) or self.number

    def takes(self, drafter: PooledDrafter) -> bool:
        """Whether a drafter may draft for it."""
        return (
            drafter not in self.avoided
            and (not self.names or drafter.name in self.names.values())
            and self.request.order.labels.items() <= drafter.labels.items()
            and (drafter.draws or not self.request.order.acceptance.draws)
        )
