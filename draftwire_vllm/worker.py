"""vLLM's worker with the adapter, as `--worker-cls draftwire_vllm.worker.Worker` names it."""

from draftwire_core.adapters.vllm.worker import Worker

__all__ = ["Worker"]
