"""The tokens of a tokenizer as bytes: what the grammar library reads of its tokenizer.json, and what decoding gives."""

import json
from pathlib import Path

import pytest
from llguidance import LLTokenizer
from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

from draftwire_core.engine.logits.grammar_library import tokenizer_with_end
from draftwire_core.engine.text.token_table import TokenTable
from draftwire_core.engine.text.vocabulary import VocabularyError
from tests.harness.checkout import MODELS

ADDED = [
    AddedToken("<|call|>", special=True),
    AddedToken("<tool_call>", special=False),
    AddedToken("[plain]", special=False),
    AddedToken("\n\n\n", special=False, normalized=False),
]


@pytest.fixture(scope="module")
def backend() -> Backend:
    made = Backend.from_file(str(MODELS / "target" / "tokenizer.json"))
    made.add_tokens(ADDED)
    return made


def test_the_library_reads_the_same(backend: Backend) -> None:
    parts = json.loads(backend.to_str())
    parts["padding"] = parts["truncation"] = None
    own, ours = LLTokenizer(json.dumps(parts)), tokenizer_with_end(TokenTable.of(backend))
    for token in range(own.vocab_size):
        assert ours.decode_bytes([token]) == own.decode_bytes([token])
        assert ours.is_special_token(token) == own.is_special_token(token)
    assert ours.eos_token == own.vocab_size


def test_added_tokens(backend: Backend) -> None:
    table = TokenTable.of(backend)
    names = {each.content: backend.token_to_id(each.content) for each in ADDED}
    assert {names["<|call|>"], names["<tool_call>"]} <= set(table.specials)
    assert table.spellings[names["[plain]"]] == b"[plain]"
    assert table.spellings[names["\n\n\n"]] == b"\n\n\n"
    assert not {names["[plain]"], names["\n\n\n"]} & set(table.specials)


def test_a_text_is_spelled_as_the_tokenizer_does_if_that_spells_it(backend: Backend) -> None:
    table = TokenTable.of(backend)
    text = '{"numbers": ["one", "two"], "é": null}'

    def encode(part: str) -> list[int]:
        return list(backend.encode(part, add_special_tokens=False).ids)

    def encode_with_a_space(part: str) -> list[int]:
        return encode(" " + part)

    assert tokenizer_with_end(table, encode).tokenize_str(text) == encode(text)
    for other in (encode_with_a_space, None):
        tokens = tokenizer_with_end(table, other).tokenize_str(text)
        assert b"".join(table.spellings[token] for token in tokens) == text.encode()


def test_a_tokenizer_without_bytes_has_none(tmp_path: Path) -> None:
    words = Backend.from_str(
        '{"version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,'
        ' "pre_tokenizer": null, "post_processor": null, "decoder": null,'
        ' "model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}}'
    )
    with pytest.raises(VocabularyError):
        TokenTable.of(words)


def test_a_text_that_names_a_special_token_is_spelled_without_it(backend: Backend) -> None:
    table = TokenTable.of(backend)

    def encode(part: str) -> list[int]:
        return list(backend.encode(part, add_special_tokens=False).ids)

    text = "ab<|call|>cd"
    assert backend.token_to_id("<|call|>") in encode(text)
    tokens = tokenizer_with_end(table, encode).tokenize_str(text)
    assert not set(tokens) & set(table.specials)
    assert b"".join(table.spellings[token] for token in tokens) == text.encode()
