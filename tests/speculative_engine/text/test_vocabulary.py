"""Tokens as bytes and bytes as tokens."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers

from speculative_engine.text.vocabulary import Vocabulary, VocabularyError
from tests.harness.engine.translation import KINDS, vocabulary
from tests.harness.models.byte_tokenizers import END, TEXT, backend

TEXTS = st.one_of(st.binary(max_size=60), st.text(max_size=40).map(str.encode), st.sampled_from(TEXT).map(str.encode))


@pytest.mark.parametrize("kind", KINDS)
class TestAnyKind:
    @given(text=TEXTS)
    @example(text="🐍".encode()[:3] + b"\xff" + "日本".encode())
    @example(text=b"</s> <|end|> <eos>")
    def test_any_bytes_come_back(self, kind: str, text: bytes) -> None:
        known = vocabulary(kind)
        assert known.spell(known.encode(text)) == text

    @given(texts=st.lists(TEXTS, max_size=5))
    def test_many_at_once_are_as_each(self, kind: str, texts: list[bytes]) -> None:
        known = vocabulary(kind)
        assert known.encode_each(texts) == [known.encode(text) for text in texts]

    def test_text_is_tokenized_as_the_tokenizer_does(self, kind: str) -> None:
        for text in TEXT:
            assert vocabulary(kind).encode(text.encode()) == backend(kind).encode(text).ids

    def test_special_tokens_stand_for_no_text_and_are_not_read_in_one(self, kind: str) -> None:
        known = vocabulary(kind)
        assert known.specials == {END[kind]: 0}
        assert known.spellings[0] == b""
        assert 0 not in known.encode(END[kind].encode())


def test_what_cannot_be_told_as_bytes_is_refused() -> None:
    words = Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
    with pytest.raises(VocabularyError, match="byte-level"):
        Vocabulary(words, {})
    words.decoder = decoders.ByteFallback()
    with pytest.raises(VocabularyError, match="every byte"):
        Vocabulary(words, {})


def test_text_that_the_tokenizer_would_change_is_spelled_byte_by_byte() -> None:
    changing = backend("draft")
    changing.normalizer = normalizers.NFC()
    known = Vocabulary(changing, {})
    decomposed = "nai\u0308ve".encode()
    assert known.spell(known.encode(decomposed)) == decomposed
