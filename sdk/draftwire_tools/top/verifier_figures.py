"""Figures of a verifier, from two readings."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Literal

from draftwire._types.step_times import StepCost
from draftwire_tools.top.planner_figures import PlannerFigures, planner_figures
from draftwire_tools.top.sample import Sample

VerifierState = Literal["connecting", "ready", "unreachable"]
"""State of a verifier: ``"connecting"`` (no reading yet), ``"ready"`` (the last reading succeeded), or
``"unreachable"`` (it failed)."""

PARTS = ("forward", "sample", "walk", "rollback", "plan", "layout", "draft", "wire", "wait")
"""Phases of the thread that runs the model, named as in ``StepTimes``."""


@dataclass(frozen=True, slots=True)
class VerifierFigures:
    """Figures of one verifier. Rates are per second between the two readings; None if there is only one."""

    address: str
    state: VerifierState
    error: str | None = None
    """The error that makes it unreachable."""
    model: str | None = None
    dtype: str | None = None
    device: str | None = None
    uptime_seconds: float | None = None
    """Seconds since it was started, by this machine's clock."""
    running: int | None = None
    """Running requests."""
    waiting: int | None = None
    """Requests that wait for admission."""
    used_slots: int | None = None
    """KV slots in use."""
    cached_slots: int | None = None
    """Free KV slots that the prefix cache holds."""
    total_slots: int | None = None
    """Total number of KV slots."""
    preemptions: int | None = None
    """Preemptions since the start."""
    requests_per_second: float | None = None
    """Requests started."""
    tokens_per_second: float | None = None
    """Committed tokens of all requests."""
    steps_per_second: float | None = None
    """Forward passes, prompts included."""
    step_seconds: float | None = None
    """Average time of a step, waiting included."""
    time_shares: dict[str, float] | None = None
    """Share of the time, in [0, 1], by phase of ``PARTS``; the rest is idle time."""
    step_costs: list[StepCost] | None = None
    """Current estimate of c(n)."""
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
        error: the error of the last attempt at a reading; current figures are then omitted.
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
        # A phase is counted when it ends, so the phase of a long step may exceed a short interval.
        time_shares={part: min(spent / seconds, 1.0) for part, spent in parts.items()},
        planner=planner_figures(now, before),
    )
