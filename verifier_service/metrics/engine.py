"""Metrics of the engine: what it holds and does."""

from __future__ import annotations

from collections.abc import Iterator

from google.protobuf.duration_pb2 import Duration
from prometheus_client.metrics_core import Metric

from draftwire.v1.verifier_service_pb2 import EngineStatus
from service_runtime.duration import seconds_of
from service_runtime.observability.metric_families import counter, gauge, histogram
from service_runtime.observability.step_times import seconds_by_part
from verifier_service.counting.step_counts import StepCounts


def engine_families(status: EngineStatus, steps: StepCounts) -> Iterator[Metric]:
    """Yields the metrics of the engine."""
    yield gauge("num_requests_running", "Requests that hold KV slots.", status.running_sequences)
    yield gauge("num_requests_waiting", "Requests that wait for KV slots or a place.", status.waiting_requests)
    yield counter("num_preemptions", "Times a request gave up its KV slots, to be computed again.", status.preemptions)
    used = status.used_slots / status.total_slots if status.total_slots else 0.0
    yield gauge(
        "kv_cache_usage_perc", "Share of the KV slots in use, 0 to 1; those that can be had back are free.", used
    )
    yield gauge("kv_cache_slots", "KV slots in all.", status.total_slots)
    yield gauge("kv_cache_used_slots", "KV slots in use.", status.used_slots)
    cache = status.prefix_cache
    yield gauge("prefix_cache_slots", "KV slots of the prefix cache that no request uses.", cache.cached_slots)
    yield counter("prefix_cache_queries", "Tokens looked for in the prefix cache.", cache.queried_tokens)
    yield counter("prefix_cache_hits", "Tokens found in the prefix cache.", cache.hit_tokens)
    yield counter("prefix_cache_evictions", "Tokens of the prefix cache that made room.", cache.evicted_tokens)
    yield histogram("step_seconds", "Time of the target's steps, without planning and waiting.", steps.seconds)
    yield histogram("step_rows", "Tokens that a step computed: of prompts, last tokens and nodes.", steps.rows)
    yield histogram("step_sequences", "Requests that a step brought tokens.", steps.sequences)
    yield histogram(
        "step_draft_tokens", "Draft tokens that a step verified, all requests together.", steps.draft_tokens
    )
    yield counter(
        "step_part_seconds",
        "Where the engine thread's time goes; while there is nothing to do none is counted.",
        seconds_by_part(status.times),
        ["part"],
    )
    yield counter(
        "plain_decode_seconds",
        "What the same tokens would have taken without drafts, by estimate.",
        steps.plain_seconds,
    )
    loop: Duration = status.times.event_loop
    yield counter("event_loop_cpu_seconds", "CPU time of the event loop's thread.", seconds_of(loop))
    yield gauge("event_loop_tasks", "Tasks of the event loop that are alive.", status.tasks)
