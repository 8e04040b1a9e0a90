"""Whether a drafter is significantly worse than another."""

import math
import random

import pytest
from scipy import stats

from draftwire_core.pool.changes.acceptance_comparison import AcceptanceSample, significantly_worse, welch_t


def sample(values: list[float]) -> AcceptanceSample:
    made = AcceptanceSample()
    for value in values:
        made.add(value)
    return made


def test_t_is_welchs() -> None:
    rng = random.Random(3)
    for _ in range(20):
        new = [rng.gauss(1, 0.4) for _ in range(rng.randint(2, 40))]
        old = [rng.gauss(1.2, 0.8) for _ in range(rng.randint(2, 40))]
        expected = stats.ttest_ind(new, old, equal_var=False).statistic
        assert welch_t(sample(new), sample(old)) == pytest.approx(expected)


def test_no_spread_at_all() -> None:
    assert welch_t(sample([1.0] * 8), sample([2.0] * 8)) == -math.inf
    assert welch_t(sample([2.0] * 8), sample([2.0] * 8)) == 0
    assert significantly_worse(sample([1.0] * 8), sample([2.0] * 8))
    assert not significantly_worse(sample([2.0] * 8), sample([2.0] * 8))


def test_too_few_samples_decide_nothing() -> None:
    assert not significantly_worse(sample([0.0] * 7), sample([9.0] * 80))
    assert not significantly_worse(sample([0.0] * 80), sample([9.0] * 7))
    assert significantly_worse(sample([0.0] * 8), sample([9.0] * 8))


def test_better_is_never_worse() -> None:
    assert not significantly_worse(sample([5.0, 6.0] * 20), sample([1.0, 2.0] * 20))


def withdrawn(new_mean: float, rng: random.Random, looks: int = 100) -> int | None:
    """Returns the number of samples per side after which a new drafter is found worse; None if it is not."""
    new, old = AcceptanceSample(), AcceptanceSample()
    for count in range(1, looks + 1):
        new.add(rng.gauss(new_mean, 0.5))
        old.add(rng.gauss(2.0, 0.5))
        if significantly_worse(new, old):
            return count
    return None


def test_equal_drafters_are_hardly_ever_told_apart() -> None:
    """docs/protocol.md states the rate; testing t < -3 after each of a hundred samples gives it."""
    rng = random.Random(11)
    false_alarms = sum(withdrawn(2.0, rng) is not None for _ in range(2000))
    assert false_alarms / 2000 < 0.03


def test_a_worse_one_is_found_soon() -> None:
    rng = random.Random(12)
    found = [withdrawn(1.2, rng) for _ in range(200)]
    assert all(count is not None and count <= 30 for count in found)
