"""Stop strings in a text that arrives in pieces."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from verifier_service.running.stop_strings import StopStrings

LETTERS = st.sampled_from("abc")
STOPS = st.lists(st.text(LETTERS, min_size=1, max_size=4), max_size=4)


def whole(stops: list[str], text: str) -> tuple[str, str | None]:
    """Returns text and stop string by definition: the first string to be complete, the longest of simultaneous ones."""
    for end in range(len(text) + 1):
        for stop in sorted(stops, key=len, reverse=True):
            if text[:end].endswith(stop):
                return text[: end - len(stop)], stop
    return text, None


def pieces(text: str, cuts: list[int]) -> list[str]:
    places = [0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)]
    return [text[start:end] for start, end in pairwise(places)]


@given(STOPS, st.text(LETTERS, max_size=20), st.lists(st.integers(0, 20), max_size=8))
def test_the_result_does_not_depend_on_where_the_text_is_cut(stops: list[str], text: str, cuts: list[int]) -> None:
    taken = StopStrings(stops)
    passed = ""
    for piece in pieces(text, cuts):
        passed += taken.push(piece)
    passed += taken.flush()
    assert (passed, taken.found) == whole(stops, text)


@given(STOPS, st.text(LETTERS, max_size=20), st.lists(st.integers(0, 20), max_size=8))
def test_what_is_passed_on_at_any_time_does_not_depend_on_it_either(
    stops: list[str], text: str, cuts: list[int]
) -> None:
    """A resumed request is replayed in other pieces, and continues with exactly the text that was held back."""
    cut, joined = StopStrings(stops), StopStrings(stops)
    passed = "".join(cut.push(piece) for piece in pieces(text, cuts))
    assert passed == joined.push(text)
    assert whole(stops, text)[0].startswith(passed)


@given(STOPS, st.text(LETTERS, max_size=20))
def test_no_more_is_held_back_than_may_begin_a_stop_string(stops: list[str], text: str) -> None:
    taken = StopStrings(stops)
    passed = taken.push(text)
    held = taken.flush()
    if taken.found is None:
        assert passed + held == text
        assert not held or any(stop.startswith(held) for stop in stops)


def test_the_string_that_is_complete_first_ends_the_text() -> None:
    taken = StopStrings(["bc", "abcd"])
    assert taken.push("xabcd") == "xa"
    assert taken.found == "bc"


def test_the_longest_of_those_that_end_together() -> None:
    taken = StopStrings(["b", "ab"])
    assert taken.push("xab") == "x"
    assert taken.found == "ab"


def test_nothing_comes_after_the_stop_string() -> None:
    taken = StopStrings(["."])
    assert taken.push("one. two") == "one"
    assert taken.push("three") == ""
    assert taken.flush() == ""


def test_long_strings_that_a_long_text_nearly_has() -> None:
    """Comparing each beginning of each string after each token would take half a minute."""
    longest = "a" * 255
    taken = StopStrings([f"{longest}b", *(f"{letter}{longest}" for letter in "bcdefghijklmnop")])
    assert "".join(taken.push("a") for _ in range(50_000)) == "a" * (50_000 - 255)
    assert taken.push("cb") == "a" * 255 + "c"
    assert taken.push(longest) == ""
    assert taken.found == f"b{longest}"


def test_without_stop_strings_everything_passes() -> None:
    taken = StopStrings([])
    assert taken.push("a.") == "a."
    assert taken.flush() == ""


@given(STOPS, st.text(LETTERS, max_size=12), st.text(LETTERS, max_size=12), st.lists(st.integers(0, 12), max_size=6))
def test_only_what_is_complete_late_enough_ends_the_text(
    stops: list[str], early: str, late: str, cuts: list[int]
) -> None:
    """A stop string may begin in text that cannot end the output; one that is complete there does not count."""
    taken = StopStrings(stops)
    passed = "".join(taken.push(piece, ends=False) for piece in pieces(early, cuts))
    passed += "".join(taken.push(piece) for piece in pieces(late, cuts))
    passed += taken.flush()
    text = early + late
    for end in range(len(early) + 1, len(text) + 1):
        for stop in sorted(stops, key=len, reverse=True):
            if text[:end].endswith(stop):
                assert (passed, taken.found) == (text[: end - len(stop)], stop)
                return
    assert (passed, taken.found) == (text, None)
