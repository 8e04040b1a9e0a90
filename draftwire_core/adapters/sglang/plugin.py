"""The plugin that SGLang loads in each of its processes."""

from __future__ import annotations

NAME = "DRAFTWIRE"
"""Name of the algorithm in `--speculative-algorithm`."""


def register() -> None:
    """Registers the algorithm with SGLang. Called by SGLang, once in each of its processes."""
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    from draftwire_core.adapters.sglang.algorithm import RemoteDraftAlgorithm, worker_class

    SpeculativeAlgorithm.register(NAME, supports_overlap=True, spec_class=RemoteDraftAlgorithm)(worker_class)
