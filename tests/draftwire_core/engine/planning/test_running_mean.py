"""The running mean: follows lasting changes, and hardly moves for a single outlier."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftwire_core.engine.planning.running_mean import OUTLIER, RunningMean

SECONDS = st.floats(1e-6, 1e3)
WEIGHTS = st.floats(0.01, 1.0)


def test_the_first_measurement_begins_it() -> None:
    mean = RunningMean(weight=0.1)
    assert (mean.known, mean.value) == (False, 0.0)
    assert mean.add(5.0) == 5.0
    assert (mean.known, mean.value) == (True, 5.0)


def test_a_start_value_is_taken_over_by_measurements() -> None:
    mean = RunningMean(1.0, weight=0.2)
    assert mean.add(2.0) == 2.0
    assert mean.value == pytest.approx(1.2)
    for _ in range(100):
        mean.add(2.0)
    assert mean.value == pytest.approx(2.0)


@given(start=SECONDS, outlier=SECONDS, weight=WEIGHTS)
def test_one_measurement_moves_it_by_three_times_its_weight_at_most(
    start: float, outlier: float, weight: float
) -> None:
    mean = RunningMean(start, weight=weight)
    counted = mean.add(start * (1 + outlier))
    assert counted <= OUTLIER * start * (1 + 1e-12)
    assert mean.value <= start * (1 + weight * (OUTLIER - 1)) * (1 + 1e-12)


@given(start=SECONDS, measured=SECONDS, weight=st.floats(0.1, 1.0))
def test_what_has_really_changed_is_known_before_long(start: float, measured: float, weight: float) -> None:
    mean = RunningMean(start, weight=weight)
    for _ in range(400):
        mean.add(measured)
    assert mean.value == pytest.approx(measured, rel=1e-3)


@given(st.floats(0, 1e3), st.lists(st.floats(-1e3, 1e3), max_size=50), WEIGHTS)
def test_it_stays_between_the_least_and_the_most_that_it_was_given(
    start: float, measured: list[float], weight: float
) -> None:
    mean = RunningMean(start, weight=weight)
    for each in measured:
        mean.add(each)
    given_values = [start, *(max(each, 0.0) for each in measured)]
    assert min(given_values) - 1e-9 <= mean.value <= max(given_values) + 1e-9


def test_what_is_below_the_floor_counts_in_full() -> None:
    mean = RunningMean(0.0, weight=0.5, floor=2.0)
    assert mean.add(2.0) == 2.0
    assert mean.add(100.0) == 4.0, "four times the mean, which is above the floor by now"


def test_no_measurement_is_an_outlier_with_a_floor_without_bound() -> None:
    mean = RunningMean(0.0, weight=0.5, floor=math.inf)
    assert mean.add(100.0) == 100.0
    assert mean.value == 50.0


@pytest.mark.parametrize("weight", [0.0, -0.1, 1.1, math.nan])
def test_weights_that_are_none(weight: float) -> None:
    with pytest.raises(ValueError, match="weight must be above 0"):
        RunningMean(weight=weight)
