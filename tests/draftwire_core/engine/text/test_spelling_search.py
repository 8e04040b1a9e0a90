"""Spellings of calls in what a template renders of trial calls."""

import json

import pytest

from draftwire_core.engine.text.call_spelling import ArgumentStyle, CallSpelling
from draftwire_core.engine.text.spelling_search import ARGUMENTS, ID, NAMES, find_content, find_spelling

WRITTEN = json.dumps(ARGUMENTS)


def found(spelled: CallSpelling, before: str = "") -> CallSpelling | None:
    calls = [(name, ARGUMENTS) for name in NAMES]
    one, two = (f"user\n{before}{spelled.spell(calls[:number])}<end>" for number in (1, 2))
    return find_spelling("user\nText.<end>", "Text.", one, two, ("<think>", "</think>"))


def test_calls_that_each_have_an_end() -> None:
    spelling = CallSpelling(ArgumentStyle.JSON, begin="<calls>", call_begin="<call>", name_end=":", call_end="</call>")
    assert found(spelling) == spelling


def test_calls_without_a_mark_between_them_and_behind_them_have_no_spelling() -> None:
    assert found(CallSpelling(ArgumentStyle.JSON, begin="<calls>", name_end=":", separator="\n")) is None


def test_calls_that_begin_with_ids_have_no_spelling() -> None:
    ids = {"begin": f"<calls><id>{ID.format(0)}", "separator": f"<id>{ID.format(1)}"}
    assert found(CallSpelling(ArgumentStyle.JSON, call_begin="<call>", name_end=":", call_end="</call>", **ids)) is None


def test_reasoning_that_does_not_end_is_none() -> None:
    spelling = CallSpelling(ArgumentStyle.JSON, call_begin="<think><call>", name_end=":", call_end="</call>")
    assert found(spelling) == spelling
    content = find_content("user\n", "user\n<think>Text.</out>", "Text.", ("<think>", "</think>"))
    assert content is None


@pytest.mark.parametrize("marker", ["[/CALL]", "[CALL]", "<call>", "<c>"])
def test_markers_of_each_form(marker: str) -> None:
    spelling = CallSpelling(ArgumentStyle.JSON, call_begin=marker, name_end=":", call_end="</call>")
    assert found(spelling) == spelling
