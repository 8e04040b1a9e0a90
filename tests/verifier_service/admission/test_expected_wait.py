"""The expected waiting time of a request, computed before it waits."""

import random
from collections import deque

import pytest

from speculative_engine.planning.step_cost import StepCost
from verifier_service.admission.expected_wait import ExpectedWait

STEADY = StepCost([1, 256], [0.01, 0.01])
LINEAR = StepCost([1, 257], [0.01, 0.01 + 256 * 0.001])


class Clock:
    """A clock that a test advances."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def wait(clock: Clock) -> ExpectedWait:
    return ExpectedWait(STEADY, 128, clock)


def test_nobody_is_ahead(wait: ExpectedWait) -> None:
    assert wait.seconds(4) == 0.0


def test_with_a_place_it_waits_for_the_prompts_before(clock: Clock) -> None:
    wait = ExpectedWait(LINEAR, 128, clock)
    wait.add(1, 1000)
    assert wait.seconds(4) == pytest.approx(8 * LINEAR.seconds(128))  # whole steps, as no sequence decodes
    wait.begin(1, 0)
    assert wait.seconds(4) == 0.0
    wait.add(2, 1000)
    assert wait.seconds(4) > 8 * LINEAR.seconds(128)  # decoding sequences take part of each step
    wait.end(2, 0)
    assert wait.seconds(4) == 0.0


def test_prompts_without_a_place_do_not_count(wait: ExpectedWait) -> None:
    for number in range(2):
        wait.add(number, 10)
    before = wait.seconds(2)
    wait.add(2, 10_000)
    assert wait.seconds(2) == before


def test_what_the_prefix_cache_had_of_late_is_not_computed(wait: ExpectedWait) -> None:
    for number in range(100):
        wait.add(number, 1000)
        wait.begin(number, 990)
        wait.end(number, 5)
    wait.add(100, 12_800)
    assert 0.01 <= wait.seconds(4) < 0.1 * 100 * 0.01


def test_until_a_request_has_ended_nothing_is_known_of_places(wait: ExpectedWait) -> None:
    for number in range(10):
        wait.add(number, 1)
        wait.begin(number, 0)
    assert wait.seconds(4) == 0.0
    wait.end(0, 40)
    # Six more must end, with 40 tokens each, at 400 tokens a second.
    assert wait.seconds(4) == pytest.approx(6 * 40 / 400)


def test_those_that_left_before_their_first_token_say_nothing_of_lengths(wait: ExpectedWait) -> None:
    for number in range(10):
        wait.add(number, 1)
    wait.end(0, 0)
    wait.end(0, 40)
    wait.end(77, 40)
    assert wait.seconds(20) == pytest.approx(0.01)
    assert wait.seconds(9) == pytest.approx(0.01)  # only the prompts, without waiting for a place


def test_the_rate_is_measured_while_requests_wait(wait: ExpectedWait, clock: Clock) -> None:
    for number in range(5):
        wait.add(number, 1)
        wait.begin(number, 0)
    wait.end(0, 100)
    wait.add(5, 1)
    for _ in range(3000):  # 60 seconds with 2 places, at a fifth of the rate of plain steps
        clock.now += 0.02
        wait.step(1, 2)
    ten_seconds = wait.seconds(2) - wait.seconds(3)
    assert ten_seconds == pytest.approx(100 / 50, rel=0.05)


def test_time_without_waiting_is_no_part_of_the_rate(wait: ExpectedWait, clock: Clock) -> None:
    wait.add(0, 1)
    wait.begin(0, 0)
    for _ in range(100):
        clock.now += 10.0
        wait.step(1, 2)
    wait.end(0, 10)
    for number in range(1, 5):
        wait.add(number, 1)
        wait.begin(number, 0)
    clock.now += 1000.0
    wait.step(2, 2)
    clock.now += 0.01
    wait.step(2, 2)
    assert wait.seconds(2) == pytest.approx(3 * 10 / 200, rel=0.01)


@pytest.mark.parametrize("places", [1, 8])
def test_a_queue_with_twice_the_load_is_told_what_it_will_wait(places: int) -> None:
    """Simulation: each running request gets one token per step; requests arrive twice as fast as they are served."""
    clock, rng = Clock(), random.Random(places)
    wait = ExpectedWait(STEADY, 128, clock)
    running: dict[int, int] = {}
    waiting: deque[tuple[int, float, float]] = deque()
    errors, number, due = [], 0, 0.0
    for step in range(6000):
        clock.now += 0.01
        while due <= step:
            expected = wait.seconds(places)
            if expected <= 2.0:
                waiting.append((number, clock.now, expected))
                wait.add(number, 1)
                number += 1
            due += rng.expovariate(2 * places / 30)
        while waiting and len(running) < places:
            taken, came, expected = waiting.popleft()
            running[taken] = rng.randint(10, 50)
            wait.begin(taken, 0)
            if step > 2000:
                errors.append(clock.now - came - expected)
        tokens = len(running)
        for each in list(running):
            running[each] -= 1
            if not running[each]:
                del running[each]
                wait.end(each, 30)
        wait.step(tokens, places)
    assert len(waiting) <= 2.5 * places * 100 / 30  # only requests that can be served within the limit are admitted
    assert abs(sum(errors) / len(errors)) < 0.3 and max(errors) < 1.5
