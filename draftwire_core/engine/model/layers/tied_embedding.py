"""An embedding that looks its rows up in the packed weight of the output head, so that the two share one."""

from __future__ import annotations

import torch
from torch import nn
from transformers import PreTrainedModel

from draftwire_core.engine.kernels.products.gemm import INPUT_BLOCK, OUTPUT_GROUP, TILE, CompiledGemm

_LEAST_BYTES = 1 << 25
"""Bytes of the smallest weight that is shared. Looking up a row takes 0.03 ms longer in a packed weight, about 1 % of
the time in which a step reads one of this size."""


class TiedEmbedding(nn.Module):
    """An embedding without a weight of its own."""

    def __init__(self, head: CompiledGemm):
        """head: the output head's product"""
        super().__init__()
        self.num_embeddings, self.embedding_dim = head.outputs, head.inputs
        pairs = head.stored.view(torch.int32)  # each of two inputs of an output
        self._pairs = pairs.flatten()
        self._group = pairs[0].numel()
        block = torch.arange(head.inputs // INPUT_BLOCK)[:, None] * 2 * TILE * TILE
        self._places = (block + torch.arange(TILE) * TILE).flatten()
        """The places of an output's pairs of inputs, counted from its first one."""

    def forward(self, token_ids: torch.Tensor) -> torch.Tensor:
        """token_ids [...] -> bfloat16 [..., embedding_dim]"""
        within = token_ids % OUTPUT_GROUP
        first = token_ids // OUTPUT_GROUP * self._group + within // TILE * TILE * TILE + within % TILE
        return self._pairs[first[..., None] + self._places].view(torch.bfloat16)


def shares_weight(model: PreTrainedModel) -> bool:
    """Whether the embedding and the output head of a model that is not packed yet have one large weight."""
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    if type(embedding) is not nn.Embedding or type(head) is not nn.Linear or embedding.max_norm is not None:
        return False
    ours, theirs = embedding.weight, head.weight
    same = ours.shape == theirs.shape and ours.data_ptr() == theirs.data_ptr()
    return bool(same and ours.nbytes >= _LEAST_BYTES)


def look_up_in_head(model: PreTrainedModel) -> None:
    """Replaces the embedding of a packed model whose output head has the same weight, where compiled code packed it."""
    product = getattr(model.get_output_embeddings(), "product", None)
    if isinstance(product, CompiledGemm):
        model.set_input_embeddings(TiedEmbedding(product))
