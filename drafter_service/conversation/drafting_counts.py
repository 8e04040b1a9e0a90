"""Counts of one model's drafting, which can be added to another model's."""

from __future__ import annotations

from collections.abc import Mapping

from draftwire_core.runtime.observability.histogram import Histogram
from draftwire_core.runtime.observability.metric_families import SIZES, STEP_SECONDS


class DraftingCounts:
    """Counts since the start. One thread writes; any may read."""

    def __init__(self) -> None:
        self.nodes = 0
        """Number of nodes proposed."""
        self.seconds = Histogram(STEP_SECONDS)
        """Durations of the steps that drafted."""
        self.sequences = Histogram(SIZES)
        """Numbers of sequences that each step proposed nodes for."""
        self.part_seconds: dict[str, float] = {}
        """Drafting threads' time in seconds by part, for models that have been released."""

    def stepped(self, seconds: float, sequences: int, nodes: int) -> None:
        """Counts a step."""
        self.seconds.observe(seconds)
        self.sequences.observe(sequences)
        self.nodes += nodes

    def add(self, other: DraftingCounts, part_seconds: Mapping[str, float]) -> None:
        """Adds the counts of another model, and its thread's time by part."""
        self.nodes += other.nodes
        self.seconds.add(other.seconds)
        self.sequences.add(other.sequences)
        for part, seconds in part_seconds.items():
            self.part_seconds[part] = self.part_seconds.get(part, 0.0) + seconds
