"""Prometheus metrics of the load of each served model, as its verifiers report it to the gateway."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from draftwire import EngineStatus

_LABELS = ("model_name",)


class LoadMetrics(Collector):
    """Reports queue and KV cache by model, for routers that choose among gateways (docs/behind-your-router.md).

    The names are vLLM's behind this gateway's prefix, so that verifier and gateway are not counted twice.
    """

    def __init__(self) -> None:
        """Starts without loads."""
        self.by_model: Mapping[str, Sequence[EngineStatus]] = {}
        """The last reports of the engines of each model, by the model's name; to be set before an exposition."""

    def collect(self) -> Iterator[Metric]:
        """Yields the metrics, for each exposition."""
        waiting = GaugeMetricFamily(
            "draftwire:gateway_num_requests_waiting", "Requests that wait at the model's verifiers.", labels=_LABELS
        )
        running = GaugeMetricFamily(
            "draftwire:gateway_num_requests_running", "Requests that run at the model's verifiers.", labels=_LABELS
        )
        usage = GaugeMetricFamily(
            "draftwire:gateway_kv_cache_usage_perc",
            "Share of the KV slots in use at the model's verifiers, 0 to 1. Slots that can be reclaimed count as free.",
            labels=_LABELS,
        )
        for model, engines in self.by_model.items():
            waiting.add_metric((model,), sum(each.waiting_requests for each in engines))
            running.add_metric((model,), sum(each.running_sequences for each in engines))
            slots = sum(each.total_slots for each in engines)
            usage.add_metric((model,), sum(each.used_slots for each in engines) / slots if slots else 0.0)
        yield from (waiting, running, usage)
