"""A fleet in virtual time obeys the laws of any fleet, and matches hand-computed results where there are any."""

import math
from dataclasses import replace

import pytest

from benchmarks.harness.simulated_models import Agreement
from benchmarks.simulation.fleet.capacity import Objective, Workload, capacity
from benchmarks.simulation.fleet.drafting_cell import Cells
from benchmarks.simulation.fleet.faults import Fault, failures, rolling
from benchmarks.simulation.fleet.model_pair_times import Around, ModelPairTimes, gpu_like
from benchmarks.simulation.fleet.outcome import Outcome
from benchmarks.simulation.fleet.request import arrivals, given
from benchmarks.simulation.fleet.simulation import Fleet, Simulation
from benchmarks.simulation.fleet.speculation import CoLocatedSpeculation, NoSpeculation, RemoteSpeculation
from benchmarks.simulation.simulated_setting import Curve

PAIR = gpu_like(draft_seconds=0.006)
BARE = ModelPairTimes("bare", "assumed", Curve.flat(0.030), Curve.flat(0.003), Agreement.of(0.75))
"""A pair whose steps cost only their fixed time."""
AWAY = 5.0
ALONE = {"reading": False, "target_share": 1, "draft_share": 1}


@pytest.fixture(scope="module")
def drafted() -> RemoteSpeculation:
    """Speculation with drafters 5 ms away; cells are simulated once."""
    return RemoteSpeculation(Cells(PAIR, 0.005, steps=24))


@pytest.fixture
def fleet(drafted: RemoteSpeculation) -> Fleet:
    return Fleet(PAIR, drafted, verifiers=3, drafters=3, round_trip=0.005, places=4, max_waiting=12)


def run(fleet: Fleet, rate: float = 6.0, seconds: float = 10.0) -> Simulation:
    simulation = Simulation(fleet, Outcome())
    simulation.run(arrivals(rate, seconds, 100, 60, "some"))
    return simulation


def test_every_request_ends_once_with_all_its_tokens(fleet: Fleet) -> None:
    requests = arrivals(6.0, 10.0, 100, 60, "some")
    simulation = Simulation(fleet, Outcome())
    outcome = simulation.run(requests)
    assert outcome.arrived == outcome.finished == len(requests)
    assert outcome.all_tokens == sum(request.output for request in requests)
    assert all(request.produced == request.output for request in requests)
    assert [drafter.sequences for drafter in simulation.drafters] == [0] * len(simulation.drafters)


def test_who_has_no_room_refuses_and_nobody_is_counted_twice(fleet: Fleet) -> None:
    requests = arrivals(200.0, 3.0, 100, 60, "many")
    outcome = Simulation(fleet, Outcome()).run(requests)
    assert outcome.refused > 0
    assert outcome.finished + outcome.refused == outcome.arrived == len(requests)
    assert outcome.all_tokens == sum(request.output for request in requests if request.produced)


def test_failures_lose_no_request(fleet: Fleet) -> None:
    faults = [
        *failures("drafter fails", 3, 2.0, AWAY, 12.0, "a"),
        *failures("verifier fails", 3, 6.0, AWAY, 12.0, "b"),
        *rolling("drafter is swapped", 3, 1.0, 1.0, 0.0),
        *rolling("verifier is restarted", 3, 2.0, 1.0, 1.0),
    ]
    requests = arrivals(3.0, 10.0, 100, 60, "some")
    outcome = Simulation(replace(fleet, faults=tuple(faults), max_waiting=100), Outcome()).run(requests)
    assert outcome.finished == len(requests) and not outcome.refused
    assert outcome.moved > 0 and outcome.lost_drafts > 0
    assert all(request.produced == request.output for request in requests)


def test_requests_outlast_a_time_without_any_verifier(fleet: Fleet) -> None:
    faults = tuple(Fault(1.0, "verifier fails", index, AWAY) for index in range(3))
    outcome = Simulation(replace(fleet, faults=faults), Outcome()).run(arrivals(2.0, 4.0, 100, 60, "some"))
    assert outcome.finished == outcome.arrived
    assert outcome.gaps.longest > AWAY - 1


def test_a_service_that_fails_twice_is_back_after_both(drafted: RemoteSpeculation) -> None:
    faults = (Fault(0.0, "verifier fails", 0, 2.0), Fault(1.0, "verifier fails", 0, 4.0))
    simulation = Simulation(Fleet(PAIR, drafted, 1, 1, faults=faults), Outcome())
    outcome = simulation.run(arrivals(5.0, 1.0, 10, 1, "some"))
    assert outcome.first_tokens.count == outcome.arrived
    assert outcome.first_tokens.quantile(0.01) >= 4.0


@pytest.mark.parametrize("seconds", [0.0, 0.02])
def test_nobody_is_busier_than_all_the_time(fleet: Fleet, seconds: float) -> None:
    simulation = run(replace(fleet, round_trip=seconds), rate=20.0)
    assert all(0 < verifier.busy_seconds <= simulation.seconds for verifier in simulation.verifiers)
    assert all(0 < drafter.reading <= simulation.seconds for drafter in simulation.drafters)


def test_a_seed_gives_one_run_and_another_seed_another(fleet: Fleet) -> None:
    assert run(fleet).outcome.gaps.mean == run(fleet).outcome.gaps.mean
    assert run(fleet).outcome.gaps.mean != run(replace(fleet, seed=2)).outcome.gaps.mean


@pytest.mark.parametrize("load", [0.3, 0.6])
def test_a_place_and_a_token_each_is_an_m_d_1_queue(load: float) -> None:
    service = BARE.target.cost().seconds(1)
    plain = Fleet(BARE, NoSpeculation(), places=1, max_waiting=10_000)
    requests = arrivals(load / service, 8_000 * service / load, 1, 1, "queue")
    outcome = Simulation(plain, Outcome()).run(requests)
    expected = service + load * service / (2 * (1 - load))
    assert outcome.first_tokens.mean == pytest.approx(expected, rel=0.1)


@pytest.mark.parametrize("streams", [1, 4, 16])
def test_without_speculation_a_step_brings_each_stream_a_token(streams: int) -> None:
    pair = replace(BARE, target=Curve.cpu(0.030), target_around=Around(0.002, 0.0005))
    outcome = Simulation(Fleet(pair, NoSpeculation()), Outcome()).run_closed(
        given([(1, 400)] * streams, "equal"), streams
    )
    step = pair.target.cost().seconds(streams) + 0.002 + 0.0005 * streams
    assert outcome.all_tokens / outcome.last_end == pytest.approx(streams / step, rel=0.01)


def test_speculation_is_faster_and_more_so_with_more_drafters() -> None:
    pair = replace(BARE, draft=Curve.cpu(0.008))
    speculation = RemoteSpeculation(Cells(pair, 0.0, steps=80))
    rates = []
    for drafters in (0, 1, 2, 4):
        fleet = Fleet(pair, speculation, verifiers=2, drafters=drafters, places=4)
        outcome = Simulation(fleet, Outcome()).run_closed(given([(64, 100)] * 16, "equal"), 8)
        rates.append(outcome.all_tokens / outcome.last_end)
    assert rates[1] > 1.2 * rates[0]
    assert rates[2] > 1.05 * rates[1]
    assert rates[3] > 0.95 * rates[2], "two sequences a drafter are hardly drafted better for than four"


def test_capacity_is_what_keeps_the_objective() -> None:
    workload = Workload(prompt=64, output=64, lead=4.0, seconds=8.0)
    fleet = Fleet(PAIR, NoSpeculation(), verifiers=2, places=8)
    loose, strict, never = (capacity(fleet, workload, Objective(first_token, 0.2)) for first_token in (1.0, 0.1, 0.001))
    most = 2 * 8 / PAIR.target.cost().seconds(8)
    assert 0 < strict.tokens_per_second < loose.tokens_per_second < most
    assert loose.outcome is not None and loose.outcome.first_tokens.quantile(0.99) <= 1.0
    assert not Objective(1.0, 0.2).met_by(workload.run(fleet, 1.5 * loose.rate))
    assert (never.rate, never.tokens_per_second, never.outcome) == (0.0, 0.0, None)


def test_a_fleet_all_of_whose_drafters_are_gone_decodes_plainly(fleet: Fleet) -> None:
    gone = tuple(Fault(0.0, "drafter fails", index, 1000.0) for index in range(3))
    outcome = run(replace(fleet, faults=gone), rate=2.0).outcome
    plain = run(replace(fleet, speculation=NoSpeculation()), rate=2.0).outcome
    assert outcome.drafted_steps == outcome.nodes == 0
    assert outcome.all_tokens == plain.all_tokens
    assert outcome.last_end == pytest.approx(plain.last_end, rel=0.02)


def test_a_verifier_that_fails_is_noticed_and_its_requests_are_read_again(drafted: RemoteSpeculation) -> None:
    lost = Fault(1.0, "verifier fails", 0, 100.0)
    fleet = Fleet(PAIR, drafted, 2, 1, notice=0.5, faults=(lost,))
    requests = given([(200, 400)] * 2, "two")
    outcome = Simulation(fleet, Outcome()).run_closed(requests, 2)
    assert [request.moves for request in requests] == [1, 0]
    assert 0.5 < outcome.gaps.longest < 1.0


def test_processes_on_one_core_take_turns() -> None:
    apart = Fleet(BARE, NoSpeculation(), verifiers=2)
    rates = {}
    for shared in (False, True):
        outcome = Simulation(replace(apart, shared_cores=shared), Outcome()).run_closed(given([(1, 200)] * 2, "two"), 2)
        rates[shared] = outcome.all_tokens / outcome.last_end
    assert rates[True] == pytest.approx(rates[False] / 2, rel=0.02)


def test_a_co_located_draft_takes_the_targets_time() -> None:
    co_located = CoLocatedSpeculation(PAIR)
    fast = co_located.trace(1, 0, 0.0, **ALONE).tokens_per_step
    assert fast > 2 and co_located.own_seconds(1, 0) > PAIR.draft.cost().seconds(1)
    assert co_located.own_seconds(0, 100) == PAIR.draft.cost().seconds(100)
    slow = CoLocatedSpeculation(replace(PAIR, draft=PAIR.target))
    assert slow.trace(8, 0, 0.0, **ALONE).tokens_per_step == 1 and slow.own_seconds(8, 0) == 0


def test_a_fleet_says_what_is_wrong_with_it() -> None:
    with pytest.raises(ValueError, match="verifiers: 0"):
        Fleet(PAIR, NoSpeculation(), 0)
    with pytest.raises(ValueError, match=r"drafter fails: no service has the index 1"):
        Fleet(PAIR, NoSpeculation(), 2, 1, faults=(Fault(0.0, "drafter fails", 1, 1.0),))


def test_every_drafter_has_its_part_of_the_verifiers(drafted: RemoteSpeculation) -> None:
    for verifiers, drafters in [(8, 1), (8, 4), (4, 4), (2, 16), (3, 7)]:
        simulation = Simulation(Fleet(PAIR, drafted, verifiers, drafters), Outcome())
        pools = [[drafter.index for drafter in verifier.pool] for verifier in simulation.verifiers]
        served = [sum(index in pool for pool in pools) for index in range(drafters)]
        assert all(len(set(pool)) == len(pool) == len(pools[0]) for pool in pools)
        assert min(served) >= 1 and max(served) <= 2 * math.ceil(len(pools[0]) * verifiers / drafters)
