"""The rejected draft tokens, as the chunks of a request tell them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from drafter_pool.draft_source import drafter_of
from draftwire.v1.verifier_service_pb2 import GenerateChunk
from speculative_engine.engine.step_result import RejectedDraft
from speculative_engine.text.tokenizer import Tokenizer

MOST_REJECTED = 256
"""In one chunk, which grows while its caller does not read."""


def tell_rejected(
    chunk: GenerateChunk,
    rejected: Sequence[RejectedDraft],
    source_number: Callable[[str], int],
    tokenizer: Tokenizer,
) -> None:
    """Add rejected draft tokens to a chunk, as many as it has room for."""
    for draft in rejected[: MOST_REJECTED - len(chunk.rejected)]:
        chunk.rejected.add(
            token_id=draft.token,
            text=tokenizer.decode([draft.token]),
            source=source_number(drafter_of(draft.source)),
            position=draft.position,
            depth=draft.depth,
        )
