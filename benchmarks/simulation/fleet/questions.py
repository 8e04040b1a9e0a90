"""Questions about fleets: capacity and cost by drafters and distance, effects of failures, scale."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from benchmarks.simulation.fleet.capacity import Capacity, Objective, Workload, capacity
from benchmarks.simulation.fleet.drafting_cell import Cells
from benchmarks.simulation.fleet.faults import Fault, failures, rolling
from benchmarks.simulation.fleet.model_pair_times import ModelPairTimes
from benchmarks.simulation.fleet.outcome import Outcome
from benchmarks.simulation.fleet.prices import Prices
from benchmarks.simulation.fleet.simulation import Fleet
from benchmarks.simulation.fleet.speculation import CoLocatedSpeculation, NoSpeculation, RemoteSpeculation, Speculation

Row = dict[str, object]
RATIOS = tuple(Fraction(text) for text in ("1/8", "1/4", "1/2", "1", "2", "4", "8"))
"""Drafters per verifier."""
_FAULT_PAUSE = 2.0
_UTILISED = 0.7
"""Share of the capacity at which failures are simulated; the remaining capacity has to take over."""


@dataclass(frozen=True)
class Questions:
    """Settings common to all questions."""

    pair: ModelPairTimes
    workload: Workload
    objective: Objective
    prices: Prices
    places: int = 64
    step_rows: int = 512
    draft_memory: float = 0.15
    """Share of a verifier's places whose memory a draft model beside the target takes."""
    seed: int = 1
    tell: Callable[[str], None] = lambda text: None

    def __post_init__(self) -> None:
        if not 0 <= self.draft_memory < 1:
            raise ValueError(f"draft_memory: {self.draft_memory} is not a share below 1")

    def plain(self, verifiers: int = 1) -> Fleet:
        """Returns a fleet without speculation."""
        return self._fleet(NoSpeculation(), verifiers)

    def co_located(self, verifiers: int = 1) -> Fleet:
        """Returns a fleet with a draft model on the target's accelerator."""
        places = max(1, round(self.places * (1 - self.draft_memory)))
        return replace(self._fleet(CoLocatedSpeculation(self.pair), verifiers), places=places)

    def remote(self, verifiers: int, drafters: int, round_trip: float, cells: Cells | None = None) -> Fleet:
        """Returns a fleet with its own drafters. cells: cells of that round trip, shared by fleets."""
        found = self._cells(round_trip) if cells is None else cells
        return replace(self._fleet(RemoteSpeculation(found), verifiers), drafters=drafters, round_trip=round_trip)

    def capacities(self, ratios: Sequence[Fraction], round_trips: Sequence[float]) -> list[Row]:
        """Returns a row for each fleet: tokens per second and verifier that keep the objective, and the cost of a
        million."""
        rows = []
        for name, fleet in (("no speculation", self.plain(2)), ("co-located draft model", self.co_located(2))):
            rows.append(self._capacity_row(name, "", fleet))
        for round_trip in round_trips:
            cells = self._cells(round_trip)
            for ratio in ratios:
                verifiers = max(2, ratio.denominator)
                drafters = int(ratio * verifiers)
                name = f"{ratio.numerator} : {ratio.denominator}"
                fleet = self.remote(verifiers, drafters, round_trip, cells)
                rows.append(self._capacity_row(name, f"{1e3 * round_trip:g}", fleet))
        return rows

    def failures(self, verifiers: int, drafters: int, round_trip: float) -> list[Row]:
        """Returns a row for each kind of failure, all at the same load."""
        fleet = self.remote(verifiers, drafters, round_trip)
        most = capacity(fleet, self.workload, self.objective)
        rate = _UTILISED * most.rate
        end = self.workload.lead + self.workload.seconds
        seed, away = f"{self.seed}", 10.0

        def drafters_fail(each: float) -> list[Fault]:
            return failures("drafter fails", drafters, each, away, end, seed)

        def verifiers_fail(each: float) -> list[Fault]:
            return failures("verifier fails", verifiers, each, away, end, seed)

        start = self.workload.lead
        plans: dict[str, list[Fault]] = {
            "nothing": [],
            "each drafter fails once in 2 minutes": drafters_fail(120.0),
            "each drafter fails once in 20 s": drafters_fail(20.0),
            "all drafters fail for good": [Fault(start, "drafter fails", index, end) for index in range(drafters)],
            "drafters are swapped in turn": rolling(
                "drafter is swapped", drafters, start, self.workload.seconds / (drafters + 1), 0.0
            ),
            "each verifier fails once in 2 minutes": verifiers_fail(120.0),
            "each verifier fails once in 40 s": verifiers_fail(40.0),
            "verifiers are restarted in turn": rolling("verifier is restarted", verifiers, start, _FAULT_PAUSE, 5.0),
        }
        rows = []
        for name, faults in plans.items():
            outcome = self.workload.run(replace(fleet, faults=tuple(faults)), rate)
            rows.append({"what happens": name, "faults": len(faults), **_latencies(outcome)})
            self.tell(f"{name}: {rows[-1]}")
        for name, other in (("no speculation", self.plain(verifiers)), ("co-located", self.co_located(verifiers))):
            rows.append({"what happens": f"nothing, {name}", "faults": 0, **_latencies(self.workload.run(other, rate))})
        return rows

    def sizes(self, fleets: Sequence[tuple[int, int]], round_trip: float, share: float) -> list[Row]:
        """Returns a row for each number of verifiers and drafters, at a share of their capacity, with the effort of
        simulating it."""
        cells = self._cells(round_trip)
        smallest = self.remote(*fleets[0], round_trip, cells)
        rate = capacity(smallest, self.workload, self.objective).rate / smallest.verifiers
        rows = []
        for verifiers, drafters in fleets:
            fleet = self.remote(verifiers, drafters, round_trip, cells)
            started, known = time.process_time(), len(cells)
            outcome = self.workload.run(fleet, share * rate * verifiers)
            seconds = time.process_time() - started
            rows.append(
                {
                    "verifiers": verifiers,
                    "drafters": drafters,
                    "requests": outcome.finished,
                    "tokens": outcome.all_tokens,
                    **_latencies(outcome),
                    "virtual s": f"{outcome.last_end:.0f}",
                    "CPU s": f"{seconds:.1f}",
                    "new cells": len(cells) - known,
                    "steps of sequences a second": f"{outcome.sequence_steps / seconds:,.0f}",
                }
            )
            self.tell(f"{verifiers} verifiers, {drafters} drafters: {rows[-1]}")
        return rows

    def _fleet(self, speculation: Speculation, verifiers: int) -> Fleet:
        return Fleet(self.pair, speculation, verifiers, places=self.places, step_rows=self.step_rows, seed=self.seed)

    def _cells(self, round_trip: float) -> Cells:
        return Cells(self.pair, round_trip, step_rows=self.step_rows, seed=self.seed)

    def _capacity_row(self, name: str, round_trip: str, fleet: Fleet) -> Row:
        found: Capacity = capacity(fleet, self.workload, self.objective)
        each = found.tokens_per_second / fleet.verifiers
        cost = self.prices.million_tokens(fleet.verifiers, fleet.drafters, found.tokens_per_second)
        outcome = found.outcome
        row: Row = {
            "drafters : verifiers": name,
            "round trip ms": round_trip,
            "tokens/s a verifier": f"{each:.0f}",
            "a million tokens": f"{cost:.3f}",
        }
        if outcome is not None:
            row |= {
                "sequences a step": f"{outcome.sequence_steps / outcome.steps:.0f}",
                "tokens a step": f"{outcome.tokens_per_step:.2f}",
                "nodes a step": f"{outcome.nodes / outcome.sequence_steps:.2f}",
                "first token p99": f"{outcome.first_tokens.quantile(0.99):.2f} s",
                "a token p50": f"{1e3 * outcome.per_token.quantile(0.5):.1f} ms",
                "between tokens p99": f"{1e3 * outcome.gaps.quantile(0.99):.0f} ms",
            }
        self.tell(f"{row}")
        return row


def _latencies(outcome: Outcome) -> Row:
    first, gaps = outcome.first_tokens, outcome.gaps
    return {
        "tokens/s": f"{outcome.tokens_per_second:.0f}",
        "refused": outcome.refused,
        "moved": outcome.moved,
        "drafters lost": outcome.lost_drafts,
        "first token p50": f"{first.quantile(0.5):.2f} s",
        "p99": f"{first.quantile(0.99):.2f} s",
        "a token p50": f"{1e3 * outcome.per_token.quantile(0.5):.1f} ms",
        "a token p99": f"{1e3 * outcome.per_token.quantile(0.99):.1f} ms",
        "between tokens p99": f"{1e3 * gaps.quantile(0.99):.0f} ms",
        "p99.9": f"{1e3 * gaps.quantile(0.999):.0f} ms",
        "longest": f"{1e3 * gaps.longest:.0f} ms",
    }
