"""The circuit breaker: when a drafter that breaks the protocol is suspended, and for how long."""

import pytest

from draftwire_core.pool.standing.circuit_breaker import CircuitBreaker


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def faults(breaker: CircuitBreaker, clock: Clock, count: int, seconds_apart: float) -> list[bool]:
    counted = []
    for _ in range(count):
        clock.now += seconds_apart
        counted.append(breaker.count())
    return counted


def test_the_third_fault_within_a_minute_is_one_too_many(clock: Clock) -> None:
    assert faults(CircuitBreaker(clock), clock, 3, 30) == [False, False, True]


def test_faults_that_are_further_apart_are_borne(clock: Clock) -> None:
    assert not any(faults(CircuitBreaker(clock), clock, 50, 31))


def test_pauses_double_up_to_five_minutes(clock: Clock) -> None:
    breaker = CircuitBreaker(clock)
    pauses = []
    for _ in range(9):
        assert faults(breaker, clock, 3, 1)[-1]
        pauses.append(breaker.take_pause())
        assert not breaker.tripped
        clock.now += pauses[-1]
    assert pauses == [5, 10, 20, 40, 80, 160, 300, 300, 300]


def test_a_minute_without_a_fault_after_a_pause_makes_the_next_one_short(clock: Clock) -> None:
    breaker = CircuitBreaker(clock)
    for _ in range(3):
        faults(breaker, clock, 3, 1)
        clock.now += breaker.take_pause()
    clock.now += 61
    assert faults(breaker, clock, 3, 1)[-1]
    assert breaker.take_pause() == 5


def test_faults_before_a_pause_do_not_count_after_it(clock: Clock) -> None:
    breaker = CircuitBreaker(clock)
    faults(breaker, clock, 3, 1)
    clock.now += breaker.take_pause()
    assert faults(breaker, clock, 2, 1) == [False, False]
