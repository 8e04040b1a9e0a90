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
from draftwire_core.engine.tree.proposal import Proposal
from draftwire_core.pool.standing.pause_policy import PausePolicy

_STEP_SECONDS = 0.75e-3
_SEQUENCE_SECONDS = 0.15e-3
"""Processor time that a verifier is assumed to measure for a step's verdicts and their answers, and per sequence among
them. The policy counts it twice; with one core for everything such a step took 1.5 and 0.3 ms longer (profile_step)."""
_MOST = 0.05
"""Upper bound of that time, as a share of a step: where steps take a millisecond or two, caches are warm."""


class SimulatedLink:
    """Carries messages in half a round trip each, under the pause policy of the services."""

    def __init__(
        self,
        clock: VirtualClock,
        round_trip: float,
        verifier: SimulatedVerifier,
        drafter: SimulatedDrafter,
        source: str,
        policy: PausePolicy | None,
    ):
        """round_trip: seconds. source: the drafter's name at the verifier. policy: None for a drafter that
        receives every verdict and may always propose as much as its openings allow."""
        self._clock = clock
        self._one_way = round_trip / 2
        self._verifier = verifier
        self._drafter = drafter
        self._source = source
        self._policy = policy
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
        paused = self._paused(step)
        most = self._policy.max_tree_nodes if self._policy is not None else None
        told = [
            replace(verdict, max_tree_nodes=most)
            for verdict in self._held.values()
            if not paused or verdict.ended  # an end is a message of its own
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

    def _paused(self, step: SettledStep) -> bool:
        """Settles a step with the policy. Returns whether the drafter is paused now."""
        policy = self._policy
        if policy is None:
            return False
        paused = policy.paused
        policy.price(step.plain_seconds, step.node_tokens)
        for verdict in step.verdicts:
            policy.verified(verdict.verified, verdict.accepted)
        drafted_for = sum(verdict.sequence in self._caught_up and not verdict.ended for verdict in step.verdicts)
        if drafted_for:
            if not paused:
                policy.charge(min(_STEP_SECONDS + _SEQUENCE_SECONDS * drafted_for, _MOST * step.plain_seconds))
            policy.stepped(drafted_for)
        if policy.paused is not paused:
            self._verifier.pause(self._source, paused=policy.paused)
        return policy.paused
