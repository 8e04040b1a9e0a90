"""Loops in a text are cut at their second repetition, and ordinary text stays as it is."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftwire_core.training.learning.texts.loops import without_loop

TOKENS = st.integers(0, 5)


def cut(*tokens: int) -> list[int]:
    kept: list[int] = without_loop(np.array(tokens, np.int32)).tolist()
    return kept


@pytest.mark.parametrize("size", [1, 2, 7, 30, 64])
@pytest.mark.parametrize("before", [0, 1, 50])
def test_a_loop_is_cut_at_its_second_repetition(size: int, before: int) -> None:
    start, part = list(range(100, 100 + before)), list(range(size))
    copies = max(4, 40 // size)
    rest = part[: size // 2]  # a text may end within a copy
    assert cut(*start, *part * copies, *rest) == [*start, *part * 2]


@pytest.mark.parametrize("text", [[], [3], list(range(200)), [1, 2] * 15, [7] * 31, list(range(40)) * 3])
def test_what_repeats_itself_a_few_times_stays(text: list[int]) -> None:
    assert cut(*text) == text


def test_a_text_that_goes_on_after_a_loop_ends_with_it() -> None:
    assert cut(9, *[1, 2, 3] * 20, 8, 8) == [9, 1, 2, 3, 1, 2, 3]


@given(st.lists(TOKENS, max_size=80), st.lists(TOKENS, min_size=1, max_size=20), st.integers(0, 40))
def test_what_is_kept_begins_the_text_and_has_no_loop(before: list[int], part: list[int], copies: int) -> None:
    text = [*before, *part * copies]
    kept = cut(*text)
    assert text[: len(kept)] == kept
    assert cut(*kept) == kept
    if copies >= 4 and len(part) * copies >= 32:
        assert len(kept) <= len(before) + 2 * len(part)
