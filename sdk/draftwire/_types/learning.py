"""The state of a learner, which trains the draft model of a drafter while it drafts."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

LearnerActivity = Literal["collecting", "training", "trying", "unknown"]
"""Activity of a learner: it collects texts of the target, trains, or tries a new version in a rollout."""


@dataclass(frozen=True, slots=True)
class LearningRound:
    """The result of a round of training."""

    version: int
    """Number of the version that was trained."""
    promoted: bool
    """Whether the version took over."""
    reason: str
    """Why it did, or did not."""
    agreement_before: float
    """Share of held-out tokens, in [0, 1], that the version before found likeliest."""
    agreement_after: float
    """Share of the same tokens, in [0, 1], that the version found likeliest."""
    held_out_tokens: int
    """Number of the held-out tokens."""
    accepted_per_step_before: float | None = None
    """Accepted draft tokens per step of the version before, in a trial; None if no trial was decided."""
    accepted_per_step_after: float | None = None
    """Accepted draft tokens per step of the version, in the same trial."""
    ended_at: datetime | None = None
    """Time at which it was decided (UTC)."""
    speed_ratio: float | None = None
    """Estimated speed with the version over that with the version before, in the same trial: tokens for the time of
    drafting and verifying. None if no trial was decided."""


@dataclass(frozen=True, slots=True)
class Learning:
    """The state of a learner, as it reported it last."""

    activity: LearnerActivity
    """The learner's activity."""
    version: int
    """Number of the learned version that drafts; 0 for the draft model as it was at first."""
    collected_tokens: int
    """Output tokens collected since learning began."""
    rounds: int
    """Rounds of training that have ended."""
    first_agreement: float | None = None
    """Share of held-out tokens, in [0, 1], that the draft model found likeliest before it learned; None until it is
    measured."""
    agreement: float | None = None
    """Share of held-out tokens, in [0, 1], that the version that drafts found likeliest when it was measured last; None
    until it is measured."""
    last_round: LearningRound | None = None
    """The last round that was decided; None before."""
    reported_at: datetime | None = None
    """Time at which the verifier received it (UTC)."""
