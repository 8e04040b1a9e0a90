"""The adapter's metrics, collected at each scrape."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from drafter_pool.drafter_pool import DrafterPool
from drafter_pool.metrics import drafter_families
from drafter_pool.routing.description import calibrations
from draftwire.v1.model_info_pb2 import ModelInfo
from draftwire.version import __version__
from draftwire_vllm.batch_mirror import BatchMirror
from service_runtime.observability.metric_families import counter, gauge, info


class AdapterCollector(Collector):
    """Collects the metrics of the pool, the mirror and the proposer."""

    def __init__(self, target: ModelInfo, pool: DrafterPool, mirror: BatchMirror, faults: Mapping[str, int]) -> None:
        """faults: the proposer's number of faults by exception name."""
        self._target = target
        self._pool = pool
        self._mirror = mirror
        self._faults = faults

    def collect(self) -> Iterator[Metric]:
        """Yields the metric families. Must be called in the event loop."""
        yield info(
            "vllm_adapter",
            "The adapter and vLLM's target model.",
            {"model": self._target.model_id, "dtype": self._target.dtype, "version": __version__},
        )
        yield gauge("vllm_requests", "Requests of vLLM that drafters may draft for.", self._mirror.requests)
        yield counter(
            "vllm_faults",
            "Steps that continued without speculation because drafting failed, by exception.",
            dict(self._faults),
            ["fault"],
        )
        yield from drafter_families(self._pool, calibrations(self._mirror.planner))
