"""Coupled acceptance under vLLM's model runner V1: a draft token is accepted where it equals the target's own token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from draftwire_core.adapters.vllm.coupled_rows import CoupledRows, CoupledTokens
from draftwire_core.adapters.vllm.settings import check_coupling
from draftwire_core.engine.device.device_copy import to_device

NO_TOKEN = -1
"""The number that vLLM writes behind the tokens of a request."""


def couple(runner: Any, engine_seed: int, bias: Any) -> None:
    """Makes a model runner V1 draw tokens by coupled sampling, and accept the draft tokens that equal them.

    Two objects of the runner are replaced: `rejection_sampler`, and `topk_topp_sampler` of `sampler`, which draws the
    tokens that follow no draft token. What vLLM does to logits before stays vLLM's. One processor of logits is added.
    engine_seed: vLLM's `--seed`. bias: vLLM's LogitBiasLogitsProcessor, which vLLM leaves out with speculation. Raises
    StartupError with another method of rejection sampling than vLLM's default.
    """
    check_coupling(rejection_sample_method=runner.speculative_config.rejection_sample_method)
    rows = CoupledRows(runner, engine_seed)
    tokens = CoupledTokens(runner.sampler.topk_topp_sampler, rows)
    runner.sampler.topk_topp_sampler = tokens
    runner.input_batch.logitsprocs.non_argmax_invariant.append(bias)
    runner.rejection_sampler = CoupledVerdict(runner.rejection_sampler, rows, tokens, bias)


class CoupledVerdict:
    """Verifies chains of draft tokens in the place of vLLM's RejectionSampler, and has its call."""

    def __init__(self, original: Any, rows: CoupledRows, tokens: CoupledTokens, bias: Any):
        """original: vLLM's RejectionSampler, whose processors of logits and log-probabilities are used. bias: as of
        `couple`."""
        self._original = original
        self._rows = rows
        self._tokens = tokens
        self._bias = bias

    def __call__(self, metadata: Any, draft_probs: Tensor | None, logits: Tensor, sampling_metadata: Any) -> Any:
        """Returns vLLM's SamplerOutput with the tokens of each request, int32 [requests, most draft tokens + 1].

        metadata: vLLM's SpecDecodeMetadata. draft_probs: None, as drafters are certain of their tokens. logits: [draft
        tokens + requests, V]. sampling_metadata: vLLM's SamplingMetadata. Greedy batches without a bias are left to
        vLLM.
        """
        original, drafted, biases = self._original, metadata.num_draft_tokens, self._bias.biases
        if (sampling_metadata.all_greedy and not biases) or self._rows.empty:
            return original(metadata, draft_probs, logits, sampling_metadata)
        told = sampling_metadata.max_num_logprobs
        processed_mode = original.is_processed_logprobs_mode
        with self._tokens.after(drafted):
            bonus = original.sampler(
                logits=logits[metadata.bonus_logits_indices],
                # -1 asks for the logits of all tokens, from which log-probabilities are computed below.
                sampling_metadata=replace(sampling_metadata, max_num_logprobs=None if told is None else -1),
                predict_bonus_token=True,
                logprobs_mode_override="processed_logits" if processed_mode else "raw_logits",
            )
        raw = logits[metadata.target_logits_indices].to(torch.float32)
        requests = [index for index, count in enumerate(drafted) for _ in range(count)]
        # First of all, as vLLM's sampler does with the bonus token's logits: penalties scale what they find.
        processed = _add_bias(raw if told is None else raw.clone(), requests, biases)
        processed = original.apply_logits_processors(processed, sampling_metadata, metadata)
        ahead = [place for count in drafted for place in range(count)]
        drawn = self._rows.draw(processed, requests, ahead, scaled=False)
        table = chain_verdicts(drawn, bonus.sampled_token_ids, metadata.draft_token_ids, drafted)
        log_probs = None
        if told is not None:
            if processed_mode:
                from vllm.v1.sample.rejection_sampler import apply_sampling_constraints

                raw = apply_sampling_constraints(processed, metadata.cu_num_draft_tokens, sampling_metadata)
            log_probs = original._get_logprobs_tensors(
                told, metadata, logits, raw, bonus.logprobs_tensors.logprobs, table
            )
        return replace(bonus, sampled_token_ids=table, logprobs_tensors=log_probs)


def _add_bias(logits: Tensor, requests: Sequence[int], biases: Mapping[int, Mapping[int, float]]) -> Tensor:
    """Adds each request's bias to its rows of logits, float32 [rows, V], in place. requests: each row's request, by its
    index in the batch. biases: by request and token."""
    added = [(row, *each) for row, request in enumerate(requests) for each in biases.get(request, {}).items()]
    if added:
        rows, tokens, values = (to_device(torch.tensor(each), logits.device) for each in zip(*added, strict=True))
        logits[rows, tokens] += values
    return logits


def chain_verdicts(drawn: Tensor, bonus: Tensor, drafts: Tensor, drafted: Sequence[int]) -> Tensor:
    """Returns the tokens that each request commits: its draft tokens as long as they equal the target's, then the
    target's own token. int32 [requests, most draft tokens + 1], with `NO_TOKEN` behind them.

    drawn: the target's token at each draft token's place, int [draft tokens], one request after another. bonus: the
    target's token after all draft tokens of a request, int [requests, 1]. drafts: int [draft tokens]. drafted: number
    of each request's draft tokens. Nothing is read from the device.
    """
    width, device = max(drafted) + 1, drawn.device
    if width == 1:
        return bonus.to(torch.int32)
    columns = torch.arange(width, device=device)
    counts = to_device(torch.tensor(drafted, dtype=torch.int64), device).unsqueeze(1)
    places = (counts.cumsum(0) - counts + columns).clamp_(max=len(drawn) - 1)
    inside = columns < counts
    kept = ((drawn == drafts)[places] & inside).long().cumprod(1).sum(1, keepdim=True)
    tokens = torch.where(inside, drawn[places], bonus.to(drawn.dtype))
    return tokens.masked_fill_(columns > kept, NO_TOKEN).to(torch.int32)
