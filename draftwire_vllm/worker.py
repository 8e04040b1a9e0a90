"""vLLM's worker for the current platform, extended to pass request ids to the proposer.

vLLM passes request ids to its workers, but not to proposers.
"""

from __future__ import annotations

from typing import Any

from vllm import __version__
from vllm.distributed.parallel_state import get_tp_group
from vllm.platforms import current_platform

from draftwire_vllm.remote_drafter import RemoteDrafter
from draftwire_vllm.vllm_version import METHOD

if current_platform.is_cpu():
    from vllm.v1.worker.cpu_worker import CPUWorker as PlatformWorker
else:
    from vllm.v1.worker.gpu_worker import Worker as PlatformWorker


class Worker(PlatformWorker):  # type: ignore[misc]
    """vLLM's worker with a proposer that knows the requests; used by `--worker-cls draftwire_vllm.worker.Worker`."""

    def load_model(self, *args: Any, **kwargs: Any) -> Any:
        """Binds the proposer to the model runner, then loads the models. Raises WrongRunnerError."""
        config = getattr(self.vllm_config, "speculative_config", None)
        if config is not None and config.method == METHOD:
            RemoteDrafter.check_runner(self.model_runner, __version__)
        drafter = self._remote_drafter
        if drafter is not None:
            # vLLM takes draft tokens from the first tensor-parallel rank of the last pipeline stage, the only stage
            # with a proposer.
            drafter.bind(self.model_runner, speaks=get_tp_group().rank_in_group == 0)
        loaded = super().load_model(*args, **kwargs)
        if drafter is not None:
            drafter.load_model()  # on GPUs vLLM does not call it
        return loaded

    def execute_model(self, scheduler_output: Any) -> Any:
        """Notifies the proposer of the step, then runs it."""
        drafter = self._remote_drafter
        if drafter is not None:
            drafter.step_begins(scheduler_output)
        return super().execute_model(scheduler_output)

    def shutdown(self) -> None:
        """Shuts down the proposer, then the worker."""
        drafter = self._remote_drafter
        if drafter is not None:
            drafter.shutdown()
        super().shutdown()

    @property
    def _remote_drafter(self) -> RemoteDrafter | None:
        drafter = getattr(getattr(self, "model_runner", None), "drafter", None)
        return drafter if isinstance(drafter, RemoteDrafter) else None
