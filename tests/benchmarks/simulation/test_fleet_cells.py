"""The steps of whole fleets, taken from small simulations of trees, and how far these represent larger ones."""

from dataclasses import replace

import pytest

from benchmarks.harness.simulated_models import Agreement, ModelPair
from benchmarks.harness.simulated_services import SimulatedVerifier, VirtualClock
from benchmarks.simulation.fleet import drafting_cell
from benchmarks.simulation.fleet.drafting_cell import Cells, Trace, simulate
from benchmarks.simulation.fleet.model_pair_times import ModelPairTimes
from benchmarks.simulation.fleet.outcome import Outcome
from benchmarks.simulation.fleet.request import given
from benchmarks.simulation.fleet.simulation import Fleet, Simulation
from benchmarks.simulation.fleet.speculation import RemoteSpeculation
from benchmarks.simulation.simulated_setting import Curve, Setting, drafted_ahead
from speculative_engine.planning.planner import Planner

PAIR = ModelPairTimes("bare", "assumed", Curve.flat(0.030), Curve.flat(0.003), Agreement.of(0.75))


def check_pair(pair: ModelPairTimes, streams: int, round_trip: float, steps: int) -> None:
    """Compares a fleet of two with the pair that is simulated node by node."""
    setting = Setting(pair.target, pair.draft, pair.agreement, round_trip, 240, streams=streams, max_tree_nodes=64)
    tree_by_tree = drafted_ahead(setting).tokens_per_second
    speculation = RemoteSpeculation(Cells(pair, round_trip, steps=steps))
    outcome = Simulation(Fleet(pair, speculation, 1, 1, round_trip), Outcome()).run_closed(
        given([(1, 240)] * streams, "equal"), streams
    )
    assert outcome.all_tokens / outcome.last_end == pytest.approx(tree_by_tree, rel=0.12)


@pytest.mark.parametrize(("streams", "round_trip"), [(1, 0.0), (4, 0.02)])
def test_a_fleet_of_two_goes_as_fast_as_the_pair_that_is_simulated_node_by_node(
    streams: int, round_trip: float
) -> None:
    check_pair(replace(PAIR, draft=Curve.flat(0.010)), streams, round_trip, steps=200)


@pytest.mark.slow
class TestFasterDrafter:
    """Trees are larger."""

    @pytest.mark.parametrize(("streams", "round_trip"), [(1, 0.0), (4, 0.02)])
    def test_a_fleet_of_two_goes_as_fast_as_the_pair_that_is_simulated_node_by_node(
        self, streams: int, round_trip: float
    ) -> None:
        check_pair(PAIR, streams, round_trip, steps=300)


def test_a_drafter_that_is_far_or_busy_brings_less() -> None:
    near = simulate(PAIR, 0.0, 2, 2, steps=100).tokens_per_step
    assert simulate(PAIR, 0.1, 2, 2, steps=100).tokens_per_step < near
    assert simulate(PAIR, 0.0, 2, 2, reading=True, steps=100).wait == 0.0
    slow = simulate(PAIR, 0.0, 2, 2, draft_share=3, steps=200).tokens_per_step
    assert slow < near
    assert simulate(PAIR, 0.0, 2, 32, draft_share=3, steps=200).tokens_per_step < slow


def test_a_verifier_takes_one_step_at_a_time_from_when_it_begins() -> None:
    clock = VirtualClock()
    settled: list[float] = []
    verifier = SimulatedVerifier(
        clock, Planner(PAIR.target.cost(), 64), PAIR.target.cost(), lambda verdicts: settled.append(clock.now)
    )
    verifier.add(0, ModelPair(PAIR.agreement, 20, "text"), 8, 20)
    clock.after(0.010, lambda: verifier.receive({}))
    clock.after(0.020, verifier.start)
    clock.after(0.030, lambda: verifier.receive({}))
    clock.run(lambda: verifier.done)
    assert settled == pytest.approx([0.020 + 0.030 * (step + 1) for step in range(19)])


def test_cells_are_simulated_once_and_stand_for_the_loads_between(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drafting_cell, "simulate", lambda *_, **__: Trace(((3, 2),), 0.0))
    cells = Cells(PAIR, 0.0)
    one, two = cells.trace(1, 1, 0.5), cells.trace(2, 2, 0.5)
    assert cells.trace(1, 1, 0.1) is one and len(cells) == 2
    three = {id(cells.trace(3, 2, chance)) for chance in (0.2, 0.9)}
    assert three == {id(two), id(cells.trace(4, 2, 0.0))}, "three sequences are now like two, now like four"
    assert cells.trace(1000, 1, 0.0) is cells.trace(64, 1, 0.0)
