"""All metrics of a verifier, collected at each scrape."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from draftwire.version import __version__
from draftwire_core.engine.kernels.library import library
from draftwire_core.pool.metrics import drafter_families
from draftwire_core.runtime.observability.metric_families import gauge, info
from verifier_service.metrics.engine import engine_families
from verifier_service.metrics.requests import request_families
from verifier_service.metrics.speculation import planner_families, speculation_families
from verifier_service.verifier import Verifier


class VerifierCollector(Collector):
    """Reports the verifier's counts, the same ones that GetModelInfo and ListDrafters report; counts nothing itself."""

    def __init__(self, verifier: Verifier) -> None:
        self._verifier = verifier

    def collect(self) -> Iterator[Metric]:
        """Yields all metrics; called in the event loop."""
        verifier = self._verifier
        model = verifier.model.info
        yield info(
            "verifier",
            "The verifier, its target model, and what determines its numerics.",
            {
                "model": model.model_id,
                "dtype": model.dtype,
                "device": model.device,
                "kernels": model.kernels,
                "version": __version__,
                "numerics": model.numerics,
                "numerics_description": model.numerics_description,
            },
        )
        yield info(
            "compiled_library",
            "Whether the engine's compiled library is in use; decoding on CPUs is slower without it.",
            {"loaded": "true" if library() is not None else "false"},
        )
        yield gauge(
            "ruled_out_kernel_shapes",
            "Shapes of GPU kernels that gave rows other bits when tried at load; they are not used, at some cost.",
            verifier.model.ruled_out_shapes,
        )
        status = verifier.status()
        yield from engine_families(status, verifier.step_counts)
        yield from request_families(verifier.request_counts)
        yield from speculation_families(verifier.acceptance_counts)
        yield from planner_families(status.planner)
        yield from drafter_families(verifier.pool, status.planner.calibrations)
