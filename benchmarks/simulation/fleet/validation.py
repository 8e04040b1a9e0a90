"""Compares small real fleets with their simulation."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.harness.report import Spread
from benchmarks.simulation.fleet.calibration import OFF, ONE_DRAFTER
from benchmarks.simulation.fleet.drafting_cell import Cells
from benchmarks.simulation.fleet.faults import Fault
from benchmarks.simulation.fleet.model_pair_times import ModelPairTimes
from benchmarks.simulation.fleet.outcome import Outcome
from benchmarks.simulation.fleet.real_fleet import RealFleet, RealRun
from benchmarks.simulation.fleet.request import given
from benchmarks.simulation.fleet.simulation import Fleet, Simulation
from benchmarks.simulation.fleet.speculation import NoSpeculation, RemoteSpeculation, Speculation
from draftwire import Speculation as Asked

TOLERANCE = 0.15
_SEEDS = range(1, 6)
_CELL_STEPS = 2000
"""More than usual: otherwise a cell's randomness would look like an error of the model."""
_AWAY = 3600.0
"""Seconds for which a killed verifier is away: until the end."""
_NOTICE = 0.07
"""Seconds until a killed process is noticed, as measured by benchmarks/faults/chaos.py."""


@dataclass(frozen=True)
class Case:
    """An arrangement of services."""

    name: str
    streams: int
    verifiers: int = 1
    drafters: int = 1
    killed_after: float | None = None
    """Seconds after which the last verifier is killed; None for never."""

    @property
    def asked(self) -> Asked:
        """Parameters of the real requests."""
        return OFF if not self.drafters else ONE_DRAFTER if self.drafters == 1 else Asked()


def cases(killed_after: float) -> list[Case]:
    """Returns the cases to compare; in cases with several services of a kind, these share a core."""
    return [
        Case("1 verifier, no drafter, 4 streams", 4, drafters=0),
        Case("1 verifier, 1 drafter, 1 stream", 1),
        Case("1 verifier, 1 drafter, 4 streams", 4),
        Case("1 verifier, 2 drafters, 4 streams", 4, drafters=2),
        Case("2 verifiers, 1 drafter, 4 streams", 4, verifiers=2),
        Case("the same, one verifier killed", 4, verifiers=2, killed_after=killed_after),
    ]


@dataclass(frozen=True)
class Comparison:
    """A case with its measured and simulated tokens per second."""

    case: Case
    measured: Spread
    simulated: Spread
    tokens_a_step: float | None
    """Measured tokens per step of a sequence; None if services were lost."""
    simulated_tokens_a_step: float
    other_cores: float
    """Average number of cores that other processes used during the measurement."""

    @property
    def ratio(self) -> float:
        """Simulated over measured."""
        return self.simulated.median / self.measured.median


async def measure(
    fleet: RealFleet, chosen: Sequence[Case], prompts: Sequence[Sequence[int]], max_tokens: int, runs: int
) -> dict[Case, list[RealRun]]:
    """Runs each case `runs` times, in turns. Raises RuntimeError if an output differs."""
    expected: list[tuple[int, ...]] | None = None
    found: dict[Case, list[RealRun]] = {case: [] for case in chosen}
    for run in range(runs):
        for case in chosen:
            for index in range(case.verifiers):
                if not fleet.verifiers[index].alive:
                    await fleet.replace_verifier(index)
            if run == 0 or case.killed_after is not None:  # what services first learn of each other does not count
                await fleet.run(prompts[:4], 24, case.streams, verifiers=case.verifiers, speculation=case.asked)
            kill = None if case.killed_after is None else (case.verifiers - 1, case.killed_after)
            result = await fleet.run(
                prompts,
                max_tokens,
                case.streams,
                verifiers=case.verifiers,
                speculation=case.asked,
                kill_verifier=kill,
            )
            expected = result.outputs if expected is None else expected
            if result.outputs != expected:
                raise RuntimeError(f"{case.name}: an output differs")
            found[case].append(result)
            print(
                f"run {run}, {case.name}: {result.tokens_per_second:.1f} tokens/s, {result.resumes} resumed, "
                f"{result.other_cores:.2f} cores taken by others",
                file=sys.stderr,
                flush=True,
            )
    return found


class Simulated:
    """The cases in virtual time."""

    def __init__(self, pair: ModelPairTimes, lengths: Sequence[tuple[int, int]]):
        """lengths: prompt and output tokens of each request."""
        self._pair = pair
        self._lengths = list(lengths)
        self._drafted = RemoteSpeculation(Cells(pair, 0.0, steps=_CELL_STEPS))

    def run(self, case: Case, seed: int) -> Outcome:
        """Runs a case once."""
        speculation: Speculation = self._drafted if case.drafters else NoSpeculation()
        kill = [] if case.killed_after is None else [
            Fault(case.killed_after, "verifier fails", case.verifiers - 1, _AWAY)
        ]  # fmt: skip
        fleet = Fleet(
            self._pair,
            speculation,
            case.verifiers,
            case.drafters,
            notice=_NOTICE,
            faults=tuple(kill),
            shared_cores=True,
            seed=seed,
        )
        return Simulation(fleet, Outcome()).run_closed(given(self._lengths, f"{seed}"), case.streams)

    def runs(self, case: Case) -> list[Outcome]:
        """Runs a case with several seeds."""
        return [self.run(case, seed) for seed in _SEEDS]


def compare(
    pair: ModelPairTimes, measured: dict[Case, list[RealRun]], lengths: Sequence[tuple[int, int]]
) -> list[Comparison]:
    """Compares every measured case with its simulation."""
    simulated = Simulated(pair, lengths)
    return [_compared(case, runs, simulated.runs(case)) for case, runs in measured.items()]


def _compared(case: Case, runs: Sequence[RealRun], outcomes: Sequence[Outcome]) -> Comparison:
    known = [run.tokens_a_step for run in runs if run.tokens_a_step is not None]
    return Comparison(
        case,
        Spread.of([run.tokens_per_second for run in runs]),
        Spread.of([outcome.all_tokens / outcome.last_end for outcome in outcomes]),
        statistics.median(known) if known else None,
        statistics.median(outcome.tokens_per_step for outcome in outcomes),
        statistics.median(run.other_cores for run in runs),
    )
