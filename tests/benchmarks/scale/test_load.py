"""Open-loop load: requests that arrive regardless of capacity, and the figures computed from them."""

import math

import pytest

from benchmarks.scale.load_figures import LoadFigures, Objective
from benchmarks.scale.open_load import Answer, asks
from draftwire_tools.turns import Arrival

OBJECTIVE = Objective(1.0, 0.1)


def answer(asked_at: float, first: float, tokens: int, gap: float = 0.05) -> Answer:
    """Returns a request whose tokens arrive one by one."""
    arrivals = tuple(Arrival(asked_at + first + gap * index, 1) for index in range(tokens))
    return Answer(asked_at, asked_at, arrivals, tuple(range(tokens)), finished=True)


def refusal(asked_at: float, seconds: float, retry: float | None) -> Answer:
    return Answer(asked_at, asked_at + 0.25, refused_at=0.25 + asked_at + seconds, retry_seconds=retry)


def test_the_same_seed_asks_the_same_and_another_asks_otherwise() -> None:
    texts = list(range(1000))
    found = asks(20.0, 50.0, texts, 64, 32, "seven")
    assert found == asks(20.0, 50.0, texts, 64, 32, "seven") != asks(20.0, 50.0, texts, 64, 32, "eight")
    assert len(found) == pytest.approx(1000, rel=0.15)
    assert all(0 < ask.at < 50 and 32 <= len(ask.prompt) <= 96 and 16 <= ask.max_tokens <= 48 for ask in found)
    assert [ask.at for ask in found] == sorted(ask.at for ask in found)
    assert len({(ask.prompt, ask.max_tokens) for ask in found}) > 900


def test_an_objective_is_about_the_first_token_and_the_others() -> None:
    assert OBJECTIVE.met_by(answer(3.0, 0.9, 10))
    assert not OBJECTIVE.met_by(answer(3.0, 1.1, 10))
    assert not OBJECTIVE.met_by(answer(3.0, 0.9, 10, gap=0.11))
    assert OBJECTIVE.met_by(answer(3.0, 0.9, 1))
    assert not OBJECTIVE.met_by(refusal(3.0, 0.01, 1.0))
    assert not OBJECTIVE.met_by(Answer(3.0, 3.0, (Arrival(3.5, 4),), fault="lost"))
    assert OBJECTIVE.met_by(Answer(3.0, 3.0, (Arrival(3.5, 4), Arrival(4.0, 5)), tuple(range(9)), finished=True))
    assert not OBJECTIVE.met_by(Answer(3.0, 3.0, (Arrival(3.5, 4), Arrival(4.0, 4)), tuple(range(8)), finished=True))


def test_only_what_is_within_the_window_counts() -> None:
    early, good, late = answer(0.0, 0.52, 20), answer(3.0, 0.5, 10), answer(4.0, 3.0, 10)
    answers = [early, good, late, refusal(5.0, 0.02, 1.5), refusal(6.0, 0.04, 0.5), refusal(11.0, 9.0, None)]
    figures = LoadFigures.of(answers, 1.0, 10.0, OBJECTIVE)
    assert figures.requests == 4
    assert figures.goodput == pytest.approx(10 / 9)
    assert figures.completed == pytest.approx((10 + 10) / 9)  # the early one was due before the window
    assert figures.refused == 0.5
    assert figures.refusal_seconds == pytest.approx(0.04)
    assert figures.least_retry == 0.5
    assert figures.lateness == 0.25
    assert (figures.first_token_median, figures.first_token_p99) == pytest.approx((0.5, 3.0))
    assert figures.gap_p95 == pytest.approx(0.05)


def test_what_there_was_none_of_is_no_number() -> None:
    figures = LoadFigures.of([], 0.0, 1.0, OBJECTIVE)
    assert (figures.requests, figures.goodput) == (0, 0.0)
    assert math.isnan(figures.refused) and math.isnan(figures.first_token_p99) and math.isnan(figures.refusal_seconds)
