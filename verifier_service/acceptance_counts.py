"""What came of each rule of acceptance, counted apart."""

from __future__ import annotations

from draftwire.v1.speculation_pb2 import AcceptanceRule
from draftwire.v1.verifier_service_pb2 import AcceptanceCount
from speculative_engine.acceptance_rules.acceptance import Acceptance
from speculative_engine.step_result import SequenceOutcome
from verifier_service.acceptance_reader import rule_number


class AcceptanceCounts:
    """Counts by rule, of those that were in effect for a request."""

    def __init__(self) -> None:
        self._counts: dict[AcceptanceRule, AcceptanceCount] = {}

    def begin(self, acceptance: Acceptance) -> None:
        """A request begins."""
        self._of(acceptance).requests += 1

    def count(self, acceptance: Acceptance, outcome: SequenceOutcome) -> None:
        """A step of a request that has begun."""
        count = self._of(acceptance)
        count.tokens += len(outcome.tokens)
        count.draft_tokens += sum(outcome.drafted.values())
        count.accepted_tokens += outcome.accepted

    def messages(self) -> list[AcceptanceCount]:
        """As GetModelInfo tells them, by rule."""
        return [self._counts[rule] for rule in sorted(self._counts)]

    def _of(self, acceptance: Acceptance) -> AcceptanceCount:
        rule = rule_number(acceptance)
        return self._counts.setdefault(rule, AcceptanceCount(rule=rule))
