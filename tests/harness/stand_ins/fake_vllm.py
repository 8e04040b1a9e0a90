"""vLLM as the adapter sees it: a batch with moving rows, chunked prompts, preemption, greedy verification of chains.

Its target model is `following`, so every text is known beforehand.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from draftwire_core.adapters.vllm import RemoteDrafter
from tests.harness.stand_ins.stepping import step_until

VOCABULARY = 200
GREEDY: dict[str, Any] = {"temperature": 0.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "seed": None}
"""The parts of vLLM's SamplingParams that the adapter reads."""
_FORWARD_SECONDS = 0.005
"""Constant duration of a step, long enough that drafting pays."""


def following(tokens: Sequence[int]) -> int:
    """Returns the token that the target generates after these."""
    return (sum((index % 7 + 1) * token for index, token in enumerate(tokens[-9:])) + len(tokens)) % VOCABULARY


def text_after(tokens: Sequence[int], count: int) -> list[int]:
    """Returns the `count` tokens that the target generates after these."""
    known = list(tokens)
    for _ in range(count):
        known.append(following(known))
    return known[len(tokens) :]


def vllm_config(
    model: Path, *, draft_tokens: int = 3, max_model_len: int = 4096, async_scheduling: bool = False
) -> Any:
    """Returns the parts of a VllmConfig that the adapter reads."""
    return SimpleNamespace(
        speculative_config=SimpleNamespace(num_speculative_tokens=draft_tokens, rejection_sample_method="standard"),
        scheduler_config=SimpleNamespace(max_num_seqs=16, async_scheduling=async_scheduling),
        device_config=SimpleNamespace(device_type="cpu"),
        model_config=SimpleNamespace(
            model=str(model),
            tokenizer=str(model),
            tokenizer_revision=None,
            trust_remote_code=False,
            skip_tokenizer_init=False,
            architectures=["LlamaForCausalLM"],
            dtype="torch.bfloat16",
            max_model_len=max_model_len,
            seed=0,
            get_vocab_size=lambda: VOCABULARY,
        ),
    )


@dataclass
class Request:
    """A request to the fake engine."""

    req_id: str
    prompt: list[int]
    max_tokens: int
    tokens: list[int]
    computed: int = 0
    drafts: list[int] = field(default_factory=list)
    accepted: int = 0
    sampling: dict[str, Any] = field(default_factory=dict)
    """Sampling parameters, where they are not those of `GREEDY`."""
    prompt_embeds: None = None

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.prompt)

    @property
    def sampling_params(self) -> Any:
        return SimpleNamespace(**GREEDY | {"max_tokens": self.max_tokens} | self.sampling)

    @property
    def prompt_token_ids(self) -> list[int]:
        return self.prompt

    @property
    def output(self) -> list[int]:
        return self.tokens[len(self.prompt) :]


class FakeVllm:
    """Runs requests step by step, and calls its proposer after each step."""

    def __init__(self, drafter: RemoteDrafter, *, chunk: int = 1 << 20, max_model_len: int = 4096) -> None:
        """chunk: number of prompt tokens that a step computes."""
        self.drafter = drafter
        self.requests: dict[str, Request] = {}
        self.input_batch = SimpleNamespace(req_ids=[])
        self.preempted: set[str] = set()
        self.drafted = 0
        self.skips_drafts = False
        """Whether steps say that nobody can use drafts, as those of vLLM 0.33 do."""
        self._chunk = chunk
        self._array = np.zeros((16, max_model_len), dtype=np.int32)
        self._max_model_len = max_model_len
        self._new: list[Request] = []
        self._finished: set[str] = set()
        self._random = random.Random(5)

    def add(self, req_id: str, prompt: Sequence[int], max_tokens: int = 1000, **sampling: Any) -> Request:
        request = Request(req_id, list(prompt), max_tokens, list(prompt), sampling=sampling)
        self.requests[req_id] = request
        self._new.append(request)
        return request

    def abort(self, req_id: str) -> None:
        """Drops a request, as the scheduler does; the next step reports it."""
        del self.requests[req_id]
        self._finished.add(req_id)

    def step(self) -> None:
        """Runs one step over all requests that are not preempted."""
        batch = [each for each in self.requests.values() if each.req_id not in self.preempted]
        self._random.shuffle(batch)
        self.input_batch.req_ids = [each.req_id for each in batch]
        verified = {each.req_id: each.drafts for each in batch if each.drafts}
        rows = {each.req_id: 1 + len(each.drafts) for each in batch}
        self.drafter.step_begins(
            SimpleNamespace(
                finished_req_ids=self._finished,
                scheduled_spec_decode_tokens=verified,
                scheduled_new_reqs=[each for each in self._new if each.req_id in rows],
                total_num_scheduled_tokens=sum(rows.values()),
                **({"skip_drafts": True} if self.skips_drafts else {}),
            )
        )
        self._finished = set()
        self._new = [each for each in self._new if each.req_id not in rows]
        if not batch:
            return
        time.sleep(_FORWARD_SECONDS)
        sampled = [self._sample(request) for request in batch]
        lengths = np.zeros(len(self._array), dtype=np.int32)
        for row, request in enumerate(batch):
            lengths[row] = len(request.tokens)
            self._array[row, : len(request.tokens)] = request.tokens
            self._array[row, len(request.tokens) :] = 77  # stale contents, as in vLLM's buffer
        proposed = self.drafter.propose(sampled, lengths, self._array, slot_mappings=None)
        assert len(proposed) == len(batch)
        for request, drafts in zip(batch, proposed, strict=True):
            assert all(type(token) is int and 0 <= token < VOCABULARY for token in drafts)
            request.drafts = drafts
            self.drafted += len(drafts)
            if len(request.output) >= request.max_tokens:
                del self.requests[request.req_id]
                self._finished.add(request.req_id)

    def run(self, until: Callable[[], bool]) -> None:
        """Steps until a condition holds."""
        step_until(self.step, until)

    def preempt(self, req_id: str) -> None:
        """Skips a request from now on; when resumed it computes all of its tokens again."""
        self.preempted.add(req_id)
        self.requests[req_id].computed = 0
        self.requests[req_id].drafts = []

    def _sample(self, request: Request) -> list[int]:
        missing = len(request.tokens) - request.computed - 1
        if missing > self._chunk:
            request.computed += self._chunk
            return []
        sampled: list[int] = []
        for draft in [*request.drafts, None]:
            token = following(request.tokens + sampled)
            sampled.append(token)
            if draft != token:
                break
            request.accepted += 1
        room = min(request.max_tokens - len(request.output), self._max_model_len - len(request.tokens))
        sampled = sampled[:room]
        request.tokens += sampled
        request.computed = len(request.tokens) - 1
        return sampled
