"""The results of a case, how many outputs were equal to the plain ones, and the time that each part of a check has."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from draftwire._types.speculation import SpeculationStats
from draftwire_tools.check.output import Difference, Output


@dataclass(frozen=True, slots=True)
class Ran:
    """One request that was run."""

    output: Output | None
    """The case's output; None if it failed."""
    stats: SpeculationStats
    """The case's speculation."""
    seconds: float
    """The case's time at the caller."""


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
    tokens: int = 0
    """Tokens of the outputs."""
    steps: int = 0
    """Steps of the target that committed them."""
    cached: int = 0
    """Outputs that began from the prefix cache."""
    resumes: int = 0
    """Times that a request was interrupted and resumed."""
    seconds: float = 0.0
    """Sum of the requests' times."""
    differences: list[Difference] = field(default_factory=list)
    """The first difference of each output that differs."""

    def add(self, ran: Ran, difference: Difference | None) -> None:
        """Counts an output that was compared."""
        self.count(ran)
        self.compared += 1
        if difference is None:
            self.equal += 1
        else:
            self.differences.append(difference)

    def count(self, ran: Ran) -> None:
        """Counts what a request took, without comparing its output."""
        self.draft_tokens += ran.stats.draft_tokens
        self.accepted_tokens += ran.stats.accepted_tokens
        self.tokens += ran.stats.tokens
        self.steps += ran.stats.steps
        self.seconds += ran.seconds
        if ran.output is not None:
            self.cached += ran.output.cached
            self.resumes += ran.output.resumes

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
    """The case's name."""
    results: dict[str, CaseResult] = field(default_factory=dict)
    """The case's results by sampling."""
    batch: int = 1
    """Requests at once."""
    events: str = ""
    """The happenings meanwhile, such as a number of swaps."""
    not_run: str = ""
    """Why it was not run, or not completely; empty if it was."""

    def of(self, sampling: str) -> CaseResult:
        """Returns the result under a sampling, a new one at first."""
        return self.results.setdefault(sampling, CaseResult(self.name, sampling))

    @property
    def compared(self) -> int:
        """Outputs compared."""
        return self.sum("compared")

    @property
    def equal(self) -> int:
        """Outputs equal to the plain ones."""
        return self.sum("equal")

    @property
    def draft_tokens(self) -> int:
        """Draft tokens verified."""
        return self.sum("draft_tokens")

    @property
    def accepted_tokens(self) -> int:
        """Draft tokens accepted."""
        return self.sum("accepted_tokens")

    def sum(self, name: str) -> int:
        """Returns the sum of a number of the results."""
        return sum(getattr(each, name) for each in self.results.values())

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


class Budget:
    """Divides the remaining time equally among the parts that are still to come."""

    def __init__(self, seconds: float, parts: int, clock: Callable[[], float] = time.monotonic) -> None:
        """seconds: of all parts together. parts: their number."""
        self._clock = clock
        self._end = clock() + seconds
        self._all = parts
        self._parts = parts

    @property
    def remaining(self) -> float:
        """Remaining seconds; 0 when the time is over."""
        return max(0.0, self._end - self._clock())

    @property
    def done(self) -> float:
        """Share of the parts before the one that begins next, 0 to 1."""
        return min(1.0, 1 - self._parts / self._all)

    def begin(self, parts: int = 1) -> Callable[[], bool]:
        """Begins the next part, or several parts as one. Returns a function that says whether its time is over."""
        end = self._clock() + self.take(parts)
        return lambda: self._clock() >= end

    def take(self, parts: int = 1) -> float:
        """Begins the next part, or several parts as one. Returns its seconds."""
        share = self.remaining * parts / max(parts, self._parts)
        self._parts -= parts
        return share
