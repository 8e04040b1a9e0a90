"""Medusa: heads on the target's last hidden state guess the next tokens, each one a place further.

Cai et al., "Medusa: Simple LLM inference acceleration framework with multiple decoding heads", arXiv 2401.10774. There
the target's own head guesses the next token and the heads those after it. Here the next token is committed by then, so
the first head's guesses are the root's children.
"""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import count

import torch

from speculative_engine.drafters.drafter import DraftSpec, Growth, OutOfSyncError
from speculative_engine.drafters.medusa_heads import MedusaHeads, load_heads
from speculative_engine.field_error import FieldError
from speculative_engine.model.packed_linear import PackedLinear, replace_linears
from speculative_engine.model.packed_model import ModelLoadError, PackedModel
from speculative_engine.planning.acceptance_model import AcceptanceModel, observe_commit
from speculative_engine.planning.step_clock import StepClock
from speculative_engine.sampling.candidate_draw import candidates, candidates_on_device
from speculative_engine.sampling.sampling_batch import SamplingBatch
from speculative_engine.tree.proposal import Proposal
from speculative_engine.tree.token_tree import Node, TokenTree

_WIDTH = 4
"""Most children of a node."""
_CREDIT_WORTH = 0.8
"""As in `tree_growth`: nodes less likely than this over the credit are not drafted."""
_LEAST_WORTH = 0.02
"""Nor are those less likely than this, whatever the credit: a step that verifies them costs more."""


@dataclass(frozen=True, slots=True)
class MedusaOptions:
    """Which heads."""

    heads: str = ""
    """Directory of the heads."""

    def __post_init__(self) -> None:
        if not self.heads:
            raise FieldError("heads", "must name a directory of heads")


class _Draft:
    """One sequence: its tree, and the hidden state that has yet to be drafted from."""

    def __init__(self, spec: DraftSpec):
        self.spec = spec
        self.tree = TokenTree(len(spec.tokens), spec.tokens[-1])
        self.state: torch.Tensor | None = None
        self.max_tree_nodes = spec.max_tree_nodes
        self.next_id = 1
        self.caught_up = False


class MedusaDrafter:
    """A StateDrafter (see `drafter.StateDrafter`).

    One pass over the heads drafts for all sequences that have a new state. How often each head's guesses are right is
    learned from what is committed; it decides how many of the heads are asked, and the tree is grown by it, best first.
    """

    def __init__(self, heads: MedusaHeads):
        """heads: taken over; their linear layers are packed."""
        self.clock = StepClock()
        self.acceptance = {f"head {index}": AcceptanceModel() for index in range(1, len(heads) + 1)}
        """By the source of the nodes that a head drafts."""
        self.hidden_size = heads.hidden_size
        weight = next(heads.parameters())
        self._dtype, self._device = weight.dtype, weight.device
        if self._device.type == "cpu":
            replace_linears(heads, PackedLinear)
        self._heads = heads
        self._drafts: dict[Hashable, _Draft] = {}
        self._to_do: set[Hashable] = set()

    def open(self, key: Hashable, spec: DraftSpec) -> None:
        """See Drafter.open. There is nothing to draft from before the next verdict."""
        self._drafts[key] = _Draft(spec)
        self._to_do.add(key)

    def commit(self, key: Hashable, committed_length: int, tokens: Sequence[int]) -> None:
        """See Drafter.commit."""
        draft = self._drafts[key]
        if committed_length - len(tokens) != draft.tree.committed_length or not tokens:
            raise OutOfSyncError(
                f"verdict of {len(tokens)} tokens to a length of {committed_length}, "
                f"the drafter knows {draft.tree.committed_length} tokens"
            )
        observe_commit(draft.tree, tokens, self.acceptance)
        draft.tree.commit(tokens)
        draft.state = None

    def see(self, key: Hashable, state: torch.Tensor) -> None:
        """See StateDrafter.see."""
        self._drafts[key].state = state.to(self._device, self._dtype)
        self._to_do.add(key)

    def limit(self, key: Hashable, max_tree_nodes: int | None) -> None:
        """See LimitedDrafter.limit."""
        draft = self._drafts[key]
        most = draft.spec.max_tree_nodes
        draft.max_tree_nodes = most if max_tree_nodes is None else min(max_tree_nodes, most)

    def close(self, key: Hashable) -> None:
        """See Drafter.close."""
        self._drafts.pop(key, None)
        self._to_do.discard(key)

    @property
    def busy(self) -> bool:
        """See Drafter.busy."""
        return bool(self._to_do)

    def grow(self) -> Growth:
        """See Drafter.grow."""
        started = time.perf_counter()
        self.clock.enter("plan")
        growth = Growth([], {}, 0.0)
        seeing: list[tuple[Hashable, _Draft]] = []
        for key in self._to_do:
            draft = self._drafts[key]
            if not draft.caught_up:
                draft.caught_up = True
                growth.opened.append(key)
            if draft.state is not None and draft.tree.size < draft.max_tree_nodes:
                seeing.append((key, draft))
        self._to_do.clear()
        if seeing:
            guesses = self._guess([draft for _, draft in seeing])
            self.clock.enter("walk")
            for (key, draft), ahead in zip(seeing, guesses, strict=True):
                fresh = self._extend(draft, ahead)
                if fresh:
                    growth.proposals[key] = Proposal.of(draft.tree, fresh)
        self.clock.enter(None)
        growth.seconds = time.perf_counter() - started
        return growth

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

    def _extend(self, draft: _Draft, guesses: list[list[tuple[int, float]]]) -> list[Node]:
        """Grow a sequence's tree best first, and return the new nodes with their numbers on the wire."""
        tree, spec = draft.tree, draft.spec
        least = max(_CREDIT_WORTH / draft.max_tree_nodes, _LEAST_WORTH)
        # The request's last token needs no node after its parent, so no node there needs children.
        depth = min(len(guesses), spec.max_length - 2 - tree.root.position)
        models = list(self.acceptance.items())
        fresh: list[Node] = []
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
                    if tree.size >= draft.max_tree_nodes:
                        return fresh
                    known, _ = tree.add(parent, token, min(log_prob, 0.0), source)
                    # Siblings that an older state guessed are there before: what counts is this state's order.
                    known.rank = rank
                    known.id = draft.next_id
                    draft.next_id += 1
                    fresh.append(known)
                heapq.heappush(heap, (value, next(number), ahead + 1, known))
        return fresh


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
