"""Decoder layers whose blocks run as a few matrix products, with compiled code between them.

Products that share an input are joined. If the products are compiled as well, the blocks of a layer are a single call.
The layers of transformers run some sixty small operations, each of which costs microseconds whatever its size: at one
row, more than half of a small draft model's time. A block that compiled code does not have, such as experts or a
recurrent mixer, stays transformers' code between the others.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers import PreTrainedConfig

from draftwire_core.engine.kernels import attention as compiled_attention
from draftwire_core.engine.kernels.layer_ops import gate, gate_heads, rms_norm, rope
from draftwire_core.engine.model.attention.packed_attention import (
    ATTENTION_NAME,
    ForwardPass,
    current_pass,
    in_packed_pass,
)
from draftwire_core.engine.model.layers.decoder_layer import CompiledLayer, ResidualStream, can_compile
from draftwire_core.engine.model.layers.delta_block import DeltaBlock
from draftwire_core.engine.model.layers.layer_parts import Angles, AttentionParts, Norm
from draftwire_core.engine.model.layers.layer_reading import (
    Blocks,
    eps_of_norm,
    kind_of,
    read_norm,
    read_parts,
    weight_of_norm,
)
from draftwire_core.engine.model.linear.linear_structs import are_compiled
from draftwire_core.engine.model.linear.linear_weight import MakeLinear, parts_of


class FusedNorm(nn.Module):
    """A root mean square norm."""

    def __init__(self, norm: nn.Module, adds_one: bool = False):
        """adds_one: whether 1 is added to the weights"""
        super().__init__()
        self.library_norm = norm
        self.eps = eps_of_norm(norm)
        self.factors: torch.Tensor
        """float32 [width]"""
        self.register_buffer("factors", weight_of_norm(norm, adds_one), persistent=False)
        self.wide = False
        """Whether the results of a residual stream are float32, unrounded as the stream is."""

    def forward(self, inputs: torch.Tensor, wanted: torch.Tensor | None = None) -> torch.Tensor:
        """inputs [..., width] -> the same shape. wanted: rows, int64 [n], of inputs [1, rows, width]; all by default"""
        stream = current_pass().shared if self.wide and in_packed_pass() else None
        whole, dtype = inputs, inputs.dtype
        if isinstance(stream, ResidualStream) and stream.hidden is inputs:
            whole, dtype = stream.values.unsqueeze(0), torch.float32
        if wanted is not None:
            whole = whole.index_select(1, wanted)
        rows = whole.reshape(-1, whole.shape[-1]).float().contiguous()
        return rms_norm(rows, self.factors, self.eps, dtype).view(whole.shape)


class FusedLayer(nn.Module):
    """A decoder layer with fused blocks; with another attention function than ours it runs transformers' own layer."""

    def __init__(self, layer: nn.Module, config: PreTrainedConfig, blocks: Blocks, make_linear: MakeLinear):
        """layer: owned by this one from now on; its linear layers are replaced. config: the decoder's. blocks: those
        that are fused"""
        super().__init__()
        kind = self._kind = kind_of(layer)
        self.library_layer = layer
        self._config = config
        self._beside = kind.beside(layer)
        self._mixer_name = next(name for name in kind.mixers if getattr(layer, name, None) is not None)
        norms = kind.input_norm, kind.attended_norm, kind.output_norm, kind.forwarded_norm
        self._norms = [read_norm(layer, name, kind) for name in norms]
        parts = self._parts = read_parts(layer, blocks, make_linear)
        if parts.attention is not None:
            self.project, self.output = parts.attention.project, parts.attention.output
        if parts.net is not None:
            self.project, self.output = parts.net.project, parts.net.output
        if parts.forward is not None:
            self.gate_and_up, self.down = parts.forward.gate_and_up, parts.forward.down
        if parts.tokens is not None:
            self.token_gate, self.token_output = parts.tokens.gate, parts.tokens.output
        self._net = None if parts.net is None else DeltaBlock(parts.net)
        self.compiled = CompiledLayer(parts, self._net) if can_compile(parts) else None
        for linear in parts.linears:
            if are_compiled([linear]):
                for part in parts_of(linear):
                    part.product.wide = True

    @property
    def is_whole(self) -> bool:
        """Whether all blocks are fused."""
        parts = self._parts
        return (parts.attention is not None or parts.net is not None) and parts.forward is not None

    @property
    def is_compiled(self) -> bool:
        """Whether compiled code computes the whole layer, by `run_compiled`."""
        return self.compiled is not None and self.is_whole

    @property
    def rates(self) -> torch.Tensor | None:
        """Rates of decays that torch has computed from weights; None without a delta net."""
        return None if self._parts.net is None else self._parts.net.rates

    def forward(
        self, hidden_states: torch.Tensor, *args: Any, position_embeddings: Angles | None = None, **kwargs: Any
    ) -> torch.Tensor:
        """Overwrites and returns hidden_states [1, rows, width].

        position_embeddings: cosines, sines [1, rows, dim]; None without rotary embeddings.
        """
        if self._config._attn_implementation != ATTENTION_NAME:
            angles = self._library_angles(position_embeddings, hidden_states.dtype)
            given: torch.Tensor = self.library_layer(hidden_states, *args, position_embeddings=angles, **kwargs)
            return given
        under_way = current_pass()
        tokens = None
        if self._parts.tokens is not None:
            tokens = args[0] if args else kwargs["per_layer_input"]
        if self.compiled is not None:
            self.run_compiled(hidden_states, position_embeddings, under_way, tokens, **kwargs)
            return hidden_states
        shared = under_way.shared
        if not isinstance(shared, ResidualStream) or shared.hidden is not hidden_states:
            shared = under_way.shared = ResidualStream(hidden_states, hidden_states[0].float(), [])
        self._in_parts(shared.values, position_embeddings, tokens=tokens, **kwargs)
        return hidden_states if hidden_states.dtype == torch.float32 else hidden_states.copy_(shared.values)

    def run_compiled(
        self,
        hidden: torch.Tensor,
        angles: Angles | None,
        under_way: ForwardPass,
        tokens: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> None:
        """Overwrites hidden [1, rows, width] with the output of a layer whose fused blocks are compiled.

        angles, kwargs: as for `forward`. tokens: inputs that depend on the tokens' ids.
        """
        assert self.compiled is not None, "such layers run in parts"
        if self.is_whole:
            self.compiled.forward(hidden, angles, under_way, tokens)
            return
        residual = self.compiled.residual(hidden, under_way)
        if self._parts.attention is None and self._net is None:
            self._mix(residual, angles, **kwargs)
        self.compiled.forward(hidden, angles, under_way, tokens)
        if self._parts.forward is None:
            self._feed_forward(residual)
            hidden[0].copy_(residual)

    def _in_parts(
        self,
        residual: torch.Tensor,
        angles: Angles | None,
        inputs: torch.Tensor | None = None,
        tokens: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> None:
        """Runs the layer as separate operations. Overwrites residual, float32 [rows, width].

        inputs: the attention's inputs, float32 [rows, inputs]; by default the normalised residual. angles, tokens,
        kwargs: as for `run_compiled`.
        """
        parts = self._parts
        if self._net is not None:
            self._run_net(residual, self._net)
        elif parts.attention is None:
            self._mix(residual, angles, **kwargs)
        else:
            self._attend(residual, parts.attention, angles, inputs)
        if parts.forward is None:
            self._feed_forward(residual)
            return
        gate_and_up = _product(self.gate_and_up, normed(residual, parts.forward.input_norm), parts.dtype)
        forwarded = _product(self.down, gate(gate_and_up, parts.gate), parts.dtype)
        residual += normed(forwarded, parts.forward.output_norm) * parts.multiplier
        if parts.tokens is not None:
            assert tokens is not None
            gates = _product(self.token_gate, residual, parts.dtype)
            gated = gate(torch.cat([gates, tokens[0].float()], dim=1), parts.gate)
            given = _product(self.token_output, gated, parts.dtype)
            residual += normed(given, parts.tokens.output_norm) * parts.multiplier
        residual *= parts.factor

    def _attend(
        self, residual: torch.Tensor, parts: AttentionParts, angles: Angles | None, inputs: torch.Tensor | None
    ) -> None:
        under_way, dtype = current_pass(), self._parts.dtype
        batch = under_way.packed_batch
        # Without rotary embeddings, no element of them is read.
        cosines, sines = (each[0].float().contiguous() for each in angles or (residual[None],) * 2)
        like = residual.new_empty(parts.kv_heads, 0, parts.dim, dtype=dtype)
        keys, values = under_way.cache.layer(parts.kv_layer, like, like)
        if inputs is None:
            inputs = normed(residual, parts.input_norm)
        projected = _product(self.project, inputs, dtype)
        query = rope(
            projected,
            cosines,
            sines,
            parts.head_norms,
            batch.slots,
            keys,
            values,
            parts.scaling,
            parts.rotary,
            value_norm=parts.value_norm,
            gated=parts.gated,
            kv_parts=parts.kv_parts,
        )
        seen = compiled_attention.attend(
            batch.slot_lanes, query, keys, values, parts.window, parts.softcap, parts.sinks
        )
        if parts.gated:
            gate_heads(projected, seen)
        attended = _product(self.output, seen.view(len(residual), -1), dtype)
        residual += normed(attended, parts.output_norm) * self._parts.multiplier

    def _run_net(self, residual: torch.Tensor, net: DeltaBlock) -> None:
        before, after = self._norms[:2]
        dtype = self._parts.dtype
        projected = _product(self.project, normed(residual, before), dtype)
        mixed = _product(self.output, net.results(projected, current_pass(), dtype), dtype)
        residual += normed(mixed, after) * self._parts.multiplier

    def _mix(self, residual: torch.Tensor, angles: Angles | None, **kwargs: Any) -> None:
        """Runs transformers' attention, or another mixer of tokens, and adds its output to the residual stream."""
        before, after = self._norms[:2]
        rows = normed(residual, before).to(self._parts.dtype).unsqueeze(0)
        angles = self._library_angles(angles, rows.dtype)
        mixed = getattr(self.library_layer, self._mixer_name)(hidden_states=rows, position_embeddings=angles, **kwargs)
        self._add(residual, mixed, after)

    def _feed_forward(self, residual: torch.Tensor) -> None:
        """Runs transformers' feed-forward block, and adds its output to the residual stream."""
        before, after = self._norms[2:]
        if self._beside is not None:
            forwarded: Any = self._beside(residual.to(self._parts.dtype).unsqueeze(0))
        else:
            rows = normed(residual, before).to(self._parts.dtype).unsqueeze(0)
            forwarded = getattr(self.library_layer, self._kind.feed_forward)(rows)
        self._add(residual, forwarded, after)
        residual *= self._parts.factor

    def _add(self, residual: torch.Tensor, output: Any, norm: Norm | None) -> None:
        # Some blocks return what their routers say next to the rows.
        rows = (output[0] if isinstance(output, tuple) else output)[0].float().contiguous()
        residual += normed(rows, norm) * self._parts.multiplier

    def _library_angles(self, angles: Angles | None, dtype: torch.dtype) -> Angles | None:
        """The angles as transformers' layers take them."""
        if angles is None:  # of a model without rotary embeddings
            return None
        cosines, sines = (each.to(dtype) for each in angles)
        if self._kind.halved_angles:
            middle = cosines.shape[-1] // 2
            return cosines[..., :middle], sines[..., :middle]
        return cosines, sines


def normed(rows: torch.Tensor, norm: Norm | None) -> torch.Tensor:
    """rows: float32 [rows, width] -> the same, normed if there is a norm"""
    return rows if norm is None else rms_norm(rows, *norm)


def _product(linear: nn.Module, rows: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """rows: float32 [rows, inputs] -> float32 [rows, outputs]. dtype: what linear layers take that are not compiled"""
    return linear(rows) if are_compiled([linear]) else linear(rows.to(dtype)).float()
