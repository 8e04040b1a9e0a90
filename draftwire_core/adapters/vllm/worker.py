"""vLLM's worker for the current platform, extended to notify the adapter of each step before it runs.

vLLM notifies its workers which requests a step begins, ends and computes, but not its proposers. Under runner V1 the
adapter depends on it; under V2 it learns of the requests from the runner's state, too, but only after their first step.
"""

from __future__ import annotations

from typing import Any

from vllm import __version__
from vllm.distributed.parallel_state import get_tp_group
from vllm.platforms import current_platform
from vllm.v1.sample.logits_processor import LogitBiasLogitsProcessor

from draftwire_core.adapters.vllm.coupled_verdict import couple
from draftwire_core.adapters.vllm.pool_front import PoolFront
from draftwire_core.adapters.vllm.remote_drafter import RemoteDrafter
from draftwire_core.adapters.vllm.remote_speculator import RemoteSpeculator
from draftwire_core.adapters.vllm.vllm_version import METHOD

if current_platform.is_cpu():
    from vllm.v1.worker.cpu_worker import CPUWorker as PlatformWorker
elif current_platform.is_xpu():
    from vllm.v1.worker.xpu_worker import XPUWorker as PlatformWorker
else:
    from vllm.v1.worker.gpu_worker import Worker as PlatformWorker


class Worker(PlatformWorker):  # type: ignore[misc]
    """vLLM's worker with an adapter that knows the requests; used by `--worker-cls draftwire_vllm.worker.Worker`."""

    def load_model(self, *args: Any, **kwargs: Any) -> Any:
        """Binds the proposer of runner V1 to that runner, or taps the target for that of V2, loads the models, and
        couples the runner's sampling.

        Raises WrongRunnerError, StartupError.
        """
        config = getattr(self.vllm_config, "speculative_config", None)
        if config is not None and config.method == METHOD:
            PoolFront.check_runner(self.model_runner, __version__)
        front = self._front
        if isinstance(front, RemoteDrafter):
            # vLLM takes draft tokens from the first tensor-parallel rank of the last pipeline stage, the only stage
            # with a proposer.
            front.bind(self.model_runner, speaks=get_tp_group().rank_in_group == 0)
            if front.coupled:  # on all ranks, each of which draws all tokens
                bias = LogitBiasLogitsProcessor(self.vllm_config, self.model_runner.device, False)
                couple(self.model_runner, front.engine_seed, bias)
        if isinstance(front, RemoteSpeculator):
            front.tap(self.model_runner)
        loaded = super().load_model(*args, **kwargs)
        if isinstance(front, RemoteDrafter):
            front.load_model()  # on GPUs vLLM does not call it
        if isinstance(front, RemoteSpeculator):
            front.target_loaded(self.model_runner.model)
            front.couple(self.model_runner)
        return loaded

    def execute_model(self, scheduler_output: Any) -> Any:
        """Notifies the adapter of the step, then runs it."""
        front = self._front
        if front is not None:
            front.step_begins(scheduler_output)
        return super().execute_model(scheduler_output)

    def pool_address(self) -> str:
        """Returns HOST:PORT of the pool's service, for a verifier in front of vLLM; empty in workers without a pool."""
        front = self._front
        return front.address if front is not None else ""

    def drafter_names(self) -> list[str]:
        """Returns the names of the attached drafters, for a verifier in front of vLLM."""
        front = self._front
        return front.drafter_names if front is not None else []

    def parameters(self) -> int:
        """Returns the number of parameters that this rank holds, for a verifier in front of vLLM."""
        return sum(each.numel() for each in self.get_model().parameters())

    def shutdown(self) -> None:
        """Shuts down the adapter, then the worker."""
        front = self._front
        if front is not None:
            front.shutdown()
        super().shutdown()

    @property
    def _front(self) -> PoolFront | None:
        runner = getattr(self, "model_runner", None)
        for name in ("drafter", "speculator"):  # of runner V1, of V2
            front = getattr(runner, name, None)
            if isinstance(front, PoolFront):
                return front
        return None
