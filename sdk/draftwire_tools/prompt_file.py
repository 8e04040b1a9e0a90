"""Prompt files of the commands."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class PromptEntry:
    """One prompt of a file."""

    place: str
    """The file, and the line within it."""
    fields: Mapping[str, Any]
    """The JSON object of its line; only ``text`` if the file is not JSON."""

    @property
    def text(self) -> str:
        """The text of the prompt, from the field ``prompt`` or ``text``.

        Raises:
            ValueError: there is no such field, or it is empty.
        """
        text = self.fields.get("prompt", self.fields.get("text"))
        if not isinstance(text, str) or not text:
            raise ValueError(f'{self.place}: expected a string as "prompt" or "text"')
        return text

    @property
    def token_ids(self) -> list[int]:
        """The prompt as token ids, from the field ``token_ids``; empty if there is none.

        Raises:
            ValueError: the field is not a list of numbers.
        """
        ids: list[int] = self.fields.get("token_ids") or []
        if not isinstance(ids, list) or not all(type(token) is int for token in ids):
            raise ValueError(f'{self.place}: "token_ids" is not a list of numbers')
        return ids


def read_prompt_file(path: Path, option: str, *, by_line: bool) -> list[PromptEntry]:
    """Returns the prompts of a file.

    A ``.jsonl`` file has one object per line. Any other file has one text per line, or is one text.

    Args:
        path: the file.
        option: the command's option that named the file, for errors.
        by_line: whether a file without JSON has one prompt per line.

    Raises:
        ValueError: the file cannot be read or contains no prompt, or a line, which the error names, is not a JSON
            object.
    """
    try:
        content = path.read_text(encoding="utf-8-sig")  # editors of Windows begin files with a mark
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{option}: {path} cannot be read: {error}") from error
    if path.suffix == ".jsonl" or by_line:
        # Not `splitlines`, which also ends lines at characters that a text may have, such as U+2028.
        lines = [(f"{option}: {path}, line {number}", line) for number, line in enumerate(content.split("\n"), 1)]
    else:
        lines = [(f"{option}: {path}", content)]
    lines = [(place, line) for place, line in lines if line.strip()]
    if not lines:
        raise ValueError(f"{option}: {path} contains no prompt")
    if path.suffix != ".jsonl":
        return [PromptEntry(place, {"text": line}) for place, line in lines]
    return [PromptEntry(place, _object(place, line)) for place, line in lines]


def _object(place: str, line: str) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"{place}: not valid JSON: {error}") from error
    if not isinstance(found, dict):
        raise ValueError(f"{place}: expected a JSON object")
    return found
