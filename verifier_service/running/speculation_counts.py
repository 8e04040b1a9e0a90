"""Counts of speculation for one request, as its caller is told."""

from __future__ import annotations

from draftwire.v1.speculation_pb2 import DrafterStats, DraftPlanning, SpeculationStats
from draftwire_core.engine.engine.step_result import SequenceOutcome
from draftwire_core.pool.drafter.source import drafter_of
from verifier_service.reading.acceptance import tell_acceptance
from verifier_service.reading.generate_order import GenerateOrder


class SpeculationCounts:
    """Counts steps, draft tokens and accepted tokens of a request, in total and by drafter."""

    def __init__(self, order: GenerateOrder) -> None:
        self.total = SpeculationStats(
            planning=DraftPlanning.DRAFT_PLANNING_ALWAYS if order.always_draft else DraftPlanning.DRAFT_PLANNING_AUTO
        )
        """The counts so far, without the drafters' own; callers must not change them."""
        tell_acceptance(self.total, order.acceptance, order.preset)
        self._by_drafter: dict[str, DrafterStats] = {}

    @property
    def drafter_names(self) -> list[str]:
        """Names of the drafters whose nodes were verified, in order of first appearance."""
        return list(self._by_drafter)

    def step(self, outcome: SequenceOutcome) -> None:
        """Counts a step and the nodes that it verified."""
        self.total.steps += 1
        self.total.hits += outcome.hit
        self.total.drafts += bool(outcome.drafted)
        for source, count in outcome.drafted.items():
            self._drafter(drafter_of(source)).draft_tokens += count
            self.total.draft_tokens += count

    def accepted(self, source: str, place: int) -> None:
        """Counts an accepted token. place: its place among the step's tokens, from 0."""
        self._drafter(drafter_of(source)).accepted_tokens += 1
        self.total.accepted_tokens += 1
        counts = self.total.accepted_per_position
        counts.extend([0] * (place + 1 - len(counts)))
        counts[place] += 1

    def stale(self, nodes: int) -> None:
        """Counts nodes that arrived too late."""
        self.total.stale_nodes += nodes

    def message(self) -> SpeculationStats:
        """Returns all counts, those of each drafter included."""
        told = SpeculationStats()
        told.CopyFrom(self.total)
        told.drafters.extend(self._by_drafter.values())
        return told

    def _drafter(self, name: str) -> DrafterStats:
        stats = self._by_drafter.get(name)
        if stats is None:
            stats = self._by_drafter[name] = DrafterStats(name=name)
        return stats
