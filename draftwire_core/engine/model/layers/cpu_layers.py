"""What a model computes with on CPUs: its layers are replaced by those of compiled code, or else by packed ones."""

from __future__ import annotations

from transformers import PreTrainedModel

from draftwire_core.engine.kernels.block_reading import choose_block_reading
from draftwire_core.engine.kernels.compiled_product import CompiledProduct
from draftwire_core.engine.model.experts.experts import replace_experts
from draftwire_core.engine.model.experts.row_exact_functions import use_row_exact_functions
from draftwire_core.engine.model.layers.layer_fusion import fuse_layers
from draftwire_core.engine.model.layers.output_head import keep_logits_whole, tell_dtype
from draftwire_core.engine.model.layers.tied_embedding import look_up_in_head, shares_weight
from draftwire_core.engine.model.linear.block_linear import maker
from draftwire_core.engine.model.linear.int8_linear import Int8Linear
from draftwire_core.engine.model.linear.packed_linear import PackedLinear, replace_linears
from draftwire_core.engine.model.linear.row_exact import RowExactLinear, make_row_exact
from draftwire_core.engine.model.recurrent.joined_projections import join_projections
from draftwire_core.engine.model.weight_names import Weights


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
