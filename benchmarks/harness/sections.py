"""Sections of documents that scripts write: the text between `<!-- figures: NAME -->` and `<!-- /figures -->`."""

from __future__ import annotations

import re
from collections.abc import Callable

_MARKED = re.compile(r"(<!-- figures: ([\w -]+) -->\n).*?(<!-- /figures -->)", re.DOTALL)


def replaced(document: str, content: Callable[[str], str]) -> str:
    """Returns a document whose sections have the content that a function returns for their names."""
    return _MARKED.sub(lambda found: f"{found[1]}\n{content(found[2])}\n\n{found[3]}", document)


def with_section(document: str, name: str, content: str) -> str:
    """Returns a document with one section replaced. Raises KeyError if it has no section of that name."""
    if name not in [found[2] for found in _MARKED.finditer(document)]:
        raise KeyError(f"no section {name!r}: expected <!-- figures: {name} --> and <!-- /figures -->")
    return _MARKED.sub(lambda found: f"{found[1]}\n{content}\n\n{found[3]}" if found[2] == name else found[0], document)
