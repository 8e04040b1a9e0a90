"""The first difference between two outputs."""

from dataclasses import replace

from draftwire_tools.check.output import Output, difference
from draftwire_tools.check.prompts import CheckPrompt
from draftwire_tools.check.request import check_requests

REQUEST = check_requests([CheckPrompt("code", "def f():")], 16, 5)[1]
PLAIN = Output((1, 2, 3), ("a", "b", "c"), "abc", "length", (((1, -0.5),), ((2, -0.25),), ((3, -1.0),)))


def test_equal_outputs_have_none() -> None:
    assert difference("case", REQUEST, PLAIN, replace(PLAIN)) is None


def test_each_part_is_compared() -> None:
    others = {
        "token ids": (replace(PLAIN, token_ids=(1, 9, 3), token_texts=("a", "x", "c")), 1),
        "log-probabilities": (replace(PLAIN, logprobs=(*PLAIN.logprobs[:2], ((3, -1.0000001),))), 2),
        "text": (replace(PLAIN, text="abd"), 2),
        "finish reason": (replace(PLAIN, finish_reason="stop"), 3),
    }
    for what, (other, position) in others.items():
        found = difference("case", REQUEST, PLAIN, other)
        assert found is not None
        assert (found.case, found.what, found.position) == ("case", what, position)
        assert found.plain != found.other


def test_an_output_that_ends_early() -> None:
    found = difference("case", REQUEST, PLAIN, replace(PLAIN, token_ids=(1, 2), token_texts=("a", "b")))
    assert found is not None
    assert (found.position, found.plain, found.other) == (2, "[3] 'c'", "(ended)")


def test_the_request_can_be_repeated_from_it() -> None:
    found = difference("case", REQUEST, PLAIN, replace(PLAIN, text=""))
    assert found is not None
    assert found.request == {
        "prompt": "def f():",
        "kind": "code",
        "sampling": "T=0.8",
        "options": {"temperature": 0.8, "max_tokens": 16, "seed": 5},
    }


def test_the_rest_of_a_resumed_output() -> None:
    assert PLAIN.after(1, "bc") == Output((2, 3), ("b", "c"), "bc", "length", PLAIN.logprobs[1:])
    assert PLAIN.after(1, "bd").text == "abc"
