"""The expected waiting time of a request, computed before it waits."""

import random
from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftwire_core.engine.planning.step_cost import StepCost
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


class Verifier:
    """A simulation: each running request gets a token per step; the longest stalls are those that are told."""

    def __init__(self, places: int, speed: float) -> None:
        """speed: how much faster a step is than its predicted cost."""
        self.clock = Clock()
        self.wait = ExpectedWait(STEADY, 128, self.clock)
        self.places = places
        self._seconds = 0.01 / speed
        self._length: dict[int, int] = {}
        self._running: dict[int, int] = {}
        self._waiting: deque[int] = deque()
        self._came: dict[int, float] = {}
        self.waited: dict[int, float] = {}
        """Seconds until each request had a place."""
        self.expected: dict[int, float] = {}

    def ask(self, length: int, most: int) -> None:
        """A request comes. length: the tokens that it will generate."""
        number = len(self.expected)
        self.expected[number] = self.wait.seconds(self.places)
        self._length[number], self._came[number] = length, self.clock.now
        self._waiting.append(number)
        self.wait.add(number, 1, most)

    def step(self, held_up: float = 0.0) -> bool:
        """Runs a step; returns whether there was anything to do."""
        while self._waiting and len(self._running) < self.places:
            number = self._waiting.popleft()
            self._running[number] = self._length[number]
            self.waited[number] = self.clock.now - self._came[number]
        self.clock.now += self._seconds + held_up
        tokens = len(self._running)
        for number in list(self._running):
            if self._running[number] == self._length[number]:
                self.wait.begin(number, 0)
            self._running[number] -= 1
            self.wait.took(number, 1)
            if not self._running[number]:
                del self._running[number]
                self.wait.end(number, self._length[number])
        self.wait.step(tokens, self.places)
        return bool(tokens)


@st.composite
def requests(draw: st.DrawFn, most: int) -> tuple[int, int]:
    """A request's length, and what it asked for: at most twice as much."""
    length = draw(st.integers(1, most))
    return length, draw(st.integers(length, 2 * length))


@given(
    places=st.integers(1, 8),
    speed=st.sampled_from([0.5, 1.0, 3.0]),
    history=st.lists(requests(600), max_size=6),
    burst=st.lists(requests(60), min_size=1, max_size=24),
    stalls=st.dictionaries(st.integers(0, 20), st.floats(0.1, 60.0), max_size=2),
    between=st.integers(0, 600),
    idle=st.floats(0.0, 600.0),
)
@settings(max_examples=60, deadline=None)
def test_nobody_is_told_ten_times_what_it_will_wait(
    places: int,
    speed: float,
    history: list[tuple[int, int]],
    burst: list[tuple[int, int]],
    stalls: dict[int, float],
    between: int,
    idle: float,
) -> None:
    """Whatever went before, of which single steps may have been held up, as by a compilation."""
    verifier = Verifier(places, speed)
    for request in history:
        verifier.ask(*request)
    for number in range(between):
        if not verifier.step(stalls.get(number, 0.0)):
            verifier.clock.now += idle
            break
    known = len(verifier.expected)
    for request in burst:
        verifier.ask(*request)
    while verifier.step():
        pass
    for number in range(known, len(verifier.expected)):
        assert verifier.expected[number] <= 10 * verifier.waited[number] + 0.5


def test_one_step_that_was_held_up_hardly_counts(clock: Clock, wait: ExpectedWait) -> None:
    for number in range(24):
        wait.add(number, 1, 64)
        wait.begin(number, 0)
    wait.end(0, 64)
    wait.step(16, 16)
    clock.now += 12.0  # a form is compiled, or the machine stops
    wait.step(16, 16)
    assert wait.seconds(16) < 2 * (8 * 64) / 1600


def test_no_request_is_expected_to_generate_more_than_it_asked_for(wait: ExpectedWait) -> None:
    wait.add(0, 1, 2000)
    wait.begin(0, 0)
    wait.end(0, 1800)
    for number in range(1, 25):
        wait.add(number, 1, 40)
        wait.begin(number, 0)
    assert wait.seconds(16) == pytest.approx(9 * 40 / 1600)


def test_an_old_rate_gives_way_to_the_predicted_one(clock: Clock, wait: ExpectedWait) -> None:
    for number in range(5):
        wait.add(number, 1)
        wait.begin(number, 0)
    wait.end(0, 100)
    for _ in range(3000):
        clock.now += 0.02
        wait.step(1, 2)
    slow = wait.seconds(2)
    clock.now += 600.0
    assert wait.seconds(2) == pytest.approx(slow / 4, rel=0.05)
