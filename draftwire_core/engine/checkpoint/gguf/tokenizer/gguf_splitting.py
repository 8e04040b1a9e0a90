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
    raw: bool = False
    """Whether tokens are spelled in characters, with a mark for spaces and tokens for bytes, as SentencePiece spells
    them. Then nothing is split."""

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
_BY_CASE_BUT_HAN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*",
)
_GPT2_PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_KANA_HAN = "[一-龥぀-ゟ゠-ヿ]+"
_HAN_HANGUL = "[一-龥ࠀ-一가-퟿]+"
_WITHOUT_SPACES = (
    r"[\x{4E00}-\x{9FFF}\x{3400}-\x{4DBF}\x{F900}-\x{FAFF}\x{3040}-\x{309F}\x{30A0}-\x{30FF}\x{FF65}-\x{FF9F}"
    r"\x{2F00}-\x{2FDF}\x{E00}-\x{E7F}\x{E80}-\x{EFF}\x{1780}-\x{17FF}\x{1000}-\x{109F}\x{AA60}-\x{AA7F}"
    r"\x{A9E0}-\x{A9FF}\x{AC00}-\x{D7AF}\x{1100}-\x{11FF}]+"
)
"""Characters of the scripts of East Asia, most of which put no spaces between words."""
_CASED = (
    r"\x{41}-\x{5A}\x{61}-\x{7A}\x{B5}\x{C0}-\x{D6}\x{D8}-\x{F6}\x{F8}-\x{1BA}\x{1BC}-\x{1BF}\x{1C4}-\x{293}"
    r"\x{295}-\x{2AF}\x{370}-\x{373}\x{376}-\x{377}\x{37B}-\x{37D}\x{37F}\x{386}\x{388}-\x{38A}\x{38C}"
    r"\x{38E}-\x{3A1}\x{3A3}-\x{3F5}\x{3F7}-\x{481}\x{48A}-\x{52F}\x{531}-\x{556}\x{10A0}-\x{10C5}"
    r"\x{13A0}-\x{13F5}\x{13F8}-\x{13FD}\x{1C90}-\x{1CBA}\x{1CBD}-\x{1CBF}\x{1D00}-\x{1D2B}\x{1D6B}-\x{1D77}"
    r"\x{1D79}-\x{1D9A}\x{1E00}-\x{1F15}\x{1F18}-\x{1F1D}\x{1F20}-\x{1F45}\x{1F48}-\x{1F4D}\x{1F50}-\x{1F57}"
    r"\x{1F59}\x{1F5B}\x{1F5D}\x{1F5F}-\x{1F7D}\x{1F80}-\x{1FB4}\x{1FB6}-\x{1FBC}\x{1FBE}\x{1FC2}-\x{1FC4}"
    r"\x{1FC6}-\x{1FCC}\x{1FD0}-\x{1FD3}\x{1FD6}-\x{1FDB}\x{1FE0}-\x{1FEC}\x{1FF2}-\x{1FF4}\x{1FF6}-\x{1FFC}"
    r"\x{2102}\x{2107}\x{210A}-\x{2113}\x{2115}\x{2119}-\x{211D}\x{2124}\x{2126}\x{2128}\x{212A}-\x{212D}"
    r"\x{212F}-\x{2134}\x{2139}\x{213C}-\x{213F}\x{2145}-\x{2149}\x{214E}\x{2183}-\x{2184}\x{2C00}-\x{2C7B}"
    r"\x{2C7E}-\x{2CE4}\x{2CEB}-\x{2CEE}\x{2CF2}-\x{2CF3}\x{A640}-\x{A66D}\x{A680}-\x{A69B}\x{A722}-\x{A76F}"
    r"\x{A771}-\x{A787}\x{A78B}-\x{A78E}\x{AB70}-\x{ABBF}\x{FB00}-\x{FB06}\x{FB13}-\x{FB17}\x{FF21}-\x{FF3A}"
    r"\x{FF41}-\x{FF5A}\x{10400}-\x{1044F}\x{104B0}-\x{104D3}\x{104D8}-\x{104FB}\x{10C80}-\x{10CB2}"
    r"\x{10CC0}-\x{10CF2}\x{118A0}-\x{118DF}\x{1E900}-\x{1E943}"
)
"""Characters that DeepSeek LLM counts as letters."""
_SIGNS_AND_WORDS = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+"
)
_SENTENCE = " ?[^(\\s|.,!?…。，、।۔،)]+"
_IN_THREES = r"\d{1,3}(?=(?:\d{3})*\b)"
_SPACES_BY_POWERS = "".join(rf"\s{{{size}}}(?!\S)|" for size in (512, 256, 128, 64, 32, 16, 8, 4))


def _by_case(
    digits: str,
    apostrophe: str = f"{_APOSTROPHE}?",
    words: tuple[str, str] = _BY_CASE,
    signs: str = r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
) -> str:
    """The pattern that also parts words where small letters are followed by capitals."""
    return rf"{words[0]}{apostrophe}|{words[1]}{apostrophe}|{digits}|{signs}|{_SPACE}"


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
_TEKKEN = Splitting((_by_case(r"\p{N}", apostrophe=""),), ignore_merges=True, add_bos=True)
_GPT4O = Splitting((_by_case(r"\p{N}{1,3}"),))
_DEEPSEEK3 = Splitting((r"\p{N}{1,3}", _KANA_HAN, rf"{_SIGNS_AND_WORDS}[\r\n]*|{_SPACE}"))
_BAILING = Splitting((rf"'(?i:[sdmt]|ll|ve|re)|{_WORD}|\p{{N}}|{_SIGNS}|\s*[\r\n]|\s+(?!\S)|\s+",))
_SENTENCE_PIECE = Splitting(raw=True, add_bos=True)
_NAMES: dict[Splitting, str] = {
    _GPT2: (
        "gpt-2 phi-2 mpt olmo jais trillion granite-docling gigachat a.x-4.0 mellum modern-bert exaone4 jina-es "
        "jina-de jina-v2-es jina-v2-de jina-v1-en jina-v2-code roberta-bpe"
    ),
    _DIGITS: "starcoder refact command-r smollm codeshell exaone minerva-7b mellum2",
    _LLAMA3: "llama-bpe llama-v3 llama3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano",
    _AS_LLAMA3: "dbrx smaug-bpe glm4 chatglm-bpe",
    _QWEN2: "qwen2",
    _AS_QWEN2: "deepseek-r1-qwen kormo f2llmv2 megrez stablelm2 hunyuan solar-open grok-2",
    _QWEN35: "qwen35",
    _TEKKEN: "tekken",
    _GPT4O: "gpt-4o llama4 kanana2 talkie minimax-m2",
    replace(_GPT4O, ignore_merges=True): "granite-embed-multi-97m",
    _DEEPSEEK3: "deepseek-v3 hunyuan-dense joyai-llm hy_v4",
    _BAILING: "bailingmoe bailingmoe2 llada-moe",
    _SENTENCE_PIECE: "gemma4 granite-embed-multi-311m",
    replace(_SENTENCE_PIECE, add_bos=False): "sarvam-moe",
    Splitting((r"[\p{P}\$\+<=>\^~\|]+", _GPT2_PATTERN, r"\p{N}+", "[0-9][0-9][0-9]")): "default",
    Splitting(
        (r"[\r\n]", rf"\s?[{_CASED}]+", r"\s?[!-/:-~！-／：-～‘-‟\x{3000}-。]+", r"\s+$", _HAN_HANGUL, r"\p{N}+"),
    ): "deepseek-llm",
    Splitting(
        (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _HAN_HANGUL, r"\p{N}"),
    ): "deepseek-coder",
    Splitting((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2_PATTERN, "[0-9][0-9][0-9]")): "falcon",
    Splitting((_SENTENCE,)): "poro-chat bloom gpt3-finnish",
    Splitting((_SENTENCE, r"\p{N}")): "viking",
    Splitting((rf"{_WORD}|\p{{N}}|{_SIGNS}|{_SPACE}",)): "ufakzeka",
    Splitting((rf"{_APOSTROPHE}|{_WORD}|\p{{N}}{{1}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_SPACE}",)): "seed-coder",
    Splitting((r"\p{N}{1,3}", rf"{_APOSTROPHE}|{_WORD}|\p{{N}}+|{_SIGNS}|{_SPACE}"), ignore_merges=True): "minicpm5",
    Splitting((_IN_THREES, *_GPT4O.patterns)): "tiny_aya cohere2moe",
    Splitting(
        (rf"{_APOSTROPHE}|{_WORD}|\p{{N}}{{1,3}}|{_SIGNS}|\s*[\r\n]+|{_SPACES_BY_POWERS}\s{{1,2}}(?!\S)|\s{{1}}",)
    ): "jais-2",
    Splitting(("[^\n]+|[\n]+", *_AS_QWEN2.patterns)): "laguna",
    Splitting(
        (
            rf"{_APOSTROPHE}|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}"
            r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+",
        )
    ): "exaone-moe",
    Splitting(
        (r"\p{N}{1,3}", _KANA_HAN, rf"{_SIGNS_AND_WORDS}|[\r\n]|\s+(?!\S)|\s+", r"\p{N}"),
    ): "spark2_5",
    Splitting(
        (
            r"[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，\x{3001}-\x{303F}\x{FE30}-\x{FE4F}]+|[ㄅ-ㄯ]+|" + _KANA_HAN,
            _by_case(r"\p{N}"),
        ),
        ignore_merges=True,
    ): "youtu",
    Splitting((r"\p{Han}+|" + _by_case(r"\p{N}{1,3}", words=_BY_CASE_BUT_HAN, signs=_SIGNS),)): "kimi-k2",
    # Groups of three digits that are counted from the right.
    Splitting(
        (r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))", _WITHOUT_SPACES, rf"{_SIGNS_AND_WORDS}[\r\n]*|{_SPACE}"),
    ): "afmoe",
    Splitting((r"\p{N}+", r"(?=(\d{3})+(?!\d))")): "superbpe",
    Splitting(
        (
            "<sentinel:[0-9]+>",
            "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z",
            r"([\t\n]|    |  )",
            r"\p{N}",
            r"[\p{P}!-/:-@\[-`{-~]",
            _GPT2_PATTERN,
        ),
        add_bos=True,
    ): "chameleon",
}
SPLITTINGS = {name: splitting for splitting, names in _NAMES.items() for name in names.split()}
"""Splittings by their names in files."""
