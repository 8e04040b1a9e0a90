"""Metrics of the planner: its inputs and its results."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.metrics_core import Metric

from draftwire.v1.planner_status_pb2 import PlannerStatus
from draftwire_core.runtime.duration import seconds_of
from draftwire_core.runtime.observability.metric_families import counter, gauge


def planner_families(planner: PlannerStatus) -> Iterator[Metric]:
    """Yields the metrics of the planner."""
    yield gauge(
        "planner_step_cost_seconds",
        "Expected time of a step by its number of rows: c(n).",
        {str(point.rows): seconds_of(point.time) for point in planner.step_costs},
        ["rows"],
    )
    yield counter("planner_steps", "Steps that decoded at least one request.", planner.steps)
    yield counter("planner_sequences", "Requests decoded, counted once per step.", planner.sequences)
    yield counter(
        "planner_probe_rows",
        "Rows computed only for drafters to learn from, without verifying them.",
        planner.probe_rows,
    )
    yield counter("planner_waits", "Steps delayed to wait for proposals.", planner.waits)
    yield counter(
        "planner_wait_seconds", "Total delay of steps that waited for proposals.", seconds_of(planner.wait_time)
    )
    yield counter(
        "planner_wait_expected_tokens",
        "Tokens that the delayed steps would have committed at once, according to their plans.",
        planner.expected_tokens,
    )
    yield counter("planner_wait_committed_tokens", "Tokens that the delayed steps committed.", planner.committed_tokens)
