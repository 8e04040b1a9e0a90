"""Tokens that must not come."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from speculative_engine.logits.constant_editor import ConstantEditor
from speculative_engine.logits.logit_editor import TreeRows


class BannedTokens(ConstantEditor):
    """See the module."""

    def __init__(self, token_ids: Iterable[int]):
        self._ids = torch.tensor(list(token_ids), dtype=torch.int64).unique()

    def edit(self, logits: Tensor, rows: TreeRows) -> None:
        """See LogitEditor."""
        self._ids = self._ids.to(logits.device)
        logits.index_fill_(1, self._ids, -torch.inf)
