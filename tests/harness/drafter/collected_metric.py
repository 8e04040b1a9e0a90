"""Reads a drafter's metrics from its collector."""

from prometheus_client import CollectorRegistry

from drafter_service.metrics import DrafterCollector
from tests.harness.services.in_process_drafter import InProcessDrafter


def metric(drafter: InProcessDrafter, name: str, **labels: str) -> float:
    registry = CollectorRegistry()
    registry.register(DrafterCollector(drafter.changes))
    value = registry.get_sample_value(f"draftwire:{name}", labels)
    assert value is not None, name
    return value
