"""Filling in the middle: the text that asks a model for what goes between two others."""

from __future__ import annotations

import copy
import threading
from collections.abc import Container
from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

_KNOWN = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
)
"""Tokens before the first text, between the texts, and after the second: of Qwen and CodeGemma, StarCoder and Granite,
SantaCoder, DeepSeek."""
_MISTRAL = ("[PREFIX]", "[SUFFIX]")
"""Tokens of Mistral's models, which read the second text first."""


@dataclass(frozen=True, slots=True)
class Infill:
    """How one tokenizer's models are asked."""

    parts: tuple[str, str, str]
    """Marks before, between and after the texts."""
    suffix_first: bool = False

    def text(self, prefix: str, suffix: str) -> str:
        """Returns the text that asks for what goes between two texts."""
        before, between, after = self.parts
        first, second = (suffix, prefix) if self.suffix_first else (prefix, suffix)
        return f"{before}{first}{between}{second}{after}"


def find_infill(added: Container[str]) -> Infill | None:
    """Returns how models are asked that have these tokens of their own; None if they cannot be."""
    for marks in _KNOWN:
        if all(mark in added for mark in marks):
            return Infill(marks)
    before, between = _MISTRAL
    if before in added and between in added:
        return Infill((between, before, ""), suffix_first=True)
    return None


class OwnEncoding:
    """How a text is encoded by a family of tokenizers that overrides transformers' own way. Any thread may call.

    Code Llama's splits a text with one mark, `<FILL_ME>`, into what is before and after the gap. For that it changes
    the tokenizer itself for a while, and not quite back, so a copy does it, one text at a time.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = copy.deepcopy(tokenizer)
        self._mark: str | None = getattr(tokenizer, "fill_token", None)
        self._lock = threading.Lock()

    def takes(self, text: str) -> bool:
        """Whether a text has to be encoded here. Code Llama's can have one mark; further ones have no meaning."""
        return not self._mark or text.count(self._mark) == 1

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Token ids of a text."""
        with self._lock:
            ids: list[int] = self._tokenizer.encode(text, add_special_tokens=add_special_tokens)
        return ids
