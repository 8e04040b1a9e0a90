"""Log-probabilities of tokens, and what a request is told of its prompt."""

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
    """Natural log of its probability: softmax of the target's logits as they are, at temperature 1."""
    text: str
    """Its text on its own; a part of a character shows as U+FFFD."""
    text_bytes: bytes
    """Its bytes."""


@dataclass(frozen=True, slots=True)
class TokenLogProbs:
    """What the target gave to the token at one position, and to the likeliest ones there."""

    token: TokenLogProb
    """The token."""
    rank: int
    """How many tokens are at least as likely, itself among them: 1 for the likeliest."""
    top: list[TokenLogProb]
    """The likeliest tokens, best first; as many as were asked for."""


@dataclass(frozen=True, slots=True)
class PromptReport:
    """The prompt, as the target has it."""

    text: str
    """Its text."""
    token_ids: list[int]
    """Its tokens."""
    token_texts: list[str]
    """Text of each token on its own."""
    text_offsets: list[int]
    """Where in text, in characters, each token begins."""
    logprobs: list[TokenLogProbs | None]
    """Of each token; None for the first one, which nothing is before. Empty where they were not asked for."""


def read_logprobs(messages: Iterable[token_log_probs_pb2.TokenLogProbs]) -> list[TokenLogProbs]:
    """Return ``TokenLogProbs`` from their messages."""
    return [
        TokenLogProbs(_read_one(message.token), message.rank, [_read_one(top) for top in message.top])
        for message in messages
    ]


def read_prompt(message: verifier_service_pb2.PromptReport) -> PromptReport:
    """Return a ``PromptReport`` from its message."""
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
