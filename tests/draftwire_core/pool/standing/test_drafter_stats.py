"""The measured worth of a drafter's time."""

import math

import pytest

from draftwire_core.pool.standing.drafter_stats import DrafterStats, DraftingSpeed


def test_nothing_known() -> None:
    assert DraftingSpeed().accepted_per_second == 0
    assert not DraftingSpeed().measured


def test_accepted_tokens_by_drafting_time() -> None:
    speed = DraftingSpeed()
    for _ in range(100):
        speed.count_step(0.01)
        speed.count_accepted(2)
    assert speed.accepted_per_second == pytest.approx(200, rel=0.02)


def test_what_was_long_ago_counts_for_little() -> None:
    speed = DraftingSpeed()
    for accepted, steps in ((5, 5000), (1, 5000)):
        for _ in range(steps):
            speed.count_step(0.01)
            speed.count_accepted(accepted)
    assert speed.accepted_per_second == pytest.approx(100, rel=0.05)


@pytest.mark.parametrize("seconds", [math.nan, math.inf, -1.0, 1e300])
def test_times_that_cannot_be_true(seconds: float) -> None:
    speed, stats = DraftingSpeed(), DrafterStats()
    speed.count_step(0.5)
    speed.count_accepted(1)
    speed.count_step(seconds)
    stats.count_step(seconds)
    assert speed.accepted_per_second == pytest.approx(2)
    assert stats.step_seconds == 0


def test_a_drafter_that_claims_to_need_no_time_gets_no_infinite_speed() -> None:
    speed = DraftingSpeed()
    for _ in range(10):
        speed.count_step(0.0)
        speed.count_accepted(3)
    assert speed.accepted_per_second <= 3e4 * 1.001


def test_measured_after_enough_steps_or_enough_chances() -> None:
    busy, silent = DraftingSpeed(), DraftingSpeed()
    for _ in range(32):
        busy.count_step(0.01)
    for _ in range(4):
        silent.count_opening()
    assert busy.measured
    assert silent.measured, "else every request would go to a drafter that says nothing"
