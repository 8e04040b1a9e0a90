"""Names and values as errors quote them: whole where they are short, cut where somebody sent a megabyte."""

from __future__ import annotations

import reprlib

_LONGEST = 80
_quote = reprlib.Repr()
_quote.maxstring = _quote.maxother = _quote.maxlong = _LONGEST


def quoted(value: object) -> str:
    """Return a value as Python writes it, at most some 80 characters of each of its parts."""
    try:
        return _quote.repr(value)
    except ValueError:  # an integer with more digits than Python writes
        return f"a very large {type(value).__name__}"


def shortened(text: str, longest: int = _LONGEST) -> str:
    """Return a text of at most ``longest`` characters: itself, or its beginning and end around ``...``."""
    if len(text) <= longest:
        return text
    end = (longest - 3) // 4
    return f"{text[: longest - 3 - end]}...{text[-end:]}"
