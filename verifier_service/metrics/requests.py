"""Metrics of requests."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.metrics_core import Metric

from draftwire_core.runtime.observability.metric_families import counter, histogram
from verifier_service.counting.request_counts import ENDINGS, RequestCounts

_REFUSALS = ("AT_CAPACITY", "CONTEXT_EXCEEDED", "INVALID_FIELD")
"""Reasons reported from the start, so that the first refusal shows as an increase."""


def request_families(counts: RequestCounts) -> Iterator[Metric]:
    """Yields the metrics of requests."""
    yield counter(
        "request_success",
        "Requests that ended after they had started, by how they ended.",
        {ending: counts.ended[ending] for ending in ENDINGS},
        ["finished_reason"],
    )
    yield counter(
        "requests_refused",
        "Requests that never started, by the error's reason.",
        dict.fromkeys(_REFUSALS, 0) | counts.refused,
        ["reason"],
    )
    yield counter("prompt_tokens", "Prompt tokens of requests that got their first token.", counts.prompt_tokens)
    yield counter("generation_tokens", "Output tokens of all requests.", counts.generation_tokens)
    yield counter(
        "goodput_tokens", "Output tokens of requests that ended by a stop or by their length.", counts.goodput_tokens
    )
    yield histogram(
        "time_to_first_token_seconds", "Time from a request's admission to its first token.", counts.first_token
    )
    yield histogram(
        "inter_token_latency_seconds",
        "Time between consecutive steps that committed tokens of a request; one step may commit several.",
        counts.between_tokens,
    )
    yield histogram(
        "e2e_request_latency_seconds",
        "Time from a request's admission to its end, for requests that finished.",
        counts.latency,
    )
    yield histogram("request_prompt_tokens", "Prompt tokens per finished request.", counts.prompt_lengths)
    yield histogram("request_generation_tokens", "Output tokens per finished request.", counts.output_lengths)
