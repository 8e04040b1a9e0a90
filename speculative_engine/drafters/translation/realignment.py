"""The committed text in the draft model's own tokens, kept up token by token of the target.

A text that grows is not tokenized as its parts are: "imp" and "ort" become "import". So the end of what is there is
tokenized again together with what is new, from a place where words part, and as far as the tokens stay the same their
KV slots do. Work is in bytes: a token of either vocabulary may end within a character, and be completed later.
"""

from __future__ import annotations

from collections.abc import Iterable

from speculative_engine.drafters.translation.token_map import TokenMap

_FEWEST, _MOST = 8, 32
"""Draft tokens that are tokenized again: so many at least, and the fewest more that begin at a word's start, up to so
many. What is before them stays as it is."""


def append_text(tokens: list[int], new: Iterable[int], token_map: TokenMap) -> int:
    """Append tokens `new` of the target to a sequence's draft tokens; returns how many leading ones are unchanged."""
    kept = len(tokens)
    text = bytearray()
    for token in new:
        if token in token_map.marks:
            kept = min(kept, _append(tokens, bytes(text), token_map))
            tokens.append(token_map.marks[token])
            text.clear()
        else:
            text += token_map.text(token)
    return min(kept, _append(tokens, bytes(text), token_map))


def _append(tokens: list[int], text: bytes, token_map: TokenMap) -> int:
    if not text:
        return len(tokens)
    start = tail_start(tokens, token_map)
    before = tokens[start:]
    tail = token_map.draft.encode(token_map.draft.spell(before) + text)
    tokens[start:] = tail
    same = 0
    while same < min(len(before), len(tail)) and before[same] == tail[same]:
        same += 1
    return start + same


def tail_start(tokens: list[int], token_map: TokenMap) -> int:
    """From where a sequence's draft tokens may change when text is appended. Special tokens never do."""
    spellings = token_map.draft.spellings
    first = max(0, len(tokens) - _MOST)
    for index in range(len(tokens) - 1, first - 1, -1):
        if not spellings[tokens[index]]:
            first = index + 1
            break
    for index in range(len(tokens) - _FEWEST, first, -1):
        # Tokenizers of all families part words before a space that follows something else.
        if spellings[tokens[index]].startswith(b" ") and not spellings[tokens[index - 1]][-1:].isspace():
            return index
    return first
