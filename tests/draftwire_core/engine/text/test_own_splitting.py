"""A byte-level tokenizer splits texts as its file says, whatever the type of the model next to it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as Backend
from transformers import AutoTokenizer

from draftwire_core.adapters.common.target_info import fingerprint_of
from draftwire_core.engine.text.own_splitting import as_its_file_says
from draftwire_core.engine.text.tokenizer import Tokenizer
from tests.harness.checkout import MODELS

TEXTS = ["hello world", "a\n\nb  c", "don't 2026", "  é 🙂", "<|endoftext|>x"]
THREES = {"type": "Split", "pattern": {"Regex": r"\p{N}{1,3}"}, "behavior": "Isolated", "invert": False}


def write(directory: Path, model_type: str, tokenizer_class: str | None, **parts: Any) -> Backend:
    """Writes a directory with the bundled tokenizer, changed; returns it as its library reads it."""
    directory.mkdir()
    whole = json.loads((MODELS / "target" / "tokenizer.json").read_text()) | parts
    (directory / "tokenizer.json").write_text(json.dumps(whole))
    config = json.loads((MODELS / "target" / "tokenizer_config.json").read_text())
    (directory / "tokenizer_config.json").write_text(json.dumps(config | {"tokenizer_class": tokenizer_class}))
    (directory / "config.json").write_text(json.dumps({"model_type": model_type}))
    return Backend.from_file(str(directory / "tokenizer.json"))


@pytest.mark.parametrize(
    ("model_type", "tokenizer_class"),
    [("qwen2", "LlamaTokenizerFast"), ("qwen3", "Qwen2Tokenizer"), ("llama", "GPT2Tokenizer"), ("qwen2", None)],
)
def test_ids_and_fingerprint_are_those_of_the_file(
    model_type: str, tokenizer_class: str | None, tmp_path: Path
) -> None:
    steps = [THREES, {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": True}]
    pre_tokenizer = {"type": "Sequence", "pretokenizers": steps}
    expected = write(tmp_path / "draft", model_type, tokenizer_class, pre_tokenizer=pre_tokenizer)
    found = Tokenizer.load(str(tmp_path / "draft"))
    for text in TEXTS:
        assert found.encode(text, add_special_tokens=False) == expected.encode(text, add_special_tokens=False).ids
    write(tmp_path / "target", "llama", "PreTrainedTokenizerFast", pre_tokenizer=pre_tokenizer)
    target = Tokenizer.load(str(tmp_path / "target"))
    assert (found.sha256, found.eos_token_ids) == (target.sha256, target.eos_token_ids)
    assert found.render_chat([{"role": "user", "content": "hi"}]) == "# user: hi\n# assistant:"
    of_engine = AutoTokenizer.from_pretrained(tmp_path / "draft")
    assert fingerprint_of(of_engine, "draft") == found.sha256


def test_a_class_that_agrees_with_its_file_stays(tmp_path: Path) -> None:
    write(tmp_path / "given", "qwen2", None)
    AutoTokenizer.from_pretrained(tmp_path / "given").save_pretrained(tmp_path / "saved")
    file = tmp_path / "saved" / "tokenizer.json"
    whole = json.loads(file.read_text())
    whole["pre_tokenizer"]["pretokenizers"][-1] |= {"trim_offsets": False}  # as in Qwen's own
    file.write_text(json.dumps(whole))
    (tmp_path / "saved" / "config.json").write_text(json.dumps({"model_type": "qwen2"}))
    loaded = AutoTokenizer.from_pretrained(tmp_path / "saved")
    assert type(loaded).__name__ == "Qwen2Tokenizer"
    assert as_its_file_says(loaded, file) is loaded
    assert as_its_file_says(loaded, tmp_path / "missing.json") is loaded
