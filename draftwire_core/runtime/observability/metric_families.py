"""Prometheus metrics, built at each scrape from counts kept elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, InfoMetricFamily

from draftwire_core.runtime.observability.histogram import Histogram

PREFIX = "draftwire:"
"""Prefix of every metric's name, like vLLM's `vllm:`."""

Values = float | Mapping[Any, float]
"""One value, or values by label: a string for one label, a tuple for several."""

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Bucket edges for times that people wait, in seconds."""
STEP_SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5)
"""Bucket edges for the times of steps, and between them, in seconds."""
SIZES = (0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0)
"""Bucket edges for numbers of rows, sequences or nodes of a step."""
TOKENS = (1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0, 32768.0)
"""Bucket edges for numbers of tokens of a request."""


def counter(name: str, help_text: str, values: Values, labels: Sequence[str] = ()) -> CounterMetricFamily:
    """Returns a counter. name: without the prefix, and without `_total`, which the exposition adds."""
    family = CounterMetricFamily(PREFIX + name, help_text, labels=labels)
    _fill(family, values)
    return family


def gauge(name: str, help_text: str, values: Values, labels: Sequence[str] = ()) -> GaugeMetricFamily:
    """Returns a gauge. name: without the prefix."""
    family = GaugeMetricFamily(PREFIX + name, help_text, labels=labels)
    _fill(family, values)
    return family


def histogram(name: str, help_text: str, values: Histogram) -> HistogramMetricFamily:
    """Returns a histogram. name: without the prefix."""
    family = HistogramMetricFamily(PREFIX + name, help_text)
    family.add_metric([], values.buckets(), values.sum)
    return family


def info(name: str, help_text: str, labels: Mapping[str, str]) -> InfoMetricFamily:
    """Returns constant facts about the process, as labels of a metric with value 1. name: without the prefix, and
    without `_info`, which the exposition adds."""
    family = InfoMetricFamily(PREFIX + name, help_text)
    family.add_metric([], dict(labels))
    return family


def _fill(family: CounterMetricFamily | GaugeMetricFamily, values: Values) -> None:
    if isinstance(values, Mapping):
        for labels, value in values.items():
            family.add_metric([labels] if isinstance(labels, str) else list(labels), value)
    else:
        family.add_metric([], values)
