"""Which prompts a step computes, and how many rows each of them gets."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from speculative_engine.engine.sequence import Sequence as EngineSequence
from speculative_engine.kv.prefix_cache import common_length

_WORTH_WAITING = 32
"""Tokens that a sequence waits for another to compute, at least."""


def to_compute(running: Iterable[EngineSequence]) -> list[EngineSequence]:
    """Those whose prompts are not computed, oldest first, without those that wait for an older one to leave what they
    need in the prefix cache.

    An older one that is computed gets on, or ends, and lets those that wait for it go on either way.
    """
    chosen: list[EngineSequence] = []
    for sequence in running:
        if sequence.pending > 1 and not any(_waits(sequence, older) for older in chosen):
            chosen.append(sequence)
    return chosen


def divide(pending: Sequence[int], rows: int) -> list[int]:
    """Rows for prompts that lack so many tokens, oldest first.

    Half are the oldest one's, so that none starves. The others go to those that lack fewest, so that a short prompt is
    not held up by a long one.
    """
    shares = [0] * len(pending)
    if pending:
        shares[0] = min(pending[0], (rows + 1) // 2)
        rows -= shares[0]
    for index in sorted(range(len(pending)), key=lambda index: pending[index]):
        more = min(pending[index] - shares[index], rows)
        shares[index] += more
        rows -= more
    return shares


def _waits(sequence: EngineSequence, older: EngineSequence) -> bool:
    """Whether more is saved by reading what the older one computes than that one computes beyond it."""
    if sequence.prefix is None or older.prefix is None or not (sequence.prefix.takes and older.prefix.leaves):
        return False
    start, end = len(sequence.slots), len(sequence.tokens) - 1
    first = start + _WORTH_WAITING
    if end < first or sequence.tokens[start:first] != older.tokens[start:first]:
        return False
    common = common_length(sequence.tokens[:end], older.tokens)
    return common - start > len(older.tokens) - common
