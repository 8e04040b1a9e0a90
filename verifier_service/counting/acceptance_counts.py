"""Acceptance counts, separate for each acceptance rule."""

from __future__ import annotations

from dataclasses import dataclass, field

from draftwire.v1.speculation_pb2 import AcceptanceRule
from draftwire.v1.verifier_service_pb2 import AcceptanceCount
from draftwire_core.engine.acceptance.acceptance import Acceptance
from draftwire_core.engine.engine.step_result import SequenceOutcome
from verifier_service.reading.acceptance import rule_number


@dataclass(slots=True)
class RuleCount:
    """The counts of one acceptance rule."""

    requests: int = 0
    """Requests under the rule that have begun."""
    tokens: int = 0
    """Tokens committed under the rule."""
    drafts: int = 0
    """Verifications under the rule of at least one draft token of a request."""
    draft_tokens: int = 0
    """Draft tokens verified under the rule."""
    accepted_tokens: int = 0
    """Draft tokens accepted under the rule."""
    _lengths: list[int] = field(default_factory=list)
    """Number of verifications by accepted draft tokens, from one on."""

    def count(self, outcome: SequenceOutcome, kept: int) -> None:
        """Counts a step of a request that kept `kept` of its tokens; tokens behind a stop string are dropped."""
        self.tokens += kept
        if not outcome.drafted:
            return
        self.drafts += 1
        self.draft_tokens += sum(outcome.drafted.values())
        accepted = min(outcome.accepted, kept)  # accepted tokens precede the target's own
        if accepted:
            self.accepted_tokens += accepted
            self._lengths.extend([0] * (accepted - len(self._lengths)))
            self._lengths[accepted - 1] += 1

    def accepted_per_position(self) -> list[int]:
        """Returns how many accepted draft tokens were the first of their verification, the second, and so on."""
        return [sum(self._lengths[position:]) for position in range(len(self._lengths))]


class AcceptanceCounts:
    """Counts by the rule in effect for each request."""

    def __init__(self) -> None:
        self._counts: dict[AcceptanceRule, RuleCount] = {}

    def begin(self, acceptance: Acceptance) -> RuleCount:
        """Counts a request that begins, and returns the counts for its steps."""
        rule = rule_number(acceptance)
        count = self._counts.get(rule)
        if count is None:
            count = self._counts[rule] = RuleCount()
        count.requests += 1
        return count

    def by_rule(self) -> dict[AcceptanceRule, RuleCount]:
        """Returns the counts in the order of the rules."""
        return {rule: self._counts[rule] for rule in sorted(self._counts)}

    def messages(self) -> list[AcceptanceCount]:
        """Returns the counts by rule, as GetModelInfo reports them."""
        return [
            AcceptanceCount(
                rule=rule,
                requests=count.requests,
                tokens=count.tokens,
                draft_tokens=count.draft_tokens,
                accepted_tokens=count.accepted_tokens,
            )
            for rule, count in self.by_rule().items()
        ]
