"""The speculator that vLLM's model runner V2 calls."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import torch

from draftwire_core.adapters.common.adapted_request import AdaptedOrder
from draftwire_core.adapters.common.pool_thread import PoolThread
from draftwire_core.adapters.vllm.aux_states import ask_for_states, taps_of
from draftwire_core.adapters.vllm.coupled_processor import CoupledProcessor
from draftwire_core.adapters.vllm.pool_front import PoolFront
from draftwire_core.adapters.vllm.settings import check_coupling
from draftwire_core.adapters.vllm.step_report import StepReport
from draftwire_core.engine.sampling.kernel_sampler import sampler_of


class RemoteSpeculator(PoolFront):
    """The speculator of runner V2: writes the draft tokens that drafters have proposed in time to the device.

    The runner verifies `num_speculative_tokens` of each request: with asynchronous scheduling the next step is laid out
    before its draft tokens are known. So no chain is cut for its cost, and what drafters leave empty is filled with the
    last sampled token, as vLLM's own n-gram speculator does. That is exact, since any token may be rejected. (The -1
    that the runner writes into columns that it does not schedule would be looked up in the target's embedding here.)

    It has the methods and attributes of vLLM's BaseSpeculator, and imports nothing of vLLM; `registration` makes it.
    """

    num_query_per_req = 1
    num_extra_query_per_req = 0
    supports_mm_inputs = False
    draft_logits = None
    """Distributions that the draft tokens were drawn from: none, each counts as certain."""
    fixed_rows = True

    def __init__(self, vllm_config: Any, device: torch.device, states: Any, group: Any = None):
        """states: the runner's RequestState. group: vLLM's tensor-parallel group, None for a single process. Only its
        first rank connects to drafters; the others receive its draft tokens, as all must verify the same.

        Raises SettingsError, a ValueError, for invalid DRAFTWIRE_VLLM_* variables.
        """
        super().__init__(vllm_config)
        self.pcp_manager: Any = None
        self._states = states
        self._group = group if group is not None and group.world_size > 1 else None
        self._drafts = torch.zeros(
            int(vllm_config.scheduler_config.max_num_seqs), self._most, dtype=torch.int64, device=device
        )
        self._ended: float | None = None
        """When the last call of `propose` returned."""
        self._last: set[str] = set()
        """The requests of the last call of `propose`."""
        self._processor: CoupledProcessor | None = None
        """Draws the target's tokens; None if vLLM does."""

    @property
    def speaks(self) -> bool:
        """Whether this process connects to drafters."""
        return self._group is None or self._group.rank_in_group == 0

    def tap(self, runner: Any) -> None:
        """Asks the runner for hidden states, if drafters are to read any. Called before the target is loaded. Raises
        StartupError if this target or configuration cannot give them."""
        if self._settings.feature_layers:
            self._taps = taps_of(self._config, self._settings, self._drafts.device)
            ask_for_states(runner, self._taps)

    def target_loaded(self, model: Any) -> None:
        """Chooses the layers that the loaded target is tapped before."""
        if self._taps is not None:
            model.set_aux_hidden_state_layers(self._taps.tapped)

    def couple(self, runner: Any) -> None:
        """Makes the runner draw tokens by coupled sampling, if the settings ask for it. Called after the target is
        loaded, on all ranks, each of which draws tokens. Raises StartupError for what coupled sampling cannot do."""
        sampler = runner.sampler
        if not self._settings.coupled_sampling or sampler is None:
            return
        check_coupling(
            rejection_sample_method=self._config.speculative_config.rejection_sample_method,
            # Where one token is left, these would say nothing.
            logprobs_mode=sampler.logprobs_mode,
            return_sampling_mask=getattr(sampler, "return_sampling_mask", False),
        )
        kernels, _ = sampler_of(self._drafts.device)
        self._processor = CoupledProcessor(self._states, self.engine_seed, self._drafts.device, kernels)
        sampler.logits_processors.append(self._processor)
        self.coupled = True

    def init_cudagraph_manager(self, cudagraph_mode: Any) -> None:
        """Starts the drafter pool: the first call after vLLM has loaded the target model. Raises StartupError."""
        if self.speaks:
            self._start_pool()

    def capture(self) -> None:
        """Does nothing: there is no draft model here whose graphs could be captured."""

    @torch.inference_mode()  # type: ignore[untyped-decorator]
    def propose(
        self,
        input_batch: Any,
        attn_metadata: Any,
        slot_mappings: Any,
        last_hidden_states: torch.Tensor,
        aux_hidden_states: list[torch.Tensor] | None,
        num_sampled: torch.Tensor,
        num_rejected: torch.Tensor,
        last_sampled: torch.Tensor,
        next_prefill_tokens: torch.Tensor,
        temperature: torch.Tensor,
        seeds: torch.Tensor,
        dp_sync_state: Any = None,
        dummy_run: bool = False,
        skip_attn_for_dummy_run: bool = False,
        mm_inputs: Any = None,
        is_profile: bool = False,
        num_speculative_tokens: int | None = None,
    ) -> torch.Tensor:
        """Returns the draft tokens of each request of the batch, int64 [requests, num_speculative_tokens], on the
        device. Never raises for what drafters or messages do.

        aux_hidden_states: those that enter each tapped layer, [rows, hidden size], None without taps. num_sampled: int
        [requests], 0 while a prompt is computed. num_rejected: int [requests]. last_sampled: int64 [most requests, 1].
        num_speculative_tokens: how many the next step verifies; with 0 no drafter is waited for, and unless some read
        features they hear of this step's tokens with those of a later one. The other arguments are for draft models on
        the device.
        """
        drafts = self._drafts[: input_batch.num_reqs]
        if dummy_run:
            return drafts
        drafts.copy_(last_sampled.view(-1)[input_batch.idx_mapping].unsqueeze(1).expand_as(drafts))
        skips = num_speculative_tokens == 0
        # A step's states are overwritten by the next one's, so features are made of all steps, of prompts not least.
        reads = self._pool is not None and bool(self._pool.features)
        if skips and not reads:
            self._ended = None
            return drafts
        if self._pool is not None and self._pool.alive:
            try:
                report = self._report(self._pool, input_batch, aux_hidden_states, num_sampled, num_rejected)
                self._propose(self._pool, input_batch, report, None if skips else drafts)
            except Exception as error:  # noqa: BLE001 - noted; an exception here would end vLLM's engine
                self.faults.note(error)
            self._ended = None if skips else time.perf_counter()
        if skips:
            return drafts
        if self._group is not None:
            self._group.broadcast(drafts, src=0)
        return drafts

    def _report(
        self,
        pool: PoolThread,
        batch: Any,
        states: list[torch.Tensor] | None,
        num_sampled: torch.Tensor,
        num_rejected: torch.Tensor,
    ) -> StepReport:
        features = {}
        if pool.features and states is not None:
            # Rows that only fill up the batch follow those of its tokens.
            features = pool.features.compute([each[: batch.num_tokens] for each in states])
        # The sampled tokens, the bonus token, and one that is known already, to compare.
        return StepReport(self._states, batch, num_sampled, num_rejected, self._most + 2, features)

    def _propose(self, pool: PoolThread, batch: Any, report: StepReport, drafts: torch.Tensor | None) -> None:
        """Reports to the mirror what a step did, and writes draft tokens to `drafts`, if there is one."""
        request_ids: list[str] = list(batch.req_ids[: batch.num_reqs])
        mirror = pool.mirror
        mirror.keep(self._states.req_id_to_index)
        drafted = batch.num_draft_tokens_per_req
        mirror.verify({} if drafted is None else dict(zip(request_ids, map(int, drafted), strict=True)))
        reports = report.read()
        now = time.perf_counter()
        if self._ended is not None and not self._last.isdisjoint(request_ids):
            # A step that went on with requests of the one before began when that ended: vLLM had no reason to pause.
            mirror.cost.observe(int(batch.num_tokens), now - self._ended)
        self._last = set(request_ids)
        for row, (request_id, each) in enumerate(zip(request_ids, reports, strict=True)):
            if not mirror.advance(request_id, each.length, each.tail):
                # A new request that the worker has not reported, or one that came back with other tokens. The device
                # has nothing to do now, so that this copy of the whole text waits for nothing.
                index = int(batch.idx_mapping_np[row])
                tokens = self._states.all_token_ids.gpu[index, : each.length].cpu().numpy()
                order = AdaptedOrder(request_id, min(int(self._states.max_seq_len[index]), self._longest))
                if self._processor is not None:
                    order = replace(order, sampling=self._processor.sampling[index])
                mirror.commit(None, request_id, tokens, lambda order=order: order)  # type: ignore[misc]
            if report.has_features:
                mirror.computed(request_id, report.features(each))
        if drafts is None:
            return
        rows = [row for row, each in enumerate(reports) if each.sampled]
        deadline = now + self.longest_wait
        chains = mirror.chains([request_ids[row] for row in rows], len(reports) - len(rows), deadline)
        table = [[-1] * self._most for _ in request_ids]
        for row, chain in zip(rows, chains, strict=True):
            table[row][: len(chain)] = chain
        # From pinned memory the copy is launched, not awaited: the next step's kernels follow in the same stream.
        chosen = torch.tensor(table, dtype=drafts.dtype, pin_memory=drafts.device.type != "cpu")
        chosen = chosen.to(drafts.device, non_blocking=True)
        torch.where(chosen < 0, drafts, chosen, out=drafts)
