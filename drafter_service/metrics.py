"""The drafter's metrics, collected at each scrape."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from drafter_service.models.model_changes import ModelChanges
from draftwire.v1.drafter_service_pb2 import VerifierShare
from draftwire.version import __version__
from draftwire_core.engine.kernels.library import library
from draftwire_core.runtime.observability.metric_families import counter, gauge, histogram, info


class DrafterCollector(Collector):
    """Collects the metrics of all models together, including the counts of released models."""

    def __init__(self, changes: ModelChanges) -> None:
        self._changes = changes

    def collect(self) -> Iterator[Metric]:
        """Yields the metric families. Must be called in the event loop; does not wait for drafting threads."""
        changes = self._changes
        model = changes.serving.hello.model
        yield info(
            "drafting",
            "The drafter service and the model that new streams get.",
            {"model": model.model_id, "dtype": model.dtype, "device": model.device, "version": __version__},
        )
        yield info(
            "compiled_library",
            "Whether the engine's compiled library is in use; decoding on CPUs is slower without it.",
            {"loaded": "true" if library() is not None else "false"},
        )
        counts = changes.counts()
        yield counter("drafting_nodes", "Nodes proposed.", counts.nodes)
        yield histogram("drafting_step_seconds", "Time of drafting steps.", counts.seconds)
        yield histogram("drafting_step_sequences", "Sequences that a step proposed nodes for.", counts.sequences)
        yield counter(
            "drafting_step_part_seconds",
            "Time of the drafting threads, by part; time without sequences is not counted.",
            counts.part_seconds,
            ["part"],
        )
        yield gauge("drafting_streams", "Open Draft streams, one per verifier.", changes.streams)
        yield gauge("drafting_sequences", "Open sequences.", changes.sequences)
        used, total = changes.slots()
        yield gauge(
            "drafting_kv_cache_usage_perc", "Share of the KV slots in use, 0 to 1.", used / total if total else 0
        )
        yield gauge("drafting_kv_cache_slots", "Total number of KV slots.", total)
        yield gauge("drafting_kv_cache_used_slots", "KV slots in use.", used)
        yield from _of_verifiers(changes.verifiers())
        loads = changes.loads
        yield counter(
            "drafting_model_loads",
            "Loads of a replacement model, by result: `done`, `failed` or `cancelled`.",
            {result: loads[result] for result in ("done", "failed", "cancelled")},
            ["result"],
        )


def _of_verifiers(verifiers: Sequence[VerifierShare]) -> Iterator[Metric]:
    """Yields the metrics per verifier. A verifier's series end with its last stream."""

    def by_name(value: Callable[[VerifierShare], float]) -> dict[str, float]:
        return {each.name: value(each) for each in verifiers}

    label = ["verifier"]
    rows = by_name(lambda each: each.rows)
    yield counter("drafting_verifier_rows", "Rows of the draft model's steps computed for the verifier.", rows, label)
    nodes = by_name(lambda each: each.drafted_nodes)
    yield counter("drafting_verifier_nodes", "Nodes proposed to the verifier.", nodes, label)
    yield counter(
        "drafting_verifier_preemptions",
        "Times that a sequence of the verifier gave up its KV slots to others and was computed again later.",
        by_name(lambda each: each.preemptions),
        label,
    )
    weights = by_name(lambda each: each.weight)
    yield gauge("drafting_verifier_weight", "Weight of the verifier's share of the drafter.", weights, label)
    sequences = by_name(lambda each: each.open_sequences)
    yield gauge("drafting_verifier_sequences", "Open sequences of the verifier.", sequences, label)
    waiting = by_name(lambda each: each.waiting_sequences)
    yield gauge(
        "drafting_verifier_waiting_sequences", "Open sequences of the verifier that wait for KV slots.", waiting, label
    )
    slots = by_name(lambda each: each.used_slots)
    yield gauge("drafting_verifier_used_slots", "KV slots that hold the verifier's committed tokens.", slots, label)
