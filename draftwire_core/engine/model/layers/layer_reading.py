"""Reads the parts of decoder layers off transformers' modules, by the kind of the layer, and replaces linear layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import nn
from transformers.activations import ACT2FN

from draftwire_core.engine.kernels import attention as compiled_attention
from draftwire_core.engine.kernels.library import LANES
from draftwire_core.engine.model.file_pages import let_go_of
from draftwire_core.engine.model.layers.delta_reading import read_net, supports_net
from draftwire_core.engine.model.layers.layer_kinds import KINDS, LayerKind
from draftwire_core.engine.model.layers.layer_parts import (
    AttentionParts,
    DeltaParts,
    FeatureParts,
    ForwardParts,
    LayerParts,
    Norm,
    TokenParts,
)
from draftwire_core.engine.model.linear.linear_weight import MakeLinear, join_layers, joined
from draftwire_core.engine.model.ranks.sharded_layers import SummedLinear

_GATES: dict[type[nn.Module], str] = {type(ACT2FN["silu"]): "silu", type(ACT2FN["gelu_pytorch_tanh"]): "gelu_tanh"}
"""The activations of gates that compiled code has, by transformers' classes."""
_PROJECTIONS = (("q_proj", "k_proj", "v_proj"), ("qkv_proj",))
_GATES_AND_UPS = (("gate_proj", "up_proj"), ("gate_up_proj",), ("w1", "w3"))
_DOWN, _OUTPUT = (("down_proj",), ("w2",)), (("o_proj",), ("out_proj",))
"""Names of linear layers with the same inputs, apart or joined by transformers."""


class Blocks(NamedTuple):
    """The blocks of a layer that compiled code supports. The others stay transformers' code between fused norms."""

    attention: bool
    net: bool
    """A gated delta net in place of attention."""
    forward: bool
    tokens: bool


def kind_of(layer: nn.Module) -> LayerKind:
    """The kind of a decoder layer of transformers."""
    return KINDS[type(layer).__name__]


def reads_features(layer: nn.Module) -> bool:
    """Returns whether a layer is the first one of an EAGLE-3 network."""
    return hasattr(layer, "hidden_norm")


def supported_blocks(layer: nn.Module) -> Blocks | None:
    """The blocks of a decoder layer that compiled code supports; None if it does not know the layer or its norms."""
    if type(layer).__name__ not in KINDS:
        return None
    kind = kind_of(layer)
    norms = [getattr(layer, name) for name in _norm_names(layer, kind)]
    tokens = getattr(layer, "per_layer_input_gate", None)
    blocks = Blocks(
        attention=_supports_attention(layer, kind),
        net=supports_net(_mixer_of(layer, kind)),
        forward=_supports_forward(layer, kind),
        tokens=tokens is not None,
    )
    if (
        any(norm.weight.numel() % LANES for norm in norms)
        # Of layers that read features, transformers' code of a block would not get them.
        or (reads_features(layer) and not (blocks.attention and blocks.forward))
        or len({_eps_of(norm) for norm in norms}) != 1
        or (tokens is not None and (not blocks.forward or tokens.out_features % LANES or _gate_of(layer) is None))
    ):
        return None
    return blocks


def read_parts(layer: nn.Module, blocks: Blocks, make_linear: MakeLinear) -> LayerParts:
    """Makes the parts of a layer. Its linear layers become parts of theirs."""
    kind = kind_of(layer)
    feed_forward = getattr(layer, kind.feed_forward)
    gate = kind.gate or _gate_of(feed_forward) or _gate_of(layer) or "silu"
    norms = [getattr(layer, name) for name in _norm_names(layer, kind)]
    return LayerParts(
        attention=_attention_parts(layer, kind, make_linear) if blocks.attention else None,
        net=_net_parts(layer, kind, make_linear) if blocks.net else None,
        forward=_forward_parts(layer, feed_forward, kind, make_linear) if blocks.forward else None,
        tokens=_token_parts(layer, kind, make_linear) if blocks.tokens else None,
        features=_feature_parts(layer, kind),
        dtype=norms[0].weight.dtype,
        width=norms[0].weight.numel(),
        multiplier=float(getattr(layer, "residual_multiplier", 1.0)),
        factor=float(getattr(layer, "layer_scalar", 1.0)),
        gate=gate,
    )


def read_norm(layer: nn.Module, name: str | None, kind: LayerKind) -> Norm | None:
    """A norm of a layer; None without a name."""
    if name is None:
        return None
    found = getattr(layer, name)
    return weight_of_norm(found, kind.adds_one), _eps_of(found)


def weight_of_norm(norm: nn.Module, adds_one: bool) -> torch.Tensor:
    """The factors that a norm multiplies by, float32."""
    weight = norm.weight.data.float()
    return 1.0 + weight if adds_one else weight.contiguous()


def eps_of_norm(norm: nn.Module) -> float:
    """Returns what a norm adds to the mean square."""
    return _eps_of(norm)


def _norm_names(layer: nn.Module, kind: LayerKind) -> list[str]:
    last = "post_per_layer_input_norm" if hasattr(layer, "per_layer_input_gate") else None
    features = "hidden_norm" if reads_features(layer) else None
    names = kind.input_norm, kind.output_norm, kind.attended_norm, kind.forwarded_norm, last, features
    return [name for name in names if name is not None]


def _supports_attention(layer: nn.Module, kind: LayerKind) -> bool:
    attention = getattr(layer, kind.mixers[0], None)
    if attention is None:
        return False
    dim, output = attention.head_dim, getattr(attention, _names_of(attention, _OUTPUT)[0])
    return (
        dim % (2 * LANES) == 0
        and dim <= compiled_attention.MOST_DIM
        and _rotary_of(kind, attention) % LANES == 0
        and getattr(attention.config, "clip_qkv", None) is None
        and (not isinstance(output, SummedLinear) or _splits(attention))
    )


def _supports_forward(layer: nn.Module, kind: LayerKind) -> bool:
    mlp = getattr(layer, kind.feed_forward)
    if kind.beside(layer) is not None or not any(hasattr(mlp, names[0]) for names in _GATES_AND_UPS):
        return False
    linears = [getattr(mlp, name) for name in _names_of(mlp, _GATES_AND_UPS)]
    return (
        all(hasattr(linear, "out_features") for linear in linears)
        and sum(linear.out_features for linear in linears) % (2 * LANES) == 0
        and (kind.gate or _gate_of(mlp)) is not None
    )


def _splits(attention: nn.Module) -> bool:
    """Whether a rank's part of an attention is an attention of fewer heads."""
    return (
        hasattr(attention, "q_proj")
        and not hasattr(attention, "sinks")
        and (not hasattr(attention, "q_norm") or attention.q_norm.weight.numel() == attention.head_dim)
    )


def _gate_of(mlp: nn.Module) -> str | None:
    """Returns the activation of a block's gate; None if compiled code does not have it."""
    found = getattr(mlp, "act_fn", None) or getattr(mlp, "activation_fn", None)
    return _GATES.get(type(found))


def _rotary_of(kind: LayerKind, attention: nn.Module) -> int:
    """Leading elements of a head that are rotated."""
    if not kind.rotates(attention):
        return 0
    if not kind.partly_rotated:
        return int(attention.head_dim)
    rope = getattr(attention.config, "rope_parameters", None) or {}
    return int(attention.head_dim * rope.get("partial_rotary_factor", 1.0))


def _names_of(parent: nn.Module, choices: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """The names of the linear layers that a block has, of those with outputs for it."""
    names = next(names for names in choices if hasattr(parent, names[0]))
    return tuple(name for name in names if getattr(parent, name, None) is not None)


def _eps_of(norm: nn.Module) -> float:
    return float(norm.variance_epsilon if hasattr(norm, "variance_epsilon") else norm.eps)


def _attention_parts(layer: nn.Module, kind: LayerKind, make_linear: MakeLinear) -> AttentionParts:
    attention = getattr(layer, kind.mixers[0])
    dim = attention.head_dim
    head_norms = value_norm = None
    query = getattr(attention, kind.query_norm, None)
    if query is not None:
        key = getattr(attention, kind.key_norm, None)
        key_weight = None if key is None else weight_of_norm(key, kind.adds_one)
        head_norms = weight_of_norm(query, kind.adds_one), key_weight, _eps_of(query)
    if hasattr(attention, "v_norm"):
        value_norm = torch.ones(dim)  # of values alone, without a weight
    sinks = getattr(attention, "sinks", None)
    names = _names_of(attention, _PROJECTIONS)
    kv_parts = 2 if len(names) == 1 and names[0] == "qkv_proj" else len(names) - 1
    lender = kind.lender(attention)
    if hasattr(attention, "k_proj"):
        kv_heads = attention.k_proj.out_features // dim  # of this rank
    else:
        kv_heads = attention.config.num_key_value_heads
        if lender is not None:
            kv_heads = attention.config.num_attention_heads // attention.num_key_value_groups
    return AttentionParts(
        project=join_layers(attention, names, make_linear),
        output=_last(attention, _names_of(attention, _OUTPUT)[0], make_linear),
        input_norm=read_norm(layer, kind.input_norm, kind),
        output_norm=read_norm(layer, kind.attended_norm, kind),
        head_norms=head_norms,
        value_norm=value_norm,
        sinks=None if sinks is None else sinks.detach().float().contiguous(),
        kv_heads=kv_heads,
        dim=dim,
        rotary=_rotary_of(kind, attention),
        scaling=attention.scaling,
        window=kind.window(attention),
        softcap=attention.attn_logit_softcapping if kind.capped else None,
        gated=kind.gated,
        kv_parts=kv_parts,
        kv_layer=attention.layer_idx if lender is None else lender,
    )


def _mixer_of(layer: nn.Module, kind: LayerKind) -> nn.Module | None:
    """The mixer of a layer without attention."""
    return next((found for name in kind.mixers[1:] if (found := getattr(layer, name, None)) is not None), None)


def _net_parts(layer: nn.Module, kind: LayerKind, make_linear: MakeLinear) -> DeltaParts:
    mixer = _mixer_of(layer, kind)
    assert mixer is not None
    before, after = read_norm(layer, kind.input_norm, kind), read_norm(layer, kind.attended_norm, kind)
    return read_net(mixer, before, after, make_linear)


def _forward_parts(layer: nn.Module, mlp: nn.Module, kind: LayerKind, make_linear: MakeLinear) -> ForwardParts:
    return ForwardParts(
        gate_and_up=join_layers(mlp, _names_of(mlp, _GATES_AND_UPS), make_linear),
        down=_last(mlp, _names_of(mlp, _DOWN)[0], make_linear),
        input_norm=read_norm(layer, kind.output_norm, kind),
        output_norm=read_norm(layer, kind.forwarded_norm, kind),
    )


def _token_parts(layer: nn.Module, kind: LayerKind, make_linear: MakeLinear) -> TokenParts:
    return TokenParts(
        gate=join_layers(layer, ("per_layer_input_gate",), make_linear),
        output=join_layers(layer, ("per_layer_projection",), make_linear),
        output_norm=read_norm(layer, "post_per_layer_input_norm", kind),
    )


def _feature_parts(layer: nn.Module, kind: LayerKind) -> FeatureParts | None:
    if not reads_features(layer):
        return None
    norm = layer.hidden_norm
    return FeatureParts((weight_of_norm(norm, kind.adds_one), _eps_of(norm)), bool(layer.norm_before_residual))


def _last(parent: nn.Module, name: str, make_linear: MakeLinear) -> nn.Module:
    """The last linear layer of an attention or feed-forward block; among ranks its outputs are summed."""
    part = getattr(parent, name)
    if not isinstance(part, SummedLinear):
        return join_layers(parent, (name,), make_linear)
    linear = part.linear
    part.linear = joined([linear], make_linear)
    let_go_of(linear)
    return part
