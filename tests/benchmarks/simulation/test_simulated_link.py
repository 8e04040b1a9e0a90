"""Verdicts to drafters in virtual time: the same ones, and as often, as from the services."""

import itertools
from collections.abc import Callable

from benchmarks.harness.simulated_models import Agreement, ModelPair
from benchmarks.harness.simulated_services import (
    Growth,
    SettledStep,
    SimulatedDrafter,
    SimulatedVerifier,
    Verdict,
    VirtualClock,
)
from benchmarks.simulation.simulated_link import SimulatedLink
from benchmarks.simulation.simulated_setting import Curve
from draftwire_core.engine.drafters.tree_growth import TreeGrowth
from draftwire_core.engine.planning.planner import Planner
from draftwire_core.engine.planning.step_cost import StepCost
from draftwire_core.engine.tree.proposal import Proposal
from draftwire_core.pool.standing.pause_policy import PausePolicy

TOKENS = 400
OPENED_WITH = 64


class HeardDrafter(SimulatedDrafter):
    """Records the verdicts it receives."""

    def __init__(
        self, clock: VirtualClock, growth: Growth, cost: StepCost, send: Callable[[dict[int, Proposal]], None]
    ):
        super().__init__(clock, growth, cost, send)
        self.heard: list[Verdict] = []

    def receive(self, verdicts: list[Verdict]) -> None:
        """Records verdicts before the simulated drafter handles them."""
        self.heard.extend(verdicts)
        super().receive(verdicts)


def hear(agreement: float, policy: PausePolicy | None, round_trip: float = 0.0) -> list[Verdict]:
    """What a drafter of one sequence is told, to its end."""
    clock = VirtualClock()
    target, draft = Curve.cpu(0.030).cost(), Curve.cpu(0.003).cost()
    text = ModelPair(Agreement.of(agreement), TOKENS + 1, "text")

    def settled(step: SettledStep) -> None:
        link.settle(step)

    def proposed(proposals: dict[int, Proposal]) -> None:
        link.propose(proposals)

    verifier = SimulatedVerifier(clock, Planner(Curve.cpu(0.030).cost(), 256), target, settled)
    drafter = HeardDrafter(clock, TreeGrowth(Curve.cpu(0.003).cost()), draft, proposed)
    link = SimulatedLink(clock, round_trip, verifier, drafter, "drafter", policy)
    verifier.add(0, text, OPENED_WITH, TOKENS + 1, "drafter")
    link.open(0, text, OPENED_WITH, TOKENS + 1)
    verifier.start()
    clock.run(lambda: verifier.done)
    clock.run(lambda: bool(drafter.heard) and drafter.heard[-1].ended)
    return drafter.heard


def test_all_that_is_committed_is_told_with_or_without_credit() -> None:
    for policy in (None, PausePolicy()):
        for agreement in (0.75, 0.02):
            told = hear(agreement, policy, round_trip=0.010)
            assert sum(len(verdict.tokens) for verdict in told) == TOKENS
            assert told[-1].ended and not any(verdict.ended for verdict in told[:-1])


def test_a_drafter_of_no_use_rests_but_for_trials() -> None:
    told = hear(0.02, PausePolicy())
    assert len(told) < TOKENS / 2
    rests = [number for number, verdict in enumerate(told) if len(verdict.tokens) > 8]
    assert len(rests) > 1
    trials = [after - before for before, after in itertools.pairwise(rests)]
    assert all(8 <= trial < 20 for trial in trials)


def test_a_drafter_of_use_is_told_of_each_step_and_may_say_more_than_is_verified() -> None:
    told = hear(0.75, PausePolicy())
    assert len(told) < TOKENS / 2
    assert all(len(verdict.tokens) == verdict.accepted + 1 for verdict in told)
    credits = [verdict.max_tree_nodes for verdict in told]
    assert all(credit is not None and credit >= 64 for credit in credits), "nodes are cheap for one sequence"


def test_without_credit_a_drafter_is_told_of_each_step_and_may_say_what_its_openings_allow() -> None:
    told = hear(0.02, None)
    assert len(told) > 0.9 * TOKENS
    assert {verdict.max_tree_nodes for verdict in told} == {None}
