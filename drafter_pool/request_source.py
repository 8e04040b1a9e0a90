"""What the engine calls what drafts for one request alone; as `draft_source` for drafters of the pool.

Each request has its own: what is learned of one caller's drafts, or of one prediction, says nothing of another's.
"""

from __future__ import annotations

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
