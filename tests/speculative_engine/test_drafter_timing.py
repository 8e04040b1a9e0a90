"""When the next proposal is to be expected."""

import pytest

from speculative_engine.drafter_timing import DrafterTiming


def test_nothing_is_expected_of_a_drafter_that_was_never_asked() -> None:
    assert DrafterTiming().expected_wait(1.0) is None


def test_learns_the_response() -> None:
    timing = DrafterTiming(response=0.01)
    now = 0.0
    for _ in range(60):
        timing.asked(now)
        timing.arrived(now + 0.04, answers=True)
        now += 0.1
    assert timing.response == pytest.approx(0.04, rel=0.01)
    timing.asked(now)
    assert timing.expected_wait(now + 0.01) == pytest.approx(0.03, rel=0.02)


def test_proposals_that_answer_nothing_do_not_count_as_a_response() -> None:
    timing = DrafterTiming(response=0.01)
    timing.asked(0.0)
    timing.arrived(0.001, answers=False)
    assert timing.response == 0.01
    assert timing.expected_wait(0.001) == pytest.approx(0.009)


def test_learns_the_pace_between_proposals() -> None:
    timing = DrafterTiming(response=0.05, interval=0.02)
    now = 0.0
    timing.arrived(now, answers=True)
    for _ in range(60):
        now += 0.004
        timing.arrived(now, answers=True)
    assert timing.interval == pytest.approx(0.004, rel=0.02)
    assert timing.expected_wait(now + 0.001) == pytest.approx(0.003, rel=0.05)


def test_a_long_pause_is_no_pace() -> None:
    timing = DrafterTiming(response=0.05, interval=0.004)
    timing.arrived(0.0, answers=True)
    timing.arrived(100.0, answers=True)
    assert timing.interval < 0.02


def test_an_overdue_proposal_is_worth_less_and_less_waiting() -> None:
    timing = DrafterTiming(response=0.01, interval=0.004)
    timing.asked(0.0)
    waits = [timing.expected_wait(now) for now in (0.011, 0.02, 0.1, 1.0)]
    assert waits == sorted(waits)
    assert waits[-1] == pytest.approx(0.991)


def test_a_silent_drafter_is_expected_later_and_later() -> None:
    timing = DrafterTiming(response=0.01)
    for step in range(20):
        timing.asked(step * 1.0)
    assert timing.response > 0.5
