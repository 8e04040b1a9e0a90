"""Figures of a verifier's planner and of its gains, from two readings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from draftwire._types.step_times import StepCost, StepTimes
from draftwire_tools.top.sample import Sample


@dataclass(frozen=True, slots=True)
class PlannerFigures:
    """Figures of the time between two readings; None if nothing was decoded."""

    sequences_per_step: float | None
    """Average number of sequences decoded per step."""
    draft_tokens_per_sequence: float | None
    """Average number of draft tokens chosen per sequence and step: the size of its tree."""
    tokens_per_sequence: float | None
    """Average number of tokens committed per sequence and step."""
    last_draft_tokens: int
    """Draft tokens of all sequences in the last step."""
    plain_tokens_per_second: float | None
    """Estimate for plain decoding of the same sequences: the measured passes, scaled by c(n) to rows without drafts."""
    speed_up: float | None
    """Tokens per second of passes, drafting in the verifier, rollback and waiting, over ``plain_tokens_per_second``: an
    estimate. Both change with the machine's current speed."""
    waits_per_second: float
    """Steps delayed to wait for proposals."""
    gained_tokens_per_second: float
    """Tokens per second gained by waiting; negative if it did not pay."""


def planner_figures(now: Sample, before: Sample) -> PlannerFigures:
    """Returns the figures of the time between two successive readings."""
    engine, earlier = now.info.engine, before.info.engine
    new, old = engine.planner, earlier.planner
    seconds = now.at - before.at
    steps, sequences = new.steps - old.steps, new.sequences - old.sequences
    committed = now.tokens - before.tokens
    per_step = sequences / steps if steps else None
    drafted = new.draft_tokens - old.draft_tokens
    passes = _passes(engine.times) - _passes(earlier.times)
    spent = passes + _added(engine.times) - _added(earlier.times)
    plain = None
    begun = engine.times.steps - earlier.times.steps  # a pass counts when it begins, and for the planner at its end
    if per_step and begun and (with_drafts := cost_of(per_step + drafted / steps, new.step_costs)):
        share = (cost_of(per_step, new.step_costs) or 0.0) / with_drafts
        mean = passes / begun
        plain = per_step / (mean * share) if mean * share > 0 else None
    return PlannerFigures(
        sequences_per_step=per_step,
        draft_tokens_per_sequence=drafted / sequences if sequences else None,
        tokens_per_sequence=committed / sequences if sequences else None,
        last_draft_tokens=new.last_draft_tokens,
        plain_tokens_per_second=plain,
        speed_up=committed / spent / plain if plain and spent > 0 else None,
        waits_per_second=(new.waits - old.waits) / seconds,
        gained_tokens_per_second=(new.gained_tokens - old.gained_tokens) / seconds,
    )


def _passes(times: StepTimes) -> float:
    """Returns the seconds covered by c(n)."""
    return times.layout + times.forward + times.sample


def _added(times: StepTimes) -> float:
    """Returns the seconds that only speculation needs."""
    return times.draft + times.rollback + times.wait


def cost_of(rows: float, points: Sequence[StepCost]) -> float | None:
    """Returns c(rows) in seconds, by straight lines between the points and level beyond them; None without a point."""
    if not points:
        return None
    lower = points[0]
    for upper in points:
        if rows <= upper.rows:
            width = upper.rows - lower.rows
            return (
                lower.seconds + (upper.seconds - lower.seconds) * (rows - lower.rows) / width
                if width > 0
                else upper.seconds
            )
        lower = upper
    return lower.seconds
