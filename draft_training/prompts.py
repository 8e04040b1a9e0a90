"""Prompts from a file."""

from __future__ import annotations

import json
from pathlib import Path

from speculative_engine.tokenizer import Tokenizer


def read_prompts(path: Path, tokenizer: Tokenizer, longest: int) -> list[list[int]]:
    """The prompts of a file as token ids, each cut to its last `longest` tokens.

    In a file that ends in .jsonl each line is an object with `token_ids`, or with a text as `prompt` or `text`; in any
    other each line that is not empty is a text. Raises ValueError.
    """
    try:
        lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"--prompts: {path} cannot be read: {error}") from error
    if not lines:
        raise ValueError(f"--prompts: {path} has no prompt")
    if path.suffix != ".jsonl":
        return [_encoded(line, tokenizer, longest) for line in lines]
    prompts: list[list[int]] = []
    for number, line in enumerate(lines, 1):
        try:
            given = json.loads(line)
            ids = given.get("token_ids") or _encoded(given.get("prompt") or given["text"], tokenizer, longest)
            prompts.append([int(token) for token in ids][-longest:])
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"--prompts: line {number} of {path} has no prompt, text or token_ids") from error
    return prompts


def _encoded(text: str, tokenizer: Tokenizer, longest: int) -> list[int]:
    return tokenizer.encode(text)[-longest:]
