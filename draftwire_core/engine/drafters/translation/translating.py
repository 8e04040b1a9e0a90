"""Drafting with a small model whose tokenizer differs from the target's."""

from __future__ import annotations

import math
import time
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
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
_LIKELY = 0.5
"""Probability from which a draft token is taken to be the next one, to see what the target's tokens before it are."""
_SPARE = 2 * MOST_PIECES
"""Number of KV slots in addition to two per node, so that a single sequence can always proceed."""


def tree_slots(max_tree_nodes: int) -> int:
    """Returns the most KV slots that a sequence's tree takes next to its committed tokens."""
    return 2 * max_tree_nodes + _SPARE


@dataclass(frozen=True, slots=True)
class _Question:
    """The question whether a candidate after a node is a whole target token or the beginning of a longer one.

    The node gets its children once the draft model's prediction after the candidate is known. If this in turn begins
    a longer target token, another question follows.
    """

    draft: TranslatedDraft
    node: Node
    probabilities: Tensor
    """The draft model's probabilities after the node: [draft vocabulary]."""
    rest: Tensor
    """The projection of these without the first token of the candidate: [target vocabulary]."""
    spelling: Sequence[int]
    """The candidate, one or more draft tokens."""
    known: Sequence[Tensor] = ()
    """The draft model's probabilities after the first of these draft tokens, after the first two, and so on, without
    those after all: [draft vocabulary] each."""


@dataclass(frozen=True, slots=True)
class _Expanded:
    """A node whose children can be chosen."""

    key: Hashable
    draft: TranslatedDraft
    node: Node
    probabilities: Tensor
    """The draft model's probabilities after the node: [draft vocabulary]."""
    spelling: Sequence[int] = ()
    """The draft tokens after which the draft model has been asked."""
    known: Sequence[Tensor] = ()
    """The draft model's answers after the first of these tokens, after the first two, and so on."""
    rest: Tensor | None = None
    """The rest of the question that was answered; None if none was asked."""


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
        self._questions.pop(key, None)
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
        return bool(self._open_questions(key)) or self._growth.can_expand(draft.growing)

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
        borrowed = self.model.pool.take(sum(len(question.spelling) for _, question in asked))
        for key, question in asked:
            _ask(builder, question, borrowed[len(builder) :])
            self._questions[key].remove(question)
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
        self.model.pool.give_back(borrowed)
        self.clock.enter("sample")
        if asked or expanded:
            self._add_children(logits, asked, expanded)
        grown = {key: question.draft for key, question in asked} | {key: draft for key, draft, _ in expanded}
        for key, draft in grown.items():
            draft.report(key, growth, last=not self._has_more(key, draft))
        growth.seconds = time.perf_counter() - started
        if not catching_up:
            self._growth.cost.observe(len(builder), growth.seconds, builder.seen)
        return growth

    def _asked(
        self, growing: Sequence[tuple[Hashable, TranslatedDraft]], most: int
    ) -> list[tuple[Hashable, _Question]]:
        """Returns the questions that a step answers."""
        asked = [(key, question) for key, _ in growing for question in self._open_questions(key)]
        rows = ((question.draft.spec.verifier, len(question.spelling)) for _, question in asked)
        shares = self._shares.questions(rows, most)
        chosen: list[tuple[Hashable, _Question]] = []
        for key, question in asked:
            verifier = question.draft.spec.verifier
            if shares[verifier] >= len(question.spelling):
                shares[verifier] -= len(question.spelling)
                chosen.append((key, question))
        # A verifier's share may be too small for any question, but never all that is free.
        return chosen or [each for each in asked[:1] if len(each[1].spelling) <= most]

    def _open_questions(self, key: Hashable) -> list[_Question]:
        """Returns the questions about nodes that can still get children; drops the others."""
        questions = [question for question in self._questions.get(key, ()) if _is_open(question)]
        if questions:
            self._questions[key] = questions
        else:
            self._questions.pop(key, None)
        return questions

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
            known = (*question.known, answer)
            spelling = question.spelling
            before, rest = question.probabilities, question.rest
            nodes.append(_Expanded(key, question.draft, question.node, before, spelling, known, rest))
            projected.append(self._projection.refine(rest, before, spelling, known))
        fresh = [
            _Expanded(key, draft, node, self._after(draft, node, row))
            for (key, draft, node), row in zip(expanded, rows[len(asked) :], strict=True)
            # A node recomputed after its slots were given up has children already.
            if not node.children and not self._redraw(draft, node, row)
        ]
        if fresh:
            nodes += fresh
            projected += self._projection.project(torch.stack([each.probabilities for each in fresh]))
        if not nodes:
            return
        guesses = torch.stack(projected).log_()
        sampling = SamplingBatch.build(
            [each.draft.spec.sampling for each in nodes],
            [each.node.position + 1 for each in nodes],
            self.model.device,
        )
        size = guesses.shape[1]
        limits = [min(each.draft.spec.vocab_size or size, size) for each in nodes]
        found = top_candidates(within(guesses, limits), sampling, self._growth.width)
        self.clock.enter("walk")
        candidates = zip(nodes, projected, found.token_ids.tolist(), found.log_probs.tolist(), strict=True)
        for each, row, tokens, log_probs in candidates:
            begun = self._unsettled(each, tokens[0])
            if begun is not None:
                rest = each.rest
                if rest is None:
                    rest = self._projection.without(row, each.probabilities, begun[0])
                question = _Question(each.draft, each.node, each.probabilities, rest, begun, each.known)
                others = [known for known in self._questions.get(each.key, ()) if known.node is not each.node]
                self._questions[each.key] = [*others, question]
                continue
            self._add(each, tokens, log_probs)

    def _unsettled(self, each: _Expanded, token: int) -> Sequence[int] | None:
        """Returns the draft tokens about which to ask next before a node gets its children, or None.

        token: the best candidate for a child; -1 if there is none.
        """
        if each.draft.spec.sampling.temperature == 0:
            return self._projection.unsettled(each.probabilities, each.spelling, each.known)
        pieces = self._map.pieces[token] if token >= 0 else ()
        begun = pieces[: len(each.spelling) + 1]
        if len(begun) == len(each.spelling) or begun[:-1] != tuple(each.spelling):
            return None
        # Noise may choose a longer token that is unlikely by the learned shares; then it is worth the question.
        return begun if len(pieces) > len(begun) or self._projection.is_open(begun) else None

    def _after(self, draft: TranslatedDraft, node: Node, probabilities: Tensor) -> Tensor:
        """Returns the draft model's probabilities after a node, given that the node's token has ended."""
        pieces = self._map.pieces[node.token] if node.token < len(self._map.pieces) else ()
        spelling = draft.spelling(node)
        read = draft.tokens[-len(pieces) :] if spelling is None else spelling.pieces
        if not pieces or tuple(read) != pieces:
            return probabilities
        return self._projection.without_longer(probabilities, pieces)

    def _add(self, each: _Expanded, tokens: Sequence[int], log_probs: Sequence[float]) -> None:
        """Adds a node's children, and the nodes after them that belong to the same draft token."""
        draft, parent = each.draft, each.node
        compounds = {token: self._compound(each, token) for token in tokens if token >= 0}
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
                _spell_out(self._map, draft, parent, child, *compound)

    def _compound(self, each: _Expanded, token: int) -> tuple[tuple[int, ...], float] | None:
        """Returns the likeliest draft tokens that begin with a target token and extend beyond it, with their
        probability; None if there are none, or if they are less likely than the token's own."""
        found = self._projection.compound(each.probabilities, token)
        if found is not None:
            return (found[0],), found[1]
        *before, last = self._map.pieces[token] or (-1,)
        if not before or len(each.known) < len(before) or tuple(each.spelling[: len(before)]) != tuple(before):
            return None
        covers = self._map.covers[last]
        found = self._projection.compound(each.known[len(before) - 1], covers[0]) if len(covers) == 1 else None
        if found is None:
            return None
        piece, chance = found
        rest = self._map.draft.spellings[piece].removeprefix(self._map.draft.spellings[last])
        tokens = self._map.target.encode(self._map.target.spellings[token] + rest)
        if tokens != [token, *self._map.covers[piece][1:]]:
            return None
        for place, then in zip(before, (each.probabilities, *each.known), strict=False):
            chance *= float(then[place])
        return (*before, piece), chance

    def _redraw(self, draft: TranslatedDraft, node: Node, probabilities: Tensor) -> bool:
        """Adds other nodes in place of a node and those before it that belong to the same draft tokens, if together
        with the likeliest draft token after it the target reads their text in other tokens. Returns whether it does.

        For example a line break and three spaces, if the next word begins with a space, or else a line break and four.
        probabilities: the draft model's after the node, [draft vocabulary].
        """
        spelling, chain = draft.spelling(node), draft.chain(node)
        chance, index = probabilities.max(0)
        piece = int(index)
        then = self._map.draft.spellings[piece]
        if spelling is None or not then or float(chance) < _LIKELY or len(spelling.pieces) >= MOST_PIECES:
            return False
        text = self._map.draft.spell(spelling.pieces)
        if not text or self._map.target.spell(each.token for each in chain) != text:
            return False  # a special token, or part of the text has been committed
        tokens = self._map.target.encode(text + then)
        same = 0
        while same < min(len(chain), len(tokens)) and tokens[same] == chain[same].token:
            same += 1
        anchor = chain[0].parent
        assert anchor is not None, "the root has no spelling"
        parent = chain[same - 1] if same else anchor
        if same == len(chain) or tokens[same] in parent.children:
            return False
        bounds = draft.bounds
        text = b"".join(self._map.target.spellings[token] for token in tokens[:same])
        for place, token in enumerate(tokens[same:], start=same + 1):
            if bounds.tree.size >= bounds.max_nodes or parent.position >= bounds.max_position:
                break
            text += self._map.target.spellings[token]
            parent, _ = bounds.tree.add(parent, token, math.log(float(chance)), SOURCE)
            whole = place == len(tokens)
            draft.spell(parent, anchor, (*spelling.pieces, piece) if whole else self._map.draft.encode(text))
            if not whole:
                parent.slot = PASSED
        return True


def _spell_out(
    token_map: TokenMap,
    draft: TranslatedDraft,
    parent: Node,
    child: Node,
    pieces: tuple[int, ...],
    probability: float,
) -> None:
    """Adds the target tokens that draft tokens consist of; the first is `child`, and the last draft token extends
    beyond it."""
    bounds = draft.bounds
    covers = (child.token, *token_map.covers[pieces[-1]][1:])
    text = token_map.text(child.token)
    draft.spell(child, parent, token_map.spelled(child.token))
    nodes = [child]
    log_prob = min(0.0, math.log(max(probability, 1e-9)) - child.log_prob)
    for token in covers[1:]:
        if bounds.tree.size >= bounds.max_nodes or nodes[-1].position > bounds.max_position:
            break
        nodes[-1].slot = PASSED
        node, _ = bounds.tree.add(nodes[-1], token, log_prob, SOURCE)
        text += token_map.text(token)
        whole = len(nodes) == len(covers) - 1
        draft.spell(node, parent, pieces if whole else token_map.draft.encode(text))
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


def _ask(builder: BatchBuilder, question: _Question, slots: np.ndarray) -> None:
    """Adds the rows that answer a question. Nothing follows them, so their KV slots are free after the step."""
    draft = question.draft
    spelling = draft.spelling(question.node)
    position = len(draft.tokens) if spelling is None else spelling.end
    last = len(question.spelling) - 1
    rows = [
        builder.add_row(piece, position + offset, int(slots[offset]), wants_logits=offset == last)
        for offset, piece in enumerate(question.spelling)
    ]
    builder.add_lane(draft.context(spelling), rows)
