"""vLLM's sampler and rejection sampler as runner V1 calls them, with stand-ins for processors of logits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tests.harness.stand_ins.fake_vllm import GREEDY


@dataclass
class Output:
    """SamplerOutput."""

    sampled_token_ids: Tensor
    logprobs_tensors: Any = None


@dataclass
class Metadata:
    """The parts of SamplingMetadata that the stand-ins read."""

    temperature: Tensor
    all_greedy: bool
    bias: Tensor
    """[requests, V], which the penalties add to the logits of a request."""
    max_num_logprobs: int | None = None


class Bias:
    """LogitBiasLogitsProcessor."""

    def __init__(self, biases: Mapping[int, Mapping[int, float]] | None = None) -> None:
        """biases: by request and token."""
        self.biases = biases or {}

    def apply(self, logits: Tensor) -> Tensor:
        for request, bias in self.biases.items():
            for token, value in bias.items():
                logits[request, token] += value
        return logits


def penalised(logits: Tensor, bias: Tensor) -> Tensor:
    """Returns logits after the penalties, which scale what they find."""
    return torch.where(logits > 0, logits / 1.5, logits * 1.5) + bias


class TopKTopP(torch.nn.Module):
    """TopKTopPSampler, which draws by noise that no seed determines."""

    logprobs_mode = "raw_logprobs"

    def forward(self, logits: Tensor, generators: Any, k: Any, p: Any) -> tuple[Tensor, None]:
        return torch.distributions.Categorical(logits=logits).sample(), None


class Sampler(torch.nn.Module):
    """Sampler: processors, penalties, greedy tokens, temperature, then `topk_topp_sampler`."""

    def __init__(self, processors: Sequence[Bias]) -> None:
        super().__init__()
        self.topk_topp_sampler: torch.nn.Module = TopKTopP()
        self._processors = processors

    def forward(
        self,
        logits: Tensor,
        sampling_metadata: Metadata,
        predict_bonus_token: bool = False,
        logprobs_mode_override: str | None = None,
    ) -> Output:
        told = None if sampling_metadata.max_num_logprobs is None else SimpleNamespace(logprobs=logits.clone())
        for processor in self._processors:
            logits = processor.apply(logits)
        logits = penalised(logits, sampling_metadata.bias)
        greedy = logits.argmax(1)
        if sampling_metadata.all_greedy:
            return Output(greedy.int().unsqueeze(1))
        cold = sampling_metadata.temperature == 0
        scaled = logits / torch.where(cold, 1.0, sampling_metadata.temperature).unsqueeze(1)
        random, _ = self.topk_topp_sampler(scaled, {}, None, None)
        return Output(torch.where(cold, greedy, random).int().unsqueeze(1), told)


class RejectionSampler:
    """RejectionSampler, whose own verdict accepts nothing."""

    is_processed_logprobs_mode = False

    def __init__(self, sampler: Sampler) -> None:
        self.sampler = sampler

    def apply_logits_processors(self, logits: Tensor, sampling_metadata: Metadata, metadata: Any) -> Tensor:
        counts = torch.tensor(metadata.num_draft_tokens)
        return penalised(logits, sampling_metadata.bias.repeat_interleave(counts, 0))

    def __call__(self, metadata: Any, draft_probs: Any, logits: Tensor, sampling_metadata: Metadata) -> Output:
        width = max(metadata.num_draft_tokens) + 1
        return Output(torch.full((len(metadata.num_draft_tokens), width), -1, dtype=torch.int32))

    def _get_logprobs_tensors(self, *arguments: Any) -> tuple[Any, ...]:
        return arguments


def runner_of(requests: Mapping[str, Mapping[str, Any]], lengths: Sequence[int]) -> Any:
    """Returns a model runner V1 with requests, by their sampling parameters, and their lengths."""
    processors: list[Bias] = []
    sampler = Sampler(processors)
    return SimpleNamespace(
        device=torch.device("cpu"),
        sampler=sampler,
        rejection_sampler=RejectionSampler(sampler),
        speculative_config=SimpleNamespace(rejection_sample_method="standard"),
        input_batch=SimpleNamespace(
            req_ids=list(requests),
            num_tokens_no_spec=np.array(lengths),
            logitsprocs=SimpleNamespace(non_argmax_invariant=processors),
        ),
        requests={
            name: SimpleNamespace(sampling_params=SimpleNamespace(**GREEDY | dict(given)))
            for name, given in requests.items()
        },
    )


def drafts_of(drafts: Sequence[Sequence[int]]) -> Any:
    """Returns the SpecDecodeMetadata of draft tokens, those of each request: its rows follow one another, and the last
    one of a request has the logits after all draft tokens."""
    counts = [len(each) for each in drafts]
    ends = [end - 1 for end in accumulate(count + 1 for count in counts)]
    return SimpleNamespace(
        num_draft_tokens=counts,
        draft_token_ids=torch.tensor([token for each in drafts for token in each], dtype=torch.int32),
        cu_num_draft_tokens=torch.tensor(list(accumulate(counts)), dtype=torch.int32),
        bonus_logits_indices=torch.tensor(ends),
        target_logits_indices=torch.tensor([row for row in range(ends[-1] + 1) if row not in ends], dtype=torch.int64),
    )
