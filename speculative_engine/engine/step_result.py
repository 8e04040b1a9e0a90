"""What one step of the verifying engine did."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

import torch

from speculative_engine.engine.scoring import Score
from speculative_engine.sampling.log_probs import LogProbs


class Finish(enum.Enum):
    """Why a sequence ended."""

    EOS = "eos"
    FORM = "form"
    """Its form is complete, and nothing may follow."""
    LENGTH = "length"
    FAULT = "fault"
    """Its logits were no numbers; no other sequence is affected."""
    NOTHING_ALLOWED = "nothing_allowed"
    """Its own changes to the logits left no token."""


@dataclass(frozen=True, slots=True)
class RejectedDraft:
    """A draft token that was verified and rejected."""

    token: int
    source: str
    """The drafter that drafted it."""
    position: int
    """In prompt and output."""
    depth: int
    """In the token tree, 1 below the root."""


@dataclass(slots=True)
class SequenceOutcome:
    """What a step did for one sequence."""

    sequence_id: int
    tokens: list[int]
    """Tokens committed; empty only with Finish.FAULT and NOTHING_ALLOWED."""
    sources: list[str | None]
    """For each token the drafter that drafted it, None for the target's own."""
    committed_length: int
    """Prompt and output tokens after the step."""
    drafted: dict[str, int] = field(default_factory=dict)
    """Draft tokens verified, by drafter."""
    finish: Finish | None = None
    hit: bool = False
    """The token before these had been drafted before its drafter knew it: what was drafted below it was of use here."""
    hidden_state: torch.Tensor | None = None
    """The target's last hidden state [hidden] behind the last token, where a drafter outside of the engine's thread
    drafts from it."""
    log_probs: LogProbs | None = None
    """Of the tokens, where the sequence asks for them."""
    cached_tokens: int = 0
    """Leading tokens that came from the prefix cache when the sequence began."""
    began: float = 0.0
    """When the first step that computed something of the sequence began, by time.perf_counter."""
    rejected: list[RejectedDraft] = field(default_factory=list)
    """What was verified and rejected, parents before children, where the sequence asks for it."""

    @property
    def accepted(self) -> int:
        """Accepted draft tokens."""
        return sum(source is not None for source in self.sources)


@dataclass(slots=True)
class StepResult:
    """One forward pass and what followed from it."""

    outcomes: list[SequenceOutcome]
    rows: int
    seconds: float = 0.0
    plain_seconds: float = 0.0
    """What a step that had verified nothing would take for the same sequences, by the cost model."""
    node_tokens: float = 0.0
    """What each verified draft token took, by the cost model, in tokens: so many are generated in that time without."""
    drafting: dict[str, float] = field(default_factory=dict)
    """Seconds that drafters of the engine's own thread took since the last step, by source."""
    reading: dict[str, float] = field(default_factory=dict)
    """Processor time in seconds that reading proposals of drafters outside of the engine's thread took since the last
    step, by source."""
    scores: list[Score] = field(default_factory=list)
    """What was scored of given texts."""
    prompts: dict[int, LogProbs] = field(default_factory=dict)
    """Log-probabilities of prompts' next tokens, by sequence, where it asks for them."""
