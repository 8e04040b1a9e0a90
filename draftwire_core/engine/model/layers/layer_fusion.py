"""Fuses the decoder layers of a model, where compiled code supports blocks of them."""

from __future__ import annotations

from collections.abc import Iterable

from transformers import PreTrainedModel

from draftwire_core.engine.kernels.library import BF16, library
from draftwire_core.engine.kernels.products.compiled_product import CompiledProduct
from draftwire_core.engine.model.attention.rotary_angles import RotaryAngles, has_fixed_frequencies
from draftwire_core.engine.model.layers.decoder_layer import CompiledLayer, Room
from draftwire_core.engine.model.layers.fused_feature_layer import FusedFeatureLayer
from draftwire_core.engine.model.layers.fused_layer import FusedLayer, FusedNorm
from draftwire_core.engine.model.layers.layer_reading import kind_of, reads_features, supported_blocks
from draftwire_core.engine.model.linear.linear_weight import MakeLinear


def fuse_layers(model: PreTrainedModel, make_linear: MakeLinear) -> None:
    """Replaces the decoder layers of `model`, the last norm and the rotary embedding, in place.

    Does nothing unless compiled code supports a block of some layer, and knows what is around the others.
    """
    if library() is None or model.dtype not in BF16:
        return
    decoder = model.get_decoder()
    layers = getattr(decoder, "layers", [])
    blocks = [supported_blocks(layer) for layer in layers]
    if None in blocks or not any(each and (each.attention or each.net or each.forward) for each in blocks):
        return
    rotary = getattr(decoder, "rotary_emb", None)
    fixed = rotary is not None and has_fixed_frequencies(rotary)
    if not fixed and any(kind_of(layer).halved_angles for layer in layers):
        return
    kind = kind_of(layers[0])
    for index, (layer, supported) in enumerate(zip(layers, blocks, strict=True)):
        assert supported is not None
        make_layer = FusedFeatureLayer if reads_features(layer) else FusedLayer
        layers[index] = make_layer(layer, decoder.config, supported, make_linear)
    _share_room(layer.compiled for layer in layers)
    setattr(decoder, kind.last_norm, FusedNorm(getattr(decoder, kind.last_norm), kind.adds_one))
    if fixed:
        decoder.rotary_emb = RotaryAngles(rotary)


def runs_compiled(model: PreTrainedModel) -> bool:
    """Whether compiled code computes all results of `model` that depend on the order or the precision of operations.

    torch then only looks up embeddings, scales and converts numbers, each of which has one correct result.
    """
    decoder, head = model.get_decoder(), model.get_output_embeddings()
    rest = {name for parent in (model, decoder) for name, _ in parent.named_children()}
    return (
        rest == {"model", "lm_head", "embed_tokens", "layers", "norm", "rotary_emb"}
        and all(isinstance(layer, FusedLayer) and layer.is_compiled for layer in decoder.layers)
        and all(kind_of(layer.library_layer).plain for layer in decoder.layers)
        and not getattr(decoder.config, "final_logit_softcapping", None)
        and isinstance(decoder.norm, FusedNorm)
        and isinstance(decoder.rotary_emb, RotaryAngles)
        and isinstance(getattr(head, "product", None), CompiledProduct)
    )


def _share_room(layers: Iterable[CompiledLayer | None]) -> None:
    """Gives the compiled layers of a model the room that any of them needs."""
    compiled = [layer for layer in layers if layer is not None]
    if compiled:
        room = Room.of_all(layer.room for layer in compiled)
        for layer in compiled:
            layer.room = room
