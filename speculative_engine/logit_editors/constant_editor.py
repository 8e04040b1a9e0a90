"""What editors share that do the same to every row, whatever its text."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from torch import Tensor

from speculative_engine.logit_editor import TreeRows


class ConstantEditor(ABC):
    """A LogitEditor that follows no tokens."""

    def prepare(self, rows: TreeRows) -> None:
        """See LogitEditor. Nothing depends on the rows."""

    @abstractmethod
    def edit(self, logits: Tensor, rows: TreeRows) -> None:
        """See LogitEditor."""

    def commit(self, tokens: Sequence[int]) -> None:
        """See LogitEditor. Nothing depends on the tokens."""
