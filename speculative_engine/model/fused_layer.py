"""Llama-style decoder layers as four matrix products, with compiled code between them.

Products that share an input are joined. If the products are compiled as well, a layer is a single call. The layers of
transformers run some sixty small operations, each of which costs microseconds whatever its size: at one row, more than
half of a small draft model's time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.activations import ACT2FN

from speculative_engine.kernels import attention as compiled_attention
from speculative_engine.kernels.compiled_product import CompiledProduct
from speculative_engine.kernels.layer_ops import rms_norm, rope, silu_and_mul
from speculative_engine.kernels.library import BF16, LANES, library
from speculative_engine.model.decoder_layer import Angles, CompiledLayer, LayerParts, can_compile
from speculative_engine.model.file_pages import let_go_of
from speculative_engine.model.linear.linear_structs import are_compiled
from speculative_engine.model.linear.linear_weight import MakeLinear, joined, parts_of
from speculative_engine.model.packed_attention import ATTENTION_NAME, ForwardPass, current_pass
from speculative_engine.model.ranks.sharded_layers import SummedLinear
from speculative_engine.model.rotary_angles import RotaryAngles, has_fixed_frequencies

_WINDOWS: dict[str, Callable[[nn.Module], int | None]] = {
    "LlamaDecoderLayer": lambda attention: None,
    "MistralDecoderLayer": lambda attention: attention.config.sliding_window,
    "Qwen2DecoderLayer": lambda attention: attention.sliding_window,
    "Qwen3DecoderLayer": lambda attention: attention.sliding_window,
}
"""The supported layers, each with a function that returns its sliding window. They differ only in windows, biases and
norms of heads. Other layers are left unchanged."""


def fuse_layers(model: PreTrainedModel, make_linear: MakeLinear) -> None:
    """Replaces the decoder layers of `model`, the last norm and the rotary embedding, in place.

    Does nothing unless compiled code supports all layers.
    """
    if library() is None or model.dtype not in BF16:
        return
    decoder = model.get_decoder()
    layers = getattr(decoder, "layers", [])
    if not layers or not all(_can_fuse(layer) for layer in layers):
        return
    for index, layer in enumerate(layers):
        layers[index] = FusedLayer(layer, make_linear)
    decoder.norm = FusedNorm(decoder.norm)
    if has_fixed_frequencies(decoder.rotary_emb):
        decoder.rotary_emb = RotaryAngles(decoder.rotary_emb)


def runs_compiled(model: PreTrainedModel) -> bool:
    """Whether compiled code computes all results of `model` that depend on the order or the precision of operations.

    torch then only looks up embeddings and converts numbers, which is exact.
    """
    decoder, head = model.get_decoder(), model.get_output_embeddings()
    rest = {name for parent in (model, decoder) for name, _ in parent.named_children()}
    return (
        rest == {"model", "lm_head", "embed_tokens", "layers", "norm", "rotary_emb"}
        and all(isinstance(layer, FusedLayer) and layer.compiled is not None for layer in decoder.layers)
        and isinstance(decoder.norm, FusedNorm)
        and isinstance(decoder.rotary_emb, RotaryAngles)
        and isinstance(getattr(head, "product", None), CompiledProduct)
    )


def _can_fuse(layer: nn.Module) -> bool:
    if type(layer).__name__ not in _WINDOWS:
        return False
    attention, mlp = layer.self_attn, layer.mlp
    return (
        attention.head_dim % (2 * LANES) == 0
        and attention.head_dim <= compiled_attention.MOST_DIM
        and layer.input_layernorm.weight.numel() % LANES == 0
        and mlp.gate_proj.out_features % LANES == 0
        and isinstance(mlp.act_fn, type(ACT2FN["silu"]))
    )


class FusedNorm(nn.Module):
    """A root mean square norm."""

    def __init__(self, norm: nn.Module):
        super().__init__()
        self.weight = norm.weight
        self.eps = float(norm.variance_epsilon)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """inputs [..., width] -> the same shape"""
        flat = inputs.reshape(-1, inputs.shape[-1])
        return rms_norm(flat, self.weight, self.eps).view_as(inputs)

    def in_float32(self, rows: torch.Tensor) -> torch.Tensor:
        """rows: float32 [rows, width] -> the same"""
        return rms_norm(rows, self.weight, self.eps, torch.float32)


class _Residual(NamedTuple):
    """The residual stream of a forward pass whose layers run in parts."""

    hidden: torch.Tensor
    """The tensor that the layers overwrite with `values`, rounded to its dtype."""
    values: torch.Tensor
    """float32 [rows, width]; `hidden` itself if that is float32"""


class _Outputs(nn.Module):
    """A range of a joined linear layer's outputs, for transformers' own code of a layer."""

    def __init__(self, linear: nn.Module, first: int, last: int):
        super().__init__()
        self._linear = (linear,)  # in a tuple, so that it is not registered twice
        self._first, self._last = first, last

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self._linear[0](inputs)[..., self._first : self._last].to(inputs.dtype)


class FusedLayer(nn.Module):
    """A fused decoder layer; with another attention function than ours it runs transformers' own layer."""

    def __init__(self, layer: nn.Module, make_linear: MakeLinear):
        """layer: owned by this one from now on; its linear layers are replaced."""
        super().__init__()
        attention, mlp = layer.self_attn, layer.mlp
        self.library_layer = layer
        self._config = attention.config
        self._index = attention.layer_idx
        head_norms = None
        if hasattr(attention, "q_norm"):
            query, key = attention.q_norm, attention.k_norm
            head_norms = query.weight.data, key.weight.data, float(query.variance_epsilon)
        kv_heads = attention.k_proj.out_features // attention.head_dim
        self.input_norm = FusedNorm(layer.input_layernorm)
        self.output_norm = FusedNorm(layer.post_attention_layernorm)
        self.project = _joined(attention, ("q_proj", "k_proj", "v_proj"), make_linear)
        self.output = _last(attention, "o_proj", make_linear)
        self.gate_and_up = _joined(mlp, ("gate_proj", "up_proj"), make_linear)
        self.down = _last(mlp, "down_proj", make_linear)
        self._parts = LayerParts(
            project=self.project,
            output=self.output,
            gate_and_up=self.gate_and_up,
            down=self.down,
            input_norm=(self.input_norm.weight.data, self.input_norm.eps),
            output_norm=(self.output_norm.weight.data, self.output_norm.eps),
            head_norms=head_norms,
            kv_heads=kv_heads,
            dim=attention.head_dim,
            scaling=attention.scaling,
            window=_WINDOWS[type(layer).__name__](attention),
        )
        self.compiled = CompiledLayer(self._parts) if can_compile(self._parts) else None
        for linear in self._parts.linears:
            if are_compiled([linear]):
                for part in parts_of(linear):
                    part.product.wide = True

    def forward(
        self,
        hidden_states: torch.Tensor,
        *args: object,
        position_embeddings: tuple[torch.Tensor, torch.Tensor],
        **kwargs: object,
    ) -> torch.Tensor:
        """Overwrites and returns hidden_states [1, rows, width]. position_embeddings: cosines, sines [1, rows, dim]."""
        if self._config._attn_implementation != ATTENTION_NAME:
            angles = tuple(each.to(hidden_states.dtype) for each in position_embeddings)
            given: torch.Tensor = self.library_layer(hidden_states, *args, position_embeddings=angles, **kwargs)
            return given
        under_way = current_pass()
        if self.compiled is not None:
            self.run_compiled(hidden_states, position_embeddings, under_way)
            return hidden_states
        shared = under_way.shared
        if not isinstance(shared, _Residual) or shared.hidden is not hidden_states:
            shared = under_way.shared = _Residual(hidden_states, hidden_states[0].float())
        self._in_parts(shared.values, position_embeddings)
        return hidden_states if hidden_states.dtype == torch.float32 else hidden_states.copy_(shared.values)

    def run_compiled(self, hidden: torch.Tensor, angles: Angles, under_way: ForwardPass) -> None:
        """Overwrites hidden [1, rows, width] with the output of a compiled layer. angles: as for `forward`."""
        assert self.compiled is not None, "such layers run in parts"
        self.compiled.forward(hidden, angles, under_way, self._index)

    def _in_parts(self, residual: torch.Tensor, position_embeddings: tuple[torch.Tensor, torch.Tensor]) -> None:
        """Runs the layer as separate operations, if it is not compiled. Overwrites residual, float32 [rows, width]."""
        under_way, parts = current_pass(), self._parts
        batch, cache = under_way.packed_batch, under_way.cache
        cosines, sines = (each[0].float() for each in position_embeddings)
        like = parts.input_norm[0].new_empty(parts.kv_heads, 0, parts.dim)
        keys, values = cache.layer(self._index, like, like)
        projected = _product(self.project, self.input_norm.in_float32(residual), like.dtype)
        query = rope(projected, cosines, sines, parts.head_norms, batch.slots, keys, values, parts.scaling)
        seen = compiled_attention.attend(batch.slot_lanes, query, keys, values, parts.window, None, None)
        residual += _product(self.output, seen.view(len(residual), -1), like.dtype)
        gate_and_up = _product(self.gate_and_up, self.output_norm.in_float32(residual), like.dtype)
        residual += _product(self.down, silu_and_mul(gate_and_up), like.dtype)


def _product(linear: nn.Module, rows: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """rows: float32 [rows, inputs] -> float32 [rows, outputs]. dtype: what linear layers take that are not compiled"""
    return linear(rows) if are_compiled([linear]) else linear(rows.to(dtype)).float()


def _last(parent: nn.Module, name: str, make_linear: MakeLinear) -> nn.Module:
    """The last linear layer of an attention or feed-forward block; among ranks its outputs are summed."""
    part = getattr(parent, name)
    if not isinstance(part, SummedLinear):
        return _joined(parent, (name,), make_linear)
    linear = part.linear
    part.linear = joined([linear], make_linear)
    let_go_of(linear)
    return part


def _joined(parent: nn.Module, names: tuple[str, ...], make_linear: MakeLinear) -> nn.Module:
    """Joins the named linear layers of `parent` into one, and replaces each by its range of the outputs."""
    parts = [getattr(parent, name) for name in names]
    whole = joined(parts, make_linear)
    first = 0
    for name, part in zip(names, parts, strict=True):
        setattr(parent, name, _Outputs(whole, first, first + part.out_features))
        first += part.out_features
        let_go_of(part)
    return whole
