"""Mapping tokens of one vocabulary to another."""

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from draftwire_core.engine.drafters.translation.realignment import append_text
from draftwire_core.engine.drafters.translation.token_map import MOST_PIECES, TokenMap
from draftwire_core.engine.text.vocabulary import Vocabulary
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
        if len(spelling) > 1 and spelling.endswith(b"\n"):
            continue  # may be spelled in another way before a word
        ours, theirs = translation.target.by_spelling[spelling], translation.draft.by_spelling[spelling]
        assert translation.pieces[ours] == (theirs,)
        assert translation.covers[theirs] == (ours,)


def test_a_token_that_ends_a_line_is_spelled_as_before_a_word() -> None:
    """Tokenizers of GPT-2's kind read two line breaks as one token at the end of a text, and as two before a word."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=259, initial_alphabet=alphabet, show_progress=False)
    made.train_from_iterator(["\n\n", "!\n"], trainer)
    known = Vocabulary(made, {})
    pair, line = known.by_spelling[b"\n\n"], known.by_spelling[b"\n"]
    assert known.encode(b"\n\n") == [pair] and known.encode(b"\n\na")[:2] == [line, line]
    assert known.encode_lines(b"!\n\n")[-2:] == [line, line]
    found = TokenMap(known, known)
    assert found.pieces[pair] == found.covers[pair] == (line, line)
    tokens: list[int] = []
    append_text(tokens, [known.by_spelling[b"!"], pair], found)
    assert tokens[-2:] == [line, line]


def test_one_vocabulary_has_tokens_that_are_several_of_the_other() -> None:
    translation = token_map("target", "draft")
    assert any(len(pieces) > 1 for pieces in translation.pieces)
    assert any(len(covers) > 1 for covers in translation.covers)


def test_the_ends_of_text_stand_for_each_other_whatever_their_names() -> None:
    translation = token_map("target", "draft")
    assert translation.marks == {0: 0}
    assert (translation.pieces[0], translation.covers[0], translation.text(0)) == ((0,), (0,), b"")
