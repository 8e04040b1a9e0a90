"""Spaces that begin a text are tokens of it, in a directory as in the tokenizer's own library."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as Backend
from transformers import AutoTokenizer

from draftwire_core.adapters.common import target_info
from draftwire_core.adapters.common.target_info import fingerprint_of
from draftwire_core.engine.text.tokenizer import Tokenizer

PREPEND = {
    "type": "Sequence",
    "normalizers": [
        {"type": "Prepend", "prepend": "\u2581"},
        {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"},
    ],
}
METASPACE = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first", "split": False}
TOKENS = [
    "<unk>",
    "<s>",
    "</s>",
    *(f"<0x{value:02X}>" for value in range(256)),
    *"\u2581abc",
    "\u2581\u2581",
    "\u2581a",
]
MERGES = [["\u2581", "\u2581"], ["\u2581", "a"]]
TEXTS = ["a", " a", "  a", "   ", "a  a ", "</s>a", "</s> a"]


def write(directory: Path, normalizer: Any, pre_tokenizer: Any, **config: Any) -> Backend:
    """Writes a directory with a tokenizer of SentencePiece; returns it as its library reads it."""
    special = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    whole = {
        "version": "1.0",
        "added_tokens": [{"id": token, "content": TOKENS[token], **special} for token in range(3)],
        "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer,
        "model": {
            "type": "BPE",
            "unk_token": "<unk>",
            "fuse_unk": True,
            "byte_fallback": True,
            "vocab": {name: token for token, name in enumerate(TOKENS)},
            "merges": MERGES,
        },
    }
    (directory / "tokenizer.json").write_text(json.dumps(whole))
    roles = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    (directory / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "LlamaTokenizer"} | roles | config))
    (directory / "config.json").write_text(json.dumps({"model_type": "llama"}))
    return Backend.from_file(str(directory / "tokenizer.json"))


@pytest.mark.parametrize(("normalizer", "pre_tokenizer"), [(PREPEND, None), (None, METASPACE)])
def test_ids_are_those_of_the_file(normalizer: Any, pre_tokenizer: Any, tmp_path: Path) -> None:
    before = write(tmp_path, normalizer, pre_tokenizer)
    after = Tokenizer.load(str(tmp_path))
    for text in TEXTS:
        expected = before.encode(text, add_special_tokens=False).ids
        assert after.encode(text, add_special_tokens=False) == expected, text
    if pre_tokenizer is None:
        assert len({tuple(after.encode(text)) for text in TEXTS[:3]}) == 3


@pytest.mark.parametrize(("normalizer", "pre_tokenizer"), [(PREPEND, None), (None, METASPACE)])
def test_a_host_engine_has_the_fingerprint_of_drafters(
    normalizer: Any, pre_tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, normalizer, pre_tokenizer)
    of_engine = AutoTokenizer.from_pretrained(tmp_path)
    before = of_engine.backend_tokenizer.to_str()
    assert fingerprint_of(of_engine, "target") == Tokenizer.load(str(tmp_path)).sha256
    assert of_engine.backend_tokenizer.to_str() == before
    of_engine.name_or_path = "lab/target"
    monkeypatch.setattr(target_info, "try_to_load_from_cache", lambda *_, **__: str(tmp_path / "tokenizer.json"))
    assert fingerprint_of(of_engine, "target") == Tokenizer.load(str(tmp_path)).sha256


DECODING = [
    {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "},
    {"type": "ByteFallback"},
    {"type": "Fuse"},
]
STRIP = {"type": "Strip", "content": " ", "start": 1, "stop": 0}


@pytest.mark.parametrize(
    ("normalizer", "decoders"), [(PREPEND["normalizers"][1], DECODING), (PREPEND, [*DECODING, STRIP])]
)
def test_texts_of_tokens_are_those_of_the_file(normalizer: Any, decoders: list[dict[str, Any]], tmp_path: Path) -> None:
    """A tokenizer without the space, such as Yi's, takes none away, either."""
    write(tmp_path, normalizer, None)
    file = tmp_path / "tokenizer.json"
    decoder = {"type": "Sequence", "decoders": decoders}
    file.write_text(json.dumps(json.loads(file.read_text()) | {"decoder": decoder}))
    before, after = Backend.from_file(str(file)), Tokenizer.load(str(tmp_path))
    for text in TEXTS[:-2]:
        ids = after.encode(text, add_special_tokens=False)
        stream = after.stream()
        streamed = "".join(map(stream.push, ids)) + stream.flush()
        assert after.decode(ids) == before.decode(ids) == streamed == text


def test_a_checkpoint_without_the_space_keeps_none(tmp_path: Path) -> None:
    write(tmp_path, PREPEND, None, add_prefix_space=False)
    found = Tokenizer.load(str(tmp_path))
    assert found.encode("a", add_special_tokens=False) == [TOKENS.index("a")]
