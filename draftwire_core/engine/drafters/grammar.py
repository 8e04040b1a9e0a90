"""Jump-ahead drafting of tokens that the output's form dictates. It needs no model and takes microseconds."""

from __future__ import annotations

from collections.abc import Sequence

from draftwire_core.engine.drafters.base import TreeDraft, TreeDrafter
from draftwire_core.engine.drafters.drafter import DraftSpec
from draftwire_core.engine.logits.output_form import OutputForm

_SOURCE = "grammar"


class GrammarDrafter(TreeDrafter[TreeDraft]):
    """Drafts for the sequence that a form belongs to, in the form's thread.

    The form itself tracks the sequence; the drafter only queries it.
    """

    def __init__(self, form: OutputForm):
        super().__init__()
        self._form = form

    def begin(self, spec: DraftSpec) -> TreeDraft:
        """Returns a plain tree draft."""
        return TreeDraft(spec)

    def extend(self, drafts: Sequence[TreeDraft]) -> None:
        """Adds the chain of tokens that the form dictates."""
        for draft in drafts:
            node, vocab_size = draft.tree.root, draft.spec.vocab_size
            for token in self._form.forced():
                if vocab_size is not None and token >= vocab_size:
                    break  # an added token of the tokenizer that the target lacks
                following = draft.add(node, token, source=_SOURCE)
                if following is None:
                    break
                node = following
