"""Prompts for the target's own text: the built-in ones, which are composed from `prompts.toml`, or those of a file."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from draftwire import Prompt
from draftwire_tools.prompt_file import read_prompt_file

_STRIDE = 7
"""Places by which the lists other than the subjects move on from one round to the next."""


@cache
def built_in_prompts() -> tuple[str, ...]:
    """Returns the built-in prompts: short, distinct, of twelve kinds, most of them in English."""
    data = tomllib.loads(files(__package__).joinpath("prompts.toml").read_text(encoding="utf-8"))
    return tuple(prompt for group in data["group"] for prompt in _composed(group))


def prompts_of(path: Path) -> list[Prompt]:
    """Returns the prompts of a file, as texts or token ids.

    Each line of a .jsonl file is an object with `token_ids`, or with a text as `prompt` or `text`. In any other file
    each line that is not empty is a text. Raises ValueError.
    """
    entries = read_prompt_file(path, "--learn-prompts", by_line=True)
    return [entry.token_ids or entry.text for entry in entries]


def _composed(group: Mapping[str, Any]) -> Iterator[str]:
    """Yields a group's prompts: in each round every subject, each time with another template and other words."""
    templates: Sequence[str] = group["templates"]
    subjects: Sequence[str] = group["subjects"]
    others: Mapping[str, Sequence[str]] = group.get("words", {})
    for turn in range(group["rounds"]):
        for index, subject in enumerate(subjects):
            text = templates[(index + turn) % len(templates)].replace("{subject}", subject.strip("\n"))
            for place, (name, words) in enumerate(others.items()):
                text = text.replace(f"{{{name}}}", words[(index + _STRIDE * turn + place) % len(words)])
            yield text
