"""Sources: the names under which the engine keeps statistics of drafts.

The source of a drafter in the pool is its name plus a number that is new for each model behind the name. So statistics
of different models are never mixed, while users see only the name. Drafts made for a single request have a reserved
name plus the request's number: statistics of one caller's drafts, or of one prediction, do not apply to another's.
"""

from __future__ import annotations

import itertools

_numbers = itertools.count(1)


def new_source(name: str) -> str:
    """Returns a source that has not been used before."""
    return f"{name}#{next(_numbers)}"


def drafter_of(source: str) -> str:
    """Returns the name in the pool of the drafter with a source."""
    return source.rpartition("#")[0] or source


CALLER = "caller"
"""Name, in statistics and chunks, of a caller that drafts for its own request."""
PREDICTION = "prediction"
"""Name, in statistics and chunks, of a request's prediction."""
GRAMMAR = "grammar"
"""Name, in statistics and chunks, of tokens that a request's output format dictates."""
RESERVED = (CALLER, PREDICTION, GRAMMAR)
"""Names that no drafter of the pool may have."""


def request_source(drafter: str, sequence_id: int) -> str:
    """Returns the source of drafts for one request under a reserved name."""
    return f"{drafter}#{sequence_id}"
