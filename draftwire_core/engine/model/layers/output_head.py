"""The output head of a model whose products are compiled."""

from __future__ import annotations

import torch
from transformers import PreTrainedModel

from draftwire_core.engine.kernels.compiled_product import CompiledProduct
from draftwire_core.engine.model.layers.fused_layer import FusedNorm
from draftwire_core.engine.model.linear.linear_structs import are_compiled


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
