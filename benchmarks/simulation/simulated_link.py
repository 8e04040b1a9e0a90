"""Messages between a verifier and one of its drafters in virtual time, in the order of `DrafterConversation`."""

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
    """A link with a delay of half a round trip per message. Credit and pauses follow from what the drafter brings."""

    def __init__(
        self,
        clock: VirtualClock,
        round_trip: float,
        verifier: SimulatedVerifier,
        drafter: SimulatedDrafter,
        source: str,
        credit: PausePolicy | None,
    ):
        """round_trip: seconds. source: the drafter's name at the verifier. credit: None for a drafter that gets every
        verdict and may always use the credit of its openings."""
        self._clock = clock
        self._one_way = round_trip / 2
        self._verifier = verifier
        self._drafter = drafter
        self._source = source
        self._credit = credit
        self._caught_up: set[int] = set()
        self._held: dict[int, Verdict] = {}

    def open(self, sequence: int, pair: ModelPair, max_nodes: int, max_length: int) -> None:
        """Opens a sequence at the drafter, with at most `max_nodes` live nodes."""
        self._clock.after(self._one_way, lambda: self._drafter.open(sequence, pair, max_nodes, max_length))

    def propose(self, proposals: dict[int, Proposal]) -> None:
        """Sends new nodes from the drafter, by sequence."""
        self._clock.after(self._one_way, lambda: self._take(proposals))

    def settle(self, step: SettledStep) -> None:
        """Sends the verdicts of a step for the sequences that are open here."""
        for verdict in step.verdicts:
            self._hold(verdict)
        rests = self._rests(step)
        most = self._credit.max_tree_nodes if self._credit is not None else None
        told = [
            replace(verdict, max_tree_nodes=most)
            for verdict in self._held.values()
            if not rests or verdict.ended  # an end is a separate message
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
        """Whether the drafter is paused and gets no verdicts of this step."""
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
