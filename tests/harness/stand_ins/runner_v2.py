"""vLLM's model runner V2 as its speculator sees it: a batch in places of device tensors, a fixed number of draft tokens
for each request, and requests that end a step late, as with asynchronous scheduling.

`PlainStates` and `PlainKernels` stand in for vLLM's own, which `tests/draftwire_core/adapters/vllm/v2_child.py` puts
in their places.
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Protocol

import numpy as np
import torch

from tests.harness.stand_ins.fake_vllm import GREEDY
from tests.harness.stand_ins.stepping import step_until


@dataclass(eq=False)
class RequestV2:
    """A request to the runner."""

    req_id: str
    prompt: list[int]
    max_tokens: int
    tokens: list[int]
    prefill: int = 0
    """Tokens to compute before the first is sampled."""
    computed: int = 0
    drafted: int = 0
    """Draft tokens that the next step verifies."""
    accepted: int = 0
    last_step: bool = False
    """Whether it has all its tokens, and the step that was scheduled before this was known is still to come."""

    @property
    def output(self) -> list[int]:
        return self.tokens[len(self.prompt) :]


Target = Callable[[RequestV2, list[int]], torch.Tensor]
"""Returns the target's logits after a request's tokens, and after each of some draft tokens that follow them."""


States = Callable[[RequestV2, list[int], range], list[torch.Tensor]]
"""Returns the target's auxiliary hidden states, those of each tapped layer, at positions of a request and some draft
tokens that follow it."""


class Kernels(Protocol):
    """What the runner's device code does."""

    def batch(self, fields: dict[str, Any]) -> Any:
        """Makes an input batch."""

    def verify(
        self, states: Any, batch: Any, logits: torch.Tensor, inputs: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Returns the sampled tokens, how many there are of each request, and how many draft tokens were rejected.
        inputs: the input token of each row of the logits."""

    def post_update(self, states: Any, batch: Any, sampled: torch.Tensor, counts: torch.Tensor) -> None:
        """Adds the sampled tokens to the states."""


class PlainStates:
    """RequestState with tensors of this host."""

    def __init__(self, max_num_reqs: int, max_model_len: int, draft_tokens: int) -> None:
        self.max_num_reqs = max_num_reqs
        self.req_id_to_index: dict[str, int] = {}
        self.index_to_req_id: dict[int, str] = {}
        self.max_seq_len = np.zeros(max_num_reqs, dtype=np.int32)
        self.all_token_ids = SimpleNamespace(gpu=torch.full((max_num_reqs, max_model_len), 77, dtype=torch.int32))
        self.total_len = SimpleNamespace(gpu=torch.zeros(max_num_reqs, dtype=torch.int32))
        self.prefill_len = SimpleNamespace(gpu=torch.zeros(max_num_reqs, dtype=torch.int32))
        self.last_sampled_tokens = torch.zeros(max_num_reqs, 1, dtype=torch.int64)
        self.draft_tokens = torch.zeros(max_num_reqs, draft_tokens, dtype=torch.int64)
        self.next_prefill_tokens = torch.zeros(1, max_num_reqs, dtype=torch.int32)
        self._free = list(range(max_num_reqs))

    def add_request(
        self, req_id: str, prompt_len: int, all_token_ids: list[int], num_computed_tokens: int, max_tokens: int
    ) -> None:
        index = self.req_id_to_index[req_id] = self._free.pop()
        self.index_to_req_id[index] = req_id
        self.max_seq_len[index] = prompt_len + max_tokens
        self.total_len.gpu[index] = self.prefill_len.gpu[index] = len(all_token_ids)
        self.all_token_ids.gpu[index, : len(all_token_ids)] = torch.tensor(all_token_ids, dtype=torch.int32)

    def apply_staged_writes(self) -> None:
        pass

    def remove_request(self, req_id: str) -> None:
        index = self.req_id_to_index.pop(req_id)
        del self.index_to_req_id[index]
        self._free.append(index)


class PlainKernels:
    """What vLLM's kernels do to greedy requests, in Python."""

    def batch(self, fields: dict[str, Any]) -> Any:
        return SimpleNamespace(**fields)

    def verify(
        self, states: Any, batch: Any, logits: torch.Tensor, inputs: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        width = states.draft_tokens.shape[1] + 1
        sampled = torch.zeros(batch.num_reqs, width, dtype=torch.int64)
        counts = torch.zeros(batch.num_reqs, dtype=torch.int32)
        rejected = torch.zeros_like(counts)
        ends = batch.cu_num_logits.tolist()
        for row, (start, end) in enumerate(itertools.pairwise(ends)):
            if batch.seq_lens[row] < states.prefill_len.gpu[batch.idx_mapping[row]]:
                continue
            tokens = logits[start:end].argmax(dim=1)
            kept = 0
            while kept < end - start - 1 and tokens[kept] == inputs[start + kept + 1]:
                kept += 1
            sampled[row, : kept + 1] = tokens[: kept + 1]
            counts[row], rejected[row] = kept + 1, end - start - 1 - kept
        return sampled, counts, rejected

    def post_update(self, states: Any, batch: Any, sampled: torch.Tensor, counts: torch.Tensor) -> None:
        for row, index in enumerate(batch.idx_mapping.tolist()):
            count = int(counts[row])
            if count:
                length = int(states.total_len.gpu[index])
                states.all_token_ids.gpu[index, length : length + count] = sampled[row, :count].to(torch.int32)
                states.last_sampled_tokens[index, 0] = sampled[row, count - 1]
                states.total_len.gpu[index] = length + count


class RunnerV2:
    """Runs greedy requests step by step, and calls its speculator after each step, as vLLM's runner does."""

    def __init__(
        self,
        speculator: Any,
        states: Any,
        kernels: Kernels,
        target: Target,
        *,
        chunk: int = 1 << 20,
        worker: bool = True,
        step_seconds: float = 0.005,
        hidden: States | None = None,
    ) -> None:
        """chunk: number of prompt tokens that a step computes. worker: whether the worker is draftwire's, which tells
        the speculator of each step. step_seconds: time that a step takes beside the target's, long enough that drafting
        pays. hidden: the target's auxiliary hidden states; None if it is not asked for them."""
        self.speculator = speculator
        self.states = states
        self.requests: dict[str, RequestV2] = {}
        self.ended: list[RequestV2] = []
        self.skips_drafts = False
        self._kernels = kernels
        self._target = target
        self._chunk = chunk
        self._worker = worker
        self._step_seconds = step_seconds
        self._hidden = hidden
        self._aux: list[torch.Tensor] | None = None
        self._most = states.draft_tokens.shape[1]
        self._room = states.all_token_ids.gpu.shape[1] - 2 * (self._most + 1)
        self._new: list[RequestV2] = []
        self._gone: set[str] = set()
        self._away: set[str] = set()
        self._random = random.Random(5)
        places = len(states.last_sampled_tokens)
        self._temperature, self._seeds = torch.zeros(places), torch.zeros(places, dtype=torch.int64)

    def add(self, req_id: str, prompt: Sequence[int], max_tokens: int = 1000) -> RequestV2:
        request = RequestV2(req_id, list(prompt), max_tokens, list(prompt))
        self.requests[req_id] = request
        self._new.append(request)
        return request

    def abort(self, req_id: str) -> None:
        """Drops a request; the next step reports it."""
        self.ended.append(self.requests.pop(req_id))
        self._gone.add(req_id)

    def preempt(self, req_id: str) -> None:
        """Takes a request out of its place, until it is resumed."""
        self._away.add(req_id)

    def resume(self, req_id: str) -> None:
        """Computes all tokens of a preempted request again, as those of a new one."""
        self._away.remove(req_id)
        self._new.append(self.requests[req_id])

    def step(self) -> None:
        batch = self._schedule()
        if not batch:
            return
        input_batch, logits, inputs = self._inputs(batch)
        sampled, counts, rejected = self._kernels.verify(self.states, input_batch, logits, inputs)
        self._kernels.post_update(self.states, input_batch, sampled, counts)
        time.sleep(self._step_seconds)
        count = 0 if self.skips_drafts else self._most
        drafts = self._propose(input_batch, counts, rejected, num_speculative_tokens=count, dp_sync_state=None)
        assert drafts.shape == (len(batch), self._most)
        assert drafts.dtype == torch.int64
        assert ((drafts >= 0) & (drafts < logits.shape[1])).all()
        drafts[:, count:] = -1
        self.states.draft_tokens[input_batch.idx_mapping] = drafts
        for row, request in enumerate(batch):
            self._advance(request, sampled[row, : int(counts[row])].tolist(), count)

    def run(self, until: Callable[[], bool]) -> None:
        """Steps until a condition holds."""
        step_until(self.step, until)

    def warm_up(self) -> None:
        """Calls the speculator as a dummy run does, with a batch that means nothing."""
        fields = {"req_ids": ["dummy"], "num_reqs": 1, "idx_mapping": torch.zeros(1, dtype=torch.int64)}
        ones = torch.ones(1, dtype=torch.int32)
        self._propose(SimpleNamespace(**fields), ones, ones - 1, dummy_run=True, is_profile=True)

    def _propose(self, batch: Any, counts: torch.Tensor, rejected: torch.Tensor, **options: Any) -> torch.Tensor:
        drafts: torch.Tensor = self.speculator.propose(
            batch,
            {},
            {},
            torch.zeros(batch.num_reqs, 1),
            None if options.get("dummy_run") else self._aux,
            counts,
            rejected,
            self.states.last_sampled_tokens,
            self.states.next_prefill_tokens,
            self._temperature,
            self._seeds,
            mm_inputs=None,
            **options,
        )
        return drafts

    def _schedule(self) -> list[RequestV2]:
        batch = [each for each in self.requests.values() if each.req_id not in self._away]
        self._random.shuffle(batch)
        new = [each for each in self._new if each in batch]
        self._new = [each for each in self._new if each not in new]
        if self._worker:
            drafted = {each.req_id: [-1] * each.drafted for each in batch if each.drafted and each not in new}
            self.speculator.step_begins(
                SimpleNamespace(
                    finished_req_ids=self._gone,
                    scheduled_spec_decode_tokens=drafted,
                    scheduled_new_reqs=[_new_request(each) for each in new],
                    total_num_scheduled_tokens=len(batch),
                )
            )
        for req_id in (self._gone | self._away) & set(self.states.req_id_to_index):
            self.states.remove_request(req_id)
        self._gone = set()
        for request in new:
            request.prefill, request.computed, request.drafted = len(request.tokens), 0, 0
            self.states.add_request(request.req_id, len(request.prompt), request.tokens, 0, request.max_tokens)
        self.states.apply_staged_writes()
        return batch

    def _inputs(self, batch: list[RequestV2]) -> tuple[Any, torch.Tensor, torch.Tensor]:
        places = [self.states.req_id_to_index[each.req_id] for each in batch]
        rows, lengths, logits, inputs = [], [], [], []
        hidden: list[list[torch.Tensor]] = []
        for request, place in zip(batch, places, strict=True):
            missing = max(0, request.prefill - request.computed)
            drafts = self.states.draft_tokens[place, : request.drafted].tolist()
            assert not (missing and drafts)
            rows.append(min(missing, self._chunk) if missing else 1 + len(drafts))
            lengths.append(request.computed + rows[-1])
            logits.append(self._target(request, drafts))
            if self._hidden is not None:
                hidden.append(self._hidden(request, drafts, range(request.computed, lengths[-1])))
            inputs += [request.tokens[-1], *drafts]
        ends = np.cumsum([0, *(len(each) for each in logits)], dtype=np.int32)
        starts = np.cumsum([0, *rows], dtype=np.int32)
        if self._hidden is not None:
            # As vLLM's, with rows that only fill up the batch.
            self._aux = [
                torch.cat([*each, torch.full((3, each[0].shape[1]), 7.0)]) for each in zip(*hidden, strict=True)
            ]
        fields = {
            "req_ids": [each.req_id for each in batch],
            "num_reqs": len(batch),
            "idx_mapping": torch.tensor(places),
            "idx_mapping_np": np.array(places, dtype=np.intp),
            "num_scheduled_tokens": np.array(rows, dtype=np.int32),
            "num_tokens": sum(rows),
            "num_draft_tokens_per_req": np.array([each.drafted for each in batch], dtype=np.int32),
            "query_start_loc": torch.from_numpy(starts),
            "seq_lens": torch.tensor(lengths, dtype=torch.int32),
            "cu_num_logits": torch.from_numpy(ends),
            "prefill_len_np": np.array([each.prefill for each in batch], dtype=np.int32),
        }
        return self._kernels.batch(fields), torch.cat(logits), torch.tensor(inputs)

    def _advance(self, request: RequestV2, sampled: list[int], drafted: int) -> None:
        if not sampled:
            request.computed += self._chunk
            return
        request.accepted += len(sampled) - 1
        request.tokens += sampled
        request.computed = len(request.tokens) - 1
        request.prefill = min(request.prefill, request.computed)
        request.drafted = drafted
        if request.last_step:
            self.abort(request.req_id)
        request.last_step = len(request.output) >= request.max_tokens or len(request.tokens) >= self._room


def _new_request(request: RequestV2) -> Any:
    """NewRequestData, as the scheduler makes it for runner V2."""
    return SimpleNamespace(
        req_id=request.req_id,
        prompt_token_ids=request.prompt,
        prefill_token_ids=list(request.tokens),
        prompt_embeds=None,
        sampling_params=SimpleNamespace(**GREEDY | {"max_tokens": request.max_tokens}),
    )
