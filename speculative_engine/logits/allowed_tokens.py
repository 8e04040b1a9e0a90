"""The only tokens that may come."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from speculative_engine.logits.constant_editor import ConstantEditor
from speculative_engine.logits.logit_editor import TreeRows


class AllowedTokens(ConstantEditor):
    """Leaves the logits of some tokens and no others."""

    def __init__(self, token_ids: Iterable[int]):
        self._ids = torch.tensor(list(token_ids), dtype=torch.int64).unique()

    def edit(self, logits: Tensor, rows: TreeRows) -> None:
        """See LogitEditor."""
        self._ids = self._ids.to(logits.device)
        allowed = logits.index_select(1, self._ids)
        logits.fill_(-torch.inf).index_copy_(1, self._ids, allowed)
