"""Small vocabularies of every kind give the ids that their own libraries and llama.cpp give."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from gguf import TokenType
from transformers import PreTrainedTokenizerBase

from draftwire_core.engine.checkpoint.checkpoint import ModelLoadError
from draftwire_core.engine.checkpoint.gguf.gguf_header import GgufHeader
from draftwire_core.engine.checkpoint.gguf.tokenizer.built_tokenizer import BuiltTokenizer
from draftwire_core.engine.checkpoint.gguf.tokenizer.gguf_merges import ranked_merges
from draftwire_core.engine.text.tokenizer import Tokenizer
from draftwire_core.engine.text.vocabulary import BYTE_ALPHABET
from tests.harness.models.gguf_tokenizers import WrittenTokenizer, charsmap, of_ranks, ranked_ids, scored_ids

NORMAL, CONTROL, USER, BYTE = TokenType.NORMAL, TokenType.CONTROL, TokenType.USER_DEFINED, TokenType.BYTE
BYTES = [f"<0x{value:02X}>" for value in range(256)]
PIECES = ["▁▁", "he", "▁he", "llo", "▁hello", "▁▁▁▁", "el", "lo", "ld", "or", "▁w", "▁wor", "▁world", "12", "▁a"]
CHARACTERS = list("▁abdehlorw12\n")


def scored(**changes: Any) -> WrittenTokenizer:
    """A vocabulary of SentencePiece: special tokens, bytes, pieces, characters."""
    tokens = ["<unk>", "<s>", "</s>", *BYTES, *PIECES, *CHARACTERS]
    types = [TokenType.UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, *[NORMAL] * (len(PIECES) + len(CHARACTERS))]
    scores = [0.0] * 259 + [-float(rank) for rank in range(len(PIECES) + len(CHARACTERS))]
    return replace(WrittenTokenizer("llama", tokens, [int(kind) for kind in types], scores=scores), **changes)


def byte_level(pre: str, *more: str, kind: int = CONTROL, **changes: Any) -> WrittenTokenizer:
    """A byte-level vocabulary with a few merges, and further tokens of a type."""
    ranks = {bytes([value]): value for value in range(256)}
    for text in (" h", "he", "ll", "llo", " he", "12", "123", "  ", "\n\n"):
        ranks[text.encode()] = len(ranks)
    written = of_ranks(ranks, pre)
    written.tokens += more
    written.types += [int(kind)] * len(more)
    return replace(written, **changes)


def ids(tokenizer: PreTrainedTokenizerBase, text: str, *, special: bool = False) -> list[int]:
    found: list[int] = Tokenizer(tokenizer).encode(text, add_special_tokens=special)
    return found


TEXTS = ["hello world", "  hello", " hello  world ", "   ", "", "a\n\n hello", "he▁llo é 🙂", "<0x0A>", "12 hello12"]


@pytest.mark.parametrize("prefix", [True, False, None])
@pytest.mark.parametrize("text", TEXTS)
def test_merges_by_scores_keep_all_spaces(prefix: bool | None, text: str, tmp_path: Path) -> None:
    written = scored(keys={} if prefix is None else {"add_space_prefix": prefix})
    found = written.read(tmp_path / "v.gguf")
    assert ids(found, text) == (scored_ids(written, text) if text else [])
    tokenizer = Tokenizer(found)
    assert tokenizer.decode(tokenizer.encode(text)) == text.replace("▁", " ")


@pytest.mark.parametrize(
    ("keys", "first", "last"),
    [
        ({}, [1], []),
        ({"bos_token_id": 2}, [2], []),
        ({"add_bos_token": False}, [], []),
        ({"add_eos_token": True}, [1], [2]),
        ({"add_bos_token": False, "add_eos_token": True, "eos_token_id": 1}, [], [1]),
        # Ids beyond the vocabulary: the usual ones are taken.
        ({"bos_token_id": 9999, "eos_token_id": 2**32 - 1, "add_eos_token": True}, [1], [2]),
    ],
)
def test_tokens_around_a_text_of_sentence_piece(
    keys: dict[str, Any], first: list[int], last: list[int], tmp_path: Path
) -> None:
    written = scored(keys=keys)
    inner = scored_ids(written, "hello")
    assert ids(written.read(tmp_path / "v.gguf"), "hello", special=True) == [*first, *inner, *last]


def test_tokens_that_are_taken_whole(tmp_path: Path) -> None:
    written = scored()
    written.tokens += ["<think>", "<|im_end|>", "", ""]
    written.types += [int(kind) for kind in (USER, USER, TokenType.UNUSED, TokenType.UNUSED)]
    assert written.scores is not None
    written.scores += [0.0] * 4
    found = written.read(tmp_path / "v.gguf")
    think, end = len(written.tokens) - 4, len(written.tokens) - 3
    hello = scored_ids(written, "hello")
    assert ids(found, "hello<think>hello<|im_end|>") == [*hello, think, *hello, end]
    tokenizer = Tokenizer(found)
    # A token that ends a text is special even if the file does not say so.
    assert tokenizer.decode([*hello, think, end]) == "hello<think>"


def test_tokens_of_phi_3_take_the_spaces_behind_them(tmp_path: Path) -> None:
    written = scored(general={"general.name": "Phi-3 mini"})
    written.tokens += ["<|user|>", "<|endoftext|>"]
    written.types += [int(CONTROL)] * 2
    assert written.scores is not None
    written.scores += [0.0] * 2
    found = written.read(tmp_path / "v.gguf")
    user, end = len(written.tokens) - 2, len(written.tokens) - 1
    hello = scored_ids(written, "hello")
    assert ids(found, "<|user|>\n  hello") == [user, *hello]
    assert ids(found, "<|endoftext|> hello") == [end, *scored_ids(written, " hello")]
    other = replace(written, general={"general.name": "Other"}).read(tmp_path / "other.gguf")
    assert ids(other, "<|user|> hello") == [user, *scored_ids(written, " hello")]


def test_pieces_of_spaces_in_gemma(tmp_path: Path) -> None:
    """The file has them as they are in a text."""
    written = scored(architecture="gemma3", keys={"add_space_prefix": False})
    expected = scored_ids(written, "a   hello")
    for token, name in enumerate(written.tokens):
        if not name.strip("▁") and len(name) > 1:
            written.tokens[token], written.types[token] = " " * len(name), int(USER)
    written.scores = [0.0] * len(written.tokens)  # which are not in the order of merges
    assert ids(written.read(tmp_path / "v.gguf"), "a   hello") == expected


def test_ranked_merges_are_all_pairs_that_make_a_token_in_order() -> None:
    choice = random.Random(5)
    tokens = list({"".join(choice.choices("ab🙂", k=choice.randint(1, 6))): None for _ in range(300)})
    ranks = [float(choice.randint(0, 9)) for _ in tokens[1:]] + [math.inf]
    expected = [
        (-ranks[token], -cut, cut - len(name), token, (name[:cut], name[cut:]))
        for token, name in enumerate(tokens)
        for cut in range(1, len(name))
        if {name[:cut], name[cut:]} <= set(tokens)
    ]
    found = ranked_merges(cast(GgufHeader, None), tokens, ranks)
    assert found == [pair for *_, pair in sorted(expected)]
    assert len(found) > 100


def test_no_tokens_have_no_merges() -> None:
    assert ranked_merges(cast(GgufHeader, None), [], []) == []


@pytest.mark.parametrize(
    "written",
    [
        scored(),
        scored(merges=["h e", "l lo", "l o", "h e"]),  # one of them twice
        byte_level("qwen2", "<|x|>", keys={"add_bos_token": False}),
        scored(model="t5"),
    ],
    ids=["merges by ranks", "listed merges", "bytes", "no merges"],
)
def test_the_content_is_what_the_library_writes(written: WrittenTokenizer, tmp_path: Path) -> None:
    found = written.read(tmp_path / "v.gguf")
    assert isinstance(found, BuiltTokenizer)
    whole = json.loads(found.backend_tokenizer.to_str())
    for _ in range(2):  # what it was built of is known the first time
        content = json.loads(json.dumps(found.take_content()))
        assert content == {key: whole[key] for key in content}
        assert content.keys() >= {"added_tokens", "model", "normalizer", "pre_tokenizer", "decoder"}


MERGES = ["▁ ▁", "h e", "▁ he", "l lo", "l o", "▁he llo", "\n \n"]


@pytest.mark.parametrize(
    ("model", "pre", "add_bos", "first"),
    [
        ("gemma4", None, None, [2]),
        ("gemma4", "gemma4", False, [2]),
        ("gpt2", "gemma4", None, [2]),
        ("gpt2", "granite-embed-multi-311m", None, [2]),
        ("gpt2", "sarvam-moe", None, []),
        ("gpt2", "sarvam-moe", True, [2]),
    ],
)
def test_characters_with_a_list_of_merges(
    model: str, pre: str | None, add_bos: bool | None, first: list[int], tmp_path: Path
) -> None:
    tokens = ["<pad>", "<eos>", "<bos>", "<unk>", *BYTES, "▁▁", "he", "▁he", "lo", "llo", "▁hello", "\n\n", *CHARACTERS]
    types = [int(kind) for kind in (*[CONTROL] * 3, TokenType.UNKNOWN, *[BYTE] * 256, *[NORMAL] * 20)]
    keys: dict[str, Any] = {"bos_token_id": 2} | ({} if add_bos is None else {"add_bos_token": add_bos})
    written = WrittenTokenizer(model, tokens, types, pre, merges=MERGES, keys=keys)
    found = written.read(tmp_path / "v.gguf")

    def names(text: str) -> list[str]:
        return [tokens[token] for token in ids(found, text)]

    assert names("hello hello") == ["he", "llo", "▁hello"]
    assert names("a  \n\n\n12") == ["a", "▁▁", "\n\n", "\n", "1", "2"]
    assert names("é") == ["<0xC3>", "<0xA9>"]
    assert ids(found, "a", special=True) == [*first, tokens.index("a")]
    assert Tokenizer(found).decode(ids(found, "  hello é\n")) == "  hello é\n"


def test_merges_by_bytes(tmp_path: Path) -> None:
    written = byte_level("llama-bpe", "<|eot_id|>", "<think>", kind=USER, keys={"bos_token_id": 3})
    ranks = {spelled(name): token for token, name in enumerate(written.tokens[:-2])}
    pattern = r"\p{N}{1,3}|[^\r\n\p{L}\p{N}]?\p{L}+|\s*[\r\n]+|\s+(?!\S)|\s+|[^\s\p{L}\p{N}]+"
    found = written.read(tmp_path / "v.gguf")
    for text in ("hello  hello", "1234 12", "é\n\n\n  he", " "):
        assert ids(found, text) == ranked_ids(ranks, pattern, text), text
    assert ids(found, "he", special=True) == [3, ranks[b"he"]]
    end, think = len(written.tokens) - 2, len(written.tokens) - 1
    assert ids(found, "<|eot_id|><think>") == [end, think]
    assert Tokenizer(found).decode([end, think]) == "<think>"


def spelled(name: str) -> bytes:
    return bytes(BYTE_ALPHABET[character] for character in name)


@pytest.mark.parametrize("extra", [True, False])
def test_most_likely_pieces(extra: bool, tmp_path: Path) -> None:
    tokens = ["<pad>", "</s>", "<unk>", "▁hello", "▁hel", "lo", "hello", "▁", "h", "e", "l", "o", "w", "<x>"]
    scores = [0.0, 0.0, 0.0, -1.0, -2.0, -2.5, -5.0, -3.0, *[-6.0] * 5, -9.0]
    types = [int(kind) for kind in (CONTROL, CONTROL, TokenType.UNKNOWN, *[NORMAL] * 10, USER)]
    keys = {"precompiled_charsmap": list(charsmap({"H": "h", "\n": " "})), "add_space_prefix": True}
    written = WrittenTokenizer("t5", tokens, types, scores=scores, keys=keys | {"remove_extra_whitespaces": extra})
    found = written.read(tmp_path / "v.gguf")

    def names(text: str) -> list[str]:
        return [tokens[token] for token in ids(found, text)]

    assert names("hello") == ["▁hello"]
    assert names("Hello\nlow") == ["▁hello", "▁", "lo", "w"]
    assert names("  hello ") == (["▁hello"] if extra else ["▁", "▁", "▁hello", "▁"])
    assert names("?!o<x>") == ["▁", "<unk>", "o", "<x>"]
    assert ids(found, "hello", special=True) == [3, 1]
    assert Tokenizer(found).decode(ids(found, "hello low")) == "hello low"


@pytest.mark.parametrize("model", ["bert", "rwkv", "plamo2", "hybriddna", "whitespace", "no_vocab", "mystery"])
def test_kinds_that_are_refused(model: str, tmp_path: Path) -> None:
    reason = rf"metadata tokenizer\.ggml\.model: '{model}' is not supported.*; supported are gpt2, llama, gemma4, t5"
    with pytest.raises(ModelLoadError, match=reason):
        WrittenTokenizer(model, ["a", "b"], [1, 1]).read(tmp_path / "v.gguf")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"scores": [0.0]}, r"tokenizer\.ggml\.scores: has 1 scores for"),
        ({"types": [1]}, r"tokenizer\.ggml\.token_type: has 1 types for"),
        ({"tokens": ["<unk>"] * 287}, r"tokenizer\.ggml\.tokens: has a token twice"),
        ({"model": "gpt2"}, r"tokenizer\.ggml\.pre: is missing, so the splitting is unknown"),
        ({"model": "gpt2", "pre": "gpt-2"}, r"tokenizer\.ggml\.merges: is missing"),
        (
            {"model": "gpt2", "pre": "gpt-2", "merges": ["ab"]},
            r"tokenizer\.ggml\.merges: has a merge that is not of two",
        ),
        ({"keys": {"add_eos_token": True}, "model": "gpt2", "pre": "gpt-2", "merges": []}, r"eos_token_id: is missing"),
        (
            {"keys": {"add_eos_token": True, "eos_token_id": 999}, "model": "gpt2", "pre": "gpt-2", "merges": []},
            r"tokenizer\.ggml\.eos_token_id: is 999, but there are 287 tokens",
        ),
    ],
)
def test_vocabularies_that_are_refused(change: dict[str, Any], reason: str, tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=reason):
        scored(**change).read(tmp_path / "v.gguf")


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        ({}, None),
        ({"tokenizer.chat_template": "a"}, "a"),
        ({"tokenizer.chat_template.default": "a"}, "a"),
        (
            {"tokenizer.chat_template": "a", "tokenizer.chat_template.tool_use": "b"},
            {"default": "a", "tool_use": "b"},
        ),
    ],
)
def test_chat_templates(texts: dict[str, str], expected: object, tmp_path: Path) -> None:
    assert scored(general=texts).read(tmp_path / "v.gguf").chat_template == expected


def test_a_template_for_tools(tmp_path: Path) -> None:
    texts = {"": "plain{{ messages[0].content }}", ".tool_use": "tools {{ tools | tojson }}{{ messages[0].content }}"}
    written = scored(general={f"tokenizer.chat_template{name}": text for name, text in texts.items()})
    found = written.read(tmp_path / "v.gguf")
    messages = [{"role": "user", "content": "X"}]
    tool = {"type": "function", "function": {"name": "f", "description": "", "parameters": {"type": "object"}}}
    assert Tokenizer(found).render_chat(messages) == "plainX"
    assert found.apply_chat_template(messages, tools=[tool], tokenize=False).startswith("tools [{")


@pytest.mark.parametrize(
    ("names", "kinds", "roles", "ends"),
    [
        (["<|im_end|>", "<|endoftext|>", "x"], [CONTROL] * 3, {"eos": 1}, [1, 0]),
        (["<|im_end|>", "<|eot_id|>", "y"], [USER, NORMAL, NORMAL], {"eos": 2}, [2, 0]),
        (["</s>", "<eos>", "x"], [NORMAL, CONTROL, NORMAL], {}, [1]),
        (["<|end|>", "<|return|>", "<|call|>"], [CONTROL] * 3, {"eos": 1}, [1, 2]),
        (["<|end|>", "<|calls|>", "<|flush|>"], [CONTROL] * 3, {}, [1, 2]),
        (["<|end|>", "<|endoftext|>", "x"], [CONTROL] * 3, {"eos": 1}, [1, 0]),
        (["<turn|>", "<|tool_response>", "</s>"], [CONTROL] * 3, {"eos": 0}, [0, 1]),
        (["a", "b", "c"], [NORMAL] * 3, {"eos": 0, "eot": 2, "eom": 1}, [0, 2, 1]),
    ],
)
def test_tokens_that_end_a_text(
    names: list[str], kinds: list[int], roles: dict[str, int], ends: list[int], tmp_path: Path
) -> None:
    from draftwire_core.engine.checkpoint.gguf.gguf_parts import open_parts
    from draftwire_core.engine.checkpoint.gguf.tokenizer.gguf_vocabulary import GgufVocabulary

    keys = {f"{role}_token_id": token for role, token in roles.items()}
    written = WrittenTokenizer("gpt2", names, [int(kind) for kind in kinds], "gpt-2", keys=keys)
    assert GgufVocabulary.read(open_parts(written.write(tmp_path / "v.gguf"))[0]).ends == ends
