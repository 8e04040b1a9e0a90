"""A drafter's effect on the target's steps is seen from steps with and without it."""

import random

import pytest

from draftwire_core.pool.standing.interference import Interference


def observed(*phases: tuple[float, bool, int], noise: float = 0.0) -> Interference:
    """What is seen after phases of steps: slowness, whether the drafter is busy, how many."""
    interference, rng = Interference(), random.Random(7)
    for slowness, busy, steps in phases:
        for _ in range(steps):
            interference.observe(slowness * (1.0 + rng.uniform(-noise, noise)), busy=busy)
    return interference


def test_the_slowdown_is_that_of_busy_steps_over_idle_ones() -> None:
    assert observed((1.32, True, 200), (1.2, False, 200), noise=0.05).share == pytest.approx(0.1, abs=0.02)


@pytest.mark.parametrize("phases", [[(1.3, True, 500)], [(1.0, False, 500)], [(1.3, True, 15), (1.0, False, 500)]])
def test_nothing_is_known_from_one_kind_of_step(phases: list[tuple[float, bool, int]]) -> None:
    assert observed(*phases).share == 0.0


def test_a_drafter_on_another_machine_slows_nothing_down() -> None:
    assert observed(*[(1.0, True, 100), (1.0, False, 100)] * 5, noise=0.05).share == 0.0


def test_steps_while_it_finishes_its_tree_are_not_idle_ones() -> None:
    phases = [(1.2, True, 8), (1.2, False, 8), (1.0, False, 8)] * 20
    assert observed(*phases).share == pytest.approx(0.2)


def test_other_steps_than_plain_ones_say_nothing() -> None:
    assert observed((1.2, True, 100), (0.0, True, 100), (1.0, False, 100), (0.0, False, 100)).share == pytest.approx(
        0.2
    )


def test_a_step_that_was_held_up_hardly_counts() -> None:
    phases = [(1.0, True, 50), (40.0, True, 1), (1.0, True, 50), (1.0, False, 50)]
    assert observed(*phases).share == 0.0


@pytest.mark.parametrize("held_up", [1, 2])
def test_a_first_step_that_was_held_up_hardly_counts(held_up: int) -> None:
    assert observed((40.0, True, held_up), (1.0, True, 100), (1.0, False, 50)).share == 0.0
    assert observed((40.0, False, held_up), (1.0, False, 50), (1.2, True, 100)).share == pytest.approx(0.2)


def test_what_has_changed_is_forgotten() -> None:
    moved_away = [(1.3, True, 100), (1.0, False, 100), *[(1.0, True, 50), (1.0, False, 50)] * 10]
    assert observed(*moved_away).share == 0.0
