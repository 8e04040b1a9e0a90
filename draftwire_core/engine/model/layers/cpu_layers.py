"""The layers of a model on CPUs: its layers are replaced by those of compiled code, or else by packed ones."""

from __future__ import annotations

import torch
from torch import nn
from transformers import PreTrainedModel

from draftwire_core.engine.device.choices import Weights
from draftwire_core.engine.kernels.products.block_reading import choose_block_reading
from draftwire_core.engine.kernels.products.compiled_product import CompiledProduct
from draftwire_core.engine.kernels.products.gemm import INPUT_BLOCK, OUTPUT_GROUP, TILE, CompiledGemm
from draftwire_core.engine.model.experts.experts import replace_experts
from draftwire_core.engine.model.experts.row_exact_functions import use_row_exact_functions
from draftwire_core.engine.model.layers.delta_reading import join_projections
from draftwire_core.engine.model.layers.fused_layer import FusedNorm
from draftwire_core.engine.model.layers.layer_fusion import fuse_layers
from draftwire_core.engine.model.linear.block_linear import maker
from draftwire_core.engine.model.linear.drafter_linear import Int8Linear, PackedLinear, replace_linears
from draftwire_core.engine.model.linear.linear_structs import are_compiled
from draftwire_core.engine.model.linear.row_exact import RowExactLinear, make_row_exact


def use_cpu_layers(model: PreTrainedModel, weights: Weights, *, row_exact: bool, split: bool, recurrent: bool) -> None:
    """Replaces the linear layers of `model`, its experts and what compiled code has of its decoder layers, in place.
    Chooses how weights in blocks are read, if this process has not chosen yet.

    weights: what linear layers keep. row_exact: whether a row gets the same bits whatever rows share its batch. split:
    whether this is a rank's part of a model. recurrent: whether some layers have a recurrent state.
    """
    tied = not split and shares_weight(model)
    kind = weights if weights == "q8_0" or weights == "q4_0" else None
    make_plain = RowExactLinear if row_exact else PackedLinear
    make_linear = maker(Int8Linear if weights == "int8" else make_plain, kind, keep_halves=weights == "checkpoint")
    if not split:
        replace_experts(model, make_linear, maker(make_plain, None))
    fuse_layers(model, make_linear)
    join_projections(model, make_linear)
    if row_exact:
        make_row_exact(model, make_linear)
        use_row_exact_functions(model)
    else:
        replace_linears(model, make_linear)
    if tied:
        look_up_in_head(model)
    keep_logits_whole(model)
    if recurrent:
        tell_dtype(model)
    products = [each for each in model.modules() if isinstance(each, CompiledProduct)]
    choose_block_reading([each for each in products if each.in_blocks])


def tell_dtype(model: PreTrainedModel) -> None:
    """Gives the replaced output head of `model` an empty weight of the model's dtype: some models convert the head's
    inputs to the dtype of its weight."""
    head = model.get_output_embeddings()
    if not hasattr(head, "weight"):
        object.__setattr__(head, "weight", torch.empty(0, dtype=model.dtype))


def keep_logits_whole(model: PreTrainedModel) -> None:
    """Makes the logits of `model` float32, as they are summed, if compiled code computes them; and so the output head's
    inputs, if they come from fused layers.

    In bfloat16 logits between 8 and 16 are 1/16 apart. That makes ties among the best tokens, and it was the largest
    error of a pass with weights of 8 bits.
    """
    head = model.get_output_embeddings()
    for module in head.modules():
        if isinstance(module, CompiledProduct):
            module.wide = True
    for module in model.get_decoder().children():
        if isinstance(module, FusedNorm):  # the last one
            module.wide = are_compiled([head])


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
