"""Sources: the names under which the engine keeps what it learns of drafts.

The source of a drafter in the pool is its name and a number that is new for each model behind it, so that what was
learned of one model is never taken for another's, while people see the name alone. What drafts for one request alone
has a reserved name and the request's number: one caller's drafts, or one prediction, say nothing of another's.
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


CALLER = "caller"
"""In statistics and chunks, a caller that drafts for its own request."""
PREDICTION = "prediction"
"""The same of a request's prediction."""
GRAMMAR = "grammar"
"""The same of what the form of a request's output leaves no choice about."""
RESERVED = (CALLER, PREDICTION, GRAMMAR)
"""No drafter of the pool has these names."""


def request_source(drafter: str, sequence_id: int) -> str:
    """The source of what drafts for a request under a reserved name."""
    return f"{drafter}#{sequence_id}"
