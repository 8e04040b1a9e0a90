"""What happened to the pool of drafters since the start."""

from __future__ import annotations

import enum
from collections import Counter
from dataclasses import dataclass, field


class Fallback(enum.Enum):
    """Why a request lost its last drafter and went on plainly, until there was another one."""

    LOST = "lost"
    """The connection was."""
    OUT_OF_STEP = "out_of_step"
    """The drafter did not know what had been committed."""
    FULL = "full"
    """The drafter had no room."""
    REFUSED = "refused"
    """One of the two wanted no more of the other."""
    RELEASED = "released"
    """The drafter was detached or left."""


@dataclass(slots=True)
class PoolCounts:
    """Sums that outlive the drafters they tell of. Used in the event loop only."""

    fallbacks: Counter[Fallback] = field(default_factory=Counter)
    swaps: int = 0
    failed_swaps: int = 0
    """Those whose old drafter went on."""
    moved_sequences: int = 0
    """Sequences that changed their drafter in a swap."""
