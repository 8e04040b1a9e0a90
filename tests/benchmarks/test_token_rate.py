"""Tokens per second, in buckets."""

import pytest

from benchmarks.token_rate import TokenRate, moving_rate


def test_rates_are_of_whole_buckets() -> None:
    rate = TokenRate(start=100.0)
    for tenth in range(50):  # 30 tokens/s for 2 seconds, then nothing for 1, then 10 tokens/s
        rate.add(100.05 + tenth / 10, 3 if tenth < 20 else 0 if tenth < 30 else 1)
    assert rate.rate(100.0, 102.0) == pytest.approx(30.0)
    assert rate.rate(102.0, 103.0) == 0.0
    assert rate.rate(101.5, 102.5) == pytest.approx(15.0)
    assert rate.rate(103.0, 999.0) == pytest.approx(10.0)
    assert min(rate.smoothed(100.0, 105.0, 0.5)) == 0.0
    assert min(rate.smoothed(100.0, 105.0, 2.0)) == pytest.approx(5.0)


def test_a_moving_rate_has_no_windows_beyond_the_ends() -> None:
    assert moving_rate([1, 2, 3], 0.2) == pytest.approx([15.0, 25.0])
    assert moving_rate([1], 0.2) == []
