"""Prometheus metrics of how the gateway's requests spread over its verifiers."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from draftwire import AsyncClient


class VerifierMetrics(Collector):
    """Reports the counts of the gateway's client at each scrape."""

    def __init__(self) -> None:
        """Starts without a client."""
        self._client: AsyncClient | None = None

    def follow(self, client: AsyncClient) -> None:
        """Reports this client's verifiers from now on."""
        self._client = client

    def collect(self) -> Iterator[Metric]:
        """Yields the metrics, for each exposition."""
        requests = CounterMetricFamily(
            "draftwire:gateway_verifier_requests", "Attempts to generate a choice, by the verifier they were sent to.",
            labels=("verifier",),
        )  # fmt: skip
        in_flight = GaugeMetricFamily(
            "draftwire:gateway_verifier_in_flight", "Choices in flight at the verifier.", labels=("verifier",)
        )
        reachable = GaugeMetricFamily(
            "draftwire:gateway_verifier_up",
            "1 while the verifier gets requests; 0 from when it is lost or begins to drain until it serves again.",
            labels=("verifier",),
        )
        for each in self._client.verifiers if self._client is not None else ():
            requests.add_metric((each.address,), each.requests)
            in_flight.add_metric((each.address,), each.in_flight)
            reachable.add_metric((each.address,), each.reachable)
        yield from (requests, in_flight, reachable)
