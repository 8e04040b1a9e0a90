"""Counts of what one model drafted, which can be added to another model's."""

from __future__ import annotations

from collections.abc import Mapping

from service_runtime.observability.histogram import Histogram
from service_runtime.observability.metric_families import SIZES, STEP_SECONDS


class DraftingCounts:
    """Sums since the start. One thread counts; any may read."""

    def __init__(self) -> None:
        self.nodes = 0
        """Nodes proposed."""
        self.seconds = Histogram(STEP_SECONDS)
        """Of each step that drafted."""
        self.sequences = Histogram(SIZES)
        """Sequences that each step proposed nodes for."""
        self.part_seconds: dict[str, float] = {}
        """Time of the drafting thread by part, of models that are released."""

    def stepped(self, seconds: float, sequences: int, nodes: int) -> None:
        """Take in a step."""
        self.seconds.observe(seconds)
        self.sequences.observe(sequences)
        self.nodes += nodes

    def add(self, other: DraftingCounts, part_seconds: Mapping[str, float]) -> None:
        """Take in all that another one has counted, and where its thread's time went."""
        self.nodes += other.nodes
        self.seconds.add(other.seconds)
        self.sequences.add(other.sequences)
        for part, seconds in part_seconds.items():
            self.part_seconds[part] = self.part_seconds.get(part, 0.0) + seconds
