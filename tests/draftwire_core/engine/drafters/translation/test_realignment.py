"""Keeping a growing text in the tokens of another tokenizer."""

import random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from draftwire_core.engine.drafters.translation import realignment
from draftwire_core.engine.drafters.translation.realignment import append_text, tail_start
from tests.harness.engine.translation import KINDS, token_map
from tests.harness.models.byte_tokenizers import TEXT

PAIRS = [(target, draft) for target in KINDS for draft in KINDS if target != draft]
PARTS = st.lists(
    st.one_of(
        st.binary(min_size=1, max_size=6),  # often ends within a character
        st.text(min_size=1, max_size=6).map(str.encode),
        st.sampled_from([b" self", b"imp", b"ort", "日本".encode(), b"\n    ", b"_x", b"123"]),
        st.none(),  # the end of a text
    ),
    max_size=30,
)


@pytest.mark.parametrize(("target", "draft"), PAIRS)
@given(parts=PARTS, seed=st.integers(0, 99))
@example(parts=["🐍".encode()[:1], "🐍".encode()[1:], None, b"imp", b"ort"], seed=0)
def test_the_draft_tokens_always_spell_the_text(target: str, draft: str, parts: list[bytes | None], seed: int) -> None:
    """The tokens reported as unchanged are unchanged as well."""
    translation = token_map(target, draft)
    rng = random.Random(seed)
    ours: list[int] = []
    for part in parts:
        ours += [0] if part is None else translation.target.encode(part)
    tokens: list[int] = []
    done = 0
    while done < len(ours):
        step = rng.randint(1, 4)
        before = list(tokens)
        kept = append_text(tokens, ours[done : done + step], translation)
        assert tokens[:kept] == before[:kept]
        done += step
        assert translation.draft.spell(tokens) == translation.target.spell(ours[:done])
        assert tokens.count(0) == ours[:done].count(0)


@pytest.mark.parametrize(("target", "draft"), PAIRS)
def test_a_text_that_came_bit_by_bit_is_tokenized_as_a_whole(target: str, draft: str) -> None:
    translation = token_map(target, draft)
    for text in TEXT:
        tokens: list[int] = []
        for token in translation.target.encode(text.encode()):
            append_text(tokens, [token], translation)
        assert tokens == [*translation.draft.opening, *translation.draft.encode(text.encode())]


def test_each_tokenizer_has_its_own_beginning_of_a_text() -> None:
    """What one tokenizer puts before every text is nothing that another model should read."""
    for target, draft in (("target", "spaced"), ("spaced", "target"), ("spaced", "spaced")):
        translation = token_map(target, draft)
        tokens: list[int] = []
        append_text(tokens, [*translation.target.opening, *translation.target.encode(b"self")], translation)
        assert tokens == [*translation.draft.opening, *translation.draft.encode(b"self")]
        append_text(tokens, [*translation.target.opening, *translation.target.encode(b" other")], translation)
        middle = translation.draft.opening if target == draft else ()
        if middle:
            assert tokens[-1 - len(translation.draft.encode(b" other")) :][:1] == list(middle)
        assert translation.draft.spell(tokens) == b"self other"


def test_only_the_tail_is_tokenized_again(monkeypatch: pytest.MonkeyPatch) -> None:
    translation = token_map("target", "draft")
    tokens: list[int] = []
    append_text(tokens, translation.target.encode(TEXT[1].encode() * 20), translation)
    assert len(tokens) > 500
    assert len(tokens) - realignment._MOST <= tail_start(tokens, translation) <= len(tokens) - realignment._FEWEST
    asked: list[bytes] = []
    encode = translation.draft.encode
    monkeypatch.setattr(translation.draft, "encode", lambda text: asked.append(text) or encode(text))
    kept = append_text(tokens, translation.target.encode(b" self"), translation)
    assert len(asked) == 1
    assert len(asked[0]) < 32 * 20
    assert kept > 480


def test_a_mark_is_never_tokenized_with_what_follows() -> None:
    translation = token_map("target", "draft")
    tokens: list[int] = []
    append_text(tokens, [*translation.target.encode(b"imp"), 0], translation)
    before = list(tokens)
    assert tail_start(tokens, translation) == len(tokens)
    assert append_text(tokens, translation.target.encode(b"ort"), translation) == len(before)
    assert tokens[: len(before)] == before
