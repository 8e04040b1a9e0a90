"""The coupled draws of a batch of vLLM's model runner V1: our noise, added to the logits that vLLM has processed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from draftwire_core.adapters.vllm.request_sampling import request_sampling
from draftwire_core.engine.sampling.sampling_batch import SamplingBatch
from draftwire_core.engine.sampling.token_drawer import token_drawer


class CoupledRows:
    """Draws tokens for rows of logits, each with the seed of its request and the position of the token to be drawn.

    The tokens have the bits of `coupled_sampler.sample` for the same logits. Position and seed are all that the noise
    depends on, so that a token is the same whether it was drafted or not.
    """

    def __init__(self, runner: Any, engine_seed: int):
        """runner: vLLM's model runner V1, which holds the batch. engine_seed: vLLM's `--seed`."""
        self._runner = runner
        self._engine_seed = engine_seed
        self._draw = token_drawer(runner.device)

    @property
    def empty(self) -> bool:
        """Whether there are no requests: vLLM warms up, with rows that belong to none."""
        return not self._runner.input_batch.req_ids

    def draw(self, logits: Tensor, requests: Sequence[int], ahead: Sequence[int], *, scaled: bool) -> Tensor:
        """Draws the token of each row, int64 [rows]; 0 in rows whose logits are not numbers.

        logits: [rows, V], after vLLM's own processors, and with `scaled` after the temperature. requests: each row's
        request, by its index in the batch. ahead: number of draft tokens between the request's last token and the one
        to be drawn.
        """
        batch, states = self._runner.input_batch, self._runner.requests
        sampling = {}
        for index in set(requests):
            request_id = batch.req_ids[index]
            found = request_sampling(request_id, states[request_id].sampling_params, self._engine_seed)
            sampling[index] = replace(found, temperature=1.0) if scaled and not found.greedy else found
        positions = [int(batch.num_tokens_no_spec[index]) + count for index, count in zip(requests, ahead, strict=True)]
        rows = SamplingBatch.build([sampling[index] for index in requests], positions, logits.device)
        return self._draw(logits, rows).clamp_(min=0)


class CoupledTokens(torch.nn.Module):  # type: ignore[misc] # mypy does not see torch
    """Draws the last token of each request of a step, in the place of `topk_topp_sampler` of vLLM's sampler."""

    def __init__(self, original: Any, rows: CoupledRows):
        """original: vLLM's TopKTopPSampler."""
        super().__init__()
        self._original = original
        self._rows = rows
        self._ahead: Sequence[int] | None = None

    @contextmanager
    def after(self, drafted: Sequence[int]) -> Iterator[None]:
        """Until the end, tokens are drawn after so many draft tokens of each request."""
        self._ahead = drafted
        try:
            yield
        finally:
            self._ahead = None

    def forward(
        self, logits: Tensor, generators: dict[int, torch.Generator], k: Tensor | None, p: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """Returns a token for each request, int64 [requests], and the processed logits or log-probabilities, if vLLM's
        `logprobs_mode` asks for these. logits: [requests, V], divided by the temperatures. k, p: vLLM's filters of the
        requests; those drawn here are the requests' own."""
        if self._rows.empty:
            return self._original(logits, generators, k, p)  # type: ignore[no-any-return]
        processed = None
        if self._original.logprobs_mode.startswith("processed"):
            _, processed = self._original(logits.clone(), {}, k, p)
        requests = range(len(logits))
        ahead = [0] * len(logits) if self._ahead is None else self._ahead
        return self._rows.draw(logits, requests, ahead, scaled=True), processed
