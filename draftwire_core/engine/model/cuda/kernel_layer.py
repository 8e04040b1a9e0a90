"""Llama-style decoder layers as nine Triton kernels, or ten with norms after its parts: the GPU's `fused_layer.py`.

A row's bits do not depend on the other rows of a pass: every kernel adds up in an order of its own. As in the compiled
layers of CPUs, the residual stream and the logits are float32, and rows between kernels have the model's dtype.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.activations import ACT2FN

from draftwire_core.engine.device.choices import KvDtype
from draftwire_core.engine.model.attention.packed_attention import ATTENTION_NAME, current_pass
from draftwire_core.engine.model.cuda.kernel_linear import (
    can_be_output,
    can_join,
    joined_linear,
    output_linear,
    projecting_linear,
    try_products,
)
from draftwire_core.engine.model.cuda.kernel_support import MOST_DIM
from draftwire_core.engine.model.cuda.kernels.attention import attend_slots, tiles_of
from draftwire_core.engine.model.cuda.kernels.attention_trial import AttentionKind, equal_tiles
from draftwire_core.engine.model.cuda.kernels.key_rows import rotate_and_write
from draftwire_core.engine.model.cuda.kernels.norm import add_norm, rms_norm
from draftwire_core.engine.model.cuda.kernels.product import Gate
from draftwire_core.engine.model.cuda.slots.slot_batch import SlotRows
from draftwire_core.engine.model.cuda.tapped_layers import kept_at
from draftwire_core.engine.model.ranks.sharded_layers import GatheredLinear


class _Kind(NamedTuple):
    """Properties of an architecture's layers that differ between those supported, besides biases and further norms."""

    window: Callable[[nn.Module], int | None] = lambda attention: attention.sliding_window
    """The sliding window of an attention."""
    softcap: Callable[[nn.Module], float | None] = lambda attention: None
    """The bound of its scores."""
    offset: float = 0.0
    """Added to the weights of norms."""


_KINDS = {
    "LlamaDecoderLayer": _Kind(window=lambda attention: None),
    "MistralDecoderLayer": _Kind(window=lambda attention: attention.config.sliding_window),
    "Qwen2DecoderLayer": _Kind(),
    "Qwen3DecoderLayer": _Kind(),
    "Gemma2DecoderLayer": _Kind(softcap=lambda attention: attention.attn_logit_softcapping, offset=1.0),
    "Gemma3DecoderLayer": _Kind(offset=1.0),
}
"""The supported layers. Others are left unchanged."""
_GATES: dict[type[nn.Module], Gate] = {type(ACT2FN["silu"]): "silu", type(ACT2FN["gelu_pytorch_tanh"]): "gelu"}


def run_on_kernels(model: PreTrainedModel) -> bool:
    """Replaces the decoder layers of `model`, the last norm and the output head, in place.

    Returns whether it did: only if the kernels support all of them.
    """
    decoder, head = model.get_decoder(), model.get_output_embeddings()
    layers = getattr(decoder, "layers", [])
    if not layers or not all(_supported(layer) for layer in layers) or not can_join([_own(head)]):
        return False
    offset = _KINDS[type(layers[0]).__name__].offset
    for index, layer in enumerate(layers):
        layers[index] = KernelLayer(layer)
    decoder.norm = KernelNorm(decoder.norm, offset, len(layers))
    whole = joined_linear([_own(head)], dtype=torch.float32)
    if isinstance(head, GatheredLinear):
        head.linear = whole
    else:
        model.set_output_embeddings(whole)
    return True


def try_kernels(model: PreTrainedModel, kv_dtype: KvDtype = "auto") -> list[str]:
    """Sets the ways in which a model's products and its layers' attention may be cut into programs: those that give a
    row the same bits. Returns the others, in words. kv_dtype: type of keys and values."""
    lost = try_products(model)
    trials: dict[AttentionKind, tuple[int, ...]] = {}
    for layer in model.modules():
        if not isinstance(layer, KernelLayer):
            continue
        kind = layer.attention_kind
        if kind not in trials:
            weight = layer.input_norm.weight
            with torch.cuda.device_of(weight):
                trials[kind] = equal_tiles(kind, model.dtype, weight.device, kv_dtype)
            sizes = tiles_of(kind.heads // kind.kv_heads)
            lost += [f"attention in tiles of {each} queries" for each in sizes if each not in trials[kind]]
        layer.tiles = trials[kind]
    return lost


def _own(head: nn.Module) -> nn.Module:
    """The part of the output head that this rank computes."""
    return head.linear if isinstance(head, GatheredLinear) else head


def _supported(layer: nn.Module) -> bool:
    if type(layer).__name__ not in _KINDS:
        return False
    attention, mlp = layer.self_attn, layer.mlp
    apart = (attention.q_proj, attention.k_proj, attention.v_proj)
    return (
        attention.head_dim % 2 == 0
        and attention.head_dim <= MOST_DIM
        and type(mlp.act_fn) in _GATES
        and all(can_join([linear]) for linear in apart)
        and can_join([mlp.gate_proj, mlp.up_proj])
        and all(can_be_output(layer) for layer in (attention.o_proj, mlp.down_proj))
    )


class KernelNorm(nn.Module):
    """A root mean square norm."""

    def __init__(self, norm: nn.Module, offset: float, layer: int | None = None):
        """offset: added to the norm's weight. layer: the layer whose inputs it reads, see `TappedRows`; None for
        another norm."""
        super().__init__()
        self.weight = norm.weight
        self.eps = float(norm.variance_epsilon if hasattr(norm, "variance_epsilon") else norm.eps)
        self.offset = offset
        self.layer = layer

    def forward(self, inputs: Tensor) -> Tensor:
        """inputs [..., width] -> the same shape"""
        kept = None if self.layer is None else kept_at(self.layer)
        rows = inputs.reshape(-1, inputs.shape[-1])
        return rms_norm(rows, self.weight, self.eps, self.offset, kept).view(inputs.shape)


class KernelLayer(nn.Module):
    """A decoder layer; with another attention function than ours it runs transformers' own layer."""

    def __init__(self, layer: nn.Module):
        """layer: owned by this one from now on; weights that are multiplied together become adjacent."""
        super().__init__()
        kind = _KINDS[type(layer).__name__]
        attention, mlp = layer.self_attn, layer.mlp
        self.library_layer = layer
        self._config = attention.config
        self._index = attention.layer_idx
        self._head_norms: tuple[Tensor, Tensor, float, float] | None = None
        if hasattr(attention, "q_norm"):
            query, key = (KernelNorm(each, kind.offset) for each in (attention.q_norm, attention.k_norm))
            self._head_norms = query.weight.data, key.weight.data, query.eps, kind.offset
        self.project = projecting_linear([attention.q_proj, attention.k_proj, attention.v_proj])
        self.attention_kind = AttentionKind(
            attention.q_proj.out_features // attention.head_dim,
            attention.k_proj.out_features // attention.head_dim,
            attention.head_dim,
            attention.scaling,
            kind.window(attention),
            kind.softcap(attention),
        )
        self.tiles: tuple[int, ...] = ()
        """Sizes of tiles of queries to choose from; see `attend_slots`."""
        self.output = output_linear(attention.o_proj)
        self.gate_and_up = joined_linear([mlp.gate_proj, mlp.up_proj], _GATES[type(mlp.act_fn)])
        self.down = output_linear(mlp.down_proj)
        self.input_norm = KernelNorm(layer.input_layernorm, kind.offset, attention.layer_idx)
        self.output_norm: KernelNorm | None = None
        """Of the attention's outputs, before they are added; None if there is no such norm."""
        self.down_norm: KernelNorm | None = None
        """Of the feed-forward part's outputs."""
        if hasattr(layer, "pre_feedforward_layernorm"):
            self.output_norm = KernelNorm(layer.post_attention_layernorm, kind.offset)
            self.down_norm = KernelNorm(layer.post_feedforward_layernorm, kind.offset)
            self.middle_norm = KernelNorm(layer.pre_feedforward_layernorm, kind.offset)
        else:
            self.middle_norm = KernelNorm(layer.post_attention_layernorm, kind.offset)

    def forward(
        self, hidden_states: Tensor, *args: object, position_embeddings: tuple[Tensor, Tensor], **kwargs: object
    ) -> Tensor:
        """Returns the residual stream, float32 [1, rows, width]: hidden_states itself, overwritten, if it is float32.

        position_embeddings: cosines, sines [1, rows, dim].
        """
        if self._config._attn_implementation != ATTENTION_NAME:
            given: Tensor = self.library_layer(hidden_states, *args, position_embeddings=position_embeddings, **kwargs)
            return given
        if hidden_states.dtype != torch.float32:
            hidden_states = hidden_states.float()
        hidden = hidden_states[0]
        attended = self._attend(self.input_norm(hidden), position_embeddings)
        if self.output_norm is None or self.down_norm is None:
            self.output.rows(attended, add_to=hidden)
            gated = self.gate_and_up.rows(self.middle_norm(hidden))
            self.down.rows(gated, add_to=hidden)
            return hidden_states
        first, last, middle = self.output_norm, self.down_norm, self.middle_norm.weight
        normed = add_norm(self.output.rows(attended), first.weight, hidden, first.eps, first.offset, middle)
        gated = self.gate_and_up.rows(cast(Tensor, normed))
        add_norm(self.down.rows(gated), last.weight, hidden, last.eps, last.offset)
        return hidden_states

    def _attend(self, normed: Tensor, position_embeddings: tuple[Tensor, Tensor]) -> Tensor:
        """The attention of rows [rows, width] before the output product: [rows, heads * dim]."""
        under_way = current_pass()
        batch = cast(SlotRows, under_way.batch)
        projected, kind = self.project.rows(normed), self.attention_kind
        like = projected.view(len(projected), -1, kind.dim).transpose(0, 1)[-kind.kv_heads :]
        keys, values = (each.transpose(0, 1) for each in under_way.cache.layer(self._index, like, like))
        cosines, sines = (each[0].contiguous() for each in position_embeddings)
        query = rotate_and_write(projected, cosines, sines, self._head_norms, keys, values, batch.slots)
        out = torch.empty_like(query)
        for work in batch.work:
            attend_slots(work, query, keys, values, out, kind.scaling, kind.window, kind.softcap, tiles=self.tiles)
        return out.view(len(out), -1)
