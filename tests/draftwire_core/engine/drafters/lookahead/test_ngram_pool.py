"""The n-gram pool: the latest n-grams by first token, in bounded memory."""

from hypothesis import given, settings
from hypothesis import strategies as st

from draftwire_core.engine.drafters.lookahead.ngram_pool import _MOST_FIRST_TOKENS, NgramPool


def continuations(pool: NgramPool, token: int) -> list[list[int]]:
    """Returns the n-grams of a token as a drafter reads them, without the token."""
    found: list[list[int]] = []
    for length, text, start in pool.places(token):
        assert length == 1, "one token agrees"
        stack: list[tuple[list[int], int]] = [([], start)]
        while stack:
            path, where = stack.pop()
            following = list(text.following(where))
            if not following:
                found.append(path)
            stack.extend(([*path, token], after) for token, _, after in reversed(following))
    return found


def test_nothing_was_found() -> None:
    assert NgramPool(2).places(5) == []


def test_the_one_found_last_comes_first() -> None:
    pool = NgramPool(3)
    for ngram in ([5, 1, 2], [5, 3, 4], [6, 1, 1], [5, 1, 2]):
        pool.add(ngram)
    assert continuations(pool, 5) == [[1, 2], [3, 4]]
    assert continuations(pool, 6) == [[1, 1]]


def test_those_that_begin_alike_share_their_beginning() -> None:
    pool = NgramPool(3)
    for ngram in ([5, 1, 2], [5, 8, 9], [5, 1, 3]):
        pool.add(ngram)
    ((_, text, start),) = pool.places(5)
    (one, share, after), (eight, other, _) = text.following(start)
    assert (one, eight) == (1, 8)
    assert (share, other) == (2 / 3, 1 / 3)
    assert [(token, part) for token, part, _ in text.following(after)] == [(3, 0.5), (2, 0.5)]


def test_the_oldest_of_a_first_token_is_forgotten() -> None:
    pool = NgramPool(2)
    for last in range(4):
        pool.add([5, last])
    assert continuations(pool, 5) == [[3], [2]]


def test_the_first_token_that_was_not_met_longest_is_forgotten() -> None:
    pool = NgramPool(2)
    for first in range(_MOST_FIRST_TOKENS):
        pool.add([first, 7])
    pool.places(0)
    pool.add([_MOST_FIRST_TOKENS, 7])
    assert continuations(pool, 0) == [[7]]
    assert continuations(pool, 1) == []
    assert len(pool) == _MOST_FIRST_TOKENS


@given(st.lists(st.lists(st.integers(0, 4), min_size=3, max_size=3)), st.integers(1, 4))
@settings(max_examples=100, deadline=None)
def test_it_holds_the_last_ones_of_each_first_token(ngrams: list[list[int]], guesses: int) -> None:
    pool = NgramPool(guesses)
    for ngram in ngrams:
        pool.add(ngram)
    for first in range(5):
        latest: dict[tuple[int, ...], None] = {}
        for ngram in reversed(ngrams):
            if ngram[0] == first:
                latest.setdefault(tuple(ngram[1:]))
        assert sorted(continuations(pool, first)) == sorted(map(list, list(latest)[:guesses]))
