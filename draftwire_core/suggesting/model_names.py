"""The names that a model and the models it was made from are known by, from its card, its configuration or its GGUF
metadata."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

CARD = "README.md"
_MOST_CARD = 1 << 18
_FRONT = re.compile(r"\A---\s*\n(.*?)\n---\s*(?:\n|\Z)", re.DOTALL)
_HUB = re.compile(r"\A(?:https?://)?(?:www\.)?(?:huggingface\.co|hf\.co)/")
_IGNORED = re.compile(r"[^a-z0-9]+")
_SUFFIXES = ("gguf", "hf", "bf16", "bnb4bit", "awq", "gptq", "fp8")
"""Ends of names that say how the same model is stored."""


def card_names(directory: Path) -> list[str]:
    """Returns the base models that a model's card names; none if there is no card, or none that can be read."""
    try:
        with (directory / CARD).open(encoding="utf-8", errors="replace") as file:
            return names_in_card(file.read(_MOST_CARD))
    except OSError:
        return []


def names_in_card(text: str) -> list[str]:
    """Returns the base models that the text of a card names in its YAML."""
    front = _FRONT.match(text)
    if front is None:
        return []
    try:
        fields = yaml.safe_load(front[1])
    except (yaml.YAMLError, RecursionError, ValueError):
        return []  # what a card says of its model is a help, not a need
    return _texts(fields.get("base_model")) if isinstance(fields, dict) else []


def config_names(fields: Mapping[str, Any]) -> list[str]:
    """Returns the names in a configuration; a path gives its last part."""
    return _texts(fields.get("_name_or_path")) + _texts(fields.get("base_model_name_or_path"))


def gguf_names(metadata: Mapping[str, Any]) -> list[str]:
    """Returns the names in the metadata of a GGUF file: base models, then the file's own."""
    found: list[str] = []
    count = metadata.get("general.base_model.count", 0)
    for index in range(count if isinstance(count, int) and 0 <= count <= 16 else 0):
        for field in ("repo_url", "name"):
            found += _texts(metadata.get(f"general.base_model.{index}.{field}"))
    for field in ("repo_url", "source.repo_url", "name", "basename"):
        found += _texts(metadata.get(f"general.{field}"))
    base, size, tuned = (metadata.get(f"general.{each}") for each in ("basename", "size_label", "finetune"))
    if isinstance(base, str) and isinstance(size, str):
        found.append(f"{base}-{size}" + (f"-{tuned}" if isinstance(tuned, str) else ""))
    return found


def plain(name: str) -> str:
    """Returns a name in the form in which names are compared: without owner, case, signs, and format.

    "meta-llama/Llama-3.1-8B-Instruct", "Meta Llama 3.1 8B Instruct" and "llama-3.1-8b-instruct-GGUF" are alike.
    """
    last = _HUB.sub("", name.strip()).rstrip("/").rpartition("/")[2]
    made = _IGNORED.sub("", last.lower().removesuffix(".gguf"))
    for suffix in _SUFFIXES:
        made = made.removesuffix(suffix)
    return made.removeprefix("meta") if made.startswith("metallama") else made


def same_model(names: Iterable[str], others: Iterable[str]) -> bool:
    """Whether a name is among others, in their plain form."""
    known = {plain(each) for each in others}
    return any(plain(each) in known for each in names)


def _texts(value: object) -> list[str]:
    if isinstance(value, str):
        return [value] if value.strip() else []
    return [each for each in value if isinstance(each, str) and each.strip()] if isinstance(value, list) else []
