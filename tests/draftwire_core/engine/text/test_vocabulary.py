"""Tokens as bytes and bytes as tokens."""

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

from draftwire_core.engine.drafters.translation.token_map import TokenMap
from draftwire_core.engine.text.token_table import TokenTable
from draftwire_core.engine.text.vocabulary import BYTE_ALPHABET, Vocabulary, VocabularyError
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
            expected = backend(kind).encode(text, add_special_tokens=False).ids
            asked = f" {text}" if kind == "spaced" else text  # which puts a space before each text
            assert vocabulary(kind).encode(asked.encode()) == expected

    def test_special_tokens_stand_for_no_text_and_are_not_read_in_one(self, kind: str) -> None:
        known = vocabulary(kind)
        assert known.specials[END[kind]] == 0
        assert known.spellings[0] == b""
        assert 0 not in known.encode(END[kind].encode())


def test_what_cannot_be_told_as_bytes_is_refused() -> None:
    words = Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
    with pytest.raises(VocabularyError, match="byte-level"):
        Vocabulary(words, {})
    words.decoder = decoders.ByteFallback()
    with pytest.raises(VocabularyError, match="every byte"):
        Vocabulary(words, {})


def test_an_absurd_id_makes_no_list() -> None:
    parts = json.loads(backend("spaced").to_str())
    parts["model"]["vocab"]["far"] = 1 << 21
    far = Tokenizer.from_str(json.dumps(parts))
    for make in (lambda: Vocabulary(far, {}), lambda: TokenTable.of(far)):
        with pytest.raises(VocabularyError, match="ids must be below"):
            make()


UNUSUAL = bytes([0x04, 0x1D, 0xC0, 0xC1, 0xF1, 0xF2, *range(0xF5, 0x100)])


def without(kind: str, lacking: bytes) -> Vocabulary:
    """A vocabulary without tokens of some bytes, as those of tokenizers that were trained on real texts."""
    parts = json.loads(backend(kind).to_str())
    names = {name for name, value in BYTE_ALPHABET.items() if value in lacking}
    model = parts["model"]
    model["vocab"] = {name: index for name, index in model["vocab"].items() if name not in names}
    return Vocabulary(Tokenizer.from_str(json.dumps(parts)), {})


def test_bytes_that_ordinary_text_does_not_have_need_no_token() -> None:
    known = without("draft", UNUSUAL)
    assert known.spell(known.encode("naïve 🐍".encode())) == "naïve 🐍".encode()
    assert known.spell(known.encode(b"a\xff\xc0b")) == b"a??b"
    assert known.spell(known.encode(b"a\x04b")) == b"a?b"
    assert known.encode_each([b"\xf5", b"x"]) == [known.encode(b"?"), known.encode(b"x")]
    with pytest.raises(VocabularyError, match="1 lack one \\(0x80\\)"):
        without("draft", UNUSUAL + b"\x80")


def test_a_token_that_cannot_be_spelled_is_never_drafted() -> None:
    target, draft = vocabulary("draft"), without("draft", UNUSUAL)
    found = TokenMap(target, draft)
    for value in UNUSUAL:
        token = target.by_spelling[bytes([value])]
        assert found.pieces[token] == () and found.text(token) == bytes([value])
        assert found.spelled(token) == draft.encode(b"?")
    assert all(found.pieces[target.by_spelling[bytes([value])]] for value in range(0x20, 0x7F))


def test_text_that_the_tokenizer_would_change_is_spelled_byte_by_byte() -> None:
    changing = backend("draft")
    changing.normalizer = normalizers.NFC()
    known = Vocabulary(changing, {})
    decomposed = "nai\u0308ve".encode()
    assert known.spell(known.encode(decomposed)) == decomposed


PREFIXES = {
    "prepended": (normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]), None),
    "metaspace": (None, pre_tokenizers.Metaspace(prepend_scheme="first", split=False)),
    "byte-level": (None, pre_tokenizers.ByteLevel(add_prefix_space=True)),
}


@pytest.mark.parametrize("prefix", PREFIXES)
def test_a_text_is_encoded_as_within_a_longer_one(prefix: str) -> None:
    """A tokenizer that puts a space before each text puts none in the middle of one."""
    made = backend("draft" if prefix == "byte-level" else "fallback")
    made.normalizer, pre_tokenizer = PREFIXES[prefix]
    if pre_tokenizer is not None:
        made.pre_tokenizer = pre_tokenizer
    known = Vocabulary(made, {})
    text = "other self"
    assert made.encode(text).ids != known.encode(text.encode())
    assert known.encode(text.encode()) == known.encode(b"\n" + text.encode())[-len(known.encode(text.encode())) :]
    assert len(known.encode(text.encode())) < len(text) // 2 + 2


def test_added_tokens_are_read_in_a_text_unless_they_are_special() -> None:
    made = backend("draft")
    made.add_tokens(["<think>"])
    made.add_special_tokens(["<call>"])
    parts = json.loads(made.to_str())
    for each in parts["added_tokens"]:
        each["id"] += 7 * (each["id"] > 300)  # ids that are not consecutive
    for tokenizer in (made, Tokenizer.from_str(json.dumps(parts))):
        known = Vocabulary(tokenizer, {})
        assert known.encode(b"self<think>") == [*known.encode(b"self"), tokenizer.token_to_id("<think>")]
        assert tokenizer.token_to_id("<call>") not in known.encode(b"self<call>")
        assert known.spellings[tokenizer.token_to_id("<think>")] == b"<think>"


@pytest.mark.parametrize("first", [True, False])
def test_a_character_is_its_own_token_and_not_that_of_its_byte(first: bool) -> None:
    """Vocabularies of SentencePiece have both, and their tokenizers never choose the latter."""
    parts = json.loads(backend("fallback").to_str())
    names = sorted(parts["model"]["vocab"], key=lambda name: (name != END["fallback"], name.startswith("<0x") != first))
    parts["model"]["vocab"] = {name: index for index, name in enumerate(names)}
    made = Tokenizer.from_str(json.dumps(parts))
    known = Vocabulary(made, {})
    assert made.token_to_id("<0x2E>") != made.token_to_id(".")
    for character in ("s", "(", ".", "\n"):
        assert [known.by_spelling[character.encode()]] == made.encode(character).ids
    assert known.by_spelling[b"\xe6"] == made.token_to_id("<0xE6>")
    found = TokenMap(known, vocabulary("draft"))
    point = vocabulary("draft").by_spelling[b"."]
    assert found.covers[point] == (made.token_to_id("."),)
