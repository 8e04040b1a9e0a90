"""The sum of the last minute."""

from hypothesis import given
from hypothesis import strategies as st

from gateway_service.keys.sliding_window import GRAIN_SECONDS, WINDOW_SECONDS, SlidingWindow
from tests.gateway_service.keys.clock import Clock

STEPS = st.lists(st.tuples(st.floats(0, 40), st.integers(0, 50)), max_size=60)


@given(STEPS)
def test_it_is_no_less_than_the_last_minute_and_no_more_than_a_grain_more(steps: list[tuple[float, int]]) -> None:
    clock = Clock()
    window = SlidingWindow(clock)
    added: list[tuple[float, int]] = []

    def since(seconds: float) -> int:
        return sum(amount for time, amount in added if time > clock.time - seconds)

    for pause, amount in steps:
        clock.time += pause
        assert since(WINDOW_SECONDS) <= window.used <= since(WINDOW_SECONDS + GRAIN_SECONDS + 1e-6)
        window.add(amount)
        added.append((clock.time, amount))


@given(STEPS, st.integers(0, 200))
def test_the_wait_is_long_enough_and_no_longer(steps: list[tuple[float, int]], most: int) -> None:
    clock = Clock()
    window = SlidingWindow(clock)
    for pause, amount in steps:
        clock.time += pause
        window.add(amount)
    seconds = window.seconds_until(most)
    assert (seconds == 0) == (window.used <= most)
    if seconds:
        clock.time += seconds - 1e-6
        assert window.used > most
        clock.time += 2e-6
        assert window.used <= most


@given(STEPS)
def test_nothing_is_left_of_what_was_taken_back(steps: list[tuple[float, int]]) -> None:
    clock = Clock()
    window = SlidingWindow(clock)
    entries = []
    for pause, amount in steps:
        clock.time += pause
        entries.append((window.add(amount), amount))
    for entry, amount in entries:  # some have stopped counting
        window.take_back(entry, amount)
    assert window.used == 0


def test_many_amounts_are_few_entries() -> None:
    clock = Clock()
    window = SlidingWindow(clock)
    for _ in range(5000):
        clock.time += 0.01
        window.add(1)
    assert window.used == 5000
    assert len(window._entries) <= WINDOW_SECONDS / GRAIN_SECONDS + 1
