"""Times of steps by part, between two readings."""

import pytest

from benchmarks.speed.profile_step import difference
from draftwire import StepTimes


def times(steps: int, seconds: float) -> StepTimes:
    """Returns times in which the n-th part took n times as long as the first."""
    return StepTimes(steps, *(seconds * number for number in range(1, 9)), cpu_around_forward=seconds / 2)


def test_milliseconds_of_a_step_by_part() -> None:
    parts = difference(times(10, 1.0), times(30, 1.02))
    assert parts["plan"] == pytest.approx(1.0)
    assert parts["event_loop"] == pytest.approx(8.0)
    assert "steps" not in parts
    assert parts["outside forward"] == pytest.approx(8 + 0.5)


def test_no_step_has_no_parts() -> None:
    assert difference(times(10, 1.0), times(10, 1.5)) == {}
