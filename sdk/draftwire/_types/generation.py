"""What a request gives: chunks while it runs and a result at its end."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from draftwire._types.logprobs import PromptReport, TokenLogProbs
from draftwire._types.speculation import SpeculationStats

FinishReason = Literal["stop", "length", "deadline", "error"]
"""Why a request ended: ``"stop"`` (end of sequence, a stop string or stop token, or the end of the output's form),
``"length"`` (max_tokens, or the context) or ``"deadline"`` (max_time). ``"error"`` is in ``DraftwireError.partial``
alone, of a request that failed."""


@dataclass(frozen=True, slots=True)
class Usage:
    """A request's tokens and times."""

    prompt_tokens: int
    """Tokens of the prompt."""
    completion_tokens: int
    """Tokens generated."""
    first_token_seconds: float
    """Seconds from admission to the first token, by the verifier's clock; by the client's, from the call on, when the
    request was resumed."""
    total_seconds: float
    """Seconds from admission to the end, by the same clock as first_token_seconds."""
    cached_tokens: int = 0
    """Tokens of the prompt, or of the output when it was resumed, that came from the verifier's prefix cache."""

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
    """Its text on its own, for display."""
    drafter: str
    """Name of the drafter that guessed it."""
    position: int
    """The position it was guessed for, in prompt and output."""
    depth: int
    """Its depth in the token tree: 1 right after the token that was committed last before the step."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """The tokens of one verification step."""

    text: str
    """Text that became final: whole characters, and nothing that may still belong to a stop string. It may lag behind
    token_ids; the last chunk may carry text alone."""
    token_ids: list[int] = field(default_factory=list)
    """The tokens, in order."""
    sources: list[str | None] = field(default_factory=list)
    """For each token the name of the drafter that guessed it, or None when it is the target's own."""
    token_texts: list[str] = field(default_factory=list)
    """Text of each token on its own, for display; a character split over tokens shows as U+FFFD."""
    text_offsets: list[int] = field(default_factory=list)
    """Where in the output's text, in characters, each token's begins."""
    logprobs: list[TokenLogProbs] = field(default_factory=list)
    """Of each token, where the request asked for it."""
    rejected: list[RejectedDraft] = field(default_factory=list)
    """Draft tokens that were verified and rejected, where the request asked for them: at most 256."""


@dataclass(frozen=True, slots=True)
class Generation:
    """The result of a request."""

    text: str
    """The generated text, without the prompt."""
    token_ids: list[int]
    """The generated tokens."""
    finish_reason: FinishReason
    """Why the request ended."""
    usage: Usage
    """Its tokens and times."""
    speculation: SpeculationStats
    """What speculation did for it."""
    seed: int
    """The seed in use: the same prompt, parameters and seed give the same tokens again."""
    request_id: str
    """The request's name in the verifier's logs."""
    prompt_token_ids: list[int]
    """The prompt's tokens."""
    stop: str | None = None
    """The stop string that ended the request, when one did."""
    stop_token_id: int | None = None
    """The token that ended the request, when one did: of stop_token_ids, or an end-of-sequence token."""
    token_texts: list[str] = field(default_factory=list)
    """Text of each token on its own, for display; a character split over tokens shows as U+FFFD."""
    text_offsets: list[int] = field(default_factory=list)
    """Where in the text, in characters, each token's begins."""
    logprobs: list[TokenLogProbs] = field(default_factory=list)
    """Of each token, where the request asked for it."""
    prompt: PromptReport | None = None
    """The prompt's text and log-probabilities, where the request asked for them (``echo``, ``prompt_logprobs``)."""
    resumes: int = 0
    """How often the request broke off and was resumed, here or at another verifier."""
    restarts: int = 0
    """How often it broke off and was begun anew: see ``RetryPolicy.on_other_numerics``."""
    further: list[Generation] = field(default_factory=list)
    """The other results, where ``n`` asked for several."""

    @property
    def choices(self) -> list[Generation]:
        """All results of the call: this one, then the further ones."""
        return [self, *self.further]

    def __str__(self) -> str:
        """Return the generated text."""
        return self.text
