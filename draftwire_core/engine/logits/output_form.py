"""The engine's interface to structured output."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from draftwire_core.engine.logits.logit_editor import LogitEditor
from draftwire_core.engine.tree.token_tree import Node, TokenTree


class OutputForm(LogitEditor, Protocol):
    """The required form of one sequence's output, at the position after its committed tokens.

    As an editor it masks the tokens that the form does not allow next. Called by the engine's thread.
    """

    @property
    def ended(self) -> bool:
        """Whether the output is complete, so that nothing may follow."""

    def ends_after(self, tokens: Sequence[int]) -> int | None:
        """Number of these tokens, which are about to be committed, that complete the output; None if they do not."""

    def allows(self, tokens: Sequence[int]) -> bool:
        """Whether the form allows these tokens next."""

    def forced(self) -> list[int]:
        """The next tokens, as long as the form leaves no choice."""


def allowed_nodes(form: OutputForm, tree: TokenTree) -> Callable[[Node], bool]:
    """Returns a function that checks whether the form allows a node of a sequence's tree.

    It must be called for a node's parent before the node.
    """

    def allows(node: Node) -> bool:
        if node.allowed is None:
            node.allowed = form.allows([each.token for each in node.path_from(tree.root)])
        return node.allowed

    return allows
