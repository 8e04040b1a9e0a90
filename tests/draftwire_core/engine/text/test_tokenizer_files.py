"""Tokenizers in formats that are not read say which they are, and what would help."""

from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from draftwire_core.engine.checkpoint.checkpoint import ModelLoadError
from draftwire_core.engine.text import tokenizer_files
from draftwire_core.engine.text.tokenizer import Tokenizer
from tests.harness.checkout import MODELS

POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 17612488\n"
SENTENCEPIECE, TIKTOKEN = b"\n\x0e\n\x05<unk>\x15\x00\x00\x00\x00\x18\x02", b"IQ== 0\nIg== 1\n"


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("tekken.json", b"{}", r"has no tokenizer\.json, only tekken\.json, the format of Mistral's own library"),
        (
            "tokenizer.model",
            SENTENCEPIECE,
            r"only tokenizer\.model \(SentencePiece\), .* the package sentencepiece",
        ),
        (
            "tokenizer.model",
            TIKTOKEN,
            r"only tokenizer\.model \(tiktoken\), .* the package tiktoken",
        ),
        ("tokenizer.model", POINTER.encode(), r"tokenizer\.model is a Git LFS pointer.*: run git lfs pull"),
        ("tokenizer.json", POINTER.encode(), r"tokenizer\.json is a Git LFS pointer.*: run git lfs pull"),
        ("tokenizer.json", b"{", "."),
        ("tokenizer.json", b'{"model": {"type": "BPE", "vocab": 7}}', "."),
        ("tokenizer.json", b"\xff\xfe", "."),
    ],
)
def test_what_is_there_instead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, content: bytes, words: str
) -> None:
    monkeypatch.setattr(tokenizer_files, "_is_there", lambda package: False)
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ModelLoadError, match=f"^tokenizer of {tmp_path}: .*{words}") as refusal:
        Tokenizer.load(str(tmp_path))
    assert "\n" not in str(refusal.value)


def test_no_file_of_a_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    with pytest.raises(ModelLoadError, match=r"no file of another tokenizer: take tokenizer\.json from"):
        Tokenizer.load(str(tmp_path))


def test_the_file_is_read_where_mistrals_library_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers then prefers a tekken.json next to it, unless it is told not to."""
    read = AutoTokenizer.from_pretrained

    def preferring(place: Path, *, mistral_format: bool | None = None, **options: Any) -> Any:
        return object() if mistral_format is None else read(place, mistral_format=mistral_format, **options)

    monkeypatch.setattr(AutoTokenizer, "from_pretrained", preferring)
    assert Tokenizer.load(str(MODELS / "draft")).encode("a")


def test_a_directory_in_place_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").mkdir()
    with pytest.raises(ModelLoadError, match=r"tokenizer\.json is not a file"):
        Tokenizer.load(str(tmp_path))
