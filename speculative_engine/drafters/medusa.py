"""Medusa: heads on the target's last hidden state guess the next tokens, one head per position ahead.

Cai et al., "Medusa: Simple LLM inference acceleration framework with multiple decoding heads", arXiv 2401.10774. There
the target's own head guesses the next token and the heads those after it. Here the next token is already committed, so
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
from speculative_engine.model.linear.packed_linear import PackedLinear, replace_linears
from speculative_engine.model.packed_model import ModelLoadError, PackedModel
from speculative_engine.planning.acceptance_model import AcceptanceModel, observe_commit
from speculative_engine.planning.round_worth import least_worth
from speculative_engine.sampling.candidate_finder import candidate_finder
from speculative_engine.sampling.sampling_batch import SamplingBatch
from speculative_engine.tree.token_tree import Node

_WIDTH = 4
"""Most children of a node."""
_LEAST_WORTH = 0.02
"""Nodes less likely than this to be on the target's path are not drafted, whatever the credit: a step that verifies
them costs more."""


@dataclass(frozen=True, slots=True)
class MedusaOptions:
    """The heads to draft with."""

    heads: str = ""
    """Directory of the heads."""

    def __post_init__(self) -> None:
        if not self.heads:
            raise FieldError("heads", "must name a directory of heads")


class _Draft(TreeDraft):
    """One sequence, with the hidden state to draft from next."""

    def __init__(self, spec: DraftSpec):
        super().__init__(spec)
        self.state: torch.Tensor | None = None

    def commit(self, tokens: Sequence[int]) -> list[int]:
        """Applies a verdict and drops the state, which precedes it."""
        self.state = None
        return super().commit(tokens)


class MedusaDrafter(TreeDrafter[_Draft]):
    """A StateDrafter (see `drafter.StateDrafter`).

    One pass over the heads drafts for all sequences with a new state. Committed tokens show how often each head's
    guesses are right. This acceptance decides how many heads are used, and trees grow by it, best first.
    """

    def __init__(self, heads: MedusaHeads):
        """heads: ownership passes to the drafter, which packs their linear layers."""
        super().__init__()
        self.acceptance = {f"head {index}": AcceptanceModel() for index in range(1, len(heads) + 1)}
        """Acceptance by source; each head's nodes have a source of their own."""
        self.hidden_size = heads.hidden_size
        weight = next(heads.parameters())
        self._dtype, self._device = weight.dtype, weight.device
        self._find = candidate_finder(self._device, fixed=self._device.type != "cpu")
        if self._device.type == "cpu":
            replace_linears(heads, PackedLinear)
        self._heads = heads

    def begin(self, spec: DraftSpec) -> _Draft:
        """Returns an empty draft; it has no state to draft from before the next verdict."""
        return _Draft(spec)

    def observe(self, draft: _Draft, tokens: Sequence[int]) -> None:
        """Updates each head's acceptance estimates."""
        observe_commit(draft.tree, tokens, self.acceptance)

    def commit(self, key: Hashable, committed_length: int, tokens: Sequence[int]) -> None:
        """Applies a verdict. The sequence is scheduled only when its hidden state arrives."""
        self._follow(key, committed_length, tokens)

    def see(self, key: Hashable, state: torch.Tensor) -> None:
        """Stores a sequence's hidden state and schedules its next draft."""
        self._drafts[key].state = state.to(self._device, self._dtype)
        self._to_do[key] = None

    def extend(self, drafts: Sequence[_Draft]) -> None:
        """Drafts for all sequences with a new state, in one pass over the heads."""
        self.clock.enter("plan")
        seeing = [draft for draft in drafts if draft.state is not None and draft.tree.size < draft.max_tree_nodes]
        if seeing:
            guesses = self._guess(seeing)
            self.clock.enter("walk")
            for draft, ahead in zip(seeing, guesses, strict=True):
                self._extend(draft, ahead)

    def _asked(self) -> int:
        """Returns the number of heads to use: as many as a path of best guesses is worth."""
        worth, asked = 1.0, 0
        for model in self.acceptance.values():
            if asked and worth < _LEAST_WORTH:
                break
            asked += 1
            worth *= model.next_probability()
        return asked

    def _guess(self, drafts: list[_Draft]) -> list[list[list[tuple[int, float]]]]:
        """Returns, for each sequence and each head used, its best tokens with their log-probabilities."""
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
        # Targets with one tokenizer differ only in padding, so the smallest vocabulary loses no useful guess.
        limit = min(draft.spec.vocab_size or self._heads.vocab_size for draft in drafts)
        found = self._find(logits[:, : min(limit, self._heads.vocab_size)], sampling, _WIDTH)
        rows = [
            [(token, log_prob) for token, log_prob in zip(tokens, log_probs, strict=True) if token >= 0]
            for tokens, log_probs in zip(*found, strict=True)
        ]
        return [rows[index :: len(drafts)] for index in range(len(drafts))]

    def _extend(self, draft: _Draft, guesses: list[list[tuple[int, float]]]) -> None:
        """Grows a sequence's tree best first."""
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
                # The first guess is always made, however unlikely; otherwise a once useless head would never be
                # measured again.
                if -value < least and (parent is not tree.root or rank > 0):
                    continue
                known = parent.children.get(token)
                if known is None:
                    known = draft.add(parent, token, min(log_prob, 0.0), source)
                    if known is None:
                        return
                    # Siblings guessed from an older state may exist already; this state's order counts.
                    known.rank = rank
                heapq.heappush(heap, (value, next(number), ahead + 1, known))


def medusa_drafter(options: MedusaOptions, target: PackedModel) -> MedusaDrafter:
    """Makes the drafter `local:medusa`. Raises ModelLoadError."""
    heads = load_heads(options.heads, target.dtype, target.device)
    for what, ours, its in (
        ("hidden size", heads.hidden_size, target.hidden_size),
        ("vocabulary", heads.vocab_size, target.vocab_size),
    ):
        if ours != its:
            raise ModelLoadError(f"heads {options.heads}: made for a {what} of {ours}, but the target's is {its}")
    return MedusaDrafter(heads)
