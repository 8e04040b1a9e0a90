"""All of a drafter's metrics, as they are at a scrape."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from drafter_service.model_changes import ModelChanges
from draftwire.version import __version__
from service_runtime.metric_families import counter, gauge, histogram, info


class DrafterCollector(Collector):
    """Tells of all generations together: what has been drafted does not go with the model that drafted it."""

    def __init__(self, changes: ModelChanges) -> None:
        self._changes = changes

    def collect(self) -> Iterator[Metric]:
        """To be called in the event loop; waits for no drafting thread."""
        changes = self._changes
        model = changes.serving.hello.model
        yield info(
            "drafting",
            "The drafter service and the model that new streams get.",
            {"model": model.model_id, "dtype": model.dtype, "device": model.device, "version": __version__},
        )
        counts = changes.counts()
        yield counter("drafting_nodes", "Nodes proposed.", counts.nodes)
        yield histogram("drafting_step_seconds", "Time of the steps that drafted.", counts.seconds)
        yield histogram("drafting_step_sequences", "Sequences that a step proposed nodes for.", counts.sequences)
        yield counter(
            "drafting_step_part_seconds",
            "Where the drafting threads' time goes; while there is no sequence none is counted.",
            counts.part_seconds,
            ["part"],
        )
        yield gauge("drafting_streams", "Draft streams that are open: verifiers.", changes.streams)
        yield gauge("drafting_sequences", "Sequences that are open.", changes.sequences)
        used, total = changes.slots()
        yield gauge(
            "drafting_kv_cache_usage_perc", "Share of the KV slots in use, 0 to 1.", used / total if total else 0
        )
        yield gauge("drafting_kv_cache_slots", "KV slots in all.", total)
        yield gauge("drafting_kv_cache_used_slots", "KV slots in use.", used)
        loads = changes.loads
        yield counter(
            "drafting_model_loads",
            "Models loaded in the place of another, and those that could not be.",
            {result: loads[result] for result in ("done", "failed")},
            ["result"],
        )
