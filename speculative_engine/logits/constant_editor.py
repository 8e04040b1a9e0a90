"""What editors share that do the same to every row, whatever its text."""

from __future__ import annotations

from collections.abc import Sequence

from speculative_engine.logits.logit_editor import TreeRows


class ConstantEditor:
    """A LogitEditor, but for `edit`, that follows no tokens."""

    def prepare(self, rows: TreeRows) -> None:
        """See LogitEditor. Nothing depends on the rows."""

    def commit(self, tokens: Sequence[int]) -> None:
        """See LogitEditor. Nothing depends on the tokens."""
