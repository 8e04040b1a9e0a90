"""An output's least length: tokens that would end it do not come before."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from speculative_engine.logits.logit_editor import TreeRows


class MinTokens:
    """See the module. A row's own output is as long as the committed one and the row's path together."""

    def __init__(self, least: int, ends: Iterable[int], output_length: int):
        """least: fewest tokens of the output; ends: tokens that end it; output_length: what it has already."""
        self._ends = torch.tensor(sorted(ends), dtype=torch.int64)
        self._missing = least - output_length
        self._rows = torch.empty(0, dtype=torch.int64)

    def prepare(self, rows: TreeRows) -> None:
        """See LogitEditor."""
        missing: list[int] = []
        for parent in rows.parents:
            missing.append(missing[parent] - 1 if parent >= 0 else self._missing)
        self._rows = torch.tensor([row for row, tokens in enumerate(missing) if tokens > 0], dtype=torch.int64)

    def edit(self, logits: Tensor, rows: TreeRows) -> None:
        """See LogitEditor."""
        if len(self._rows):
            # A checkpoint may name ends that its vocabulary lacks.
            self._ends = self._ends[self._ends < logits.shape[1]].to(logits.device)
            logits[self._rows.to(logits.device).unsqueeze(1), self._ends] = -torch.inf

    def commit(self, tokens: Sequence[int]) -> None:
        """See LogitEditor."""
        self._missing -= len(tokens)
