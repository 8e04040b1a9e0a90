"""The engine's part of the status that GetModelInfo reports."""

from __future__ import annotations

import asyncio

from draftwire.v1.planner_status_pb2 import PlannerStatus
from draftwire.v1.step_cost_pb2 import StepCost
from draftwire.v1.verifier_service_pb2 import EngineStatus, PrefixCacheStatus
from draftwire_core.engine.engine.verification_engine import VerificationEngine
from draftwire_core.engine.kv.prefix_cache import PrefixCache
from draftwire_core.engine.planning.planner import Planner
from draftwire_core.engine.planning.planning_record import PlanningRecord
from draftwire_core.pool.routing.description import calibrations
from draftwire_core.runtime.duration import duration, step_times


def engine_status(engine: VerificationEngine) -> EngineStatus:
    """Returns what the engine holds, does and decides. Called in the event loop while the engine's thread runs."""
    pool, clock = engine.model.pool, engine.clock
    return EngineStatus(
        running_sequences=engine.running,
        waiting_requests=engine.waiting,
        used_slots=pool.used,
        total_slots=pool.capacity,
        preemptions=engine.preemptions,
        tasks=len(asyncio.all_tasks()),
        times=step_times(clock.steps, clock.seconds(), clock.cpu_around_forward),
        planner=_planner_status(engine.planner, engine.record),
        prefix_cache=_prefix_cache_status(engine.prefix_cache),
    )


def _prefix_cache_status(cache: PrefixCache | None) -> PrefixCacheStatus:
    if cache is None:
        return PrefixCacheStatus()
    return PrefixCacheStatus(
        cached_slots=cache.idle,
        queried_tokens=cache.queried_tokens,
        hit_tokens=cache.hit_tokens,
        evicted_tokens=cache.evicted_tokens,
    )


def _planner_status(planner: Planner, record: PlanningRecord) -> PlannerStatus:
    return PlannerStatus(
        step_costs=[StepCost(rows=rows, time=duration(seconds)) for rows, seconds in planner.cost.points()],
        calibrations=calibrations(planner),
        steps=record.steps,
        sequences=record.sequences,
        draft_tokens=record.draft_tokens,
        last_draft_tokens=record.last_draft_tokens,
        waits=record.waits,
        wait_time=duration(record.wait_seconds),
        expected_tokens=record.expected_tokens,
        committed_tokens=record.committed_tokens,
        probe_rows=record.probe_rows,
    )
