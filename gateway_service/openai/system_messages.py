"""System messages at the start of a conversation."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import Any


def merged(turns: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns a conversation whose leading system messages are one, since many chat templates allow no second one.

    Instructions, system and developer messages thus come together, with a blank line between them.
    """
    leading = list(takewhile(lambda turn: turn["role"] == "system", turns))
    if len(leading) < 2:
        return list(turns)
    text = "\n\n".join(turn["content"] for turn in leading if turn["content"])
    return [leading[0] | {"content": text}, *turns[len(leading) :]]
