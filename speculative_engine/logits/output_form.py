"""What the engine asks of the form that a sequence's output has to have."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from speculative_engine.logits.logit_editor import LogitEditor
from speculative_engine.tree.token_tree import Node, TokenTree


class OutputForm(LogitEditor, Protocol):
    """The form of one sequence's output, which follows its committed tokens. As an editor it leaves the tokens that may
    come next. The engine's thread calls it."""

    @property
    def ended(self) -> bool:
        """Whether the output is complete, and nothing may follow."""

    def ends_after(self, tokens: Sequence[int]) -> int | None:
        """After how many of these tokens, which are about to be committed, it is; None if it is not."""

    def allows(self, tokens: Sequence[int]) -> bool:
        """Whether these may be the next tokens."""

    def forced(self) -> list[int]:
        """The next tokens as far as there is no choice."""


def allowed_nodes(form: OutputForm, tree: TokenTree) -> Callable[[Node], bool]:
    """Which nodes of a sequence's tree may come to be committed, asked of parents before their children."""

    def allows(node: Node) -> bool:
        if node.allowed is None:
            node.allowed = form.allows([each.token for each in node.path_from(tree.root)])
        return node.allowed

    return allows
