"""The findings of a check so far: one finding per rule."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from draftwire_tools.check_drafter.rule import RULES


class Outcome(StrEnum):
    """The outcome of a rule."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"


class Breach(Exception):
    """Ends a trial: the drafter broke its rule, as the message says."""


class Skip(Exception):
    """Ends a trial: its rule cannot be tried with this drafter, as the message says."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The outcome of one rule."""

    rule: str
    """Name of the rule."""
    outcome: Outcome
    """The rule's outcome."""
    why: str
    """The cause of a failure or of a skipped rule; a remark about one that passed, often empty."""


class Findings:
    """The findings by rule. A failure stays: what the drafter did right elsewhere does not mend it."""

    def __init__(self) -> None:
        """Starts with no rule tried."""
        self._found: dict[str, Finding] = {}

    def passed(self, rule: str, note: str = "") -> None:
        """Records that the drafter kept a rule."""
        known = self._found.get(rule)
        if known is None or known.outcome is Outcome.SKIPPED or (known.outcome is Outcome.PASSED and not known.why):
            self._record(rule, Outcome.PASSED, note)

    def failed(self, rule: str, why: str) -> None:
        """Records that the drafter broke a rule; the first cause is kept."""
        known = self._found.get(rule)
        if known is None or known.outcome is not Outcome.FAILED:
            self._record(rule, Outcome.FAILED, why)

    def skipped(self, rule: str, why: str) -> None:
        """Records why a rule could not be tried, unless it was."""
        if rule not in self._found:
            self._record(rule, Outcome.SKIPPED, why)

    def _record(self, rule: str, outcome: Outcome, why: str) -> None:
        if rule not in RULES:
            raise KeyError(rule)
        self._found[rule] = Finding(rule, outcome, why)

    def all(self) -> list[Finding]:
        """Returns one finding per rule, in the rules' order."""
        untried = "nothing that the drafter sent shows it"
        return [self._found.get(rule) or Finding(rule, Outcome.SKIPPED, untried) for rule in RULES]
