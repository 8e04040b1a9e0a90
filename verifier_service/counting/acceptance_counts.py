"""What came of each rule of acceptance, counted apart."""

from __future__ import annotations

from dataclasses import dataclass, field

from draftwire.v1.speculation_pb2 import AcceptanceRule
from draftwire.v1.verifier_service_pb2 import AcceptanceCount
from speculative_engine.acceptance.acceptance import Acceptance
from speculative_engine.engine.step_result import SequenceOutcome
from verifier_service.reading.acceptance import rule_number


@dataclass(slots=True)
class RuleCount:
    """What came of one rule."""

    requests: int = 0
    """Requests with it that have begun."""
    tokens: int = 0
    """Tokens they committed."""
    drafts: int = 0
    """Their steps that verified at least one draft token."""
    draft_tokens: int = 0
    """Draft tokens verified for them."""
    accepted_tokens: int = 0
    """Draft tokens accepted."""
    _lengths: list[int] = field(default_factory=list)
    """Steps by how many draft tokens they accepted, from one on."""

    def count(self, outcome: SequenceOutcome, kept: int) -> None:
        """Take in a step of a request that kept so many of its tokens; it leaves those behind a stop string."""
        self.tokens += kept
        if not outcome.drafted:
            return
        self.drafts += 1
        self.draft_tokens += sum(outcome.drafted.values())
        accepted = min(outcome.accepted, kept)  # accepted tokens come before the target's own
        if accepted:
            self.accepted_tokens += accepted
            self._lengths.extend([0] * (accepted - len(self._lengths)))
            self._lengths[accepted - 1] += 1

    def accepted_per_position(self) -> list[int]:
        """How many accepted draft tokens were the first of their step, the second, and so on."""
        return [sum(self._lengths[position:]) for position in range(len(self._lengths))]


class AcceptanceCounts:
    """Counts by rule, of those that were in effect for a request."""

    def __init__(self) -> None:
        self._counts: dict[AcceptanceRule, RuleCount] = {}

    def begin(self, acceptance: Acceptance) -> None:
        """A request begins."""
        self._of(acceptance).requests += 1

    def count(self, acceptance: Acceptance, outcome: SequenceOutcome, kept: int) -> None:
        """A step of a request that has begun; kept: how many of the step's tokens are the request's."""
        self._of(acceptance).count(outcome, kept)

    def by_rule(self) -> dict[AcceptanceRule, RuleCount]:
        """The counts, in the rules' order."""
        return {rule: self._counts[rule] for rule in sorted(self._counts)}

    def messages(self) -> list[AcceptanceCount]:
        """As GetModelInfo tells them, by rule."""
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

    def _of(self, acceptance: Acceptance) -> RuleCount:
        rule = rule_number(acceptance)
        count = self._counts.get(rule)
        if count is None:
            count = self._counts[rule] = RuleCount()
        return count
