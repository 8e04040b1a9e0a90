"""Outputs are cut where they begin to loop."""

from hypothesis import given
from hypothesis import strategies as st

from benchmarks.real.loops import LONG, cut_length

BEFORE = list(range(1000, 1040))


def test_what_does_not_repeat_itself_is_kept() -> None:
    assert cut_length([]) == 0
    assert cut_length(BEFORE) == len(BEFORE)


@given(st.integers(1, 60), st.integers(0, 40), st.integers(3, 6))
def test_the_first_time_is_kept(period: int, before: int, times: int) -> None:
    loop = list(range(period))
    if period * times < 12:
        times = 12
    assert cut_length(BEFORE[:before] + loop * times) == before + period


@given(st.integers(LONG, 60), st.integers(0, 20))
def test_a_long_passage_loops_when_it_comes_again(period: int, after: int) -> None:
    passage = list(range(period))
    assert cut_length(BEFORE + passage + passage + list(range(500, 500 + after))) == len(BEFORE) + period
    # Something between both times: it is only a repetition.
    assert cut_length(passage + BEFORE + passage) == 2 * period + len(BEFORE)


def test_short_repetitions_are_no_loop() -> None:
    assert cut_length([*BEFORE, 1, 2, 1, 2, *BEFORE[:5]]) == 49
    assert cut_length([*BEFORE, 7, 7, 7, 7, 7]) == 45
    counting = [token for number in range(30) for token in (1, 2, 100 + number, 3)]
    assert cut_length(counting) == len(counting)
