"""Texts are split as the expressions of the published tokenizers split them."""

from __future__ import annotations

import json
from functools import cache

import pytest
import regex
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel
from tokenizers.pre_tokenizers import PreTokenizer

from draftwire_core.engine.checkpoint.gguf.tokenizer.gguf_splitting import SPLITTINGS, Splitting

LLAMA_CPP = """
default minicpm5 llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano deepseek-llm
deepseek-coder deepseek-v3 spark2_5 youtu falcon mpt starcoder gpt-2 phi-2 jina-es jina-de gigachat jina-v2-es
jina-v2-de a.x-4.0 mellum modern-bert jais-2 gemma4 granite-embed-multi-311m sarvam-moe jina-v1-en jina-v2-code
roberta-bpe refact command-r qwen2 deepseek-r1-qwen kormo f2llmv2 qwen35 stablelm2 olmo dbrx smaug-bpe poro-chat
glm4 chatglm-bpe viking jais tekken smollm codeshell bloom gpt3-finnish exaone exaone4 exaone-moe chameleon minerva-7b
megrez gpt-4o llama4 kanana2 talkie granite-embed-multi-97m tiny_aya cohere2moe superbpe trillion granite-docling
bailingmoe bailingmoe2 llada-moe seed-coder hunyuan hunyuan-dense hy_v4 joyai-llm kimi-k2 ufakzeka grok-2 afmoe laguna
minimax-m2 solar-open mellum2
"""
"""The names that llama.cpp has, but for `whitespace`, which belongs to another kind of tokenizer."""
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def test_every_name_of_llama_cpp_is_known() -> None:
    assert SPLITTINGS.keys() == set(LLAMA_CPP.split())


@cache
def pre_tokenizer(splitting: Splitting) -> PreTokenizer:
    empty = {"type": "BPE", "vocab": {}, "merges": []}
    whole = {"version": "1.0", "added_tokens": [], "model": empty, "pre_tokenizer": splitting.pre_tokenizer()}
    made: PreTokenizer = Tokenizer.from_str(json.dumps(whole)).pre_tokenizer
    return made


def split(name: str, text: str) -> list[str]:
    parts = pre_tokenizer(SPLITTINGS[name]).pre_tokenize_str(text)
    return [text[start:end] for _, (start, end) in parts]


@pytest.mark.parametrize(
    ("name", "text", "parts"),
    [
        ("default", "a+1234", ["a", "+", "123", "4"]),
        ("jais-2", "a" + " " * 7 + "b", ["a", " " * 4, "  ", " b"]),
        ("jais-2", "a" + " " * 12, ["a", " " * 8, " " * 4]),
        ("laguna", "a \n b12", ["a", " ", "\n", " b", "1", "2"]),
        ("exaone-moe", "ab cd 1", ["ab cd", " ", "1"]),
        ("spark2_5", "1234\n\n_a", ["1", "2", "3", "4", "\n", "\n", "_a"]),
        ("youtu", "한국어!a你好12", ["한국어", "!a", "你好", "1", "2"]),
        ("youtu", "fooBar", ["foo", "Bar"]),
        ("kimi-k2", "你好world世界 getUserName12345", ["你好", "world", "世界", " get", "User", "Name", "123", "45"]),
        ("afmoe", "1234567 12", ["1", "234", "567", " ", "12"]),
        ("afmoe", "ภาษาไทย abc", ["ภาษาไทย", " abc"]),
        ("superbpe", "a1234567 12", ["a", "1", "234", "567", " ", "12"]),
        ("tiny_aya", "1234567", ["1", "234", "567"]),
        ("chameleon", "IMGIMGABZ1,b", ["IMGIMGABZ", "1", ",", "b"]),
        ("chameleon", "a    b", ["a", "    ", "b"]),
        ("deepseek-llm", "a1234 语言é  ", ["a", "1234", " ", "语言", "é", "  "]),
        ("granite-embed-multi-97m", "fooBar'S 1234", ["foo", "Bar'S", " ", "123", "4"]),
        ("tekken", "fooBar's", ["foo", "Bar", "'s"]),
        ("qwen2", "WE'RE 12", ["WE", "'RE", " ", "1", "2"]),
    ],
)
def test_parts(name: str, text: str, parts: list[str]) -> None:
    assert split(name, text) == parts


def slowly(splitting: Splitting, text: str) -> list[str]:
    """The parts by another library of regular expressions."""
    patterns = [*splitting.patterns, *([GPT2] if splitting.gpt2 else [])]
    if splitting.digits:
        patterns.insert(0, r"\p{N}")
    parts = [text]
    for pattern in patterns:
        # In this library, the only one here that knows these scripts, sets are subtracted in another notation.
        notation = pattern.replace(r"&&[^\p{Han}]]", r"--\p{Han}]").replace(r"\x{", r"\N{U+")
        found = regex.compile(hexadecimal(notation), flags=regex.VERSION1)
        parts = [piece for part in parts for piece in pieces(found, part)]
    return parts


def hexadecimal(pattern: str) -> str:
    written: str = regex.sub(r"\\N\{U\+([0-9A-F]+)\}", lambda code: rf"\U{int(code[1], 16):08X}", pattern)
    return written


def pieces(pattern: regex.Pattern[str], text: str) -> list[str]:
    found, end = [], 0
    for match in pattern.finditer(text):
        found += [text[end : match.start()], match[0]]
        end = match.end()
    return [piece for piece in (*found, text[end:]) if piece]


CHARACTERS = st.one_of(
    st.sampled_from(" \t\n\r\u00a0\u3000'sStTrReEvVmMlLdD09١½.,!?$+_-/\\|`\u0301\u200d你好カ한กé🙂ǅªʰ<>=(){}"),
    st.characters(codec="utf-8", min_codepoint=1, max_codepoint=0x2FFFF, exclude_categories=("Cs", "Cn", "Co")),
)


@settings(max_examples=60)
@given(text=st.text(CHARACTERS, max_size=24), name=st.sampled_from(sorted(SPLITTINGS)))
def test_parts_of_any_text(text: str, name: str) -> None:
    splitting = SPLITTINGS[name]
    if splitting.raw:
        return
    assert split(name, text) == slowly(splitting, text)
    spelled = "".join(part for part, _ in pre_tokenizer(splitting).pre_tokenize_str(text))
    assert ByteLevel().decode([spelled]) == text
