"""A draft model inside the verifier whose tokenizer differs from the target's."""

from __future__ import annotations

from draftwire_core.engine.drafters.drafter import EngineState, Growth
from draftwire_core.engine.drafters.model.draft_model import Outlook
from draftwire_core.engine.drafters.model.local_model import LocalModelDrafter, RoundDrafter
from draftwire_core.engine.drafters.translation.token_map import MOST_PIECES, TokenMap
from draftwire_core.engine.drafters.translation.translating import TranslatingDrafter
from draftwire_core.engine.drafters.tree_growth import TreeGrowth
from draftwire_core.engine.model.packed_model import PackedModel


class RoundTranslatingDrafter(TranslatingDrafter):
    """A RoundDrafter (see `local_model.RoundDrafter`) that translates. A step may answer questions instead of adding
    nodes; their nodes count as those that the step expands."""

    most_steps = 1

    @property
    def catching_up(self) -> bool:
        """Whether the next step mostly reads committed text: more draft tokens than a verdict usually adds."""
        return any(draft.pending > MOST_PIECES for draft in self._queue.running.values())

    @property
    def following(self) -> float:
        """The probability that the next best node, not yet drafted, will be right given that its parent is."""
        return self._growth.acceptance.next_probability()

    def outlook(self) -> Outlook:
        """Returns the expected gain of the next `grow`. A sequence with pending tokens counts as if it had one."""
        acceptance = self._growth.acceptance
        chances = [acceptance.expected(rank) for rank in range(self._growth.width)]
        worths: dict[int, float] = {}
        gains: list[float] = []
        expanded, growing, rows = [], [], 0
        for key, draft in self._queue.running.items():
            worths[id(draft.tree.root)] = 1.0
            for node in draft.tree.root.subtree():
                worths[id(node)] = worths[id(node.parent)] * acceptance.probability(node)
            if draft.pending:
                expanded.append(draft.tree.root)
                rows += 1
                continue
            growing.append(draft.growing)
            for question in self._questions.of(key):
                expanded.append(question.node)
                rows += len(question.spelling)
                # Its answer is the pass that the likeliest child needs.
                gains += [worths[id(question.node)] * chances[0] * chance for chance in chances]
        for _, node in self._growth.expansions(growing, rows, max(0, self.model.most_rows - rows)):
            expanded.append(node)
            rows += 1
        gains += [worths[id(node)] * chance for node in expanded for chance in chances]
        for draft in self._queue.running.values():
            del worths[id(draft.tree.root)]
        return Outlook(list(worths.values()), gains, rows)

    def grow(self, steps: int = 1) -> Growth:
        """Drafts one step, however many are allowed."""
        return super().grow()


class LocalTranslatingDrafter(LocalModelDrafter):
    """A LocalModelDrafter whose model reads and writes tokens of its own."""

    def __init__(self, model: PackedModel, token_map: TokenMap, share: float):
        """token_map: between the model's tokens and the target's. share: as for LocalModelDrafter."""
        super().__init__(model, share)
        self._map = token_map

    def _inner(self, engine: EngineState, growth: TreeGrowth) -> RoundDrafter:
        return RoundTranslatingDrafter(self.model, self._map, growth)
