"""Questions of a translating drafter: is a draft token a whole target token, or the beginning of a longer one?"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from torch import Tensor

from draftwire_core.engine.drafters.translation.translated_draft import TranslatedDraft
from draftwire_core.engine.kv.kv_slots import PADDING_SLOT, SlotPool
from draftwire_core.engine.model.packed_batch import BatchBuilder
from draftwire_core.engine.tree.token_tree import Node, NodeState


@dataclass(frozen=True, slots=True)
class Expanded:
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
    slots: Sequence[int] = ()
    """The KV slots of these tokens."""
    rest: Tensor | None = None
    """The rest of the question that was answered."""


@dataclass(frozen=True, slots=True, eq=False)
class TokenQuestion:
    """The question whether a candidate after a node is a whole target token or the beginning of a longer one.

    The node gets its children once the draft model's prediction after the candidate is known. If this in turn begins
    a longer target token, another question follows. A child that is spelled as the candidate begins keeps the KV slots
    of the answer, and gets children of its own at once.
    """

    draft: TranslatedDraft
    node: Node
    probabilities: Tensor
    """The draft model's probabilities after the node: [draft vocabulary]."""
    spelling: Sequence[int]
    """The candidate, one or more draft tokens."""
    known: Sequence[Tensor] = ()
    """The draft model's probabilities after the first of these draft tokens, after the first two, and so on, without
    those after all: [draft vocabulary] each."""
    rest: Tensor | None = None
    """The projection of the probabilities without the first token of the candidate, [target vocabulary]; None if it
    has not been needed yet."""

    @property
    def is_open(self) -> bool:
        """Whether the node is still in the tree, has been through the model, and has no children."""
        draft, node = self.draft, self.node
        if node.children or draft.outgrown:
            return False
        if node is draft.tree.root:
            return not draft.pending
        return node.state is NodeState.LIVE and node.slot >= 0

    def ask(self, builder: BatchBuilder, pool: SlotPool) -> list[int]:
        """Adds the rows that answer the question to a batch; returns the KV slots that they take from the pool."""
        spelling = self.draft.spelling(self.node)
        position = len(self.draft.tokens) if spelling is None else spelling.end
        context = self.draft.context(spelling)
        slots = pool.take_list(len(self.spelling), int(context[-1]) if len(context) else PADDING_SLOT)
        last = len(slots) - 1
        rows = [
            builder.add_row(piece, position + offset, slot, wants_logits=offset == last)
            for offset, (piece, slot) in enumerate(zip(self.spelling, slots, strict=True))
        ]
        builder.add_lane(context, rows)
        return slots

    def answered(self, key: Hashable, slots: Sequence[int], answer: Tensor) -> Expanded:
        """Returns the node with what is known after the candidate.

        key: of the sequence. slots: of the rows that answered. answer: the draft model's probabilities after all draft
        tokens of the candidate, [draft vocabulary]."""
        known = (*self.known, answer)
        return Expanded(key, self.draft, self.node, self.probabilities, self.spelling, known, slots, self.rest)


class OpenQuestions:
    """The questions of all sequences that have not been asked yet, at most one for a node."""

    def __init__(self) -> None:
        self._questions: dict[Hashable, list[TokenQuestion]] = {}

    def of(self, key: Hashable) -> list[TokenQuestion]:
        """Returns a sequence's questions about nodes that can still get children; drops the others."""
        questions = [question for question in self._questions.get(key, ()) if question.is_open]
        if questions:
            self._questions[key] = questions
        else:
            self.drop(key)
        return questions

    def add(self, key: Hashable, question: TokenQuestion) -> None:
        """Adds a question, in place of another one about the same node."""
        others = [each for each in self._questions.get(key, ()) if each.node is not question.node]
        self._questions[key] = [*others, question]

    def remove(self, key: Hashable, question: TokenQuestion) -> None:
        """Removes a question that is asked now."""
        self._questions[key].remove(question)

    def drop(self, key: Hashable) -> None:
        """Drops all questions of a sequence."""
        self._questions.pop(key, None)
