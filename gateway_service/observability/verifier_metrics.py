"""Prometheus metrics of how the gateway's requests spread over its verifiers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from draftwire import AsyncClient
from draftwire._types.verifier import VerifierStatus


class VerifierMetrics(Collector):
    """Reports the counts of the gateway's clients at each scrape."""

    def __init__(self) -> None:
        """Starts without clients."""
        self._clients: Callable[[], Iterable[AsyncClient]] = tuple

    def follow(self, clients: Callable[[], Iterable[AsyncClient]]) -> None:
        """Reports the verifiers of these clients from now on."""
        self._clients = clients

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
        by_address: dict[str, list[VerifierStatus]] = {}
        for each in (each for client in self._clients() for each in client.verifiers):
            by_address.setdefault(each.address, []).append(each)
        for address, known in by_address.items():  # several, if it is a target's alone and one of another's
            requests.add_metric((address,), sum(each.requests for each in known))
            in_flight.add_metric((address,), sum(each.in_flight for each in known))
            reachable.add_metric((address,), all(each.reachable for each in known))
        yield from (requests, in_flight, reachable)
