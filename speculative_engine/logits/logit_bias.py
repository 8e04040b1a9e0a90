"""Numbers that a request adds to the logits of some tokens."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from speculative_engine.logits.constant_editor import ConstantEditor
from speculative_engine.logits.logit_editor import TreeRows


class LogitBias(ConstantEditor):
    """See the module."""

    def __init__(self, bias: Mapping[int, float]):
        """bias: by token id."""
        self._ids = torch.tensor(list(bias), dtype=torch.int64)
        self._bias = torch.tensor(list(bias.values()), dtype=torch.float32)

    def edit(self, logits: Tensor, rows: TreeRows) -> None:
        """See LogitEditor."""
        self._ids, self._bias = self._ids.to(logits.device), self._bias.to(logits.device)
        logits.index_add_(1, self._ids, self._bias.expand(len(rows), -1))
