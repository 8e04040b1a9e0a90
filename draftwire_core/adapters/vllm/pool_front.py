"""The part of the adapter that is the same in front of either of vLLM's model runners."""

from __future__ import annotations

import weakref
from dataclasses import replace
from typing import Any

from draftwire_core.adapters.common.adapted_request import AdaptedOrder
from draftwire_core.adapters.common.metrics import Faults
from draftwire_core.adapters.common.pool_thread import PoolThread
from draftwire_core.adapters.common.request_options import RequestOptions
from draftwire_core.adapters.common.step_features import FeatureTaps
from draftwire_core.adapters.vllm.request_sampling import request_sampling
from draftwire_core.adapters.vllm.settings import VllmSettings
from draftwire_core.adapters.vllm.vllm_version import runner_and_reason, unknown_version
from draftwire_core.runtime.process.logs import configure_logs, get_logger
from draftwire_core.runtime.process.settings import settings_from_environment, variable_of
from draftwire_core.runtime.process.startup_error import StartupError

log = get_logger(__name__)

LOGGERS = ("draftwire", "draftwire_core")
"""Loggers that the adapter configures; vLLM configures its own."""


class PoolFront:
    """The drafter pool as vLLM's thread sees it: it starts and ends with vLLM, and no fault of it reaches vLLM.

    vLLM exits if a proposer raises. So, once the pool is served, a front never raises: it counts the fault and proposes
    nothing.
    """

    fixed_rows = False
    """Whether the model runner verifies `num_speculative_tokens` of each request, however many are proposed."""
    coupled = False
    """Whether the target's tokens are drawn by coupled sampling, so that drafters are told how."""

    def __init__(self, vllm_config: Any):
        """Reads the settings. Raises SettingsError, a ValueError, for invalid DRAFTWIRE_VLLM_* variables."""
        self.faults = Faults()
        """Number of faults by exception name."""
        self._config = vllm_config
        self._settings = settings_from_environment(VllmSettings)
        self._most = int(vllm_config.speculative_config.num_speculative_tokens)
        self._pool: PoolThread | None = None
        self._taps: FeatureTaps | None = None
        """The hidden states that drafters may read."""

    @staticmethod
    def check_runner(runner: Any, version: str) -> None:
        """Called by the worker first of all: logs which runner vLLM has chosen, and warns of an unknown version.

        Raises WrongRunnerError for a runner that would never call the adapter.
        """
        name, why = runner_and_reason(runner)
        log.info("model runner chosen", vllm=version, runner=name, because=why)
        problem = unknown_version(version)
        if problem is not None:
            log.warning("vLLM version not tested", problem=problem)

    @property
    def address(self) -> str:
        """HOST:PORT of the pool's service; empty until it is served, and in processes without a pool."""
        return self._pool.address if self._pool is not None else ""

    @property
    def drafter_names(self) -> list[str]:
        """Names of the attached drafters; empty in processes without a pool."""
        return self._pool.drafter_names if self._pool is not None else []

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

    def _prepare(self, pool: PoolThread, step: Any) -> None:
        """Reports requests that end and begin with a step to the mirror; drafters then read prompts while vLLM does."""
        pool.mirror.end(step.finished_req_ids)
        for new in step.scheduled_new_reqs:
            # Runner V2 computes a request that comes back after a preemption as a new one, with its output so far.
            tokens = getattr(new, "prefill_token_ids", None) or new.prompt_token_ids
            if tokens and new.prompt_embeds is None and new.sampling_params is not None:
                order = self._order(new.req_id, len(new.prompt_token_ids), new.sampling_params)
                pool.mirror.begin(order, tokens)

    def _start_pool(self) -> None:
        """Starts the pool; does nothing if it has been started. Raises StartupError if it cannot be served."""
        if self._pool is not None:
            return
        from draftwire_core.adapters.common.target_info import target_info

        if self._settings.feature_layers and self._taps is None:
            raise StartupError(
                f"{variable_of(type(self._settings), 'feature_layers')}: only vLLM's model runner V2 with the worker "
                "draftwire_vllm.worker.Worker gives hidden states"
            )
        configure_logs(self._settings.log_format, self._settings.log_level, names=LOGGERS)
        most_requests = int(self._config.scheduler_config.max_num_seqs)
        model = self._config.model_config
        info = target_info(
            model.model,
            model.architectures,
            vocab_size=model.get_vocab_size(),
            context_length=model.max_model_len,
            dtype=model.dtype,
            device=self._config.device_config.device_type,
            tokenizer_sha256=_tokenizer_sha256(model),
        )
        pool = PoolThread(
            self._settings,
            info,
            most_requests,
            self._most,
            self.faults,
            fixed_rows=self.fixed_rows,
            taps=self._taps,
        )
        pool.start()
        self._pool = pool
        # vLLM does not notify a proposer that it ends, unless its worker is draftwire's: it drops it.
        weakref.finalize(self, pool.stop)

    @property
    def longest_wait(self) -> float:
        """Longest that a step is delayed for draft tokens, in seconds. Unless the settings say how long, 0 if vLLM
        schedules asynchronously: the device would be idle meanwhile, which it otherwise is not between two steps."""
        settings = self._settings
        if "max_wait_ms" not in settings.model_fields_set and self._config.scheduler_config.async_scheduling:
            return 0.0
        return 1e-3 * settings.max_wait_ms

    @property
    def engine_seed(self) -> int:
        """vLLM's `--seed`, from which requests without a seed get theirs."""
        return int(self._config.model_config.seed)

    @property
    def _longest(self) -> int:
        """Most tokens of a request; vLLM may lower it after it has made the proposer, to fit its memory."""
        return int(self._config.model_config.max_model_len)

    def _order(self, request_id: str, prompt_tokens: int, sampling: Any) -> AdaptedOrder:
        most = self._longest if sampling.max_tokens is None else prompt_tokens + int(sampling.max_tokens)
        options = RequestOptions.of(sampling)
        order = AdaptedOrder(
            request_id,
            min(most, self._longest),
            speculate=options.speculate,
            drafter_names=options.drafter_names,
            labels=options.labels,
            drafters=options.drafters,
            always_draft=options.always_draft,
        )
        if self.coupled:
            order = replace(order, sampling=request_sampling(request_id, sampling, self.engine_seed))
        return order


def _tokenizer_sha256(model: Any) -> str:
    """Returns the fingerprint of the tokenizer of a `ModelConfig`, from its files."""
    if model.skip_tokenizer_init:
        return ""
    from transformers import AutoTokenizer

    from draftwire_core.adapters.common.target_info import fingerprint_of

    tokenizer = AutoTokenizer.from_pretrained(
        model.tokenizer, revision=model.tokenizer_revision, trust_remote_code=model.trust_remote_code
    )
    return fingerprint_of(tokenizer, model.tokenizer, model.tokenizer_revision)
