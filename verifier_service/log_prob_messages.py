"""Log-probabilities as the contract has them."""

from __future__ import annotations

from draftwire.v1.token_log_probs_pb2 import TokenLogProb, TokenLogProbs
from speculative_engine.sampling.log_probs import LogProbs
from speculative_engine.text.token_texts import TokenTexts


def log_prob_messages(told: LogProbs, texts: TokenTexts) -> list[TokenLogProbs]:
    """One message a token."""

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
