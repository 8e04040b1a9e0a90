"""The gateway's Prometheus metrics."""

from __future__ import annotations

from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.exposition import generate_latest

from draftwire import Generation
from draftwire_core.runtime.process.tls_settings import EXPIRY, EXPIRY_MEANING, CertificateExpiry
from gateway_service.observability.key_metrics import KeyMetrics
from gateway_service.observability.load_metrics import LoadMetrics
from gateway_service.observability.verifier_metrics import VerifierMetrics

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)


class Metrics:
    """The metrics of one gateway, in a registry of their own."""

    def __init__(self, certificates: CertificateExpiry) -> None:
        """Starts at zero. certificates: those of the gateway's settings."""
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self.requests = Counter(
            "draftwire:gateway_requests", "Requests that ended.", ("path", "status"), registry=self._registry
        )
        self.seconds = Histogram(
            "draftwire:gateway_request_seconds",
            "Time from a request's first byte to the end of its response.",
            ("path",),
            buckets=_SECONDS,
            registry=self._registry,
        )
        self.first_token_seconds = Histogram(
            "draftwire:gateway_first_token_seconds",
            "Time from a choice's admission to its first token, as the verifier reports it.",
            buckets=_SECONDS,
            registry=self._registry,
        )
        self.generations = Gauge("draftwire:gateway_generations", "Choices being generated.", registry=self._registry)
        self.disconnects = Counter(
            "draftwire:gateway_disconnects",
            "Requests whose client left before the end of the response.",
            registry=self._registry,
        )
        self._tokens = Counter(
            "draftwire:gateway_tokens",
            "Tokens of finished choices: of the prompt, those of it from the prefix cache, of the completion, "
            "verified draft tokens and accepted ones.",
            ("kind",),
            registry=self._registry,
        )

        self.keys = KeyMetrics(self._registry)
        self.verifiers = VerifierMetrics()
        self._registry.register(self.verifiers)
        self.loads = LoadMetrics()
        self._registry.register(self.loads)
        expiry = Gauge(f"draftwire:{EXPIRY}", EXPIRY_MEANING, ("setting",), registry=self._registry)
        for setting in certificates.seconds():
            expiry.labels(setting).set_function(partial(certificates.of, setting))

    def finished(self, generation: Generation) -> None:
        """Counts a finished choice."""
        usage, speculation = generation.usage, generation.speculation
        for kind, tokens in (
            ("prompt", usage.prompt_tokens),
            ("cached", usage.cached_tokens),
            ("completion", usage.completion_tokens),
            ("draft", speculation.draft_tokens),
            ("accepted", speculation.accepted_tokens),
        ):
            self._tokens.labels(kind).inc(tokens)
        self.first_token_seconds.observe(usage.first_token_seconds)

    def exposition(self) -> bytes:
        """Returns all metrics in Prometheus' text format."""
        return generate_latest(self._registry)
