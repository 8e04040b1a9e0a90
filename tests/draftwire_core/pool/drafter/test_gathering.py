"""Which steps a drafter is told of, so that it gathers its nodes while they run."""

import math
from typing import Any

import pytest

from draftwire.v1.speculation_pb2 import SpeculationOptions
from draftwire_core.pool.drafter.gathering import Gathering
from draftwire_core.pool.standing.drafter_stats import DrafterStats
from draftwire_core.runtime.rpc.handshake import CAPABILITY_GATHERING, CAPABILITY_PING
from tests.harness.services.in_process_verifier import InProcessVerifier, order
from tests.harness.stand_ins.drafter_answers import replaced
from tests.harness.stand_ins.scripted_drafter import hello

ABLE = [CAPABILITY_PING, CAPABILITY_GATHERING]


def stats(round_trip: float = 0.004, step: float = 0.005) -> DrafterStats:
    return DrafterStats(round_trip_seconds=round_trip, step_seconds=step)


def test_the_time_ends_before_the_step_by_a_round_trip() -> None:
    gathering = Gathering(ABLE)
    assert gathering.begin(0.1, 7.0, stats()) == pytest.approx(0.086)
    assert gathering.until == pytest.approx(7.086)


@pytest.mark.parametrize("capabilities", [[], [CAPABILITY_GATHERING], [CAPABILITY_PING]])
def test_drafters_without_the_capability_or_a_round_trip_are_not_told(capabilities: list[str]) -> None:
    gathering = Gathering(capabilities)
    assert gathering.begin(0.1, 7.0, stats()) == 0
    assert gathering.until == -math.inf


@pytest.mark.parametrize(("step", "round_trip"), [(0.05, 0.004), (0.001, 0.1), (0.0, 0.1)])
def test_a_step_too_short_to_save_a_message_is_not_told(step: float, round_trip: float) -> None:
    assert Gathering(ABLE).begin(0.1, 7.0, stats(round_trip, step)) == 0


def test_at_times_the_drafter_is_not_told_so_that_its_pace_is_measured() -> None:
    gathering = Gathering(ABLE)
    told = [gathering.begin(0.1, float(step), stats()) > 0 for step in range(64)]
    assert told.count(False) == 4


async def test_a_new_model_gathers_by_its_own_times(verifier: InProcessVerifier, listening: Any) -> None:
    first = listening("able:1", greeting=hello(capabilities=ABLE))
    await verifier.pool.membership.attach("able:1", "")
    second = listening("able:1", greeting=hello(build="newer", capabilities=ABLE))
    await first.say(replaced())
    await verifier.until(lambda: first.ended)
    verifier.pool.roster.named("able:1").stats.round_trip_seconds = 60.0
    await verifier.generate(order())
    assert second.verdicts
    assert not second.begun, "what it gathers would come a round trip after the step"


async def test_the_verifier_tells_only_who_can_gather(verifier: InProcessVerifier, listening: Any) -> None:
    able = listening("able:1", greeting=hello(capabilities=ABLE))
    other = listening("other:1")  # fails the test if it is told
    for address in ("able:1", "other:1"):
        await verifier.pool.membership.attach(address, "")
    asked = order(speculation=SpeculationOptions(drafters=2))
    assert (await verifier.generate(asked)).token_ids == (await verifier.plain(asked)).token_ids
    assert able.begun
    assert other.verdicts
    assert all(0 < seconds <= 0.9 * 0.05 for seconds in able.begun), "the engine's steps count as 50 ms each"
