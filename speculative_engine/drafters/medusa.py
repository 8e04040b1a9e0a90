"""Medusa: heads on the target's last hidden state guess the next tokens, each one a place further.

Cai et al., "Medusa: Simple LLM inference acceleration framework with multiple decoding heads", arXiv 2401.10774. There
the target's own head guesses the next token and the heads those after it. Here the next token is committed by then, so
the first head's guesses are the root's children.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import count

import torch

from speculative_engine.drafters.base import TreeDraft, TreeDrafter
from speculative_engine.drafters.drafter import DraftSpec
from speculative_engine.drafters.medusa_heads import MedusaHeads, load_heads
from speculative_engine.field_error import FieldError
from speculative_engine.model.packed_linear import PackedLinear, replace_linears
from speculative_engine.model.packed_model import ModelLoadError, PackedModel
from speculative_engine.planning.acceptance_model import AcceptanceModel, observe_commit
from speculative_engine.planning.round_worth import least_worth
from speculative_engine.sampling.device_sampler import candidates, candidates_on_device
from speculative_engine.sampling.sampling_batch import SamplingBatch
from speculative_engine.tree.token_tree import Node

_WIDTH = 4
"""Most children of a node."""
_LEAST_WORTH = 0.02
"""Nodes less likely than this to be on the target's path are not drafted, whatever the credit: a step that verifies
them costs more."""


@dataclass(frozen=True, slots=True)
class MedusaOptions:
    """Which heads."""

    heads: str = ""
    """Directory of the heads."""

    def __post_init__(self) -> None:
        if not self.heads:
            raise FieldError("heads", "must name a directory of heads")


class _Draft(TreeDraft):
    """One sequence, and the hidden state that has yet to be drafted from."""

    def __init__(self, spec: DraftSpec):
        super().__init__(spec)
        self.state: torch.Tensor | None = None

    def commit(self, tokens: Sequence[int]) -> list[int]:
        """See TreeDraft.commit."""
        self.state = None
        return super().commit(tokens)


class MedusaDrafter(TreeDrafter[_Draft]):
    """A StateDrafter (see `drafter.StateDrafter`).

    One pass over the heads drafts for all sequences that have a new state. How often each head's guesses are right is
    learned from what is committed; it decides how many of the heads are asked, and the tree is grown by it, best first.
    """

    def __init__(self, heads: MedusaHeads):
        """heads: taken over; their linear layers are packed."""
        super().__init__()
        self.acceptance = {f"head {index}": AcceptanceModel() for index in range(1, len(heads) + 1)}
        """By the source of the nodes that a head drafts."""
        self.hidden_size = heads.hidden_size
        weight = next(heads.parameters())
        self._dtype, self._device = weight.dtype, weight.device
        if self._device.type == "cpu":
            replace_linears(heads, PackedLinear)
        self._heads = heads

    def begin(self, spec: DraftSpec) -> _Draft:
        """See BaseDrafter.begin. There is nothing to draft from before the next verdict."""
        return _Draft(spec)

    def observe(self, draft: _Draft, tokens: Sequence[int]) -> None:
        """See BaseDrafter.observe."""
        observe_commit(draft.tree, tokens, self.acceptance)

    def commit(self, key: Hashable, committed_length: int, tokens: Sequence[int]) -> None:
        """See Drafter.commit. The sequence is drafted for once its state is seen."""
        self._follow(key, committed_length, tokens)

    def see(self, key: Hashable, state: torch.Tensor) -> None:
        """See StateDrafter.see."""
        self._drafts[key].state = state.to(self._device, self._dtype)
        self._to_do[key] = None

    def extend(self, drafts: Sequence[_Draft]) -> None:
        """See TreeDrafter.extend."""
        self.clock.enter("plan")
        seeing = [draft for draft in drafts if draft.state is not None and draft.tree.size < draft.max_tree_nodes]
        if seeing:
            guesses = self._guess(seeing)
            self.clock.enter("walk")
            for draft, ahead in zip(seeing, guesses, strict=True):
                self._extend(draft, ahead)

    def _asked(self) -> int:
        """How many heads are asked: as far as a path of best guesses is worth it."""
        worth, asked = 1.0, 0
        for model in self.acceptance.values():
            if asked and worth < _LEAST_WORTH:
                break
            asked += 1
            worth *= model.next_probability()
        return asked

    def _guess(self, drafts: list[_Draft]) -> list[list[list[tuple[int, float]]]]:
        """For each sequence and each head asked, its best tokens with their log probabilities."""
        self.clock.enter("forward")
        asked = self._asked()
        with torch.inference_mode():
            logits = self._heads(torch.stack([draft.state for draft in drafts if draft.state is not None]), asked)
        self.clock.enter("sample")
        sampling = SamplingBatch.build(
            [draft.spec.sampling for draft in drafts] * asked,
            [draft.tree.root.position + ahead for ahead in range(1, asked + 1) for draft in drafts],
            self._device,
        )
        # Targets of one tokenizer differ in padding only, so no guess worth having is lost to the smallest of them.
        limit = min(draft.spec.vocab_size or self._heads.vocab_size for draft in drafts)
        find = candidates if self._device.type == "cpu" else candidates_on_device
        found = find(logits[:, : min(limit, self._heads.vocab_size)], sampling, _WIDTH)
        rows = [
            [(token, log_prob) for token, log_prob in zip(tokens, log_probs, strict=True) if token >= 0]
            for tokens, log_probs in zip(*found, strict=True)
        ]
        return [rows[index :: len(drafts)] for index in range(len(drafts))]

    def _extend(self, draft: _Draft, guesses: list[list[tuple[int, float]]]) -> None:
        """Grow a sequence's tree best first."""
        tree = draft.tree
        least = max(least_worth(draft.max_tree_nodes), _LEAST_WORTH)
        depth = min(len(guesses), draft.max_position - tree.root.position)
        models = list(self.acceptance.items())
        number = count()
        heap: list[tuple[float, int, int, Node]] = [(-1.0, next(number), 0, tree.root)]
        while heap:
            worth, _, ahead, parent = heapq.heappop(heap)
            if ahead >= depth:
                continue
            source, model = models[ahead]
            for rank, (token, log_prob) in enumerate(guesses[ahead]):
                value = worth * model.chance(rank, math.exp(log_prob))
                # The first guess is made however unlikely: else a head once useless would never be measured again.
                if -value < least and (parent is not tree.root or rank > 0):
                    continue
                known = parent.children.get(token)
                if known is None:
                    known = draft.add(parent, token, min(log_prob, 0.0), source)
                    if known is None:
                        return
                    # Siblings that an older state guessed are there before: what counts is this state's order.
                    known.rank = rank
                heapq.heappush(heap, (value, next(number), ahead + 1, known))


def medusa_drafter(options: MedusaOptions, target: PackedModel) -> MedusaDrafter:
    """The drafter `local:medusa`. Raises ModelLoadError."""
    heads = load_heads(options.heads, target.dtype, target.device)
    for what, ours, its in (
        ("hidden size", heads.hidden_size, target.hidden_size),
        ("vocabulary", heads.vocab_size, target.vocab_size),
    ):
        if ours != its:
            raise ModelLoadError(f"heads {options.heads}: made for a {what} of {ours}, that of the target is {its}")
    return MedusaDrafter(heads)
