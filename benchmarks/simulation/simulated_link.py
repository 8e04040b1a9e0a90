"""What a verifier and one of its drafters say to each other in virtual time, in the order of `DrafterConversation`."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.harness.simulated_models import ModelPair
from benchmarks.harness.simulated_services import (
    SettledStep,
    SimulatedDrafter,
    SimulatedVerifier,
    Verdict,
    VirtualClock,
)
from drafter_pool.standing.pause_policy import PausePolicy
from speculative_engine.tree.proposal import Proposal


class SimulatedLink:
    """Messages take half a round trip. Credit, and whether the drafter is told of steps, follow from what it brings."""

    def __init__(
        self,
        clock: VirtualClock,
        round_trip: float,
        verifier: SimulatedVerifier,
        drafter: SimulatedDrafter,
        source: str,
        credit: PausePolicy | None,
    ):
        """round_trip: seconds. source: the drafter's name at the verifier. credit: None for a drafter that is told of
        each step and may always say as much as its openings allow."""
        self._clock = clock
        self._one_way = round_trip / 2
        self._verifier = verifier
        self._drafter = drafter
        self._source = source
        self._credit = credit
        self._caught_up: set[int] = set()
        self._held: dict[int, Verdict] = {}

    def open(self, sequence: int, pair: ModelPair, max_nodes: int, max_length: int) -> None:
        """Asks the drafter for nodes of a sequence, at most so many at once."""
        self._clock.after(self._one_way, lambda: self._drafter.open(sequence, pair, max_nodes, max_length))

    def propose(self, proposals: dict[int, Proposal]) -> None:
        """The drafter has new nodes, by sequence."""
        self._clock.after(self._one_way, lambda: self._take(proposals))

    def settle(self, step: SettledStep) -> None:
        """The verifier has done a step; its verdicts are those of sequences that are open here."""
        for verdict in step.verdicts:
            self._hold(verdict)
        rests = self._rests(step)
        most = self._credit.max_tree_nodes if self._credit is not None else None
        told = [
            replace(verdict, max_tree_nodes=most)
            for verdict in self._held.values()
            if not rests or verdict.ended  # an end is a message of its own
        ]
        for verdict in told:
            del self._held[verdict.sequence]
        if told:
            self._clock.after(self._one_way, lambda: self._drafter.receive(told))

    def _take(self, proposals: dict[int, Proposal]) -> None:
        self._caught_up.update(proposals)
        self._verifier.receive(proposals)

    def _hold(self, verdict: Verdict) -> None:
        held = self._held.get(verdict.sequence)
        tokens = verdict.tokens if held is None else held.tokens + verdict.tokens
        self._held[verdict.sequence] = replace(verdict, tokens=tokens)

    def _rests(self, step: SettledStep) -> bool:
        """Whether the drafter is told nothing of this step for now."""
        credit = self._credit
        if credit is None:
            return False
        rested = credit.rests
        credit.price(step.plain_seconds, step.node_tokens)
        for verdict in step.verdicts:
            credit.verified(verdict.verified, verdict.accepted)
        drafted_for = sum(verdict.sequence in self._caught_up and not verdict.ended for verdict in step.verdicts)
        if drafted_for:
            credit.stepped(drafted_for)
        if credit.rests is not rested:
            self._verifier.rest(self._source, rests=not rested)
        return credit.rests
