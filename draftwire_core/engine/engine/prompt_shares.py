"""The division of a step's rows among prompts: which prompts it computes, and how many rows each gets."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from draftwire_core.engine.engine.sequence import Sequence as EngineSequence
from draftwire_core.engine.kv.prefix_cache import common_length

_WORTH_WAITING = 32
"""Fewest tokens for which a sequence waits until another has computed them."""


def to_compute(running: Iterable[EngineSequence]) -> list[EngineSequence]:
    """Returns the sequences whose prompts to compute, oldest first.

    A sequence is left out while an older one computes a prefix that it can read from the prefix cache later. The older
    one is computed in the same steps, so it either advances or ends, and the wait is over in both cases.
    """
    chosen: list[EngineSequence] = []
    for sequence in running:
        if sequence.pending > 1 and not any(_waits(sequence, older) for older in chosen):
            chosen.append(sequence)
    return chosen


def divide(pending: Sequence[int], rows: int) -> list[int]:
    """Divides rows among prompts, given the number of pending tokens of each, oldest first.

    The oldest prompt gets half, so that none starves. The rest goes to the prompts with the fewest pending tokens, so
    that a long prompt does not delay a short one.
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
    """Whether reading the older sequence's prefix saves more tokens than the older one computes beyond that prefix."""
    if sequence.prefix is None or older.prefix is None or not (sequence.prefix.takes and older.prefix.leaves):
        return False
    start, end = len(sequence.slots), len(sequence.tokens) - 1
    first = start + _WORTH_WAITING
    if end < first or sequence.tokens[start:first] != older.tokens[start:first]:
        return False
    common = older.kept_length(common_length(sequence.tokens[:end], older.tokens))
    return common - start > len(older.tokens) - common
