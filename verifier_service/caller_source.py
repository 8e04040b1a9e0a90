"""What the engine calls a caller that drafts for its own request; as `draft_source` for drafters of the pool."""

CALLER = "caller"
"""The drafter's name in a request's statistics and chunks. No drafter of the pool has it."""


def caller_source(sequence_id: int) -> str:
    """The source of a caller's proposals in the engine.

    Each request has its own: what is learned of one caller's drafts says nothing of another's.
    """
    return f"{CALLER}#{sequence_id}"
