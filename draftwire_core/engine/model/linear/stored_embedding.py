"""Embeddings whose weight stays as it lies in a checkpoint."""

from __future__ import annotations

import torch
from torch import nn

from draftwire_core.engine.model.linear.block_weight import BlockWeight
from draftwire_core.engine.model.linear.half_weight import HalfWeight


class StoredEmbedding(nn.Module):
    """An embedding whose rows are converted when they are looked up."""

    def __init__(self, weight: BlockWeight | HalfWeight):
        super().__init__()
        self.stored = weight
        self.num_embeddings, self.embedding_dim = weight.outputs, weight.inputs
        self.register_buffer("weight", weight.raw)

    def forward(self, token_ids: torch.Tensor) -> torch.Tensor:
        """token_ids [...] -> bfloat16 [..., embedding_dim]"""
        return self.stored.rows(token_ids.flatten()).view(*token_ids.shape, self.embedding_dim)
