"""Drafting with a small model whose tokenizer differs from the target's."""

from __future__ import annotations

import math
import time
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from draftwire_core.engine.drafters.drafter import DrafterFullError, DraftSpec, Growth
from draftwire_core.engine.drafters.model.context_window import ContextWindow
from draftwire_core.engine.drafters.model.slot_drafter import SlotDrafter, within
from draftwire_core.engine.drafters.translation.token_map import MOST_PIECES, TokenMap
from draftwire_core.engine.drafters.translation.token_projection import TokenProjection
from draftwire_core.engine.drafters.translation.translated_draft import PASSED, TranslatedDraft, end_of
from draftwire_core.engine.drafters.tree_growth import SOURCE, TreeGrowth
from draftwire_core.engine.kv.kv_slots import PADDING_SLOT
from draftwire_core.engine.model.packed_batch import BatchBuilder
from draftwire_core.engine.model.packed_model import PackedModel
from draftwire_core.engine.sampling.coupled_sampler import top_candidates
from draftwire_core.engine.sampling.sampling_batch import SamplingBatch
from draftwire_core.engine.tree.token_tree import Node, NodeState

_TREE_ROOM = 48
"""Number of KV slots reserved for a sequence's tree at admission."""
_SPARE = 2 * MOST_PIECES
"""Number of KV slots in addition to two per node, so that a single sequence can always proceed."""


@dataclass(frozen=True, slots=True)
class _Question:
    """The question whether a candidate after a node is a whole target token or the beginning of a longer one.

    The node gets its children once the draft model's prediction after the candidate is known.
    """

    draft: TranslatedDraft
    node: Node
    probabilities: Tensor
    """The draft model's probabilities after the node: [draft vocabulary]."""
    piece: int
    """The candidate, a draft token."""


@dataclass(frozen=True, slots=True)
class _Expanded:
    """A node whose children can be chosen."""

    key: Hashable
    draft: TranslatedDraft
    node: Node
    probabilities: Tensor
    """The draft model's probabilities after the node: [draft vocabulary]."""
    settled: bool
    """Whether the node's question has been answered."""


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
        self._questions: dict[Hashable, list[_Question]] = {}

    def begin(self, spec: DraftSpec) -> TranslatedDraft:
        """Returns the draft of a sequence, which reads its last tokens if all are too many.

        Raises DrafterFullError if a tree can never fit.
        """
        room = 2 * spec.max_tree_nodes + _SPARE
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
        self._questions.pop(key, None)
        super().close(key)

    @property
    def busy(self) -> bool:
        """Whether a sequence has pending tokens, open questions or nodes worth expanding, or is yet to be reported."""
        running = self._queue.running.items()
        return any(
            draft.pending or self._open_questions(key) or (draft.outgrown and not draft.caught_up)
            for key, draft in running
        ) or bool(self._growth.expansions([draft.growing for _, draft in running], 0, 1))

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
        borrowed = self.model.pool.take(len(asked))
        for (key, question), slot in zip(asked, borrowed, strict=True):
            self._ask(builder, question, int(slot))
            self._questions[key].remove(question)
            growth.rows[question.draft.spec.verifier] += 1
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
            key, draft = growing[index]
            rows = len(builder)
            if self._expand(builder, draft, node, most - rows):
                expanded.append((key, draft, node))
            growth.rows[draft.spec.verifier] += len(builder) - rows
        if not len(builder):
            return growth
        batch = builder.build(self.model.group_size, self.model.device)
        self.clock.enter("forward")
        logits = self.model.forward(batch)
        self.model.pool.give_back(borrowed)
        self.clock.enter("sample")
        if asked or expanded:
            self._add_children(logits, asked, expanded)
        grown = {key: question.draft for key, question in asked} | {key: draft for key, draft, _ in expanded}
        for key, draft in grown.items():
            more = self._open_questions(key) or self._growth.leaves([draft.growing])
            draft.report(key, growth, last=not more)
        growth.seconds = time.perf_counter() - started
        if not catching_up:
            self._growth.cost.observe(len(builder), growth.seconds, builder.seen)
        return growth

    def _asked(
        self, growing: Sequence[tuple[Hashable, TranslatedDraft]], most: int
    ) -> list[tuple[Hashable, _Question]]:
        """Returns the questions that a step answers."""
        asked = [(key, question) for key, _ in growing for question in self._open_questions(key)]
        shares = self._shares.questions(((question.draft.spec.verifier, 1) for _, question in asked), most)
        chosen: list[tuple[Hashable, _Question]] = []
        for key, question in asked:
            verifier = question.draft.spec.verifier
            if shares[verifier]:
                shares[verifier] -= 1
                chosen.append((key, question))
        return chosen

    def _open_questions(self, key: Hashable) -> list[_Question]:
        """Returns the questions about nodes that can still get children; drops the others."""
        questions = [question for question in self._questions.get(key, ()) if _is_open(question)]
        if questions:
            self._questions[key] = questions
        else:
            self._questions.pop(key, None)
        return questions

    def _ask(self, builder: BatchBuilder, question: _Question, slot: int) -> None:
        """Adds the row that answers a question. Nothing follows it, so its KV slot is free after the step."""
        draft = question.draft
        spelling = draft.spelling(question.node)
        position = len(draft.tokens) if spelling is None else spelling.end
        row = builder.add_row(question.piece, position, slot, wants_logits=True)
        builder.add_lane(draft.context(spelling), [row])

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

    def _add_children(
        self,
        logits: Tensor,
        asked: Sequence[tuple[Hashable, _Question]],
        expanded: Sequence[tuple[Hashable, TranslatedDraft, Node]],
    ) -> None:
        """Adds children to nodes, or first asks a question. logits: a row per question asked, then per node."""
        rows = torch.softmax(logits[:, : len(self._map.draft)].float(), dim=1)
        nodes: list[_Expanded] = []
        projected: list[Tensor] = []
        for (key, question), answer in zip(asked, rows, strict=False):
            nodes.append(_Expanded(key, question.draft, question.node, question.probabilities, settled=True))
            projected.append(self._projection.refine(question.probabilities, question.piece, answer))
        fresh = [
            _Expanded(key, draft, node, self._after(draft, node, row), settled=False)
            for (key, draft, node), row in zip(expanded, rows[len(asked) :], strict=True)
            if not node.children  # a node recomputed after its slots were given up has them already
        ]
        if fresh:
            nodes += fresh
            projected += self._projection.project(torch.stack([each.probabilities for each in fresh]))
        if not nodes:
            return
        guesses = torch.stack(projected)
        sampling = SamplingBatch.build(
            [each.draft.spec.sampling for each in nodes],
            [each.node.position + 1 for each in nodes],
            self.model.device,
        )
        size = guesses.shape[1]
        limits = [min(each.draft.spec.vocab_size or size, size) for each in nodes]
        found = top_candidates(within(guesses.log(), limits), sampling, self._growth.width)
        self.clock.enter("walk")
        for each, tokens, log_probs in zip(nodes, found.token_ids.tolist(), found.log_probs.tolist(), strict=True):
            pieces = self._map.pieces[tokens[0]] if tokens[0] >= 0 else ()
            if not each.settled and pieces and self._projection.is_open(pieces[0]):
                question = _Question(each.draft, each.node, each.probabilities, pieces[0])
                self._questions.setdefault(each.key, []).append(question)
                continue
            self._add(each, tokens, log_probs)

    def _after(self, draft: TranslatedDraft, node: Node, probabilities: Tensor) -> Tensor:
        """Returns the draft model's probabilities after a node, given that the node's token has ended."""
        pieces = self._map.pieces[node.token] if node.token < len(self._map.pieces) else ()
        spelling = draft.spelling(node)
        last = draft.tokens[-1] if spelling is None else spelling.pieces[-1]
        if len(pieces) != 1 or pieces[0] != last:
            return probabilities
        return self._projection.without_longer(probabilities, last)

    def _add(self, each: _Expanded, tokens: Sequence[int], log_probs: Sequence[float]) -> None:
        """Adds a node's children, and the nodes after them that belong to the same draft token."""
        draft, parent = each.draft, each.node
        compounds = {token: self._projection.compound(each.probabilities, token) for token in tokens if token >= 0}
        known = [
            (token, log_prob)
            for token, log_prob in zip(tokens, log_probs, strict=True)
            if token >= 0 and (self._map.pieces[token] or compounds[token])
        ]
        children = self._growth.children(
            draft.bounds, parent, [token for token, _ in known], [log_prob for _, log_prob in known]
        )
        for child in children:
            compound = compounds[child.token]
            if compound is None:
                draft.spell(child, parent, self._map.pieces[child.token])
            else:
                self._spell_out(draft, parent, child, *compound)

    def _spell_out(self, draft: TranslatedDraft, parent: Node, child: Node, piece: int, probability: float) -> None:
        """Adds the target tokens that a draft token consists of; the first is `child`."""
        bounds = draft.bounds
        covers = self._map.covers[piece]
        text = self._map.text(child.token)
        draft.spell(child, parent, self._map.spelled(child.token))
        nodes = [child]
        log_prob = min(0.0, math.log(max(probability, 1e-9)) - child.log_prob)
        for token in covers[1:]:
            if bounds.tree.size >= bounds.max_nodes or nodes[-1].position > bounds.max_position:
                break
            nodes[-1].slot = PASSED
            node, _ = bounds.tree.add(nodes[-1], token, log_prob, SOURCE)
            text += self._map.text(token)
            whole = len(nodes) == len(covers) - 1
            draft.spell(node, parent, (piece,) if whole else self._map.draft.encode(text))
            nodes.append(node)
            log_prob = 0.0
        if len(nodes) < len(covers):
            nodes[-1].slot = PASSED  # nothing can follow it, or the rest does not fit


def _is_open(question: _Question) -> bool:
    """Whether a question's node is still in the tree, has been through the model, and has no children."""
    draft, node = question.draft, question.node
    if node.children or draft.outgrown:
        return False
    if node is draft.tree.root:
        return not draft.pending
    return node.state is NodeState.LIVE and node.slot >= 0
