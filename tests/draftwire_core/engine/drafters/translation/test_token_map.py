"""Mapping tokens of one vocabulary to another."""

import pytest

from draftwire_core.engine.drafters.translation.token_map import MOST_PIECES
from tests.harness.engine.translation import KINDS, token_map

PAIRS = [(target, draft) for target in KINDS for draft in KINDS]


@pytest.mark.parametrize(("target", "draft"), PAIRS)
def test_pieces_and_covers_have_the_same_bytes(target: str, draft: str) -> None:
    translation = token_map(target, draft)
    for token, pieces in enumerate(translation.pieces):
        assert len(pieces) <= MOST_PIECES
        if pieces and token:
            assert translation.draft.spell(pieces) == translation.target.spellings[token]
    for token, covers in enumerate(translation.covers):
        if token:
            assert translation.target.spell(covers) == translation.draft.spellings[token]


@pytest.mark.parametrize(("target", "draft"), PAIRS)
def test_tokens_of_the_same_bytes_stand_for_each_other(target: str, draft: str) -> None:
    translation = token_map(target, draft)
    shared = translation.target.by_spelling.keys() & translation.draft.by_spelling.keys()
    assert len(shared) > 50
    for spelling in shared:
        ours, theirs = translation.target.by_spelling[spelling], translation.draft.by_spelling[spelling]
        assert translation.pieces[ours] == (theirs,)
        assert translation.covers[theirs] == (ours,)


def test_one_vocabulary_has_tokens_that_are_several_of_the_other() -> None:
    translation = token_map("target", "draft")
    assert any(len(pieces) > 1 for pieces in translation.pieces)
    assert any(len(covers) > 1 for covers in translation.covers)


def test_the_ends_of_text_stand_for_each_other_whatever_their_names() -> None:
    translation = token_map("target", "draft")
    assert translation.marks == {0: 0}
    assert (translation.pieces[0], translation.covers[0], translation.text(0)) == ((0,), (0,), b"")
