"""What the engine calls a drafter: its name in the pool, and a number that is another one for each model behind it.

So what was learned of one model is never taken for another's, while people see the name alone.
"""

from __future__ import annotations

import itertools

_numbers = itertools.count(1)


def new_source(name: str) -> str:
    """A source that was never used before."""
    return f"{name}#{next(_numbers)}"


def drafter_of(source: str) -> str:
    """The drafter's name in the pool."""
    return source.rpartition("#")[0] or source
