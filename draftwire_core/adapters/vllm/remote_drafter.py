"""The `custom_class` proposer that vLLM's model runner V1 calls."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from draftwire_core.adapters.common.pool_thread import PoolThread
from draftwire_core.adapters.vllm.pool_front import PoolFront


class RemoteDrafter(PoolFront):
    """The proposer of runner V1: returns the draft tokens that the pool's drafters have proposed in time.

    vLLM calls it in its single thread. It needs `draftwire_vllm.worker.Worker`, which gives it access to the requests.
    Its name is what a speculative configuration names, under runner V2 as well.
    """

    def __init__(self, vllm_config: Any):
        """Reads the settings. Raises SettingsError, a ValueError, for invalid DRAFTWIRE_VLLM_* variables."""
        super().__init__(vllm_config)
        self.coupled = self._settings.coupled_sampling
        self._runner: Any = None
        self._speaks = False
        self._call = 0
        self._began: float | None = None
        self._rows = 0
        self._skips = False
        """Whether vLLM has said of this step, as it does from 0.33 on, that no request can use draft tokens."""

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
        if self._speaks:
            self._start_pool()

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
        verified = {request_id: len(tokens) for request_id, tokens in step.scheduled_spec_decode_tokens.items()}
        pool.mirror.verify(verified)
        super()._prepare(pool, step)
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
        deadline = now + self.longest_wait
        chains = mirror.chains(list(drafted.values()), prompts, deadline)
        proposed: list[list[int]] = [[] for _ in sampled]
        for row, chain in zip(drafted, chains, strict=True):
            proposed[row] = chain
        return proposed
