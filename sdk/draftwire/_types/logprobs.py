"""Log-probabilities of tokens, and the report on a request's prompt."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from draftwire._types.from_message import From, read
from draftwire.v1 import verifier_service_pb2 as pb


@dataclass(frozen=True, slots=True)
class TokenLogProb:
    """One token with its log-probability."""

    token_id: int
    """The token."""
    logprob: Annotated[float, From("log_prob")]
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
    logprobs: Annotated[list[TokenLogProbs | None], From("log_probs")]
    """Log-probabilities of each token; None for the first, which nothing precedes. Empty if not requested."""


def read_prompt(message: pb.PromptReport) -> PromptReport:
    """Returns a ``PromptReport`` from its message."""
    report = read(PromptReport, message)
    if report.logprobs:
        report.logprobs[0] = None
    return report
