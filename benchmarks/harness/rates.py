"""Rates of timed batches: tokens per second, and how well drafts were accepted."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from draftwire_tools.turns import Batch


def decode_rate(batches: Iterable[Batch]) -> float:
    """Returns the tokens per second while all requests of a batch decode. Raises ValueError if they never do."""
    tokens = seconds = 0.0
    for batch in batches:
        tokens, seconds = tokens + batch.tokens, seconds + batch.seconds
    return tokens / seconds


def whole_rate(batches: Sequence[Batch]) -> float:
    """Returns the tokens per second, prompts included."""
    tokens = sum(len(output) for batch in batches for output in batch.token_ids)
    return tokens / sum(batch.whole_seconds for batch in batches)


def total(batches: Iterable[Batch], count: str) -> int:
    """Returns the sum of a count of the requests' statistics, such as `draft_tokens`."""
    return sum(getattr(request.stats, count) for batch in batches for request in batch.requests)


def acceptance_length(batches: Sequence[Batch]) -> float:
    """Returns the tokens of a sequence per verification, including the bonus token."""
    return total(batches, "tokens") / max(1, total(batches, "steps"))


def acceptance_rate(batches: Sequence[Batch]) -> float | None:
    """Returns the accepted share of the verified draft tokens; None without any."""
    drafted = total(batches, "draft_tokens")
    return total(batches, "accepted_tokens") / drafted if drafted else None
