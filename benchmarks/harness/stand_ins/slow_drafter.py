"""A drafter as good as its model that takes its time."""

from __future__ import annotations

import time

from speculative_engine.drafters.drafter import Growth
from speculative_engine.drafters.model.draft_model import DraftModelDrafter
from speculative_engine.drafters.tree_growth import TreeGrowth
from speculative_engine.model.packed_model import PackedModel


class SlowDrafter(DraftModelDrafter):
    """Sleeps before each of its steps, and does not count that when it tells what the step took."""

    def __init__(self, model: PackedModel, growth: TreeGrowth | None = None, *, seconds: float):
        """seconds: of sleep."""
        super().__init__(model, growth)
        self._seconds = seconds

    def grow(self) -> Growth:
        """Grows the trees; see Drafter.grow."""
        time.sleep(self._seconds)
        return super().grow()
