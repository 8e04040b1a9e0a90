"""Coupled acceptance under vLLM's model runner V2: the last processor of logits leaves the target's own token alone.

Runner V2 verifies a draft token by a ratio of probabilities, with noise of its own. If all but one token of a row have
no probability, then vLLM draws that token whatever its noise is, accepts a draft token if it is that token, and draws
that token where it rejects one. So the processor draws y = argmax z / T + g itself, and the rest stays vLLM's.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from draftwire_core.adapters.vllm.request_sampling import request_sampling
from draftwire_core.engine.device.device_copy import to_device
from draftwire_core.engine.sampling.coupled_sampler import sample
from draftwire_core.engine.sampling.kernel_sampler import KernelSampler
from draftwire_core.engine.sampling.sampling_batch import SamplingBatch
from draftwire_core.engine.sampling.sampling_params import SamplingParams
from draftwire_core.engine.sampling.step_draws import NUMBERS, PARENT, PLAIN_NUMBERS, POSITION, ROW, StepDraws

_FREE = SamplingParams(temperature=0.0)
"""Parameters of a place without a request."""


class CoupledProcessor:
    """Leaves of each row of logits the token that coupled sampling draws, with temperature and filters of the request.

    It has the methods of vLLM's LogitsProcessor for runner V2, and imports nothing of vLLM. vLLM calls it last of all
    processors; only the end of a thinking budget is forced after it, and wins.
    """

    def __init__(self, states: Any, engine_seed: int, device: torch.device, sampler: KernelSampler | None):
        """states: the runner's RequestState. engine_seed: vLLM's `--seed`. sampler: draws without waiting for the
        device; None for the reference sampler, which waits."""
        self._states = states
        self._engine_seed = engine_seed
        self._sampler = sampler
        places = int(states.max_num_reqs)
        self.sampling = [_FREE] * places
        """Parameters of the request at each of the runner's places."""
        self._filtered = np.zeros(places, dtype=bool)
        self._host = torch.zeros((NUMBERS, places), dtype=torch.int64)
        """The numbers of each place's draws, of which `apply` fills in rows and positions."""
        self._numbers = self._host.to(device)
        self._changed = False

    def add_request(self, req_idx: int, sampling_params: Any) -> bool:
        """Takes over a place's request, whose parameters are vLLM's. Returns whether its logits are changed."""
        request_id = self._states.index_to_req_id.get(req_idx, "")  # vLLM warms up without requests
        sampling = request_sampling(request_id, sampling_params, self._engine_seed)
        numbers = StepDraws.of_roots(SamplingBatch.build([sampling], [0])).numbers()
        self.sampling[req_idx] = sampling
        self._filtered[req_idx] = len(numbers) > PLAIN_NUMBERS
        self._host[:, req_idx] = 0
        self._host[: len(numbers), req_idx] = numbers[:, 0]
        self._changed = True
        return not sampling.greedy

    def apply_staged_writes(self) -> None:
        """Copies new requests' numbers to the device."""
        if self._changed:
            # A copy of its own: the next request may come before this one has been made.
            self._numbers = to_device(self._host.clone(), self._numbers.device)
            self._changed = False

    def apply(self, logits: Tensor, ctx: Any) -> Tensor:
        """Changes logits, float32 [rows, V], in place: 0 for the token drawn, -inf for all others. ctx: vLLM's
        LogitsContext."""
        if self._sampler is None:
            drawn = sample(logits, self._batch(ctx, logits.device)).token_ids
        else:
            kinds = NUMBERS if self._filtered[ctx.idx_mapping_np].any() else PLAIN_NUMBERS
            numbers = self._numbers[:kinds].index_select(1, ctx.expanded_idx_mapping.long())
            numbers[ROW] = numbers[PARENT] = torch.arange(len(logits), device=logits.device)
            numbers[POSITION] = ctx.pos + 1  # of the token that is drawn; `pos` has that of the row's own
            drawn = self._sampler.draw(logits, numbers)[0].long()
        # Logits that are not numbers give token 0.
        return logits.fill_(-torch.inf).scatter_(1, drawn.clamp(min=0).unsqueeze(1), 0.0)

    def _batch(self, ctx: Any, device: torch.device) -> SamplingBatch:
        sampling = [self.sampling[place] for place in ctx.expanded_idx_mapping.tolist()]
        return SamplingBatch.build(sampling, (ctx.pos + 1).tolist(), device)
