"""Log-probabilities of tokens, and the report on a request's prompt."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from draftwire.v1 import token_log_probs_pb2, verifier_service_pb2


@dataclass(frozen=True, slots=True)
class TokenLogProb:
    """One token with its log-probability."""

    token_id: int
    """The token."""
    logprob: float
    """Natural log of its probability: softmax of the target's unmodified logits, at temperature 1."""
    text: str
    """The token's text on its own; part of a character shows as U+FFFD."""
    text_bytes: bytes
    """The token's bytes."""


@dataclass(frozen=True, slots=True)
class TokenLogProbs:
    """The target's log-probabilities at one position: of its token, and of the likeliest tokens there."""

    token: TokenLogProb
    """The token."""
    rank: int
    """Number of tokens that are at least as likely, itself included; 1 for the likeliest."""
    top: list[TokenLogProb]
    """The likeliest tokens, best first; as many as requested."""


@dataclass(frozen=True, slots=True)
class PromptReport:
    """The prompt as the target sees it."""

    text: str
    """The token's text."""
    token_ids: list[int]
    """The token's tokens."""
    token_texts: list[str]
    """Text of each token on its own."""
    text_offsets: list[int]
    """Offset of each token in the text, in characters."""
    logprobs: list[TokenLogProbs | None]
    """Log-probabilities of each token; None for the first, which nothing precedes. Empty if not requested."""


def read_logprobs(messages: Iterable[token_log_probs_pb2.TokenLogProbs]) -> list[TokenLogProbs]:
    """Returns ``TokenLogProbs`` from their messages."""
    return [
        TokenLogProbs(_read_one(message.token), message.rank, [_read_one(top) for top in message.top])
        for message in messages
    ]


def read_prompt(message: verifier_service_pb2.PromptReport) -> PromptReport:
    """Returns a ``PromptReport`` from its message."""
    logprobs: list[TokenLogProbs | None] = [*read_logprobs(message.log_probs)]
    if logprobs:
        logprobs[0] = None
    return PromptReport(
        text=message.text,
        token_ids=list(message.token_ids),
        token_texts=list(message.token_texts),
        text_offsets=list(message.text_offsets),
        logprobs=logprobs,
    )


def _read_one(message: token_log_probs_pb2.TokenLogProb) -> TokenLogProb:
    return TokenLogProb(message.token_id, message.log_prob, message.text, message.text_bytes)
