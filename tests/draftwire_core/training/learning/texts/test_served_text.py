"""A served text: what is kept of it, and whether it is held out."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftwire_core.training.learning.texts.served_text import ServedText, without_loop
from draftwire_core.training.learning.texts.top_tokens import TopTokens


def of(prompt: list[int], output: list[int]) -> ServedText:
    return ServedText.of(prompt, output, "traffic", 8)


def test_a_long_prompt_keeps_its_first_token_and_its_end() -> None:
    assert of(list(range(20)), [1]).prompt.tolist() == [0, 13, 14, 15, 16, 17, 18, 19]
    assert of(list(range(8)), [1]).prompt.tolist() == list(range(8))


def test_a_loop_is_cut() -> None:
    assert of([1], [5, *[6, 7] * 30]).output.tolist() == [5, 6, 7, 6, 7]


def test_likeliest_tokens_are_cut_with_the_text() -> None:
    output = [5, *[6, 7] * 30]
    top = TopTokens(np.array(output, np.int32)[:, None], np.zeros((len(output), 1), np.float16))
    kept = ServedText.of([1], output, "traffic", 8, top)
    assert kept.top.token_ids[:, 0].tolist() == kept.output.tolist()
    assert len(of([1], output).top) == 5


def test_one_prompt_in_ten_is_held_out_whatever_was_written() -> None:
    held = [number for number in range(1000) if of([number, 3], [1, 2]).held_out]
    assert 70 < len(held) < 130
    assert all(of([number, 3], [9]).held_out == (number in held) for number in range(1000))
    assert held[:3] == [1, 12, 16]  # as in every other process


def test_equal_texts_have_equal_keys() -> None:
    assert of([1, 2], [3]).key == of([1, 2], [3]).key
    assert len({of(*parts).key for parts in (([1, 2], [3]), ([1], [2, 3]), ([1, 2], [4]))}) == 3
    assert of([1], [2]).prompt.dtype == np.int32


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
