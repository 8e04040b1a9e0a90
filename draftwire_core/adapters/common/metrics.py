"""The adapter's metrics, collected at each scrape, and its faults: steps that had no drafts because drafting failed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from draftwire.v1.model_info_pb2 import ModelInfo
from draftwire.version import __version__
from draftwire_core.adapters.common.batch_mirror import BatchMirror
from draftwire_core.adapters.common.settings import HostEngine
from draftwire_core.pool.drafter_pool import DrafterPool
from draftwire_core.pool.metrics import drafter_families
from draftwire_core.pool.routing.description import calibrations
from draftwire_core.runtime.observability.metric_families import counter, gauge, info
from draftwire_core.runtime.process.logs import get_logger

log = get_logger(__name__)


class Faults(Counter[str]):
    """Number of faults by exception name."""

    def note(self, error: Exception) -> None:
        """Counts an exception; logs the first of each name with its traceback."""
        name = type(error).__name__
        self[name] += 1
        if self[name] == 1:
            log.error("drafting failed; the host engine continues without drafts", fault=name, exc_info=error)


class AdapterCollector(Collector):
    """Collects the metrics of the pool, the mirror and the adapter."""

    def __init__(
        self, host: HostEngine, target: ModelInfo, pool: DrafterPool, mirror: BatchMirror, faults: Mapping[str, int]
    ) -> None:
        """faults: the adapter's number of faults by exception name."""
        self._host = host
        self._target = target
        self._pool = pool
        self._mirror = mirror
        self._faults = faults

    def collect(self) -> Iterator[Metric]:
        """Yields the metric families. Must be called in the event loop."""
        name, key = self._host.name, self._host.key
        yield info(
            f"{key}_adapter",
            f"The adapter and {name}'s target model.",
            {"model": self._target.model_id, "dtype": self._target.dtype, "version": __version__},
        )
        yield gauge(f"{key}_requests", f"Requests of {name} that drafters may draft for.", self._mirror.requests)
        yield counter(
            f"{key}_faults",
            "Steps that continued without speculation because drafting failed, by exception.",
            dict(self._faults),
            ["fault"],
        )
        yield from drafter_families(self._pool, calibrations(self._mirror.planner))
