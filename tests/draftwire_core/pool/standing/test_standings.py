"""The standing of an address, whichever model answers there."""

import gc

import pytest

from draftwire.v1.model_info_pb2 import ModelInfo
from draftwire_core.pool.standing import standings as drafter_standings
from draftwire_core.pool.standing.pause_policy import PausePolicy
from draftwire_core.pool.standing.standings import DrafterStanding, DrafterStandings
from tests.harness.verifier.simulated_clocks import SimulatedClocks


@pytest.fixture(autouse=True)
def tireless() -> None:
    """Overrides the fixture that disables pausing: accounts are the subject of these tests."""


@pytest.fixture
def time() -> SimulatedClocks:
    return SimulatedClocks()


@pytest.fixture
def standing(time: SimulatedClocks) -> DrafterStanding:
    made = DrafterStanding(time.clocks)
    made.meet(model(0))
    return made


def model(number: int) -> ModelInfo:
    return ModelInfo(model_id=f"model {number}")


def exhaust(policy: PausePolicy) -> int:
    """How many steps that bring nothing a drafter is told of before it is paused; messages cost 6 % of them."""
    policy.price(0.03, 0.0)
    steps = 0
    while not policy.paused:
        policy.charge(0.9e-3)
        policy.stepped(1)
        steps += 1
    return steps


def test_the_same_model_keeps_its_speed_and_another_has_none(standing: DrafterStanding) -> None:
    speed = standing.speed
    assert standing.meet(model(0))
    assert standing.speed is speed
    standing.meet(model(1))
    assert standing.speed is not speed


def test_another_model_has_the_account_of_the_one_before(standing: DrafterStanding, time: SimulatedClocks) -> None:
    first = exhaust(standing.pause_policy)
    for number in range(1, 8):
        time.now += 7
        standing.meet(model(number))
        assert standing.pause_policy.paused
    time.now += 60
    standing.meet(model(8))
    assert not standing.pause_policy.paused, "it is tried at once"
    trial = exhaust(standing.pause_policy)
    assert 8 <= trial < first / 4
    standing.meet(model(9))
    assert standing.pause_policy.paused
    time.now += 3600
    standing.meet(model(10))
    assert exhaust(standing.pause_policy) == first, "once an hour it is worth a full account"


def test_a_model_that_is_better_is_told_of_every_step_soon(standing: DrafterStanding) -> None:
    exhaust(standing.pause_policy)
    standing.meet(model(1))
    rested = 0
    for _ in range(200):
        rested += standing.pause_policy.paused
        if not standing.pause_policy.paused:
            standing.pause_policy.charge(0.9e-3)
            standing.pause_policy.verified(4, 2)
        standing.pause_policy.stepped(1)
    assert rested < 60
    assert not standing.pause_policy.paused


def test_a_debt_is_not_forgiven_for_a_new_model(standing: DrafterStanding, time: SimulatedClocks) -> None:
    standing.pause_policy.price(0.03, 0.0)
    standing.pause_policy.charge(0.6)
    standing.pause_policy.stepped(1)
    assert standing.pause_policy.paused
    time.now += 61
    standing.meet(model(1))
    assert standing.pause_policy.paused


def test_a_new_model_goes_first_four_times_a_minute(standing: DrafterStanding, time: SimulatedClocks) -> None:
    opened = 0
    for number in range(60):
        time.now += 1
        standing.meet(model(number))
        if standing.goes_first:
            standing.count_opening(standing.speed)
            opened += 1
    assert opened == 4
    time.now += 60
    assert standing.goes_first


def test_one_replacement_in_five_seconds(standing: DrafterStanding, time: SimulatedClocks) -> None:
    assert standing.replaced() == 0
    assert standing.meet(model(1))
    time.now += 2
    assert standing.replaced() == 3, "it is put off"
    time.now += 3
    assert standing.meet(model(2)), "it was announced"
    assert not standing.meet(model(3))
    time.now += 11
    assert standing.meet(model(4))


def test_an_address_is_remembered_after_its_drafter_has_gone(
    time: SimulatedClocks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drafter_standings, "_MOST", 8)
    standings = DrafterStandings(time.clocks)
    steps = exhaust(standings.of("a:1").pause_policy)
    gc.collect()
    assert standings.of("a:1").pause_policy.paused
    attached = standings.of("b:1")
    for port in range(100):
        standings.of(f"c:{port}")
    gc.collect()
    assert len(standings) == 9, "the latest, and one that is in use"
    assert standings.of("b:1") is attached
    assert exhaust(standings.of("a:1").pause_policy) == steps, "forgotten"


def test_all_spellings_of_an_address_have_one_standing(time: SimulatedClocks) -> None:
    standings = DrafterStandings(time.clocks)
    for spellings in (
        ("host.internal:1", "HOST.Internal:1", "host.internal.:01"),
        ("10.0.0.1:1", "[::ffff:10.0.0.1]:1"),
        ("[fd00::1]:1", "[FD00:0:0::1]:1"),
    ):
        first = standings.of(spellings[0])
        assert all(standings.of(each) is first for each in spellings)
    assert len(standings) == 3
    assert standings.of("local:medusa?heads=A") is not standings.of("local:medusa?heads=a")
