"""SGLang as the adapter sees it: prefill batches, decode batches, and greedy verification of trees with a fixed number
of rows. Its target model is `following`, so every text is known beforehand."""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace

import torch

from draftwire_core.adapters.sglang.remote_drafts import RemoteDrafts
from draftwire_core.adapters.sglang.verify_arrays import tree_mask, verify_arrays
from tests.harness.stand_ins.fake_vllm import VOCABULARY, following
from tests.harness.stand_ins.sglang_packages.sgl_kernel.speculative import (
    reconstruct_indices_from_tree_mask,
    verify_tree_greedy,
)
from tests.harness.stand_ins.stepping import step_until

_FORWARD_SECONDS = 0.005
"""Constant duration of a step, long enough that drafting pays."""


@dataclass
class Request:
    """A request to the fake engine, with the fields of SGLang's Req that the adapter reads."""

    rid: str
    origin_input_ids_unpadded: array[int]
    sampling_params: SimpleNamespace
    input_embeds: object = None
    output_ids: array[int] = field(default_factory=lambda: array("q"))
    ahead: list[int] = field(default_factory=list)
    """Tokens accepted by the last step, if its result is processed after the next one has begun."""
    accepted: int = 0

    @property
    def prompt(self) -> list[int]:
        return list(self.origin_input_ids_unpadded)

    @property
    def output(self) -> list[int]:
        return [*self.output_ids, *self.ahead]


class FakeSglang:
    """Runs requests step by step, as SGLang's scheduler does with a worker of the adapter."""

    def __init__(self, drafts: RemoteDrafts, rows: int, *, overlap: bool) -> None:
        """overlap: whether a step's result is processed after the next step has begun."""
        self.drafts = drafts
        self.running: list[Request] = []
        self.waiting: list[Request] = []
        self.branches = 0
        """Number of rows that were verified beside another one, after the same row."""
        self._rows = rows
        self._overlap = overlap

    def add(self, rid: str, prompt: Sequence[int], max_tokens: int = 1000) -> Request:
        request = Request(rid, array("q", prompt), SimpleNamespace(max_new_tokens=max_tokens))
        self.waiting.append(request)
        return request

    def retract(self, request: Request) -> None:
        """Takes a running request out; it is computed again, from its first token, when there is room."""
        request.output_ids.extend(request.ahead)
        request.ahead = []
        self.running.remove(request)

    def step(self) -> None:
        """Runs one step: of prompts if any wait, otherwise of all running requests."""
        time.sleep(_FORWARD_SECONDS)
        if self.waiting:
            self._process()
            self.drafts.prompts(self.waiting)
            for request in self.waiting:
                self._take(request, [following([*request.prompt, *request.output])])
            self.running += self.waiting
            self.waiting = []
        elif self.running:
            self._verify(list(self.running))
        for request in [each for each in self.running if len(each.output) >= each.sampling_params.max_new_tokens]:
            self.running.remove(request)
            self.drafts.finished(request.rid)

    def run(self, until: Callable[[], bool]) -> None:
        """Steps until a condition holds."""
        step_until(self.step, until)

    def _verify(self, batch: list[Request]) -> None:
        ahead = [request.ahead for request in batch]
        trees = self.drafts.drafts(batch, ahead)
        arrays = verify_arrays([request.output[-1] for request in batch], trees, self._rows)
        tokens, parents = torch.from_numpy(arrays)
        self.branches += sum(len(tree.parents) - len(set(tree.parents)) for tree in trees)
        mask = torch.from_numpy(tree_mask(arrays[1]))
        shape = (len(batch), self._rows)
        positions = torch.zeros(len(batch) * self._rows, dtype=torch.int64)
        index, child, sibling = (torch.zeros(shape, dtype=torch.int64) for _ in range(3))
        lengths = torch.tensor([len(request.prompt) + len(request.output) - 1 for request in batch])
        reconstruct_indices_from_tree_mask(mask.flatten(), lengths, positions, index, child, sibling, *shape)
        targets = torch.zeros(shape, dtype=torch.int64)
        for place, request in enumerate(batch):
            known = [*request.prompt, *request.output]
            for row in range(self._rows):
                path = [int(tokens[place, other]) for other in range(1, row + 1) if mask[place, row, other]]
                targets[place, row] = following(known + path)
                assert 0 <= int(tokens[place, row]) < VOCABULARY
        predicts = torch.zeros(len(batch) * self._rows, dtype=torch.int32)
        accept_index = torch.full(shape, -1, dtype=torch.int32)
        counts = torch.zeros(len(batch), dtype=torch.int32)
        verify_tree_greedy(predicts, accept_index, counts, tokens, index, child, sibling, targets)
        self._process()
        for place, request in enumerate(batch):
            accepted = [int(predicts[row]) for row in accept_index[place] if row >= 0]
            request.accepted += int(counts[place])
            room = request.sampling_params.max_new_tokens - len(request.output)
            self._take(request, accepted[:room])

    def _take(self, request: Request, tokens: list[int]) -> None:
        if self._overlap:
            request.ahead = tokens
        else:
            request.output_ids.extend(tokens)

    def _process(self) -> None:
        for request in self.running:
            request.output_ids.extend(request.ahead)
            request.ahead = []
