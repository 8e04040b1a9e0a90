"""Counts of the target's steps: their times and sizes, and the estimated time of plain decoding."""

from __future__ import annotations

from dataclasses import dataclass

from draftwire_core.engine.engine.step_result import StepResult
from draftwire_core.engine.planning.step_cost import StepCost
from draftwire_core.runtime.observability.histogram import Histogram
from draftwire_core.runtime.observability.metric_families import SIZES, STEP_SECONDS


@dataclass(slots=True)
class GainCounts:
    """Totals of the steps that decoded a request whose drafting the planner decides, since the start. A learner's own
    requests, which are decoded plainly or draft in any case, say nothing about what drafting gains."""

    tokens: int = 0
    """Tokens that these steps committed."""
    sequences: int = 0
    """Sequences decoded in these steps, counted again in each step."""
    seconds: float = 0.0
    """Time of these steps, with drafting in the engine's thread and waiting for proposals."""
    plain_seconds: float = 0.0
    """Estimated time of plain decoding of the same tokens."""

    @property
    def speed_up(self) -> float:
        """Estimated speed over plain decoding; 1 before the first step."""
        return self.plain_seconds / self.seconds if self.seconds > 0 else 1.0


class StepCounts:
    """Totals of all steps since the start. Used in the event loop only."""

    def __init__(self) -> None:
        self.seconds = Histogram(STEP_SECONDS)
        """Seconds of each step, without planning and waiting."""
        self.rows = Histogram(SIZES)
        """Tokens computed by each step: of prompts, last tokens and nodes."""
        self.sequences = Histogram(SIZES)
        """Sequences that got tokens in each step."""
        self.draft_tokens = Histogram(SIZES)
        """Draft tokens verified by each step that committed tokens, all sequences together."""
        self.plain_seconds = 0.0
        """Estimated seconds that the same tokens would have taken without drafts."""
        self.gain = GainCounts()

    def count(self, result: StepResult, cost: StepCost, *, planned: bool, waited: float) -> None:
        """Counts a step.

        cost: the target's c(n). planned: whether the planner decides about the drafting of one of the requests. waited:
        seconds by which waiting for proposals delayed the step.
        """
        self.seconds.observe(result.seconds)
        self.rows.observe(result.rows)
        drafted = tokens = sequences = 0
        for outcome in result.outcomes:
            tokens += len(outcome.tokens)
            sequences += bool(outcome.tokens)
            if outcome.drafted:
                drafted += sum(outcome.drafted.values())
        # The same step without the nodes, and then one step for every further token per sequence.
        plain = result.seconds - cost.added(result.rows, drafted, max(1, sequences))
        if sequences:
            self.sequences.observe(sequences)
            self.draft_tokens.observe(drafted)
            if tokens > sequences:
                plain += (tokens / sequences - 1) * cost.seconds(sequences, sequences)
        self.plain_seconds += max(0.0, plain)
        if planned:
            self.gain.tokens += tokens
            self.gain.sequences += sequences
            self.gain.seconds += result.seconds + sum(result.drafting.values()) + waited
            self.gain.plain_seconds += max(0.0, plain)
