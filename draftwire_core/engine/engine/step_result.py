"""The result of one step of the verification engine."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

import torch

from draftwire_core.engine.engine.scoring import Score
from draftwire_core.engine.sampling.log_probs import Likeliest, LogProbs


class Finish(enum.Enum):
    """The reason why a sequence ended."""

    EOS = "eos"
    FORM = "form"
    """The output's form is complete and permits no further token."""
    LENGTH = "length"
    FAULT = "fault"
    """The sequence's logits were not finite numbers; no other sequence is affected."""
    NOTHING_ALLOWED = "nothing_allowed"
    """The sequence's own logit edits left no token."""


@dataclass(frozen=True, slots=True)
class RejectedDraft:
    """A draft token that was verified and rejected."""

    token: int
    source: str
    """The drafter that drafted it."""
    position: int
    """Position in prompt + output."""
    depth: int
    """Depth in the token tree; children of the root have 1."""


@dataclass(slots=True)
class SequenceOutcome:
    """A step's result for one sequence."""

    sequence_id: int
    tokens: list[int]
    """Committed tokens; empty only with Finish.FAULT and NOTHING_ALLOWED."""
    sources: list[str | None]
    """The drafter of each token, None for the target's own."""
    committed_length: int
    """Number of prompt and output tokens after the step."""
    drafted: dict[str, int] = field(default_factory=dict)
    """Number of draft tokens verified, by drafter."""
    finish: Finish | None = None
    hit: bool = False
    """Whether the token before these was drafted before its drafter knew it, so that drafts below it were useful
    here."""
    hidden_state: torch.Tensor | None = None
    """The target's last hidden state [hidden] after the last token, on the host, if a drafter outside the engine's
    thread uses it."""
    log_probs: LogProbs | None = None
    """Log-probabilities of the tokens, if the sequence asks for them."""
    cached_tokens: int = 0
    """Number of leading tokens that came from the prefix cache when the sequence began."""
    began: float = 0.0
    """Start of the first step that computed a part of the sequence, by time.perf_counter."""
    rejected: list[RejectedDraft] = field(default_factory=list)
    """The verified nodes that were rejected, parents before children, if the sequence asks for them."""
    likeliest: Likeliest | None = None
    """The likeliest tokens at the positions of the tokens, if the sequence asks for them."""

    @property
    def accepted(self) -> int:
        """Number of accepted draft tokens."""
        return len(self.sources) - self.sources.count(None)


@dataclass(slots=True)
class MergedProposals:
    """The cost of merging one drafter's proposals into trees."""

    seconds: float = 0.0
    """Processor time in seconds."""
    nodes: int = 0
    """Number of nodes in the proposals, including stale ones."""


@dataclass(frozen=True, slots=True)
class SequenceFeatures:
    """Features of consecutive committed tokens of a sequence, for one drafter."""

    sequence_id: int
    source: str
    """The drafter."""
    first_position: int
    values: bytes
    """The features, encoded as the drafter reads them (`model.feature_codec`)."""


@dataclass(slots=True)
class StepResult:
    """The result of one forward pass."""

    outcomes: list[SequenceOutcome]
    rows: int
    seconds: float = 0.0
    plain_seconds: float = 0.0
    """Time of a step for the same sequences without speculation, by the cost model; for one sequence if the step only
    read prompts."""
    node_tokens: float = 0.0
    """Price of one verified draft token, by the cost model, in tokens: the number that plain decoding generates in the
    time the draft token takes."""
    drafting: dict[str, float] = field(default_factory=dict)
    """Seconds that drafters in the engine's own thread took since the last step, by source."""
    merged: dict[str, MergedProposals] = field(default_factory=dict)
    """Proposals merged since the last step, by source; only those of drafters outside the engine's thread."""
    scores: list[Score] = field(default_factory=list)
    """Scores of given texts."""
    prompts: dict[int, LogProbs] = field(default_factory=dict)
    """Log-probabilities of the prompts' next tokens, by id of the sequences that ask for them."""
    features: list[SequenceFeatures] = field(default_factory=list)
    """Features for drafters outside the engine's thread."""
    feature_seconds: dict[str, float] = field(default_factory=dict)
    """Seconds that features took since the last step, by the drafter they are for."""
    slowness: float = 0.0
    """Seconds of a plain step, without those of features, over those that the cost model, measured at load, gives it;
    0 for other steps."""
