import random

import pytest

from draftwire_core.runtime.rpc.channel import Backoff


class Highest(random.Random):
    """Always draws the upper bound."""

    def uniform(self, a: float, b: float) -> float:
        return b


def test_the_ceiling_doubles_up_to_the_maximum_and_starts_anew() -> None:
    backoff = Backoff(0.1, 1.0, Highest())
    assert [backoff.next_delay() for _ in range(6)] == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.0, 1.0])
    backoff.reset()
    assert backoff.next_delay() == pytest.approx(0.1)


def test_waits_are_spread_over_the_whole_range() -> None:
    first = [Backoff(1.0, 8.0, random.Random(seed)).next_delay() for seed in range(200)]
    assert min(first) < 0.1
    assert max(first) > 0.9


async def test_wait_sleeps() -> None:
    await Backoff(1e-6, 1e-6).wait()


@pytest.mark.parametrize(("initial", "highest"), [(0, 1), (-1, 1), (2, 1)])
def test_limits_that_make_no_sense_are_refused(initial: float, highest: float) -> None:
    with pytest.raises(ValueError, match="initial_seconds"):
        Backoff(initial, highest)
