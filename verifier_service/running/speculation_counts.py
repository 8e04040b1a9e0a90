"""Counts of speculation for one request, as its caller is told."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from draftwire.v1.speculation_pb2 import DrafterStats, DraftPlanning, SpeculationStats
from draftwire_core.engine.engine.step_result import SequenceOutcome
from draftwire_core.pool.drafter.source import drafter_of
from verifier_service.reading.acceptance import tell_acceptance
from verifier_service.reading.generate_order import GenerateOrder


@dataclass(slots=True)
class _DrafterCounts:
    name: str
    draft_tokens: int = 0
    accepted_tokens: int = 0


class SpeculationCounts:
    """Counts steps, draft tokens and accepted tokens of a request, in total and by drafter."""

    def __init__(self, order: GenerateOrder) -> None:
        self._order = order
        # Numbers instead of a message, each access to which takes longer.
        self._steps = self._hits = self._drafts = self._stale = 0
        self._accepted_per_position: list[int] = []
        self._by_drafter: dict[str, _DrafterCounts] = {}

    @property
    def drafter_names(self) -> list[str]:
        """Names of the drafters whose nodes were verified, in order of first appearance."""
        return list(self._by_drafter)

    def step(self, outcome: SequenceOutcome) -> None:
        """Counts a step and the nodes that it verified."""
        self._steps += 1
        self._hits += outcome.hit
        if outcome.drafted:
            self._drafts += 1
            for source, count in outcome.drafted.items():
                self._drafter(drafter_of(source)).draft_tokens += count

    def accepted(self, source: str, place: int) -> None:
        """Counts an accepted token. place: its place among the step's tokens, from 0."""
        self._drafter(drafter_of(source)).accepted_tokens += 1
        counts = self._accepted_per_position
        counts.extend([0] * (place + 1 - len(counts)))
        counts[place] += 1

    def stale(self, nodes: int) -> None:
        """Counts nodes that arrived too late."""
        self._stale += nodes

    def message(self) -> SpeculationStats:
        """Returns all counts, those of each drafter included."""
        order, drafters = self._order, self._by_drafter.values()
        told = SpeculationStats(
            planning=DraftPlanning.DRAFT_PLANNING_ALWAYS if order.always_draft else DraftPlanning.DRAFT_PLANNING_AUTO,
            steps=self._steps,
            hits=self._hits,
            drafts=self._drafts,
            draft_tokens=sum(each.draft_tokens for each in drafters),
            accepted_tokens=sum(each.accepted_tokens for each in drafters),
            stale_nodes=self._stale,
            accepted_per_position=self._accepted_per_position,
            drafters=[DrafterStats(**asdict(each)) for each in drafters],
        )
        tell_acceptance(told, order.acceptance, order.preset)
        return told

    def _drafter(self, name: str) -> _DrafterCounts:
        counts = self._by_drafter.get(name)
        if counts is None:
            counts = self._by_drafter[name] = _DrafterCounts(name)
        return counts
