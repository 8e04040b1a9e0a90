"""Early exit: the target's own first layers draft for it, on the keys and values that it has already computed."""

from __future__ import annotations

import time
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

import numpy as np

from draftwire_core.engine.drafters.base import TreeDraft, TreeDrafter
from draftwire_core.engine.drafters.drafter import DraftSpec, EngineState, RunningSequence
from draftwire_core.engine.drafters.tree_growth import GrowingTree, TreeGrowth
from draftwire_core.engine.errors import FieldError
from draftwire_core.engine.kv.kv_slots import SlotPool
from draftwire_core.engine.model.packed_batch import BatchBuilder
from draftwire_core.engine.model.packed_model import ModelLoadError, PackedModel
from draftwire_core.engine.planning.round_worth import RoundWorth
from draftwire_core.engine.planning.step_cost import StepCost
from draftwire_core.engine.sampling.candidate_finder import candidate_finder
from draftwire_core.engine.sampling.sampling_batch import SamplingBatch
from draftwire_core.engine.tree.token_tree import Node


@dataclass(frozen=True, slots=True)
class EarlyExitOptions:
    """The layer at which drafting leaves the model."""

    layers: int = 0
    """Number of the target's first layers that draft; required, and fewer than all."""

    def __post_init__(self) -> None:
        if self.layers < 1:
            raise FieldError("layers", f"must be given and at least 1, got {self.layers}")


class _Draft(TreeDraft):
    """One sequence's tree. Its tokens and KV slots belong to the engine."""

    sequence: RunningSequence
    """The engine's sequence, set in steps that draft for it."""


class _Member(NamedTuple):
    """A sequence drafted for in the current step."""

    draft: _Draft
    growing: GrowingTree


_Round = list[tuple[_Member, Node]]
"""The nodes that one pass takes through the layers, parents before children."""


class EarlyExitDrafter(TreeDrafter[_Draft]):
    """A drafter in the verification engine's thread, whose model is a view of the target's first layers.

    Those layers have already computed the keys and values of committed tokens, so it reads the sequences' own slots and
    needs neither a cache nor passes over prompts. Nodes take free slots while they are drafted and return them before
    the step, which recomputes them: the target's memory use and its bits are the same as without the drafter.

    Drafting delays the step, so it proceeds in rounds, each only while it pays (see `RoundWorth`). If the first round
    does not pay, a round of a single row measures whether that is still so; the engine decides how often.
    """

    def __init__(self, model: PackedModel, share: float):
        """model: the first layers of the engine's own model. share: initial cost of a pass over them relative to a full
        pass; measured rounds correct it later."""
        super().__init__()
        self.model = model
        self._share = share
        self._engine: EngineState
        self._growth: TreeGrowth
        self._worth: RoundWorth
        self._held: list[Node] = []
        """Nodes that hold slots during drafting."""

    def enter(self, engine: EngineState) -> None:
        """Receives the engine, and derives the cost of rounds from that of its steps."""
        self._engine = engine
        rows, seconds = zip(*engine.cost.points(), strict=True)
        cost = StepCost(rows, [self._share * each for each in seconds])
        self._growth = TreeGrowth(cost)
        self._find = candidate_finder(self.model.device)
        self._worth = RoundWorth(engine.cost, cost)

    def begin(self, spec: DraftSpec) -> _Draft:
        """Returns an empty draft; the engine's sequence is set when it is due."""
        return _Draft(spec)

    def observe(self, draft: _Draft, tokens: Sequence[int]) -> None:
        """Updates the acceptance estimates."""
        self._growth.observe(draft.tree, tokens)

    @property
    def busy(self) -> bool:
        """Whether any scheduled sequence has finished its prompt."""
        return any(self._decoding(key) is not None for key in self._to_do)

    def extend(self, drafts: Sequence[_Draft]) -> None:
        """Drafts in rounds until a round no longer pays. Holds no slots when it returns."""
        self.clock.enter("plan")
        members = self._members(drafts)
        decoding = sum(sequence.pending == 1 for sequence in self._engine.running.values())
        # Nodes that survived the last verdict are recomputed, since their slots were returned.
        chosen = [
            (member, node)
            for member in members
            for node in (member.draft.tree.root, *member.draft.tree.nodes())
            if node.position < member.growing.max_position
        ]
        try:
            if self._pays(decoding, members, chosen, 0.0):
                spent = 0.0
                while chosen and self._pays(decoding, members, chosen, spent):
                    spent += self._worth.drafting.seconds(len(chosen))
                    self._draft(chosen)
                    chosen = self._next_round(members)
            else:
                self._draft([(member, node) for member, node in chosen if not member.draft.tree.size][:1])
        finally:
            self.model.pool.give_back([node.slot for node in self._held])
            for node in self._held:
                node.slot = -1
            self._held.clear()

    def _decoding(self, key: Hashable) -> RunningSequence | None:
        """Returns the engine's sequence, if its next step continues from its last token."""
        sequence = self._engine.running.get(cast(int, key))
        return sequence if sequence is not None and sequence.pending == 1 else None

    def _due(self) -> list[Hashable]:
        due: list[Hashable] = []
        for key in self._to_do:
            sequence = self._decoding(key)
            if sequence is not None:
                self._drafts[key].sequence = sequence
                due.append(key)
        return due

    def _members(self, drafts: Sequence[_Draft]) -> list[_Member]:
        """Returns the sequences to draft for, as far as slots suffice."""
        members: list[_Member] = []
        room = min(self.model.most_rows, self.model.pool.free)
        for draft in drafts:
            most, limit = draft.max_tree_nodes, draft.sequence.spec.max_draft_tokens
            if limit is not None:
                most = min(most, limit)
            growing = GrowingTree(draft.tree, most, draft.max_position)
            room -= 1 + draft.tree.size
            if room >= 0 and draft.tree.size < most and draft.tree.root.position < growing.max_position:
                members.append(_Member(draft, growing))
        return members

    def _next_round(self, members: Sequence[_Member]) -> _Round:
        self.clock.enter("plan")
        room = min(self.model.most_rows, self.model.pool.free)
        best = self._growth.expansions([member.growing for member in members], 0, room)
        return [(members[index], node) for index, node in best]

    def _pays(self, decoding: int, members: Sequence[_Member], chosen: _Round, spent: float) -> bool:
        """Whether taking these nodes through the layers pays."""
        worths: dict[int, float] = {}
        for member in members:
            root = member.draft.tree.root
            worths[id(root)] = 1.0
            for node in root.subtree():
                worths[id(node)] = worths[id(node.parent)] * self._growth.acceptance.probability(node)
        following = self._growth.acceptance.next_probability()
        gains = [worths[id(node)] * following for _, node in chosen if not node.children]
        for member in members:
            del worths[id(member.draft.tree.root)]
        return bool(gains) and self._worth.pays(decoding, list(worths.values()), gains, len(chosen), spent)

    def _draft(self, chosen: _Round) -> None:
        """Takes nodes through the layers, and adds their children to the trees."""
        if not chosen:
            return
        started = time.perf_counter()
        self.clock.enter("layout")
        builder = BatchBuilder()
        asked: _Round = []
        slots = self.model.pool.take(len(chosen)).tolist()
        for (member, node), slot in zip(chosen, slots, strict=True):
            node.slot = slot
            self._held.append(node)
            root = member.draft.tree.root
            path = [root, *node.path_from(root)]
            before = np.array([each.slot for each in path[:-1]], dtype=np.int64)
            row = builder.add_row(node.token, node.position, slot, wants_logits=not node.children)
            builder.add_lane(np.concatenate([member.draft.sequence.slots.array(), before]), [row])
            if not node.children:
                asked.append((member, node))
        batch = builder.build(self.model.group_size, self.model.device)
        self.clock.enter("forward")
        logits = self.model.forward(batch)
        self.clock.enter("sample")
        sampling = SamplingBatch.build(
            [member.draft.spec.sampling for member, _ in asked],
            [node.position + 1 for _, node in asked],
            self.model.device,
        )
        found = self._find(logits, sampling, self._growth.width)
        self.clock.enter("walk")
        for (member, node), tokens, log_probs in zip(asked, *found, strict=True):
            member.draft.number(self._growth.children(member.growing, node, tokens, log_probs))
        self._worth.drafting.observe(len(chosen), time.perf_counter() - started, builder.seen)


def early_exit_drafter(options: EarlyExitOptions, target: PackedModel) -> EarlyExitDrafter:
    """Makes the drafter `local:early_exit`. Raises ModelLoadError."""
    view = target.first_layers(options.layers)
    _try_out(view, options.layers)
    return EarlyExitDrafter(view, weights_share(target, options.layers))


def weights_share(target: PackedModel, layers: int) -> float:
    """Returns the share of the weights that a pass over this many layers reads."""
    head = target.vocab_size * int(target.config.hidden_size)
    tied = bool(getattr(target.model.config, "tie_word_embeddings", False))
    in_layers = target.parameters - head * (1 if tied else 2)
    return float((in_layers * layers / target.layers + head) / (in_layers + head))


def _try_out(view: PackedModel, layers: int) -> None:
    """Runs a trial pass on a pool, a cache and steps of its own, next to the engine's passes. Raises ModelLoadError."""
    with view.other_slots(SlotPool(1)):
        builder = BatchBuilder()
        slots = view.pool.take(1)
        builder.add_lane(slots[:0], [builder.add_row(0, 0, int(slots[0]), wants_logits=True)])
        try:
            view.forward(builder.build(view.group_size, view.device))
        except Exception as problem:
            # Third-party model code may raise anything when it is run in a way it was not written for.
            raise ModelLoadError(f"{view.name} cannot run: {type(problem).__name__}: {problem}") from problem
        found = view.cache.layers
    if found != layers:
        raise ModelLoadError(f"{view.name}: expected {layers} attention layers, found {found}")
