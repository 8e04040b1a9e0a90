"""The parts of a response chunk that come from engine results: rejected draft tokens and log-probabilities."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from draftwire.v1.token_log_probs_pb2 import TokenLogProb, TokenLogProbs
from draftwire.v1.verifier_service_pb2 import GenerateChunk
from draftwire_core.engine.engine.step_result import RejectedDraft
from draftwire_core.engine.sampling.log_probs import LogProbs
from draftwire_core.engine.text.token_texts import TokenTexts
from draftwire_core.engine.text.tokenizer import Tokenizer
from draftwire_core.pool.drafter.source import drafter_of

MOST_REJECTED = 256
"""Most rejected draft tokens in one chunk, which grows while its caller does not read."""


def tell_rejected(
    chunk: GenerateChunk,
    rejected: Sequence[RejectedDraft],
    source_number: Callable[[str], int],
    tokenizer: Tokenizer,
) -> None:
    """Adds rejected draft tokens to a chunk, up to its limit."""
    for draft in rejected[: MOST_REJECTED - len(chunk.rejected)]:
        chunk.rejected.add(
            token_id=draft.token,
            text=tokenizer.decode([draft.token]),
            source=source_number(drafter_of(draft.source)),
            position=draft.position,
            depth=draft.depth,
        )


def log_prob_messages(told: LogProbs, texts: TokenTexts) -> list[TokenLogProbs]:
    """Returns one message per token."""

    def message(token: int, log_prob: float) -> TokenLogProb:
        text, text_bytes = texts.of(token)
        return TokenLogProb(token_id=token, log_prob=log_prob, text=text, text_bytes=text_bytes)

    columns = (told.token_ids, told.log_probs, told.ranks, told.top_ids, told.top_log_probs)
    return [
        TokenLogProbs(
            token=message(token, log_prob),
            rank=rank,
            top=[message(*pair) for pair in zip(top_ids, top_log_probs, strict=True) if pair[0] >= 0],
        )
        for token, log_prob, rank, top_ids, top_log_probs in zip(*(each.tolist() for each in columns), strict=True)
    ]
