"""The growing array of a request's tokens."""

from __future__ import annotations

from array import array

from draftwire_core.adapters.sglang.request_tokens import RequestTokens


def test_it_grows_with_the_output_and_forgets_what_was_ahead() -> None:
    prompt = array("q", [1, 2])
    tokens, output = RequestTokens(prompt), array("q")
    assert tokens.belongs_to(prompt)
    assert not tokens.belongs_to(array("q", [1, 2]))
    assert tokens.update(output, []).tolist() == [1, 2]
    assert tokens.update(output, [8, 9]).tolist() == [1, 2, 8, 9]
    output.extend(range(1000))
    assert tokens.update(output, [5]).tolist() == [1, 2, *range(1000), 5]


def test_an_output_that_became_shorter_is_read_anew() -> None:
    tokens = RequestTokens([1])
    tokens.update([2, 3, 4], [])
    assert tokens.update([7], [6]).tolist() == [1, 7, 6]
