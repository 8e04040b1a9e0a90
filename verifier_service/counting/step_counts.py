"""How steps of the target went: their times and sizes, and what plain decoding would have taken."""

from __future__ import annotations

from service_runtime.observability.histogram import Histogram
from service_runtime.observability.metric_families import SIZES, STEP_SECONDS
from speculative_engine.engine.step_result import StepResult
from speculative_engine.planning.step_cost import StepCost


class StepCounts:
    """Sums over steps since the start. Used in the event loop only."""

    def __init__(self) -> None:
        self.seconds = Histogram(STEP_SECONDS)
        """Of each step, from its plan on."""
        self.rows = Histogram(SIZES)
        """Tokens that each step computed, of prompts, last tokens and nodes."""
        self.sequences = Histogram(SIZES)
        """Sequences that each step brought tokens."""
        self.draft_tokens = Histogram(SIZES)
        """Draft tokens that each step verified, all sequences together, of steps that brought tokens."""
        self.plain_seconds = 0.0
        """What all steps' tokens would have taken without drafts, by estimate."""

    def count(self, result: StepResult, cost: StepCost) -> None:
        """Take in a step. cost: the target's c(n)."""
        self.seconds.observe(result.seconds)
        self.rows.observe(result.rows)
        drafted = tokens = sequences = 0
        for outcome in result.outcomes:
            tokens += len(outcome.tokens)
            sequences += bool(outcome.tokens)
            if outcome.drafted:
                drafted += sum(outcome.drafted.values())
        # The same step without the nodes, and as many steps more as its further tokens take: one a sequence each.
        plain = result.seconds - cost.added(result.rows, drafted)
        if sequences:
            self.sequences.observe(sequences)
            self.draft_tokens.observe(drafted)
            if tokens > sequences:
                plain += (tokens / sequences - 1) * cost.seconds(sequences, sequences)
        self.plain_seconds += max(0.0, plain)
