"""The choice of a node's children from what a draft model with another tokenizer predicts after it."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence

import torch
from torch import Tensor

from draftwire_core.engine.drafters.model.slot_drafter import within
from draftwire_core.engine.drafters.translation.questions import Expanded, OpenQuestions, TokenQuestion
from draftwire_core.engine.drafters.translation.token_map import MOST_PIECES, TokenMap
from draftwire_core.engine.drafters.translation.token_projection import TokenProjection
from draftwire_core.engine.drafters.translation.translated_draft import PASSED, TranslatedDraft
from draftwire_core.engine.drafters.tree_growth import SOURCE, TreeGrowth
from draftwire_core.engine.model.packed_model import PackedModel
from draftwire_core.engine.planning.step_clock import StepClock
from draftwire_core.engine.sampling.coupled_sampler import Candidates, top_candidates
from draftwire_core.engine.sampling.sampling_batch import SamplingBatch
from draftwire_core.engine.tree.token_tree import Node

Reached = tuple[Hashable, TranslatedDraft, Node, Tensor]
"""A node that has been through the model: its sequence's key, its draft, and the model's probabilities after it, [draft
vocabulary]."""
_LEAST = torch.finfo(torch.float32).tiny
"""Probability that stands for none: the logarithm of 0 takes ten times as long as that of others."""
_LIKELY = 0.5
"""Probability from which a draft token is taken to be the next one, to see what the target's tokens before it are."""


class ChildChoice:
    """Projects the draft model's probabilities onto target tokens, draws the children of nodes, and asks what it has to
    know first."""

    def __init__(
        self,
        model: PackedModel,
        token_map: TokenMap,
        projection: TokenProjection,
        growth: TreeGrowth,
        questions: OpenQuestions,
    ):
        """growth: says which of the children are worth it. questions: those that are asked are added here."""
        self._model = model
        self._map = token_map
        self._projection = projection
        self._growth = growth
        self._questions = questions

    def add(self, answered: Sequence[Expanded], reached: Sequence[Reached], clock: StepClock) -> None:
        """Adds children to nodes, or asks a question about them first.

        answered: the nodes of questions. reached: other nodes.
        """
        clock.enter("sample")
        nodes = self._settled([*answered, *self._fresh(reached)])
        while nodes:
            projected = self._projected(nodes)
            found = self._drawn(nodes, projected)
            clock.enter("walk")
            reached = self._add_children(nodes, projected, found)
            clock.enter("sample")
            nodes = self._settled(self._fresh(reached))

    def _fresh(self, expanded: Sequence[Reached]) -> list[Expanded]:
        """Returns those of nodes that have been through the model whose children are to be chosen."""
        return [
            Expanded(key, draft, node, self._after(draft, node, row))
            for key, draft, node, row in expanded
            # A node recomputed after its slots were given up has children already.
            if not node.children and not self._redraw(draft, node, row)
        ]

    def _settled(self, nodes: Sequence[Expanded]) -> list[Expanded]:
        """Asks about the greedy ones of some nodes, for which it needs no candidates; returns the others."""
        settled: list[Expanded] = []
        for each in nodes:
            begun = None
            if each.draft.spec.sampling.temperature == 0:
                begun = self._projection.unsettled(each.probabilities, each.spelling, each.known)
            if begun is None:
                settled.append(each)
            else:
                self._ask(each, begun, each.rest)
        return settled

    def _ask(self, each: Expanded, begun: Sequence[int], rest: Tensor | None) -> None:
        """Asks about the draft tokens `begun` after a node. rest: as in `TokenQuestion`."""
        self._model.pool.give_back(list(each.slots))
        self._questions.add(each.key, TokenQuestion(each.draft, each.node, each.probabilities, begun, each.known, rest))

    def _projected(self, nodes: Sequence[Expanded]) -> list[Tensor]:
        """Returns what comes after each node: [target vocabulary]."""
        without = [each.probabilities for each in nodes if each.rest is None]
        projections = iter(self._projection.project(torch.stack(without)) if without else ())
        projected: list[Tensor] = []
        for each in nodes:
            row = next(projections) if each.rest is None else None
            if each.spelling:
                rest = each.rest
                if row is not None:
                    rest = self._projection.without(row, each.probabilities, each.spelling[0])
                assert rest is not None, "it is known, or follows from the projection"
                row = self._projection.refine(rest, each.probabilities, each.spelling, each.known)
            assert row is not None, "a node without a question has been projected"
            projected.append(row)
        return projected

    def _drawn(self, nodes: Sequence[Expanded], projected: Sequence[Tensor]) -> Candidates:
        """Draws the best children of each node."""
        guesses = torch.stack(list(projected)).clamp_(min=_LEAST).log_()
        sampling = SamplingBatch.build(
            [each.draft.spec.sampling for each in nodes],
            [each.node.position + 1 for each in nodes],
            self._model.device,
        )
        size = guesses.shape[1]
        limits = [min(each.draft.spec.vocab_size or size, size) for each in nodes]
        return top_candidates(within(guesses, limits), sampling, self._growth.width)

    def _add_children(self, nodes: Sequence[Expanded], projected: Sequence[Tensor], found: Candidates) -> list[Reached]:
        """Adds the children that were drawn, or asks. Returns the children that have been through the model as part of
        an answer."""
        reached: list[Reached] = []
        candidates = zip(nodes, projected, found.token_ids.tolist(), found.log_probs.tolist(), strict=True)
        for each, row, tokens, log_probs in candidates:
            begun = self._begun(each, tokens[0])
            if begun is None:
                reached += self._keep_answer(each, self._add(each, tokens, log_probs))
                continue
            rest = each.rest
            if rest is None and not each.spelling:
                rest = self._projection.without(row, each.probabilities, begun[0])
            self._ask(each, begun, rest)
        return reached

    def _keep_answer(self, each: Expanded, children: Sequence[Node]) -> list[Reached]:
        """Lets the child that an answer spells have its KV slots, if the child is to be expanded; frees the others."""
        draft, kept = each.draft, 0
        found: list[Reached] = []
        for child in children:
            spelling = draft.spelling(child)
            assert spelling is not None, "a child has one"
            length = len(spelling.pieces)
            if (
                0 < length <= len(each.slots)
                and tuple(spelling.pieces) == tuple(each.spelling[:length])
                and self._growth.expands(draft.growing, child)
            ):
                kept = length
                spelling.slots = list(each.slots[:kept])
                child.slot = spelling.slots[-1]
                found.append((each.key, draft, child, each.known[kept - 1]))
                break
        self._model.pool.give_back(list(each.slots[kept:]))
        return found

    def _begun(self, each: Expanded, token: int) -> Sequence[int] | None:
        """Returns the draft tokens about which to ask next before a node that is not greedy gets its children, or None.

        token: the best candidate for a child; -1 if there is none.
        """
        if each.draft.spec.sampling.temperature == 0:
            return None
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

    def _add(self, each: Expanded, tokens: Sequence[int], log_probs: Sequence[float]) -> list[Node]:
        """Adds a node's children, and the nodes after them that belong to the same draft token. Returns the children
        that none follow."""
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
        whole: list[Node] = []
        for child in children:
            compound = compounds[child.token]
            if compound is None:
                draft.spell(child, parent, self._map.pieces[child.token])
                whole.append(child)
            else:
                _spell_out(self._map, draft, parent, child, *compound)
        return whole

    def _compound(self, each: Expanded, token: int) -> tuple[tuple[int, ...], float] | None:
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
