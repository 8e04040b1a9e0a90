"""Words that must not come in the output, each as the tokens it is spelled with."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from speculative_engine.logits.logit_editor import TreeRows


class BadWords:
    """Where an output ends with all tokens of a word but the last one, that one does not come."""

    def __init__(self, words: Iterable[Sequence[int]], output: Sequence[int]):
        """words: of two tokens and more; output: what it has already."""
        self._last: dict[tuple[int, ...], set[int]] = {}
        for word in words:
            self._last.setdefault(tuple(word[:-1]), set()).add(word[-1])
        self._lengths = sorted({len(begun) for begun in self._last})
        self._tail: list[int] = []
        """The committed output's last tokens, as many as count."""
        self._masked: list[tuple[int, int]] = []
        """Rows and the tokens that do not come there."""
        self.commit(output)

    def prepare(self, rows: TreeRows) -> None:
        """See LogitEditor."""
        self._masked = []
        for row in range(len(rows)):
            text = tuple(self._tail + rows.path(row))
            for length in self._lengths:
                if length <= len(text):
                    self._masked += [(row, token) for token in self._last.get(text[-length:], ())]

    def edit(self, logits: Tensor, rows: TreeRows) -> None:
        """See LogitEditor."""
        if self._masked:
            places = torch.tensor(self._masked, dtype=torch.int64, device=logits.device)
            logits[places[:, 0], places[:, 1]] = -torch.inf

    def commit(self, tokens: Sequence[int]) -> None:
        """See LogitEditor."""
        self._tail = [*self._tail, *tokens][-self._lengths[-1] :]
