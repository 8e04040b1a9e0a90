"""The highest load of a fleet at which requests still meet an objective."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.simulation.fleet.outcome import Outcome
from benchmarks.simulation.fleet.request import arrivals
from benchmarks.simulation.fleet.simulation import Fleet, Simulation

_CLOSE = 1.04
"""Ratio below which two rates are not distinguished."""


@dataclass(frozen=True)
class Workload:
    """Requests that arrive at random."""

    prompt: int = 512
    """Prompt tokens, on average."""
    output: int = 256
    """Output tokens, on average."""
    lead: float = 15.0
    """Seconds at the start that do not count."""
    seconds: float = 30.0
    """Seconds that count."""
    seed: int = 1

    def __post_init__(self) -> None:
        for name, least in (("prompt", 1), ("output", 1), ("lead", 0), ("seconds", 1e-9)):
            if getattr(self, name) < least:
                raise ValueError(f"{name}: {getattr(self, name)} is below {least:g}")

    def run(self, fleet: Fleet, rate: float) -> Outcome:
        """Returns the outcome of `rate` requests per second."""
        end = self.lead + self.seconds
        requests = arrivals(rate, end, self.prompt, self.output, f"{self.seed}")
        return Simulation(fleet, Outcome(self.lead, end)).run(requests)


@dataclass(frozen=True)
class Objective:
    """Limits that 99 % of the times to the first token, and 99 % of the times between tokens, must keep."""

    first_token: float = 1.0
    """Seconds to the first token."""
    gap: float = 0.1
    """Seconds between tokens."""

    def met_by(self, outcome: Outcome) -> bool:
        """Whether an outcome kept the limits; one with a refusal did not."""
        return (
            not outcome.refused
            and outcome.first_tokens.count > 0
            and outcome.first_tokens.quantile(0.99) <= self.first_token
            and outcome.gaps.quantile(0.99) <= self.gap
        )


@dataclass(frozen=True)
class Capacity:
    """The highest load that keeps an objective."""

    rate: float
    """Requests per second; 0 if even a low rate does not keep the objective."""
    tokens_per_second: float
    outcome: Outcome | None
    """Outcome at that rate."""


def capacity(fleet: Fleet, workload: Workload, objective: Objective) -> Capacity:
    """Searches for the highest rate at which the objective is kept, to 4 %."""
    cost = fleet.pair.target.cost()
    plainly = fleet.places / (cost.seconds(fleet.places) + fleet.pair.target_around.seconds(fleet.places))
    low, high = 0.0, fleet.verifiers * plainly / workload.output
    best: Outcome | None = None
    # Lower rates are of no use; the bound ends the search.
    least = high / 64
    while (outcome := workload.run(fleet, high)) and objective.met_by(outcome):
        low, best, high = high, outcome, 2 * high
    while high > least and high > _CLOSE * max(low, least / 2):
        middle = (low * high) ** 0.5 if low else high / 2
        outcome = workload.run(fleet, middle)
        if objective.met_by(outcome):
            low, best = middle, outcome
        else:
            high = middle
    return Capacity(low, best.tokens_per_second if best else 0.0, best)
