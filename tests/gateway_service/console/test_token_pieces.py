"""The drafter that each part of a text is attributed to."""

from draftwire import Chunk
from gateway_service.console.token_pieces import TokenPieces


def chunk(text: str, offsets: list[int], sources: list[str | None]) -> Chunk:
    return Chunk(text, list(range(len(offsets))), sources, ["?"] * len(offsets), offsets)


def test_text_is_split_at_the_tokens() -> None:
    pieces = TokenPieces()
    assert pieces.take(chunk("one two", [0, 3], ["a", None])) == [("one", "a"), (" two", None)]
    assert pieces.take(chunk(" three", [7], ["b"])) == [(" three", "b")]


def test_text_that_lags_behind_its_tokens() -> None:
    """Text is held back for a stop string, or because a character is incomplete."""
    pieces = TokenPieces()
    assert pieces.take(chunk("", [0], ["a"])) == []
    assert pieces.take(chunk("ab", [1, 2], [None, "b"])) == [("a", "a"), ("b", None)]
    assert pieces.take(Chunk("cd")) == [("cd", "b")]


def test_a_split_character_is_whole_and_belongs_to_the_token_that_ends_it() -> None:
    pieces = TokenPieces()
    assert pieces.take(chunk("x", [0, 1], [None, "a"])) == [("x", None)]
    assert pieces.take(chunk("é!", [1, 2], ["b", None])) == [("é", "b"), ("!", None)]


def test_a_verifier_that_does_not_tell_offsets() -> None:
    told = Chunk("ab", [1, 2], [None, "a"], ["a", "b"])
    assert TokenPieces().take(told) == [("a", None), ("b", "a")]
