"""Drafting with a recurrent head on the target's last hidden state."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from draftwire_core.engine.drafters.base import StateDraft, StateTreeDrafter
from draftwire_core.engine.drafters.drafter import EngineState
from draftwire_core.engine.drafters.features.draft_network import in_target_ids
from draftwire_core.engine.drafters.recurrent.recurrent_head import RecurrentHead
from draftwire_core.engine.model.backends.sharded_backend import ShardedBackend
from draftwire_core.engine.model.linear.block_linear import maker
from draftwire_core.engine.model.linear.drafter_linear import PackedLinear, replace_linears
from draftwire_core.engine.model.packed_model import ModelLoadError, PackedModel
from draftwire_core.engine.planning.acceptance_model import AcceptanceModel, observe_commit
from draftwire_core.engine.planning.round_worth import RoundWorth, least_worth
from draftwire_core.engine.planning.step_cost import StepCost
from draftwire_core.engine.sampling.candidate_finder import candidate_finder
from draftwire_core.engine.sampling.sampling_batch import SamplingBatch
from draftwire_core.engine.tree.token_tree import Node

_SOURCE = "head"
_WIDTH = 3
"""Most children of a node."""
_DEPTH = 8
"""Most nodes on a path: a head is trained on fewer steps, and knows nothing of the text before its first state."""
_LEAST_WORTH = 0.05
"""Nodes less likely than this to be on the target's path are not drafted, whatever the credit."""
_LIKELY = 0.5
"""Probability that other drafters have guessed the next token, from which the first level must pay, too."""


@dataclass(frozen=True, slots=True)
class RecurrentOptions:
    """The head to draft with."""

    model: str = ""
    """Directory of the head; without one nothing is drafted, until a learner replaces the drafter."""


class _Leaf(NamedTuple):
    """A node that may get children."""

    draft: StateDraft
    node: Node
    state: torch.Tensor
    """The state that the node's token was drawn from, [hidden]."""
    worth: float
    """Probability that the node is on the target's path."""


class RecurrentDrafter(StateTreeDrafter):
    """A StateDrafter (see `drafter.StateDrafter`). Trees grow together, a level in each pass of the head.

    Drafting delays the target's step, so a level is drafted only while that pays (see `RoundWorth`), except for the
    first one, since the engine decides whether to try at all.
    """

    def __init__(self, head: RecurrentHead | None, embed: Callable[[torch.Tensor], torch.Tensor], share: float):
        """head: ownership passes to the drafter, which packs its weights; None drafts nothing. embed: the target's
        embedding, int64 [rows] -> [rows, hidden]. share: initial cost of a pass of the head relative to the target's
        step; measured passes correct it later."""
        super().__init__()
        self.acceptance = AcceptanceModel()
        self._embed = embed
        self._head = head
        self._share = share
        self._engine: EngineState
        self._worth: RoundWorth
        if head is not None:
            self._dtype, self._device = head.down.weight.dtype, head.down.weight.device
            self._find = candidate_finder(self._device)
            _pack(head)

    def enter(self, engine: EngineState) -> None:
        """Receives the engine, and derives the cost of passes from that of its steps."""
        self._engine = engine
        rows, seconds = zip(*engine.cost.points(), strict=True)
        self._worth = RoundWorth(engine.cost, StepCost(rows, [self._share * each for each in seconds]))

    def observe(self, draft: StateDraft, tokens: Sequence[int]) -> None:
        """Updates the acceptance estimates."""
        observe_commit(draft.tree, tokens, {_SOURCE: self.acceptance})

    def see(self, key: Hashable, state: torch.Tensor) -> None:
        """Stores a sequence's hidden state, as the head reads it, and schedules its next draft."""
        if self._head is not None:
            super().see(key, state.to(self._device, self._dtype))

    def extend(self, drafts: Sequence[StateDraft]) -> None:
        """Drafts for all sequences with a new state, level by level."""
        self.clock.enter("plan")
        leaves = [
            _Leaf(draft, draft.tree.root, draft.state, 1.0)
            for draft in drafts
            if draft.state is not None and draft.tree.size < draft.max_tree_nodes
        ]
        others = self._engine.guessed()
        worths = [chance for chance in others for _ in leaves]
        decoding, spent = len(leaves), 0.0
        for level in range(_DEPTH):
            leaves = [leaf for leaf in leaves if leaf.node.position < leaf.draft.max_position]
            guessed = others[level] if level < len(others) else 0.0
            following = (1.0 - guessed) * self.acceptance.next_probability()
            gains = [leaf.worth * following for leaf in leaves]
            must_pay = level > 0 or guessed >= _LIKELY
            if not leaves or (must_pay and not self._worth.pays(decoding, worths, gains, len(leaves), spent)):
                break
            started = time.perf_counter()
            drafted = self._grow_level(leaves)
            seconds = time.perf_counter() - started
            self._worth.drafting.observe(len(leaves), seconds)
            spent += seconds
            worths += [leaf.worth for leaf in drafted]
            leaves = drafted
            self.clock.enter("plan")

    def _grow_level(self, leaves: Sequence[_Leaf]) -> list[_Leaf]:
        """Gives nodes children; returns those that are likely enough to have some of their own."""
        assert self._head is not None, "without a head no sequence has a state"
        self.clock.enter("forward")
        with torch.inference_mode():
            tokens = torch.tensor([leaf.node.token for leaf in leaves], device=self._device)
            embeddings = self._embed(tokens).to(self._dtype)
            states = self._head(torch.stack([leaf.state for leaf in leaves]), embeddings)
            logits = in_target_ids(self._head.logits(states), self._head.token_ids, self._head.vocab_size)
        self.clock.enter("sample")
        limit = min(leaf.draft.spec.vocab_size or logits.shape[1] for leaf in leaves)
        sampling = SamplingBatch.build(
            [leaf.draft.spec.sampling for leaf in leaves], [leaf.node.position + 1 for leaf in leaves], self._device
        )
        found = self._find(logits[:, : min(limit, logits.shape[1])], sampling, _WIDTH)
        self.clock.enter("walk")
        rows = zip(leaves, states.unbind(), *found, strict=True)
        return [child for row in rows for child in self._children(*row)]

    def _children(
        self, leaf: _Leaf, state: torch.Tensor, tokens: Sequence[int], log_probs: Sequence[float]
    ) -> list[_Leaf]:
        """Adds those candidates of a node that are worth it, best first; returns those that may have children.

        The root always gets one, however unlikely: the acceptance of a head that was once useless would else never be
        measured again.
        """
        draft, parent = leaf.draft, leaf.node
        least = max(least_worth(draft.max_tree_nodes), _LEAST_WORTH)
        children = []
        for rank, (token, log_prob) in enumerate(zip(tokens, log_probs, strict=True)):
            log_prob = min(log_prob, 0.0)
            worth = leaf.worth * self.acceptance.chance(rank, math.exp(log_prob))
            if token < 0 or (worth < least and (rank or parent is not draft.tree.root)):
                break
            node = draft.add(parent, token, log_prob, _SOURCE)
            if node is None:
                break
            node.rank = rank  # one that was drafted before the last verdict may have had another
            if worth >= least:
                children.append(_Leaf(draft, node, state, worth))
        return children


def _pack(head: RecurrentHead) -> None:
    """Packs the weights of a head: a CPU reads them in 4 bits, since a pass of few rows takes as long as that. A GPU's
    are left to its own products."""
    weight = head.down.weight
    if weight.device.type == "cpu":
        replace_linears(head, maker(PackedLinear, "q4_0" if weight.dtype == torch.bfloat16 else None))


def recurrent_drafter(options: RecurrentOptions, target: PackedModel) -> RecurrentDrafter:
    """Makes the drafter `local:recurrent`. Raises ModelLoadError."""
    if isinstance(target.backend, ShardedBackend):  # the others do not look up what rank 0 drafts
        raise ModelLoadError("local:recurrent needs a target that is not split among ranks (--tensor-parallel 1)")
    head = None
    if options.model:
        head = RecurrentHead.load(options.model, target.dtype, target.device)
        for what, ours, its in (
            ("hidden size", head.hidden_size, target.hidden_size),
            ("vocabulary size", head.vocab_size, target.vocab_size),
        ):
            if ours != its:
                raise ModelLoadError(f"model {options.model}: {what} {ours} does not match the target's {its}")
    size = 1 if head is None else sum(each.numel() for each in head.parameters())
    return RecurrentDrafter(head, target.model.get_input_embeddings(), min(1.0, size / target.parameters))
