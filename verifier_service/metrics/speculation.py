"""Metrics of speculation, and of the planner that decides on it."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.metrics_core import Metric

from draftwire._types.speculation import RULE_NAMES
from draftwire.v1.planner_status_pb2 import PlannerStatus
from draftwire_core.runtime.duration import seconds_of
from draftwire_core.runtime.observability.metric_families import counter, gauge
from verifier_service.counting.acceptance_counts import AcceptanceCounts, RuleCount


def speculation_families(counts: AcceptanceCounts) -> Iterator[Metric]:
    """Yields the metrics of speculation by acceptance rule; a total would let lossy rules flatter the drafters."""
    by_rule = {name: RuleCount() for name in RULE_NAMES.values()}
    by_rule |= {RULE_NAMES[rule]: count for rule, count in counts.by_rule().items()}

    def told(name: str, help_text: str, field: str) -> Metric:
        return counter(name, help_text, {rule: getattr(count, field) for rule, count in by_rule.items()}, ["rule"])

    yield told("spec_decode_num_requests", "Requests that started.", "requests")
    yield told("spec_decode_num_drafts", "Verifications, per request and step, of at least one draft token.", "drafts")
    yield told("spec_decode_num_draft_tokens", "Draft tokens verified.", "draft_tokens")
    yield told("spec_decode_num_accepted_tokens", "Draft tokens accepted.", "accepted_tokens")
    yield counter(
        "spec_decode_num_accepted_tokens_per_pos",
        "Draft tokens accepted, by position in their verification: 0 for the first, 1 for the second, and so on.",
        {
            (rule, str(position)): accepted
            for rule, count in by_rule.items()
            for position, accepted in enumerate(count.accepted_per_position())
        },
        ["rule", "position"],
    )
    yield told("spec_decode_num_generated_tokens", "Output tokens of requests, drafted or not.", "tokens")


def planner_families(planner: PlannerStatus) -> Iterator[Metric]:
    """Yields the metrics of the planner: its inputs and its results."""
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
