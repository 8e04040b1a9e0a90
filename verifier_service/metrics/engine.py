"""Metrics of the engine: what it holds and does."""

from __future__ import annotations

from collections.abc import Iterator

from google.protobuf.duration_pb2 import Duration
from prometheus_client.metrics_core import Metric

from draftwire.v1.verifier_service_pb2 import EngineStatus
from draftwire_core.runtime.duration import seconds_by_part, seconds_of
from draftwire_core.runtime.observability.metric_families import counter, gauge, histogram
from verifier_service.counting.step_counts import StepCounts


def engine_families(status: EngineStatus, steps: StepCounts) -> Iterator[Metric]:
    """Yields the metrics of the engine."""
    yield gauge("num_requests_running", "Requests that hold KV slots.", status.running_sequences)
    yield gauge(
        "num_requests_waiting",
        "Requests that wait for KV slots or for a place among --max-sequences.",
        status.waiting_requests,
    )
    yield counter(
        "num_preemptions", "Times that a request gave up its KV slots and was computed again later.", status.preemptions
    )
    used = status.used_slots / status.total_slots if status.total_slots else 0.0
    yield gauge(
        "kv_cache_usage_perc", "Share of the KV slots in use, 0 to 1. Slots that can be reclaimed count as free.", used
    )
    yield gauge("kv_cache_slots", "Total number of KV slots.", status.total_slots)
    yield gauge("kv_cache_used_slots", "KV slots in use.", status.used_slots)
    cache = status.prefix_cache
    yield gauge("prefix_cache_slots", "KV slots that the prefix cache holds and no request uses.", cache.cached_slots)
    yield counter("prefix_cache_queries", "Tokens looked up in the prefix cache.", cache.queried_tokens)
    yield counter("prefix_cache_hits", "Tokens found in the prefix cache.", cache.hit_tokens)
    yield counter("prefix_cache_evictions", "Tokens evicted from the prefix cache.", cache.evicted_tokens)
    yield histogram("step_seconds", "Time of the target's steps, excluding planning and waiting.", steps.seconds)
    yield histogram("step_rows", "Tokens that a step computed: prompt tokens, last tokens and nodes.", steps.rows)
    yield histogram("step_sequences", "Requests that got tokens from a step.", steps.sequences)
    yield histogram("step_draft_tokens", "Draft tokens that a step verified, over all requests.", steps.draft_tokens)
    yield counter(
        "step_part_seconds",
        "Time of the engine's thread, by part; idle time is not counted.",
        seconds_by_part(status.times),
        ["part"],
    )
    yield counter(
        "plain_decode_seconds",
        "Estimated time that the same tokens would have taken without drafts.",
        steps.plain_seconds,
    )
    loop: Duration = status.times.event_loop
    yield counter("event_loop_cpu_seconds", "CPU time of the event loop's thread.", seconds_of(loop))
    yield gauge("event_loop_tasks", "Live tasks of the event loop.", status.tasks)
