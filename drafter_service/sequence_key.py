"""How the draft loop names a sequence."""

from typing import NamedTuple


class SequenceKey(NamedTuple):
    """One opening of one sequence of one verifier.

    The epoch is part of it, so that what is still under way for an opening cannot be taken for its successor's.
    """

    stream: int
    """Number of the stream in this process."""
    sequence_id: int
    """The verifier's number of the sequence."""
    epoch: int
    """Number of the opening."""
