"""What one forward pass of the target came to."""

from __future__ import annotations

from typing import NamedTuple

from speculative_engine.engine.scoring import Score
from speculative_engine.engine.verification_job import AskedRows
from speculative_engine.sampling.log_probs import LogProbs


class ComputedStep(NamedTuple):
    """A forward pass of the target."""

    asked: AskedRows
    """The rows of all jobs, one job after the other."""
    scores: list[Score]
    prompts: dict[int, LogProbs]
    """Log-probabilities of prompts' next tokens, by sequence."""
    rows: int
    seen: int
    """Positions that the rows have seen, all together."""
