"""The cost of vLLM's steps, learned from observed ones."""

import math

import pytest

from draftwire_core.adapters.common.learned_cost import LearnedCost


def test_it_knows_what_it_has_met() -> None:
    cost = LearnedCost()
    cost.observe(1, 0.010)
    cost.observe(4, 0.016)
    assert cost.curve.seconds(1) == pytest.approx(0.010)
    assert cost.curve.seconds(4) == pytest.approx(0.016)
    assert cost.curve.seconds(2) == pytest.approx(0.012)


def test_it_follows_steps_that_become_slower() -> None:
    cost = LearnedCost()
    cost.observe(1, 0.010)
    for _ in range(100):
        cost.observe(1, 0.030)
    assert cost.curve.seconds(1) == pytest.approx(0.030, rel=0.01)


def test_one_step_that_was_held_up_says_little() -> None:
    cost = LearnedCost()
    cost.observe(1, 0.010)
    cost.observe(1, 30.0)
    assert cost.curve.seconds(1) < 0.014


@pytest.mark.parametrize(("rows", "seconds"), [(0, 1.0), (-1, 1.0), (1, 0.0), (1, math.nan), (1 << 20, 1.0)])
def test_what_is_no_measurement_is_passed_over(rows: int, seconds: float) -> None:
    cost = LearnedCost()
    cost.observe(1, 0.010)
    cost.observe(rows, seconds)
    assert cost.curve.points() == [(1, pytest.approx(0.010))]


def test_large_steps_are_told_apart_by_powers_of_two() -> None:
    cost = LearnedCost()
    for rows in range(1, 2000):
        cost.observe(rows, 0.01 + 1e-5 * rows)
    assert len(cost.curve.points()) <= 16 + 8


def test_a_length_that_was_slow_once_is_tried_again() -> None:
    cost = LearnedCost()
    cost.observe(1, 0.010)
    cost.observe(6, 5.0)
    assert cost.curve.seconds(6) > 1.0
    for _ in range(300):
        cost.observe(1, 0.010)
    assert cost.curve.seconds(6) == pytest.approx(0.010)
