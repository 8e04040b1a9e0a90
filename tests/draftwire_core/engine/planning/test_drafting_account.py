"""The most that a useless drafter may cost, and that a useful one is not limited."""

import random
from collections.abc import Callable
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftwire_core.engine.planning.drafting_account import (
    ALLOWANCE,
    MOST_BALANCE,
    MOST_RESERVE,
    START_BALANCE,
    DraftingAccount,
)

Text = Callable[[int], float]
"""Probability that a token is drafted right, by its number."""


def nothing(_: int) -> float:
    return 0.0


def always(chance: float) -> Text:
    return lambda _: chance


class Requests:
    """Requests one after another. Each step is drafted for if the account is open: a draft costs `cost`, and saves one
    step with the text's probability."""

    def __init__(self, cost: float, seed: int = 0):
        self.account = DraftingAccount()
        self.drafted = 0
        self._cost = cost
        self._random = random.Random(seed)

    def speed(self, text: Text, tokens: int, requests: int = 1) -> float:
        """Returns the speed-up of these requests over plain decoding."""
        seconds = 0.0
        for _ in range(requests):
            made = 0
            while made < tokens:
                drafted = self.account.open
                saved = drafted and self._random.random() < text(made)
                cost = self._cost if drafted else 0.0
                self.account.stepped(1.0 + cost, saved=float(saved), cost=cost, drafted=drafted)
                self.drafted += drafted
                seconds += 1.0 + cost
                made += 1 + saved
        return tokens * requests / seconds


COSTS = [0.02, 0.1, 0.25, 1.0, 3.0]


class TestWhatDoesNotPay:
    @pytest.mark.parametrize("cost", COSTS)
    def test_short_requests_after_the_first_ones(self, cost: float) -> None:
        requests = Requests(cost)
        assert requests.speed(nothing, 64) >= 64 / (64 + START_BALANCE + max(1.0, cost))
        assert requests.speed(nothing, 64, 100) > 0.98

    @pytest.mark.parametrize("cost", COSTS)
    @pytest.mark.parametrize("share", [0.3, 0.8])
    def test_what_brings_less_than_it_takes(self, cost: float, share: float) -> None:
        requests = Requests(cost)
        requests.speed(always(share * min(cost, 1.0)), 64, 2)
        assert requests.speed(always(share * min(cost, 1.0)), 64, 100) > 0.97

    @pytest.mark.parametrize("cost", COSTS)
    def test_it_is_tried_again(self, cost: float) -> None:
        requests = Requests(cost)
        requests.speed(nothing, 64, 2)
        before = requests.drafted
        requests.speed(nothing, 64, 10)
        assert requests.drafted > before

    def test_what_takes_ten_steps(self) -> None:
        requests = Requests(10.0)
        requests.speed(nothing, 64, 2)
        assert requests.speed(nothing, 64, 100) > 0.97


class TestWhatPays:
    @pytest.mark.parametrize("seed", range(5))
    @pytest.mark.parametrize(("cost", "chance"), [(0.02, 0.2), (0.1, 0.4), (0.25, 0.7), (0.5, 0.95)])
    def test_it_goes_on(self, cost: float, chance: float, seed: int) -> None:
        requests, text = Requests(cost, seed), always(chance)
        requests.speed(text, 64, 6)
        best = (1 + chance) / (1 + cost)
        assert requests.speed(text, 64, 50) == pytest.approx(best, rel=0.06)

    def test_texts_that_repeat_themselves_late(self) -> None:
        """Each request begins with useless steps, which the requests before it have paid for."""
        requests = Requests(0.1)
        assert requests.speed(lambda made: 0.0 if made < 15 else 0.8, 64, 50) > 1.25

    def test_what_costs_nothing(self) -> None:
        requests = Requests(0.0)
        requests.speed(nothing, 10_000)
        assert requests.drafted == 10_000


class TestTextsThatChange:
    @pytest.mark.parametrize("cost", [0.1, 0.25, 1.0])
    def test_what_paid_for_long_is_stopped_soon(self, cost: float) -> None:
        requests = Requests(cost)
        requests.speed(always(1.0), 1000)
        before = requests.drafted
        requests.speed(nothing, 200)
        assert requests.drafted - before <= (MOST_BALANCE + MOST_RESERVE + 3) / cost + 1
        assert requests.speed(nothing, 64, 100) > 0.97

    @pytest.mark.parametrize("useless", [16, 20, 24])
    def test_stretches_in_which_nothing_is_right(self, useless: int) -> None:
        """Each costs more than the balance holds, and the rest of the text more than makes up for it."""
        requests = Requests(0.3)
        assert requests.speed(lambda made: 0.0 if made < useless else 0.9, 64, 50) > 1.05

    def test_what_never_paid_has_no_reserve(self) -> None:
        """The pauses of a drafter that has saved nothing stay as long as the allowance makes them."""
        requests = Requests(0.3)
        requests.speed(nothing, 1000)
        assert requests.drafted <= (START_BALANCE + 1000 * ALLOWANCE) / 0.3 + 8

    @pytest.mark.parametrize("cost", [0.05, 0.1, 0.25])
    def test_what_has_come_to_pay_is_found_out(self, cost: float) -> None:
        requests = Requests(cost)
        requests.speed(nothing, 1000)
        requests.speed(always(0.9), 400)
        assert requests.speed(always(0.9), 1000) == pytest.approx(1.9 / (1 + cost), rel=0.05)


class TestReading:
    def test_it_is_paid_by_the_steps_that_follow(self) -> None:
        """Reading the prompt took five steps; the following drafts are often right."""
        account = DraftingAccount()
        account.stepped(100.0, reading=5.0, drafted=True)
        for _ in range(30):
            assert account.open
            account.stepped(1.3, saved=0.8, cost=0.3, drafted=True)

    def test_it_is_paid_in_all(self) -> None:
        account, balance = DraftingAccount(), DraftingAccount()
        account.stepped(1.0, reading=2.0, drafted=False)
        for _ in range(1000):
            account.stepped(0.0, drafted=False)
        balance.stepped(1.0, drafted=False)
        assert balance.balance - account.balance == pytest.approx(2.0)

    def test_what_has_paid_off_owes_nothing_to_later_steps(self) -> None:
        """Each step reads a little and saves far more. Then come plain steps, of requests without the drafter."""
        account = DraftingAccount()
        for _ in range(100):
            account.stepped(1.6, saved=4.0, cost=0.3, reading=0.3, drafted=True)
        for _ in range(500):
            account.stepped(1.0, drafted=False)
            assert account.open


def test_one_slow_moment_is_no_habit() -> None:
    account = DraftingAccount()
    for step in range(200):
        assert account.open
        account.stepped(1.1, saved=0.5, cost=50.0 if step in (0, 100) else 0.1, drafted=True)


def test_it_has_paid_off_when_all_has_come_back() -> None:
    account = DraftingAccount()
    assert account.paid_off
    account.stepped(1.0, cost=0.5, drafted=True)
    assert not account.paid_off
    account.stepped(1.0, saved=1.0, cost=0.5, drafted=True)
    assert account.paid_off


@given(st.lists(st.tuples(st.floats(0, 3), st.floats(0, 0.5), st.booleans()), max_size=400))
@settings(max_examples=100, deadline=None)
def test_no_step_is_drafted_for_on_credit(steps: list[tuple[float, float, bool]]) -> None:
    """At any time it has cost at most the allowance, the initial credit, and one draft."""
    account, lost = DraftingAccount(), 0.0
    for number, (saved, cost, room) in zip(count(1), steps):
        drafted = account.open and room
        if drafted:
            lost += cost - saved
        account.stepped(1.0, saved=saved, cost=cost, drafted=drafted)
        assert lost <= START_BALANCE + ALLOWANCE * number + 0.5
