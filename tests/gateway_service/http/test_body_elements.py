"""The number of values in a JSON text: counted outside of strings, whatever these contain, and linear in the text."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway_service.http import body_elements
from gateway_service.http.body_elements import TooManyElements, check_elements

SPECIAL = st.text('a,[{]}\\"\n\u00e9', max_size=20)
VALUES = st.recursive(
    st.none() | st.integers() | SPECIAL,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(SPECIAL, inner, max_size=5),
    max_leaves=30,
)


def count(value: Any) -> tuple[int, int]:
    """Returns the arrays and objects in a value, and the number that is bounded: these and the commas."""
    if not isinstance(value, list | dict):
        return 0, 0
    inner = [count(each) for each in (value.values() if isinstance(value, dict) else value)]
    containers = 1 + sum(each for each, _ in inner)
    return containers, 1 + max(0, len(value) - 1) + sum(each for _, each in inner)


def refused(text: bytes, most: int) -> bool:
    try:
        check_elements(text, most)
    except TooManyElements:
        return True
    return False


@settings(max_examples=150, deadline=None)
@given(VALUES, st.integers(0, 60), st.booleans())
def test_more_values_than_allowed_are_refused(value: Any, most: int, ascii_only: bool) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only).encode()
    containers, values = count(value)
    assert refused(text, most) == (containers > most // 8 or values > most)


@settings(max_examples=100, deadline=None)
@given(st.lists(SPECIAL, min_size=1, max_size=20), st.integers(2, 9))
def test_a_string_goes_on_in_the_next_slice(strings: list[str], size: int) -> None:
    text = json.dumps(strings).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(body_elements, "_SLICE", size)
        for most in (8, len(strings) - 1, len(strings)):
            assert refused(text, most) == (most < 8 or len(strings) > most)


@pytest.mark.parametrize(
    "text", [b'"', b'"\\', b'["a\\', b"", b'""""""""""""""""""""""""', b"[" * 100, b'{"a' + b"\\" * 99]
)
def test_what_is_no_json_ends(text: bytes) -> None:
    for most in range(0, 30, 3):
        refused(text, most)
    assert refused(b'""' * 40 + b",,,", 16)
