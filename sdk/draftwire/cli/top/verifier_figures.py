"""How a verifier does, from two readings."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Literal

from draftwire._types.step_times import StepCost
from draftwire.cli.top.planner_figures import PlannerFigures, planner_figures
from draftwire.cli.top.sample import Sample

VerifierState = Literal["connecting", "ready", "unreachable"]
"""``"connecting"`` (nothing was heard yet), ``"ready"`` (the last reading came), ``"unreachable"`` (it did not)."""

PARTS = ("forward", "sample", "walk", "rollback", "plan", "layout", "draft", "wire", "wait")
"""What the thread that runs the model does, as ``StepTimes`` names it."""


@dataclass(frozen=True, slots=True)
class VerifierFigures:
    """One verifier. Rates are per second between the two readings, None where there is one only."""

    address: str
    state: VerifierState
    error: str | None = None
    """Why it is unreachable."""
    model: str | None = None
    dtype: str | None = None
    device: str | None = None
    uptime_seconds: float | None = None
    """Since it was started, by this machine's clock."""
    running: int | None = None
    """Requests that run."""
    waiting: int | None = None
    """Requests that wait for room."""
    used_slots: int | None = None
    """KV slots in use."""
    cached_slots: int | None = None
    """Free KV slots that the prefix cache holds."""
    total_slots: int | None = None
    """KV slots in all."""
    preemptions: int | None = None
    """Since the start."""
    requests_per_second: float | None = None
    """Requests that began."""
    tokens_per_second: float | None = None
    """Committed tokens of all requests."""
    steps_per_second: float | None = None
    """Forward passes, prompts included."""
    step_seconds: float | None = None
    """Time of a step, waiting included, on average."""
    time_shares: dict[str, float] | None = None
    """Share of the time, in [0, 1], by part of ``PARTS``; what is missing to 1 is idle."""
    step_costs: list[StepCost] | None = None
    """c(n) as it is expected now."""
    planner: PlannerFigures | None = None


def verifier_figures(
    address: str,
    now: Sample | None,
    before: Sample | None,
    error: str | None = None,
) -> VerifierFigures:
    """Returns the figures of a verifier.

    Args:
        address: its address.
        now: the last reading; None before the first.
        before: an earlier reading that it follows, if there is one.
        error: what the last attempt at a reading failed with; its figures of now are then not told as such.
    """
    if now is None:
        return VerifierFigures(address, "unreachable" if error else "connecting", error)
    info, engine = now.info, now.info.engine
    if error is not None:
        return VerifierFigures(address, "unreachable", error, info.model_id, info.dtype, info.device)
    started = info.started_at
    figures = VerifierFigures(
        address=address,
        state="ready",
        model=info.model_id,
        dtype=info.dtype,
        device=info.device,
        uptime_seconds=max((datetime.now(UTC) - started).total_seconds(), 0.0) if started else None,
        running=engine.running_sequences,
        waiting=engine.waiting_requests,
        used_slots=engine.used_slots,
        cached_slots=engine.prefix_cache.cached_slots,
        total_slots=engine.total_slots,
        preemptions=engine.preemptions,
        step_costs=engine.planner.step_costs,
    )
    if before is None:
        return figures
    seconds = now.at - before.at
    new, old = engine.times, before.info.engine.times
    steps = new.steps - old.steps
    parts = {part: getattr(new, part) - getattr(old, part) for part in PARTS}
    return replace(
        figures,
        requests_per_second=(now.requests - before.requests) / seconds,
        tokens_per_second=(now.tokens - before.tokens) / seconds,
        steps_per_second=steps / seconds,
        step_seconds=sum(parts.values()) / steps if steps else None,
        # A part is counted when it ends, so that of a long step may exceed a short interval.
        time_shares={part: min(spent / seconds, 1.0) for part, spent in parts.items()},
        planner=planner_figures(now, before),
    )
