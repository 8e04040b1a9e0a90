"""Prometheus metrics of what the holders of named keys use."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge


class KeyMetrics:
    """Counts by the names of keys, of which the file of keys has so many."""

    def __init__(self, registry: CollectorRegistry) -> None:
        """Starts at zero."""
        self.requests = Counter(
            "draftwire:gateway_key_requests", "Requests within the limit of their key.", ("key",), registry=registry
        )
        self.refusals = Counter(
            "draftwire:gateway_key_refusals",
            "Requests that were refused by a limit of their key, or ended because the key is no longer valid.",
            ("key", "limit"),
            registry=registry,
        )
        self.tokens = Counter(
            "draftwire:gateway_key_tokens",
            "Tokens of prompts and completions charged to a key, unfinished completions included.",
            ("key", "kind"),
            registry=registry,
        )
        self.running = Gauge(
            "draftwire:gateway_key_running", "Choices being generated for a key.", ("key",), registry=registry
        )
