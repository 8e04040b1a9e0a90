"""The held-out prompts of the bundled models, and texts of a given length made from their tokens."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence

from tests.harness.checkout import MODELS


def held_out_prompts(count: int) -> list[str]:
    """Returns the first `count` prompts. Raises ValueError if there are fewer."""
    lines = (MODELS / "prompts.jsonl").read_text().splitlines()
    if len(lines) < count:
        raise ValueError(f"there are {len(lines)} prompts, not {count}")
    return [json.loads(line)["text"] for line in lines[:count]]


def texts_of(tokens: Sequence[int], run: int, count: int, length: int) -> list[list[int]]:
    """Returns `count` different texts of `length` of the given tokens; no text begins like one of another run."""
    texts = []
    for number in range(count):
        first = (run * count + number) * 31 % len(tokens)
        endless = itertools.cycle([*tokens[first:], *tokens[:first]])
        texts.append([run % 256, number % 256, *itertools.islice(endless, length)][:length])
    return texts
