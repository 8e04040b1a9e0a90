"""Jump-ahead: drafts what the form of a request's output leaves no choice about. No model, microseconds a proposal."""

from __future__ import annotations

from collections.abc import Sequence

from speculative_engine.drafters.base import TreeDraft, TreeDrafter
from speculative_engine.drafters.drafter import DraftSpec
from speculative_engine.logits.output_form import OutputForm

_SOURCE = "grammar"


class GrammarDrafter(TreeDrafter[TreeDraft]):
    """A drafter for the sequence that a form belongs to, in the thread that the form is in.

    The form follows the sequence by itself; the drafter only asks it.
    """

    def __init__(self, form: OutputForm):
        super().__init__()
        self._form = form

    def begin(self, spec: DraftSpec) -> TreeDraft:
        """See BaseDrafter.begin."""
        return TreeDraft(spec)

    def extend(self, drafts: Sequence[TreeDraft]) -> None:
        """See TreeDrafter.extend."""
        for draft in drafts:
            node = draft.tree.root
            for token in self._form.forced():
                following = draft.add(node, token, source=_SOURCE)
                if following is None:
                    break
                node = following
