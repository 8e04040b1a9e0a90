"""The results of a case: how many outputs were equal to the plain ones."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from draftwire._types.speculation import SpeculationStats
from draftwire_tools.check.output import Difference


@dataclass(slots=True)
class CaseResult:
    """One case under one sampling."""

    case: str
    """The case."""
    sampling: str
    """The sampling."""
    compared: int = 0
    """Outputs compared."""
    equal: int = 0
    """Of these, the outputs equal to the plain ones."""
    draft_tokens: int = 0
    """Draft tokens that were verified."""
    accepted_tokens: int = 0
    """Draft tokens that were accepted."""
    differences: list[Difference] = field(default_factory=list)
    """The first difference of each output that differs."""

    def add(self, difference: Difference | None, stats: SpeculationStats | None = None) -> None:
        """Counts an output and its speculation."""
        self.compared += 1
        if difference is None:
            self.equal += 1
        else:
            self.differences.append(difference)
        if stats is not None:
            self.draft_tokens += stats.draft_tokens
            self.accepted_tokens += stats.accepted_tokens

    def to_json(self) -> dict[str, Any]:
        """Returns the result as a JSON value, without the differences themselves."""
        return {
            "sampling": self.sampling,
            "compared": self.compared,
            "equal": self.equal,
            "draft_tokens": self.draft_tokens,
            "accepted_tokens": self.accepted_tokens,
        }


@dataclass(slots=True)
class Case:
    """One case under all samplings."""

    name: str
    """Its name."""
    results: dict[str, CaseResult] = field(default_factory=dict)
    """Its results by sampling."""
    events: str = ""
    """What happened meanwhile, such as a number of swaps."""
    not_run: str = ""
    """Why it was not run, or not completely; empty if it was."""

    def of(self, sampling: str) -> CaseResult:
        """Returns the result under a sampling, a new one at first."""
        return self.results.setdefault(sampling, CaseResult(self.name, sampling))

    @property
    def compared(self) -> int:
        """Outputs compared."""
        return sum(each.compared for each in self.results.values())

    @property
    def equal(self) -> int:
        """Outputs equal to the plain ones."""
        return sum(each.equal for each in self.results.values())

    @property
    def draft_tokens(self) -> int:
        """Draft tokens verified."""
        return sum(each.draft_tokens for each in self.results.values())

    @property
    def accepted_tokens(self) -> int:
        """Draft tokens accepted."""
        return sum(each.accepted_tokens for each in self.results.values())

    @property
    def differences(self) -> list[Difference]:
        """All differences."""
        return [difference for each in self.results.values() for difference in each.differences]

    def to_json(self) -> dict[str, Any]:
        """Returns the case as a JSON value."""
        return {
            "case": self.name,
            "compared": self.compared,
            "equal": self.equal,
            "draft_tokens": self.draft_tokens,
            "accepted_tokens": self.accepted_tokens,
            "events": self.events,
            "not_run": self.not_run,
            "samplings": [each.to_json() for each in self.results.values()],
        }
