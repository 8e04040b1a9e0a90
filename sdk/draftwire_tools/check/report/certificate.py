"""The certificate: the verdict, and all that it rests on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from draftwire_tools.check.case import Case
from draftwire_tools.check.distribution import FALSE_ALARM, DistributionTest
from draftwire_tools.check.output import Difference
from draftwire_tools.check.speed import Speed


@dataclass(frozen=True, slots=True)
class Certificate:
    """The result of a check."""

    subject: str
    """The subject of the check: the target, or the address."""
    about: Mapping[str, str]
    """Machine, versions, models and settings."""
    cases: Sequence[Case]
    """The cases, in the order in which they ran."""
    distributions: Sequence[DistributionTest] = ()
    """The tests of distributions."""
    speed: Speed | None = None
    """The speed, if it was measured."""
    notes: Sequence[str] = ()
    """The facts that a reader must know to judge the verdict."""
    commands: Sequence[str] = field(default_factory=tuple)
    """Commands that repeat the check."""

    @property
    def compared(self) -> int:
        """Outputs compared."""
        return sum(case.compared for case in self.cases)

    @property
    def differences(self) -> list[Difference]:
        """All differences, in order of the cases."""
        return [difference for case in self.cases for difference in case.differences]

    @property
    def failed_tests(self) -> list[DistributionTest]:
        """The tests of distributions that failed."""
        return [test for test in self.distributions if not test.passed]

    @property
    def passed(self) -> bool:
        """Whether something was compared, and nothing differs."""
        tried = self.compared or self.distributions
        return bool(tried) and not self.differences and not self.failed_tests

    @property
    def word(self) -> str:
        """The verdict in a word."""
        if self.passed:
            return "equal"
        return "different" if self.differences or self.failed_tests else "not checked"

    @property
    def verdict(self) -> str:
        """The verdict in a sentence."""
        drafted = sum(case.draft_tokens for case in self.cases)
        if not (self.compared or self.failed_tests):
            return "nothing was compared"
        if self.passed:
            told = f", with {drafted} draft tokens verified" if drafted else ""
            return f"all {self.compared} outputs are equal to the plain ones{told}"
        parts = []
        if self.differences:
            parts.append(f"{len(self.differences)} of {self.compared} outputs differ")
        if self.failed_tests:
            parts.append(f"{len(self.failed_tests)} of {len(self.distributions)} tests of distributions failed")
        return "; ".join(parts)

    def to_json(self) -> dict[str, Any]:
        """Returns the certificate as a JSON value."""
        return {
            "check": "draftwire check",
            "passed": self.passed,
            "verdict": self.verdict,
            "subject": self.subject,
            "about": dict(self.about),
            "cases": [case.to_json() for case in self.cases],
            "differences": [difference.to_json() for difference in self.differences],
            "distributions": [test.to_json() for test in self.distributions],
            "false_alarm_probability": FALSE_ALARM if self.distributions else None,
            "speed": self.speed.to_json() if self.speed else None,
            "notes": list(self.notes),
            "commands": list(self.commands),
        }
