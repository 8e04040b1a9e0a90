"""The splitting of a text by byte-level tokenizers before they merge, by the names that GGUF files give.

llama.cpp's converter recognises a tokenizer by its ids for a test text, and writes a name. The patterns are those of
the tokenizers themselves; llama.cpp's are adapted from them. llama.cpp takes its own default for a missing name. That
splitting may differ from the one of the model's training, would give other ids, and nothing would show it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True, slots=True)
class Splitting:
    """How a text is split into the parts within which pairs are merged."""

    patterns: tuple[str, ...] = ()
    """Regular expressions of parts; each one splits what those before it have left."""
    digits: bool = False
    """Whether each digit is a part, before the patterns."""
    gpt2: bool = False
    """Whether GPT-2's pattern comes last."""
    normalizer: str | None = None
    ignore_merges: bool = False
    """Whether a part that is a token is taken whole."""
    affixes: str | None = None
    """The mark of parts of words. An empty text means the same as None, but gives another fingerprint."""
    add_bos: bool = False
    """Whether a text begins with the token `bos` if the file does not say."""

    def pre_tokenizer(self) -> dict[str, Any]:
        """The part of a `tokenizer.json` that splits."""
        by_bytes = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": self.gpt2}
        parts: list[dict[str, Any]] = [{"type": "Digits", "individual_digits": True}] if self.digits else []
        parts += [
            {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
            for pattern in self.patterns
        ]
        return {"type": "Sequence", "pretokenizers": [*parts, by_bytes]} if parts else by_bytes


_APOSTROPHE = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_SIGNS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_SPACE = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_BY_CASE = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
)
_GPT2_PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_KANA_HAN = "[一-龥぀-ゟ゠-ヿ]+"
_HAN_HANGUL = "[一-龥ࠀ-一가-퟿]+"
_SIGNS_AND_WORDS = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_SPACE}"
)
_SENTENCE = " ?[^(\\s|.,!?…。，、।۔،)]+"

_GPT2 = Splitting(gpt2=True)
_DIGITS = Splitting(digits=True, gpt2=True)
_LLAMA3 = Splitting(
    (rf"{_APOSTROPHE}|{_WORD}|\p{{N}}{{1,3}}|{_SIGNS}|{_SPACE}",),
    ignore_merges=True,
    add_bos=True,
)
_AS_LLAMA3 = replace(_LLAMA3, ignore_merges=False, add_bos=False)
_QWEN2 = Splitting(
    (rf"{_APOSTROPHE}|{_WORD}|\p{{N}}|{_SIGNS}|{_SPACE}",),
    normalizer="NFC",
    affixes="",
)
_AS_QWEN2 = replace(_QWEN2, normalizer=None, affixes=None)
_QWEN35 = replace(
    _QWEN2,
    patterns=(
        rf"{_APOSTROPHE}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACE}",
    ),
)
_TEKKEN = Splitting(
    (rf"{_BY_CASE[0]}|{_BY_CASE[1]}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACE}",),
    ignore_merges=True,
    add_bos=True,
)
_GPT4O = Splitting(
    (
        rf"{_BY_CASE[0]}{_APOSTROPHE}?|{_BY_CASE[1]}{_APOSTROPHE}?|\p{{N}}{{1,3}}"
        rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACE}",
    )
)
_DEEPSEEK3 = Splitting((r"\p{N}{1,3}", _KANA_HAN, _SIGNS_AND_WORDS))
_BAILING = Splitting((rf"'(?i:[sdmt]|ll|ve|re)|{_WORD}|\p{{N}}|{_SIGNS}|\s*[\r\n]|\s+(?!\S)|\s+",))
_NAMES: dict[Splitting, str] = {
    _GPT2: "gpt-2 phi-2 mpt olmo jais trillion granite-docling gigachat a.x-4.0 mellum modern-bert exaone4",
    _DIGITS: "starcoder refact command-r smollm codeshell exaone minerva-7b mellum2",
    _LLAMA3: "llama-bpe llama-v3 llama3 falcon3 falcon-h1 pixtral midm-2.0 lfm2",
    _AS_LLAMA3: "dbrx smaug-bpe glm4 chatglm-bpe",
    _QWEN2: "qwen2",
    _AS_QWEN2: "deepseek-r1-qwen kormo f2llmv2 megrez stablelm2 hunyuan solar-open grok-2",
    _QWEN35: "qwen35",
    _TEKKEN: "tekken",
    _GPT4O: "gpt-4o llama4 kanana2 talkie minimax-m2",
    _DEEPSEEK3: "deepseek-v3 hunyuan-dense joyai-llm hy_v4",
    _BAILING: "bailingmoe bailingmoe2 llada-moe",
    Splitting(
        (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _HAN_HANGUL, r"\p{N}"),
    ): "deepseek-coder",
    Splitting((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2_PATTERN, "[0-9][0-9][0-9]")): "falcon",
    Splitting((_SENTENCE,)): "poro-chat bloom gpt3-finnish",
    Splitting((_SENTENCE, r"\p{N}")): "viking",
    Splitting((rf"{_WORD}|\p{{N}}|{_SIGNS}|{_SPACE}",)): "ufakzeka",
    Splitting((rf"{_APOSTROPHE}|{_WORD}|\p{{N}}{{1}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_SPACE}",)): "seed-coder",
    Splitting((r"\p{N}{1,3}", rf"{_APOSTROPHE}|{_WORD}|\p{{N}}+|{_SIGNS}|{_SPACE}"), ignore_merges=True): "minicpm5",
    Splitting((r"\d{1,3}(?=(?:\d{3})*\b)", *_GPT4O.patterns)): "tiny_aya cohere2moe",
}
SPLITTINGS = {name: splitting for splitting, names in _NAMES.items() for name in names.split()}
"""Splittings by their names in files."""
