"""Prompts from a file."""

from __future__ import annotations

from pathlib import Path

from draftwire._program.prompt_file import PromptEntry, read_prompt_file
from draftwire_core.engine.text.tokenizer import Tokenizer


def read_prompts(path: Path, tokenizer: Tokenizer, longest: int) -> list[list[int]]:
    """Returns the prompts of a file as token ids, each cut to its last `longest` tokens.

    Each line of a .jsonl file is an object with `token_ids`, or with a text as `prompt` or `text`. In any other file
    each line that is not empty is a text. Raises ValueError.
    """
    entries = read_prompt_file(path, "--prompts", by_line=True)
    return [_token_ids(entry, tokenizer)[-longest:] for entry in entries]


def _token_ids(entry: PromptEntry, tokenizer: Tokenizer) -> list[int]:
    ids = entry.fields.get("token_ids")
    if not ids:
        return tokenizer.encode(entry.text)
    if not isinstance(ids, list) or not all(type(token) is int for token in ids):
        raise ValueError(f'{entry.place}: "token_ids" is not a list of numbers')
    return ids
