"""The entry point of vLLM's plugin, which vLLM calls in each of its processes."""

from draftwire_core.adapters.vllm.registration import register

__all__ = ["register"]
