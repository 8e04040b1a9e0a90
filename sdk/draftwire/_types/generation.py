"""The output of a request: chunks while it runs and a result at its end, with log-probabilities."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from draftwire._types.from_message import From, read
from draftwire._types.speculation import SpeculationStats
from draftwire.v1 import verifier_service_pb2 as pb

FinishReason = Literal["stop", "length", "deadline", "error"]
"""Reason why a request ended: ``"stop"`` (end of sequence, a stop string or token, or a complete structured output),
``"length"`` (max_tokens, or the context) or ``"deadline"`` (max_time). ``"error"`` occurs only in
``DraftwireError.partial`` of a failed request."""


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
    """The text of the prompt."""
    token_ids: list[int]
    """The tokens of the prompt."""
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


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts and times of a request."""

    prompt_tokens: int
    """Tokens of the prompt."""
    completion_tokens: int
    """Tokens generated."""
    first_token_seconds: float
    """Seconds from admission to the first token, by the verifier's clock. For a resumed request: seconds from the call,
    by the client's clock."""
    total_seconds: float
    """Seconds from admission to the end, measured like first_token_seconds."""
    cached_tokens: int = 0
    """Tokens of the prompt, and of the output of a resumed request, found in the verifier's prefix cache."""

    @property
    def total_tokens(self) -> int:
        """Tokens of prompt and output together."""
        return self.prompt_tokens + self.completion_tokens


@dataclass(frozen=True, slots=True)
class RejectedDraft:
    """A draft token that was verified and rejected."""

    token_id: int
    """The token."""
    text: str
    """The token's text on its own, for display."""
    drafter: str
    """Name of the drafter that guessed it."""
    position: int
    """The position it was guessed for, counted from the start of the prompt."""
    depth: int
    """The token's depth in the token tree; 1 directly follows the last committed token."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """The tokens of one verification step."""

    text: str
    """Final text: whole characters, and nothing that may still become part of a stop string. It may lag behind
    token_ids; the last chunk may carry only text."""
    token_ids: list[int] = field(default_factory=list)
    """The tokens, in order."""
    sources: list[str | None] = field(default_factory=list)
    """For each token, the name of the drafter that guessed it, or None for the target's own."""
    token_texts: list[str] = field(default_factory=list)
    """Text of each token on its own, for display; a character split over tokens shows as U+FFFD."""
    text_offsets: list[int] = field(default_factory=list)
    """Offset of each token's text in the output, in characters."""
    logprobs: Annotated[list[TokenLogProbs], From("log_probs")] = field(default_factory=list)
    """Log-probabilities of each token, if requested."""
    rejected: list[RejectedDraft] = field(default_factory=list)
    """Draft tokens that were verified and rejected, at most 256, if requested."""


@dataclass(frozen=True, slots=True)
class Generation:
    """The result of a request."""

    text: str
    """The generated text, without the prompt."""
    token_ids: list[int]
    """The generated tokens."""
    finish_reason: FinishReason
    """Reason why the request ended."""
    usage: Usage
    """Token counts and times."""
    speculation: SpeculationStats
    """Speculation statistics."""
    seed: int
    """The seed in use; the same prompt, parameters and seed give the same tokens again."""
    request_id: str
    """The request's id in the verifier's logs."""
    prompt_token_ids: list[int]
    """The prompt's tokens."""
    stop: str | None = None
    """The stop string that ended the request, if one did."""
    stop_token_id: int | None = None
    """The token that ended the request, if one did: one of stop_token_ids, or an end-of-sequence token."""
    token_texts: list[str] = field(default_factory=list)
    """Text of each token on its own, for display; a character split over tokens shows as U+FFFD."""
    text_offsets: list[int] = field(default_factory=list)
    """Offset of each token's text in the text, in characters."""
    logprobs: list[TokenLogProbs] = field(default_factory=list)
    """Log-probabilities of each token, if requested."""
    prompt: PromptReport | None = None
    """The prompt's text and log-probabilities, if requested (``echo``, ``prompt_logprobs``)."""
    resumes: int = 0
    """Number of times that the request was interrupted and resumed, at the same or another verifier."""
    restarts: int = 0
    """Number of times that it was interrupted and started over; see ``RetryPolicy.on_other_numerics``."""
    further: list[Generation] = field(default_factory=list)
    """The other results of a call with ``n`` above 1."""
    left_out: list[str] = field(default_factory=list)
    """Places of parts of an output format that were not enforced, since no grammar can and the form leaves them to
    the reader of the output, as ``forecast(properties.city.pattern)``."""

    @property
    def choices(self) -> list[Generation]:
        """All results of the call, this one first."""
        return [self, *self.further]

    def __str__(self) -> str:
        """Returns the generated text."""
        return self.text
