"""A served text: what is kept of it, and whether it is held out."""

import numpy as np

from draftwire_core.training.learning.texts.served_text import ServedText


def of(prompt: list[int], output: list[int]) -> ServedText:
    return ServedText.of(prompt, output, "traffic", 8)


def test_a_long_prompt_keeps_its_first_token_and_its_end() -> None:
    assert of(list(range(20)), [1]).prompt.tolist() == [0, 13, 14, 15, 16, 17, 18, 19]
    assert of(list(range(8)), [1]).prompt.tolist() == list(range(8))


def test_a_loop_is_cut() -> None:
    assert of([1], [5, *[6, 7] * 30]).output.tolist() == [5, 6, 7, 6, 7]


def test_one_prompt_in_ten_is_held_out_whatever_was_written() -> None:
    held = [number for number in range(1000) if of([number, 3], [1, 2]).held_out]
    assert 70 < len(held) < 130
    assert all(of([number, 3], [9]).held_out == (number in held) for number in range(1000))
    assert held[:3] == [1, 12, 16]  # as in every other process


def test_equal_texts_have_equal_keys() -> None:
    assert of([1, 2], [3]).key == of([1, 2], [3]).key
    assert len({of(*parts).key for parts in (([1, 2], [3]), ([1], [2, 3]), ([1, 2], [4]))}) == 3
    assert of([1], [2]).prompt.dtype == np.int32
