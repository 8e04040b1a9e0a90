"""The estimated speeds of two drafters."""

import pytest

from draftwire import StepCost
from draftwire_core.training.refresh.speed_comparison import SpeedComparison, StepPrices

COSTS = [StepCost(1, 0.010), StepCost(8, 0.017)]


def test_a_speed_has_all_costs() -> None:
    alone = StepPrices(COSTS, 1.0)
    assert alone.speed(0.0, 0.0, 0.0) == pytest.approx(100)
    assert alone.speed(1.0, 3.0, 0.0) == pytest.approx(2 / 0.013)
    assert alone.speed(1.0, 3.0, 0.007) == pytest.approx(2 / 0.020)
    together = StepPrices(COSTS, 2.0)
    assert together.speed(1.0, 3.0, 0.0) == pytest.approx(4 / 0.017)
    assert together.speed(1.0, 3.0, 0.0015) == pytest.approx(4 / 0.020)


def test_a_difference_and_its_error() -> None:
    exact = SpeedComparison.of([2.0, 2.0], [3.0])
    assert (exact.ratio, exact.error) == (1.5, 0.0)
    noisy = SpeedComparison.of([1.0, 3.0] * 8, [2.0, 4.0] * 8)
    assert noisy.ratio == 1.5
    assert noisy.error == pytest.approx(1.5 * 0.258 * (1 / 4 + 1 / 9) ** 0.5, rel=0.01)


@pytest.mark.parametrize(
    ("ratio", "error", "faster", "slower"),
    [
        (1.1, 0.05, True, False),
        (1.1, 0.06, False, False),
        (1.005, 0.005, True, False),
        (1.0, 0.0, False, True),
        (0.9, 0.04, False, True),
        (0.9, 0.06, False, False),
    ],
)
def test_what_is_clear(ratio: float, error: float, faster: bool, slower: bool) -> None:
    compared = SpeedComparison(ratio, error)
    assert (compared.faster(2.0), compared.slower(2.0)) == (faster, slower)
