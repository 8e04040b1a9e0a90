"""Drafting with a small model whose tokenizer differs from the target's."""

from __future__ import annotations

import time
from collections.abc import Hashable, Sequence

import torch

from draftwire_core.engine.drafters.drafter import DrafterFullError, DraftSpec, Growth
from draftwire_core.engine.drafters.model.context_window import ContextWindow
from draftwire_core.engine.drafters.model.slot_drafter import SlotDrafter
from draftwire_core.engine.drafters.translation.child_choice import ChildChoice
from draftwire_core.engine.drafters.translation.questions import OpenQuestions, TokenQuestion
from draftwire_core.engine.drafters.translation.token_map import MOST_PIECES, TokenMap
from draftwire_core.engine.drafters.translation.token_projection import TokenProjection
from draftwire_core.engine.drafters.translation.translated_draft import TranslatedDraft, end_of
from draftwire_core.engine.drafters.tree_growth import TreeGrowth
from draftwire_core.engine.kv.kv_slots import PADDING_SLOT
from draftwire_core.engine.model.packed_batch import BatchBuilder
from draftwire_core.engine.model.packed_model import PackedModel
from draftwire_core.engine.tree.token_tree import Node

_TREE_ROOM = 48
"""Number of KV slots reserved for a sequence's tree at admission."""
_SPARE = 2 * MOST_PIECES
"""Number of KV slots in addition to two per node, so that a single sequence can always proceed."""


def tree_slots(max_tree_nodes: int) -> int:
    """Returns the most KV slots that a sequence's tree takes next to its committed tokens."""
    return 2 * max_tree_nodes + _SPARE


class TranslatingDrafter(SlotDrafter[TranslatedDraft]):
    """A drafter over a packed model whose tokenizer differs from the target's.

    The draft model reads the committed text in its own tokens. Its guesses are projected onto target tokens before
    drawing, so that they are drawn under the request's own noise, which depends on target tokens and positions. Draft
    tokens that were drafted and then committed keep their KV slots.
    """

    def __init__(self, model: PackedModel, token_map: TokenMap, growth: TreeGrowth | None = None):
        """growth: chooses the nodes to draft; the default assumes that a step's cost does not depend on its rows."""
        super().__init__(model, _TREE_ROOM, growth)
        self._map = token_map
        self._projection = TokenProjection(token_map, model.device)
        self._questions = OpenQuestions()
        self._children = ChildChoice(model, token_map, self._projection, self._growth, self._questions)

    def begin(self, spec: DraftSpec) -> TranslatedDraft:
        """Returns the draft of a sequence, which reads its last tokens if all are too many.

        Raises DrafterFullError if a tree can never fit.
        """
        room = tree_slots(spec.max_tree_nodes)
        if room >= self.model.pool.capacity:
            raise DrafterFullError(f"a tree needs {room} KV slots, and the pool has only {self.model.pool.capacity}")
        most = min(self.model.pool.capacity, self.model.context_length) - room
        window = ContextWindow(most, most)
        self._projection.observe(end_of(spec.tokens, window))
        return TranslatedDraft(spec, self._map, window)

    def observe(self, draft: TranslatedDraft, tokens: Sequence[int]) -> None:
        """Learns from a verdict which nodes are worth drafting, and how often draft tokens are whole target tokens."""
        self._growth.observe(draft.tree, tokens)
        self._projection.observe(tokens)

    def close(self, key: Hashable) -> None:
        """Stops drafting for a sequence and frees its KV slots."""
        self._questions.drop(key)
        super().close(key)

    @property
    def busy(self) -> bool:
        """Whether a sequence has pending tokens, open questions or nodes worth expanding, or is yet to be reported."""
        return any(
            draft.pending or (draft.outgrown and not draft.caught_up) or self._has_more(key, draft)
            for key, draft in self._queue.running.items()
        )

    def _has_more(self, key: Hashable, draft: TranslatedDraft) -> bool:
        """Whether a sequence has open questions or nodes worth expanding."""
        return bool(self._questions.of(key)) or self._growth.can_expand(draft.growing)

    def grow(self) -> Growth:
        """Drafts one step. KV slots are shared as in `DraftModelDrafter`."""
        started = time.perf_counter()
        self.clock.enter("plan")
        growth = Growth([], {}, 0.0)
        builder = BatchBuilder()
        running = self._queue.running
        self._queue.make_room(lambda: MOST_PIECES * len(running))
        growth.preempted = self._queue.take_preempted()
        for key, draft in running.items():
            if draft.outgrown:
                draft.report(key, growth, last=True)
        most = min(self.model.most_rows, self.model.pool.free)
        growing = [(key, draft) for key, draft in running.items() if not draft.pending]
        expanded: list[tuple[Hashable, TranslatedDraft, Node]] = []
        most_pending = min(self._growth.cost.prompt_rows(len(growing), self.model.most_rows // 2), most)
        catching_up = any(draft.pending > 1 for draft in running.values())
        self.clock.enter("layout")
        asked = self._asked(growing, most)
        slots: list[list[int]] = []
        for key, question in asked:
            slots.append(question.ask(builder, self.model.pool))
            self._questions.remove(key, question)
            growth.rows[question.draft.spec.verifier] += len(question.spelling)
        for key, draft, count in self._reading(
            lambda draft: draft.pending, max(0, most_pending - len(builder)), growth
        ):
            if draft.add_pending(builder, self.model.pool, count):
                expanded.append((key, draft, draft.tree.root))
        self.clock.enter("plan")
        trees = [(draft.spec.verifier, draft.growing) for _, draft in growing]
        chosen = self._shares.expansions(trees, len(builder), most - len(builder))
        self.clock.enter("layout")
        for index, node in chosen:
            rows, (key, draft) = len(builder), growing[index]
            if self._expand(builder, draft, node, most - rows):
                expanded.append((key, draft, node))
            growth.rows[draft.spec.verifier] += len(builder) - rows
        if not len(builder):
            return growth
        batch = builder.build(self.model.group_size, self.model.device)
        self.clock.enter("forward")
        logits = self.model.forward(batch)
        self.clock.enter("sample")
        if asked or expanded:
            after = torch.softmax(logits[:, : len(self._map.draft)].float(), dim=1)
            self._children.add(
                [question.answered(key, *each) for (key, question), *each in zip(asked, slots, after, strict=False)],
                [(*each, row) for each, row in zip(expanded, after[len(asked) :], strict=True)],
                self.clock,
            )
        grown = {key: question.draft for key, question in asked} | {key: draft for key, draft, _ in expanded}
        for key, draft in grown.items():
            draft.report(key, growth, last=not self._has_more(key, draft))
        growth.seconds = time.perf_counter() - started
        if not catching_up:
            self._growth.cost.observe(len(builder), growth.seconds, builder.seen)
        return growth

    def _asked(
        self, growing: Sequence[tuple[Hashable, TranslatedDraft]], most: int
    ) -> list[tuple[Hashable, TokenQuestion]]:
        """Returns the questions that a step answers."""
        asked = [(key, question) for key, _ in growing for question in self._questions.of(key)]
        rows = ((question.draft.spec.verifier, len(question.spelling)) for _, question in asked)
        shares = self._shares.questions(rows, most)
        chosen: list[tuple[Hashable, TokenQuestion]] = []
        for key, question in asked:
            verifier = question.draft.spec.verifier
            if shares[verifier] >= len(question.spelling):
                shares[verifier] -= len(question.spelling)
                chosen.append((key, question))
        # A verifier's share may be too small for any question, but never all that is free.
        return chosen or [each for each in asked[:1] if len(each[1].spelling) <= most]

    def _expand(self, builder: BatchBuilder, draft: TranslatedDraft, node: Node, room: int) -> bool:
        """Adds the rows of a node whose ancestors have been through the model. Returns False if `room` is too small."""
        spelling = draft.spelling(node)
        assert spelling is not None, "the root is not a leaf"
        if len(spelling.pieces) > room:
            return False
        context = draft.context(spelling)
        before = int(context[-1]) if len(context) else PADDING_SLOT
        slots = self.model.pool.take(len(spelling.pieces), before).tolist()
        last = len(slots) - 1
        rows = [
            builder.add_row(piece, spelling.start + offset, slot, wants_logits=offset == last)
            for offset, (piece, slot) in enumerate(zip(spelling.pieces, slots, strict=True))
        ]
        builder.add_lane(context, rows)
        spelling.slots = slots
        node.slot = slots[-1]
        return True
