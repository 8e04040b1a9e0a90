"""The `custom_class` proposer that vLLM calls."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from draftwire_vllm.settings import AdapterSettings
from draftwire_vllm.vllm_version import runner_and_reason, unknown_version
from engine_adapter.adapted_request import AdaptedOrder
from engine_adapter.faults import Faults
from engine_adapter.pool_thread import PoolThread
from service_runtime.process.logs import configure_logs, get_logger
from service_runtime.process.settings import settings_from_environment

log = get_logger(__name__)

_LOGGERS = ("draftwire", "draftwire_vllm", "engine_adapter", "drafter_pool", "service_runtime", "speculative_engine")
"""Loggers that the adapter configures; vLLM configures its own."""


class RemoteDrafter:
    """vLLM's `custom_class` proposer: returns the draft tokens that the pool's drafters have proposed in time.

    vLLM calls the proposer in its single thread and exits if it raises. So once loaded it never raises: it counts the
    fault and proposes nothing. It needs `draftwire_vllm.worker.Worker`, which gives it access to the requests.
    """

    def __init__(self, vllm_config: Any):
        """Reads the settings. Raises SettingsError, a ValueError, for invalid DRAFTWIRE_VLLM_* variables."""
        self.faults = Faults()
        """Number of faults by exception name."""
        self._config = vllm_config
        self._settings = settings_from_environment(AdapterSettings)
        self._most = int(vllm_config.speculative_config.num_speculative_tokens)
        self._longest = int(vllm_config.model_config.max_model_len)
        self._runner: Any = None
        self._speaks = False
        self._pool: PoolThread | None = None
        self._call = 0
        self._began: float | None = None
        self._rows = 0
        self._skips = False
        """Whether vLLM has said of this step, as it does from 0.33 on, that no request can use draft tokens."""

    @staticmethod
    def check_runner(runner: Any, version: str) -> None:
        """Called by the worker first of all: logs which runner vLLM has chosen, and warns of an unknown version.

        Raises WrongRunnerError for a runner that would never call a proposer.
        """
        name, why = runner_and_reason(runner)
        log.info("vLLM's model runner", vllm=version, runner=name, because=why)
        problem = unknown_version(version)
        if problem is not None:
            log.warning("unknown version of vLLM", problem=problem)

    def bind(self, runner: Any, *, speaks: bool) -> None:
        """Called by the worker before the model is loaded. runner: vLLM's model runner, which holds the batch. speaks:
        whether vLLM uses this process's draft tokens; no other process connects to drafters."""
        self._runner = runner
        self._speaks = speaks

    def load_model(self, *_: Any, **__: Any) -> None:
        """Starts the drafter pool, after vLLM has loaded the target model.

        Raises RuntimeError without the worker, and StartupError if the pool cannot be served.
        """
        if self._runner is None:
            raise RuntimeError(
                "draftwire_vllm.RemoteDrafter requires --worker-cls draftwire_vllm.worker.Worker to learn of requests"
            )
        if not self._speaks or self._pool is not None:
            return
        from draftwire_vllm.target_info import target_info

        configure_logs(self._settings.log_format, self._settings.log_level, names=_LOGGERS)
        most_requests = int(self._config.scheduler_config.max_num_seqs)
        pool = PoolThread(self._settings, target_info(self._config), most_requests, self._most, self.faults)
        pool.start()
        self._pool = pool

    @property
    def address(self) -> str:
        """HOST:PORT of the pool's service; empty until it is served, and in processes without a pool."""
        return self._pool.address if self._pool is not None else ""

    def shutdown(self) -> None:
        """Ends the conversations with the drafters."""
        if self._pool is not None:
            self._pool.stop()

    def step_begins(self, step: Any) -> None:
        """Called by the worker with vLLM's SchedulerOutput before a step. Never raises."""
        if self._pool is None or not self._pool.alive:
            return
        try:
            self._prepare(self._pool, step)
        except Exception as error:  # noqa: BLE001 - noted; an exception here would end vLLM's engine
            self.faults.note(error)

    def propose(
        self,
        sampled_token_ids: Sequence[Sequence[int]],
        num_tokens_no_spec: np.ndarray,
        token_ids_cpu: np.ndarray,
        slot_mappings: Any = None,
    ) -> list[list[int]]:
        """Returns the draft tokens of each row of the batch; empty if none are worth verifying. Never raises.

        sampled_token_ids: tokens that the step sampled, by row; empty while a prompt is computed.
        num_tokens_no_spec: int [rows or more], lengths of prompt and output, sampled tokens included.
        token_ids_cpu: int [rows or more, max_model_len], tokens of prompt and output.
        """
        nothing: list[list[int]] = [[] for _ in sampled_token_ids]
        if self._pool is None or not self._pool.alive:
            return nothing
        try:
            return self._propose(self._pool, sampled_token_ids, num_tokens_no_spec, token_ids_cpu)
        except Exception as error:  # noqa: BLE001 - noted; an exception here would end vLLM's engine
            self.faults.note(error)
            return nothing

    def _prepare(self, pool: PoolThread, step: Any) -> None:
        mirror = pool.mirror
        mirror.end(step.finished_req_ids)
        mirror.verify({request_id: len(tokens) for request_id, tokens in step.scheduled_spec_decode_tokens.items()})
        for new in step.scheduled_new_reqs:
            if new.prompt_token_ids and new.prompt_embeds is None and new.sampling_params is not None:
                mirror.begin(
                    self._order(new.req_id, len(new.prompt_token_ids), new.sampling_params), new.prompt_token_ids
                )
        self._rows = step.total_num_scheduled_tokens
        self._skips = bool(getattr(step, "skip_drafts", False))
        self._began = time.perf_counter()

    def _propose(
        self,
        pool: PoolThread,
        sampled: Sequence[Sequence[int]],
        lengths: np.ndarray,
        tokens: np.ndarray,
    ) -> list[list[int]]:
        now = time.perf_counter()
        mirror = pool.mirror
        if self._began is not None:
            mirror.cost.observe(self._rows, now - self._began)
            self._began = None
        request_ids = list(self._runner.input_batch.req_ids[: len(sampled)])
        if len(request_ids) != len(sampled):
            raise ValueError(f"req_ids: {len(request_ids)} requests for {len(sampled)} rows")
        self._call += 1
        requests: Mapping[str, Any] = self._runner.requests
        drafted: dict[int, str] = {}
        for row, request_id in enumerate(request_ids):
            state = requests[request_id]
            if state.sampling_params is None or state.prompt_embeds is not None or not lengths[row]:
                continue
            mirror.commit(
                self._call,
                request_id,
                tokens[row, : int(lengths[row])],
                partial(self._order, request_id, state.num_prompt_tokens, state.sampling_params),
            )
            if sampled[row] and not self._skips:
                drafted[row] = request_id
        prompts = sum(not each for each in sampled)
        deadline = now + 1e-3 * self._settings.max_wait_ms
        chains = mirror.chains(list(drafted.values()), prompts, deadline)
        proposed: list[list[int]] = [[] for _ in sampled]
        for row, chain in zip(drafted, chains, strict=True):
            proposed[row] = chain
        return proposed

    def _order(self, request_id: str, prompt_tokens: int, sampling: Any) -> AdaptedOrder:
        most = self._longest if sampling.max_tokens is None else prompt_tokens + int(sampling.max_tokens)
        return AdaptedOrder(request_id, min(most, self._longest))
