"""The committed text in the draft model's own tokens, extended as the target commits tokens.

A text is not tokenized as its parts are: "imp" and "ort" become "import". The end of the existing text is therefore
tokenized again together with the new text, from a word boundary on, and leading tokens that stay the same keep their
KV slots. Text is handled as bytes, since a token of either vocabulary may end within a character.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from draftwire_core.engine.drafters.translation.token_map import TokenMap

_FEWEST, _MOST = 8, 32
"""Fewest and most draft tokens that are tokenized again. They extend back to the nearest word start within the most;
earlier tokens stay as they are."""


def append_text(tokens: list[int], new: Iterable[int], token_map: TokenMap) -> int:
    """Appends the target's tokens `new` to a sequence's draft tokens; returns how many leading ones are unchanged."""
    kept = len(tokens)
    if not tokens:
        new = _without_opening(list(new), token_map.target.opening)
        tokens += token_map.draft.opening
    text = bytearray()
    for token in new:
        if token in token_map.marks:
            kept = min(kept, _append(tokens, bytes(text), token_map))
            tokens.append(token_map.marks[token])
            text.clear()
        else:
            text += token_map.text(token)
    return min(kept, _append(tokens, bytes(text), token_map))


def _without_opening(new: list[int], opening: Sequence[int]) -> list[int]:
    return new[len(opening) :] if tuple(new[: len(opening)]) == tuple(opening) else new


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
    """Returns the index from which the draft tokens may change when text is appended. Special tokens never do."""
    spellings = token_map.draft.spellings
    first = max(0, len(tokens) - _MOST)
    for index in range(len(tokens) - 1, first - 1, -1):
        if not spellings[tokens[index]]:
            first = index + 1
            break
    for index in range(len(tokens) - _FEWEST, first, -1):
        # Tokenizers of all families split words before a space that follows a non-space.
        if spellings[tokens[index]].startswith(b" ") and not spellings[tokens[index - 1]][-1:].isspace():
            return index
    return first
