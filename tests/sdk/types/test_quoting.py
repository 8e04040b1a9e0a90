import pytest

from draftwire._types.quoting import shortened


@pytest.mark.parametrize("most", [8, 20, 128])
def test_a_long_text_keeps_its_ends(most: int) -> None:
    text = "the beginning" + "x" * 10_000 + "the end"
    short = shortened(text, most)
    assert len(short) == most
    head, tail = short.split("...")
    assert head and tail and text.startswith(head) and text.endswith(tail)


@pytest.mark.parametrize("text", ["", "x", "x" * 80])
def test_a_short_one_is_left_alone(text: str) -> None:
    assert shortened(text) == text
