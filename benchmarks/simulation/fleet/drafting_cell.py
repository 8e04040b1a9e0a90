"""Steps of a sequence with a drafter, for one load of verifier and drafter.

A cell is a small part of a fleet, simulated node by node with the product's own planner, tree growth and calibration
(`simulated_services`): verifiers with equally many sequences each, and drafters likewise. A fleet of a thousand
drafters takes its steps from such cells instead of growing each tree.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from benchmarks.harness.simulated_models import ModelPair
from benchmarks.harness.simulated_services import (
    SettledStep,
    SimulatedDrafter,
    SimulatedVerifier,
    Verdict,
    VirtualClock,
)
from benchmarks.simulation.fleet.model_pair_times import ModelPairTimes
from benchmarks.simulation.simulated_link import SimulatedLink
from drafter_pool.standing.pause_policy import PausePolicy
from speculative_engine.drafters.tree_growth import TreeGrowth
from speculative_engine.planning.planner import Planner
from speculative_engine.planning.step_cost import StepCost
from speculative_engine.tree.proposal import Proposal

MAX_TREE_NODES = 64
MAX_STEP_ROWS = 256
"""The services' default."""
_STEPS = 480
"""Counted steps of all sequences of a cell together."""
_LEAST_STEPS = 12
"""Least number of counted steps of each verifier."""
_FIRST_STEPS, _FIRST_SHARE = 8, 0.25
"""Number and share of uncounted first steps, of which the longer applies: trees are still small, and calibration and
timing begin with guesses."""
_LONGEST = 8
"""Average tokens per step for which there is text; a sequence that gets more ends early."""
_BATCHES = tuple(1 << power for power in range(7))
_DRAFTED = tuple(1 << power for power in range(10))
"""Loads for which there are cells. A sequence at a load between two of them is assigned to one at random; beyond the
last, to the last."""


@dataclass(frozen=True)
class Trace:
    """Steps of sequences, one after another."""

    steps: tuple[tuple[int, int], ...]
    """Verified nodes and committed tokens of each step."""
    wait: float
    """Average seconds that a verifier waited for proposals between two steps."""

    @property
    def tokens_per_step(self) -> float:
        """Average tokens per sequence and step."""
        return sum(tokens for _, tokens in self.steps) / len(self.steps)

    @property
    def nodes_per_step(self) -> float:
        """Average nodes per sequence and step."""
        return sum(nodes for nodes, _ in self.steps) / len(self.steps)


def simulate(
    pair: ModelPairTimes,
    round_trip: float,
    batch: int,
    drafted: int,
    *,
    reading: bool = False,
    target_share: int = 1,
    draft_share: int = 1,
    step_rows: int = MAX_STEP_ROWS,
    steps: int = _STEPS,
    seed: int = 1,
) -> Trace:
    """Simulates verifiers with `batch` sequences each and drafters with `drafted` each, for some time.

    round_trip: seconds between them, without the time that messages take. reading: whether every step also computes
    prompts of others, with as many rows as the services plan. target_share, draft_share: number of processes that share
    a core, by which steps take longer. step_rows: most rows of a verifier's step. steps: approximate number of counted
    steps, of all sequences together.
    """
    clock = VirtualClock()
    verifiers = max(1, round(drafted / batch))
    total = verifiers * batch
    counted = max(_LEAST_STEPS, steps // total)
    first = max(_FIRST_STEPS, round(_FIRST_SHARE * counted))
    length = _LONGEST * (first + counted)
    target, draft = _slower(pair.target.cost(), target_share), _slower(pair.draft.cost(), draft_share)
    prompt_rows = target.prompt_rows(batch, step_rows // 2) if reading else 0
    waited_before: dict[int, float] = {}
    """Wait of each verifier before its first step."""
    links: dict[tuple[int, int], SimulatedLink] = {}
    traces: list[list[tuple[int, int]]] = [[] for _ in range(total)]

    def link(key: int) -> SimulatedLink:
        """Returns the link between a sequence's verifier and its drafter."""
        ends = key // batch, key // drafted
        if ends not in links:
            verifier, drafter = running[ends[0]], drafters[ends[1]]
            policy = PausePolicy()
            links[ends] = SimulatedLink(clock, round_trip + pair.line, verifier, drafter, str(ends[1]), policy)
        return links[ends]

    def settled(step: SettledStep) -> None:
        index = step.verdicts[0].sequence // batch
        waited_before.setdefault(index, running[index].tally.waited)
        by_link: dict[SimulatedLink, list[Verdict]] = {}
        for verdict in step.verdicts:
            traces[verdict.sequence].append((verdict.verified, len(verdict.tokens)))
            by_link.setdefault(link(verdict.sequence), []).append(verdict)
        for each, verdicts in by_link.items():
            each.settle(replace(step, verdicts=verdicts))

    def proposed(proposals: dict[int, Proposal]) -> None:
        by_link: dict[SimulatedLink, dict[int, Proposal]] = {}
        for key, proposal in proposals.items():
            by_link.setdefault(link(key), {})[key] = proposal
        for each, some in by_link.items():
            each.propose(some)

    running = [
        SimulatedVerifier(
            clock,
            Planner(_slower(target, 1), step_rows),
            target,
            settled,
            target_share * pair.target_around.seconds(batch),
            prompt_rows,
        )
        for _ in range(verifiers)
    ]
    drafters = [
        SimulatedDrafter(
            clock,
            TreeGrowth(_slower(draft, 1)),
            draft,
            proposed,
            draft_share * pair.draft_around.seconds(min(drafted, total)),
        )
        for _ in range(math.ceil(total / drafted))
    ]
    for key in range(total):
        text = ModelPair(pair.places(length, f"{seed} {key}"), length + 1, f"{seed} {key}")
        running[key // batch].add(key, text, MAX_TREE_NODES, length + 1, str(key // drafted))
        link(key).open(key, text, MAX_TREE_NODES, length + 1)
    for index, verifier in enumerate(running):  # verifiers do not step at the same moments
        clock.after(index / verifiers * target.seconds(batch), verifier.start)
    clock.run(lambda: all(verifier.tally.steps >= first + counted or verifier.done for verifier in running))
    done = sum(verifier.tally.steps - 1 for verifier in running)
    waited = sum(verifier.tally.waited for verifier in running) - sum(waited_before.values())
    return Trace(tuple(step for trace in traces for step in trace[first:]), waited / done)


class Cells:
    """Traces by load, each simulated when it is first needed."""

    def __init__(
        self,
        pair: ModelPairTimes,
        round_trip: float,
        *,
        step_rows: int = MAX_STEP_ROWS,
        steps: int = _STEPS,
        seed: int = 1,
    ):
        """Takes the parameters of `simulate`."""
        self._pair = pair
        self._round_trip = round_trip
        self._step_rows = step_rows
        self._steps = steps
        self._seed = seed
        self._traces: dict[tuple[int, int, bool, int, int], Trace] = {}
        self._batches, self._drafted = _between(_BATCHES), _between(_DRAFTED)

    def trace(
        self,
        batch: int,
        drafted: int,
        chance: float,
        *,
        reading: bool = False,
        target_share: int = 1,
        draft_share: int = 1,
    ) -> Trace:
        """Returns the trace of a sequence in a step of `batch` sequences whose drafter has `drafted`.

        chance: the sequence's own number in [0, 1), which decides between the neighbouring loads. The other parameters
        are those of `simulate`.
        """
        low, high, part = self._batches[min(batch, _BATCHES[-1])]
        batch = high if chance < part else low
        low, high, part = self._drafted[min(drafted, _DRAFTED[-1])]
        key = (batch, high if chance < part else low, reading, target_share, draft_share)
        found = self._traces.get(key)
        if found is None:
            found = self._traces[key] = simulate(
                self._pair,
                self._round_trip,
                key[0],
                key[1],
                reading=reading,
                target_share=target_share,
                draft_share=draft_share,
                step_rows=self._step_rows,
                steps=self._steps,
                seed=self._seed,
            )
        return found

    def __len__(self) -> int:
        return len(self._traces)


def _between(points: Sequence[int]) -> list[tuple[int, int, float]]:
    """Returns, for each load up to the last point, the neighbouring points and its relative position between them."""
    found = [(points[0], points[0], 0.0)]
    for load in range(1, points[-1] + 1):
        right = bisect.bisect_left(points, load)
        high = points[right]
        low = high if high == load else points[right - 1]
        found.append((low, high, 0.0 if low == high else math.log(load / low) / math.log(high / low)))
    return found


def _slower(cost: StepCost, share: int) -> StepCost:
    points: Sequence[tuple[int, float]] = cost.points()
    return StepCost([rows for rows, _ in points], [share * seconds for _, seconds in points])
