"""Drafting from features: best-first growth of trees by a network that reads one next to each token."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from draftwire_core.engine.device.device_copy import to_device
from draftwire_core.engine.drafters.drafter import DraftSpec, Growth
from draftwire_core.engine.drafters.features.draft_network import in_target_ids
from draftwire_core.engine.drafters.features.feature_source import FeatureSource
from draftwire_core.engine.drafters.model.draft_ahead import DraftAhead
from draftwire_core.engine.drafters.model.draft_model import STEPS_AHEAD, DraftModelDrafter, Expanded, ModelDraft
from draftwire_core.engine.drafters.model.slot_drafter import check_room
from draftwire_core.engine.drafters.tree_growth import GrowingTree, TreeGrowth
from draftwire_core.engine.kv.kv_slots import SlotPool
from draftwire_core.engine.model.cuda.slots.draft_batch import DraftPlan
from draftwire_core.engine.model.cuda.slots.draft_layout import DraftRow
from draftwire_core.engine.model.cuda.slots.feeding import Feeding
from draftwire_core.engine.model.features.taps import SlotStates, Tap
from draftwire_core.engine.model.packed_batch import BatchBuilder
from draftwire_core.engine.model.packed_model import PackedModel
from draftwire_core.engine.tree.token_tree import Node

READING = 32
"""Committed tokens of a sequence from which reading them counts as catching up: a verdict has fewer."""


class ReadingDraft(ModelDraft):
    """One sequence. Its slots are those of the committed tokens whose rows the network has computed.

    The row of a committed token needs the feature of the token before it. Tokens without one are left out, as if the
    text did not contain them: those that were computed while the drafter was paused or not yet there. Positions in the
    network therefore count rows, not tokens.
    """

    def __init__(self, spec: DraftSpec):
        super().__init__(spec)
        self._next = 1
        """Index of the first token that has been neither read nor left out."""
        self._ready = np.empty(0, dtype=np.int64)
        """Indices of the tokens that can be read now."""
        self._computed = 1
        """Index of the first token that cannot be read yet because the target has not computed the one before it."""
        self.at_root = False
        """Whether the root has been read, so that nodes can be expanded."""

    @property
    def pending(self) -> int:
        """Number of committed tokens that have not been read, whether or not they can be."""
        return max(0, len(self.tokens) - self._next)

    @property
    def readable(self) -> int:
        """Number of committed tokens that can be read now."""
        return len(self._ready)

    @property
    def growing(self) -> GrowingTree:
        """The tree with its limits; it cannot grow before the root has been read."""
        return GrowingTree(self.tree, self.max_tree_nodes if self.at_root else 0, self.max_position)

    def look(self, key: Hashable, features: FeatureSource) -> None:
        """Finds the tokens that can be read now. key: the sequence's."""
        computed = min(features.computed(key), len(self.tokens) - 1)
        self._computed = max(self._next, computed + 1)
        if computed < self._next:
            self._ready = self._ready[:0]
        else:
            self._ready = self._next + np.flatnonzero(features.known(key, self._next - 1, computed))

    def take_ready(self, count: int) -> np.ndarray:
        """Returns the indices of the next `count` tokens, int64, which count as read from now on."""
        taken, self._ready = self._ready[:count], self._ready[count:]
        self._next = int(taken[-1]) + 1 if len(self._ready) else self._computed
        self.at_root = int(taken[-1]) == len(self.tokens) - 1
        return taken

    def commit(self, tokens: Sequence[int]) -> list[int]:
        """Applies a verdict. Returns the slots of all nodes: their rows were computed from the network's own states,
        and are computed again from features."""
        walked, pruned = self.tree.commit(tokens)
        self.tokens.extend(tokens)
        self.at_root = False
        drafted = [node for node in (*walked, *pruned, *self.tree.nodes()) if node.slot >= 0]
        slots = [node.slot for node in drafted]
        for node in drafted:
            node.slot = -1
        return slots

    def give_up(self) -> np.ndarray:
        """Releases all KV slots and returns them; the tokens have to be read again."""
        self._next, self._ready, self.at_root = 1, self._ready[:0], False
        return super().give_up()


class _Read(NamedTuple):
    """Rows of committed tokens that read the target's features."""

    first: int
    """The first row."""
    key: Hashable
    draft: ReadingDraft
    start: int
    """The number of the draft's slots before them."""
    taken: np.ndarray
    """Indices of the tokens, int64."""


def own_tap(model: PackedModel, feed_back: nn.Module) -> Tap:
    """Returns the tap that keeps what a network's rows feed back to those of their children. feed_back: makes it of a
    row's last hidden states."""
    states = SlotStates(model.pool.capacity, model.hidden_size, model.dtype, model.device)
    return Tap([model.layers], feed_back, states)


def feed_drafts(
    model: PackedModel, features: torch.Tensor, own: Tap, target_ids: torch.Tensor | None, *, normed: bool
) -> None:
    """Lets a network draft several steps by one call on a GPU. features: those of committed tokens, see `Feeding`. own,
    normed: what rows leave to those of their children, see `own_tap` and `Feeding`. target_ids: see `DraftNetwork`."""
    spread = partial(in_target_ids, target_ids=target_ids, vocabulary=int(model.config.vocab_size))
    model.feed_drafts(Feeding(features, own.states.vectors, model.layers, normed, spread))


class ReadingDrafter(DraftModelDrafter):
    """A DraftModelDrafter whose network reads features.

    The features of committed tokens come from a `FeatureSource`. The network's own hidden states are kept by its slots:
    a node's row reads the hidden state of its parent's row.
    """

    def __init__(
        self,
        model: PackedModel,
        features: FeatureSource,
        target_ids: torch.Tensor | None,
        own: Tap,
        growth: TreeGrowth | None = None,
    ):
        """model: the network. features: those of the committed tokens. target_ids: see `DraftNetwork.target_ids`.
        own: see `own_tap`."""
        super().__init__(model, growth)
        self._features = features
        self._target_ids = target_ids
        self._own = own
        self._read: list[_Read] = []
        """Rows of the next pass that read the target's features."""
        self._fed: list[tuple[int, int]] = []
        """Rows of the next pass that read the network's own states: the row, and the parent's slot."""

    def begin(self, spec: DraftSpec) -> ReadingDraft:
        """Returns the draft of a sequence. Raises DrafterFullError if the sequence can never fit."""
        check_room(spec, spec.max_tree_nodes, self.model.pool)
        return ReadingDraft(spec)

    @property
    def busy(self) -> bool:
        """Whether a sequence has tokens to read or nodes worth expanding."""
        self._look()
        return super().busy

    @property
    def catching_up(self) -> bool:
        """Whether a sequence has many tokens to read."""
        return any(draft.readable > READING for draft in self._queue.running.values())

    def grow(self, steps: int = STEPS_AHEAD) -> Growth:
        """Drafts as `DraftModelDrafter.grow` does."""
        self._look()
        return super().grow(steps)

    def _look(self) -> None:
        for key, draft in self._queue.running.items():
            assert isinstance(draft, ReadingDraft)
            draft.look(key, self._features)

    def _read_committed(self, builder: BatchBuilder, key: Hashable, draft: ModelDraft, count: int) -> bool:
        assert isinstance(draft, ReadingDraft)
        taken, first, start = draft.take_ready(count), len(builder), len(draft.slots)
        _add_rows(builder, draft, taken, self.model.pool)
        self._read.append(_Read(first, key, draft, start, taken))
        return draft.at_root

    def _draft_ahead(self, expanded: list[Expanded], growth: Growth, steps: int) -> int:
        taken = super()._draft_ahead(expanded, growth, steps)
        if taken:
            self._read.clear()
            self._fed.clear()
        return taken

    def _plan(self, ahead: DraftAhead) -> DraftPlan:
        """Adds the rows of committed tokens before the roots, as sequences of their own, and what each row reads."""
        plan = ahead.plan
        given: dict[int, int] = {}
        """The place of the feature that a committed token's row reads, by the row's own slot."""
        for read in self._read:
            own = read.draft.slots.array()[read.start :]
            places = self._features.places(read.key, read.taken - 1, own)
            given.update(zip(own.tolist(), places.tolist(), strict=True))
            before = own[:-1].tolist()  # the root is there
            if before:
                plan.contexts.append(read.draft.slots.array()[: read.start].copy())
                plan.steps[0] += [
                    DraftRow(len(plan.contexts) - 1, tuple(before[:at]), slot, read.draft.tokens[int(read.taken[at])])
                    for at, slot in enumerate(before)
                ]

        def reads(row: DraftRow) -> int:
            if row.slot in given:
                return -1 - given[row.slot]
            return int(row.path[-1] if row.path else plan.contexts[row.context][-1])

        return replace(plan, reads=[[reads(row) for row in rows] for rows in plan.steps])

    def _add_children(
        self, draft: ModelDraft, node: Node, token_ids: Sequence[int], log_probs: Sequence[float]
    ) -> Sequence[Node]:
        known = set(node.children)  # of the root, guessed from the network's own states before the verdict
        children = self._growth.children(draft.growing, node, token_ids, log_probs)
        new = [child for child in children if child.token not in known]
        draft.number(new)
        return new

    def _expand(self, builder: BatchBuilder, draft: ModelDraft, node: Node) -> None:
        path = node.path_from(draft.tree.root)
        ancestors = [ancestor.slot for ancestor in path[:-1]]
        before = ancestors[-1] if ancestors else draft.slots.last
        node.slot = int(self.model.pool.take(1, before)[0])
        self._fed.append((len(builder), before))
        row = builder.add_row(node.token, len(draft.slots) - 1 + len(path), node.slot, wants_logits=True)
        builder.add_lane(np.concatenate([draft.slots.array(), np.array(ancestors, dtype=np.int64)]), [row])

    def _forward(self, builder: BatchBuilder) -> torch.Tensor:
        model = self.model
        batch = builder.build(model.group_size, model.device)
        self.clock.enter("forward")
        features = torch.empty(len(builder), model.hidden_size, dtype=model.dtype, device=model.device)
        for read in self._read:
            features[read.first : read.first + len(read.taken)] = self._features.read(read.key, read.taken - 1)
        if self._fed:
            rows, parents = np.array(self._fed, dtype=np.int64).T
            placed = to_device(torch.from_numpy(rows.copy()), model.device)
            features.index_copy_(0, placed, self._own.states.read(parents.copy()))
        self._read.clear()
        self._fed.clear()
        batch.features, batch.taps = features, (self._own,)
        return in_target_ids(model.forward(batch), self._target_ids, int(model.config.vocab_size))


def _add_rows(builder: BatchBuilder, draft: ReadingDraft, taken: np.ndarray, pool: SlotPool) -> None:
    """Adds the rows of committed tokens, given by index. The last one has logits if it is the root."""
    start, last = len(draft.slots), len(taken) - 1
    slots = pool.take(len(taken), draft.slots.last)
    rows = [
        builder.add_row(draft.tokens[int(token)], start + at, int(slot), draft.at_root and at == last)
        for at, (token, slot) in enumerate(zip(taken, slots, strict=True))
    ]
    builder.add_lane(draft.slots.array().copy(), rows)
    draft.slots.extend(slots)
