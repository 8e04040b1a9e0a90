"""The committed text in the draft model's own tokens, extended as the target commits tokens.

A text is not tokenized as its parts are: "imp" and "ort" become "import". The end of the existing text is therefore
tokenized again together with the new text, from a word boundary on, and leading tokens that stay the same keep their
KV slots. Text is handled as bytes, since a token of either vocabulary may end within a character.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from draftwire_core.engine.drafters.translation.token_map import TokenMap
from draftwire_core.engine.text.vocabulary import is_special, special_token

_MARK = re.compile("([^\x00-\xff])")
"""The symbol of a special token."""
_FEWEST, _MOST = 8, 32
"""Fewest and most draft tokens that are tokenized again. They extend back to the nearest word start within the most;
earlier tokens stay as they are."""


def append_text(tokens: list[int], new: Iterable[int], token_map: TokenMap) -> int:
    """Appends the target's tokens `new` to a sequence's draft tokens; returns how many leading ones are unchanged."""
    kept = len(tokens)
    if not tokens:
        new = begin_text(tokens, new, token_map)
    return min(kept, replace_end(tokens, 0, token_map.symbols(new), token_map))


def begin_text(tokens: list[int], new: Iterable[int], token_map: TokenMap) -> Sequence[int]:
    """Begins a sequence's draft tokens, of which there are none yet, as the draft model's tokenizer begins a text.
    Returns the target's tokens `new` without the beginning of their own."""
    tokens += token_map.draft.opening
    found, opening = list(new), token_map.target.opening
    return found[len(opening) :] if tuple(found[: len(opening)]) == opening else found


def replace_end(tokens: list[int], count: int, symbols: str, token_map: TokenMap) -> int:
    """Replaces the last `count` symbols (`Vocabulary.symbols`) of a sequence's draft tokens; returns how many leading
    tokens are unchanged."""
    while count > 0 and tokens:
        last = token_map.draft.symbols([tokens.pop()])
        symbols = last[: max(0, len(last) - count)] + symbols
        count -= len(last)
    kept = len(tokens)
    for part in _MARK.split(symbols):
        if part and is_special(part[0]):
            tokens.append(special_token(part))
        else:
            kept = min(kept, _append(tokens, part.encode("latin-1"), token_map))
    return kept


def _append(tokens: list[int], text: bytes, token_map: TokenMap) -> int:
    if not text:
        return len(tokens)
    start = tail_start(tokens, token_map)
    before = tokens[start:]
    tail = token_map.draft.encode_lines(token_map.draft.spell(before) + text)
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
