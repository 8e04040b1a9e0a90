"""Names and values as error messages quote them: short ones in full, long ones shortened."""

from __future__ import annotations

import reprlib

_LONGEST = 80
_quote = reprlib.Repr()
_quote.maxstring = _quote.maxother = _quote.maxlong = _LONGEST


def quoted(value: object) -> str:
    """Returns the ``repr`` of a value, each part shortened to about 80 characters."""
    try:
        return _quote.repr(value)
    except ValueError:  # an integer with more digits than Python writes
        return f"a very large {type(value).__name__}"


def shortened(text: str, longest: int = _LONGEST) -> str:
    """Returns a text shortened to ``longest`` characters: its beginning and end around ``...``."""
    if len(text) <= longest:
        return text
    end = (longest - 3) // 4
    return f"{text[: longest - 3 - end]}...{text[-end:]}"
