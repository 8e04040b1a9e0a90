"""The layers of a model on CPUs: its layers are replaced by those of compiled code, or else by packed ones."""

from __future__ import annotations

import torch
from transformers import PreTrainedModel

from draftwire_core.engine.device.choices import Weights
from draftwire_core.engine.kernels.products.block_reading import choose_block_reading
from draftwire_core.engine.kernels.products.compiled_product import CompiledProduct
from draftwire_core.engine.model.experts.experts import replace_experts
from draftwire_core.engine.model.experts.row_exact_functions import use_row_exact_functions
from draftwire_core.engine.model.layers.delta_reading import join_projections
from draftwire_core.engine.model.layers.fused_layer import FusedNorm
from draftwire_core.engine.model.layers.layer_fusion import fuse_layers
from draftwire_core.engine.model.layers.tied_embedding import look_up_in_head, shares_weight
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
