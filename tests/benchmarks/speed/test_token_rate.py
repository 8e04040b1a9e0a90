"""Tokens per second, in buckets."""

import pytest

from benchmarks.speed.token_rate import TokenRate, moving_rate


def test_rates_are_of_whole_buckets() -> None:
    rate = TokenRate(start=100.0)
    for tenth in range(50):  # 30 tokens/s for 2 seconds, then nothing for 1, then 10 tokens/s
        at = 100.05 + tenth / 10
        rate.add(at, at, 3 if tenth < 20 else 0 if tenth < 30 else 1)
    assert rate.rate(100.0, 102.0) == pytest.approx(30.0)
    assert rate.rate(102.0, 103.0) == 0.0
    assert rate.rate(101.5, 102.5) == pytest.approx(15.0)
    assert rate.rate(103.0, 999.0) == pytest.approx(10.0)
    assert min(rate.smoothed(100.0, 105.0, 0.5)) == 0.0
    assert min(rate.smoothed(100.0, 105.0, 2.0)) == pytest.approx(5.0)


def test_tokens_of_long_steps_are_spread_over_them() -> None:
    rate = TokenRate(start=100.0)
    rate.add(99.0, 100.05, 5)  # tokens before the first bucket are not counted
    for step in range(10):
        rate.add(100.05 + step * 0.37, 100.05 + (step + 1) * 0.37, 8)
    assert sum(rate.arrived) == 85
    assert sum(rate.spread) == pytest.approx(85)
    assert rate.smoothed(100.1, 103.7, 0.5) == pytest.approx([8 / 0.37] * 32)


def test_a_silence_is_seen_whole() -> None:
    rate = TokenRate(start=0.0)
    rate.add(0.0, 1.0, 10)
    rate.add(1.0, 4.0, 3)
    assert min(rate.smoothed(0.0, 4.0, 1.0)) == pytest.approx(1.0)


def test_a_moving_rate_has_no_windows_beyond_the_ends() -> None:
    assert moving_rate([1, 2, 3], 0.2) == pytest.approx([15.0, 25.0])
    assert moving_rate([1], 0.2) == []
