"""Measures on real services what a simulation needs to know about a pair of models on this machine."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

from benchmarks.harness.machine import machine
from benchmarks.harness.simulation_case import drafted_places
from benchmarks.simulation.fleet.model_pair_times import Around, ModelPairTimes
from benchmarks.simulation.fleet.real_fleet import RealFleet, RealRun
from benchmarks.simulation.simulated_setting import Curve
from draftwire import Speculation, StepCost, StepTimes, VerifierInfo

OFF = Speculation(enabled=False)
ONE_DRAFTER = Speculation(drafter="drafter 0")
FEW, MANY = 1, 4
"""Numbers of streams."""


async def calibrate(
    fleet: RealFleet, draft: Path, prompts: Sequence[Sequence[int]], max_tokens: int, name: str
) -> ModelPairTimes:
    """Runs the prompts one at a time and four at a time, with the first verifier and the first drafter.

    Step times are those that the services use afterwards: recent ones, affected by whatever else the machine did.
    """
    alone = await fleet.run(prompts, max_tokens, FEW, speculation=OFF)
    texts = drafted_places(draft, prompts, alone.outputs)
    await fleet.run(prompts, max_tokens, FEW, speculation=ONE_DRAFTER)
    target, drafts = {}, {}
    response = 0.0
    for streams in (FEW, MANY):
        before, drafter_before = await fleet.verifier_info(0), await fleet.drafter_info(0)
        await fleet.run(prompts, max_tokens, streams, speculation=ONE_DRAFTER)
        after, drafter_after = await fleet.verifier_info(0), await fleet.drafter_info(0)
        target[streams] = _mean_sequences(before, after), _around(before.engine.times, after.engine.times)
        drafts[streams] = float(streams), _around(drafter_before.times, drafter_after.times)
        if streams == FEW:
            (calibration,) = [each for each in after.engine.planner.calibrations if each.drafter == "drafter 0"]
            response = calibration.response_seconds
    target_curve, draft_curve = _curve(after.engine.planner.step_costs), _curve(drafter_after.step_costs)
    target_around, draft_around = _fit(target[FEW], target[MANY]), _fit(drafts[FEW], drafts[MANY])
    # A verdict that leaves an empty tree reaches the drafter, on average, in mid-step, and waits for the next step.
    drafting = 1.5 * (draft_curve.cost().seconds(1) + draft_around.seconds(1))
    about = machine()
    return ModelPairTimes(
        name,
        f"measured: {about['processor']}, {about['cores']} cores, torch {about['torch']}, commit {about['commit']}, "
        f"load {about['load']}",
        target_curve,
        draft_curve,
        texts,
        target_around,
        draft_around,
        max(0.0, response - drafting),
        _idle(alone, prompts, target_curve, target_around),
    )


def _idle(run: RealRun, prompts: Sequence[Sequence[int]], curve: Curve, around: Around) -> float:
    """Returns the time that a request takes in addition to its steps, for requests one after another."""
    cost = curve.cost()
    reading = [cost.seconds(len(prompt)) + around.seconds(1) for prompt in prompts]
    before_first = statistics.median(took - read for took, read in zip(run.first_token_seconds, reading, strict=True))
    return max(0.0, statistics.median(run.between_seconds) + before_first)


def _mean_sequences(before: VerifierInfo, after: VerifierInfo) -> float:
    old, new = before.engine.planner, after.engine.planner
    return (new.sequences - old.sequences) / (new.steps - old.steps)


def _around(before: StepTimes, after: StepTimes) -> float:
    """Returns the seconds of a step outside layout, forward pass and sampling, which c(n) covers."""
    beside = sum(getattr(after, name) - getattr(before, name) for name in ("plan", "walk", "wire", "rollback"))
    return beside / (after.steps - before.steps)


def _fit(few: tuple[float, float], many: tuple[float, float]) -> Around:
    """Returns the line through two measurements of sequences per step and seconds."""
    slope = max(0.0, (many[1] - few[1]) / (many[0] - few[0])) if many[0] > few[0] else 0.0
    return Around(max(0.0, few[1] - slope * few[0]), slope)


def _curve(costs: Sequence[StepCost]) -> Curve:
    return Curve(tuple(cost.rows for cost in costs), tuple(cost.seconds for cost in costs))
