"""A drafter as good as its model, but slow."""

from __future__ import annotations

import time

from draftwire_core.engine.drafters.drafter import Growth
from draftwire_core.engine.drafters.model.draft_model import DraftModelDrafter
from draftwire_core.engine.drafters.tree_growth import TreeGrowth
from draftwire_core.engine.model.packed_model import PackedModel


class SlowDrafter(DraftModelDrafter):
    """A draft-model drafter that sleeps before each of its steps, and does not include that in its reported step
    time."""

    def __init__(self, model: PackedModel, growth: TreeGrowth | None = None, *, seconds: float):
        """seconds: time to sleep before each step."""
        super().__init__(model, growth)
        self._seconds = seconds

    def grow(self) -> Growth:
        """Grows the trees; see Drafter.grow."""
        time.sleep(self._seconds)
        return super().grow()
