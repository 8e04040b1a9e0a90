"""Decoder layers as four matrix products, with compiled code between them.

Products that share an input are joined. If the products are compiled as well, a layer is a single call. The layers of
transformers run some sixty small operations, each of which costs microseconds whatever its size: at one row, more than
half of a small draft model's time.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.activations import ACT2FN

from speculative_engine.kernels import attention as compiled_attention
from speculative_engine.kernels.compiled_product import CompiledProduct
from speculative_engine.kernels.layer_ops import gate, rms_norm, rope
from speculative_engine.kernels.library import BF16, LANES, library
from speculative_engine.model.decoder_layer import Angles, CompiledLayer, LayerParts, Norm, ResidualStream, can_compile
from speculative_engine.model.file_pages import let_go_of
from speculative_engine.model.layer_kinds import KINDS, LayerKind
from speculative_engine.model.linear.linear_structs import are_compiled
from speculative_engine.model.linear.linear_weight import MakeLinear, joined, parts_of
from speculative_engine.model.packed_attention import ATTENTION_NAME, ForwardPass, current_pass, in_packed_pass
from speculative_engine.model.ranks.sharded_layers import SummedLinear
from speculative_engine.model.rotary_angles import RotaryAngles, has_fixed_frequencies

_GATES: dict[type[nn.Module], str] = {type(ACT2FN["silu"]): "silu", type(ACT2FN["gelu_pytorch_tanh"]): "gelu_tanh"}
"""The activations of gates that compiled code has, by transformers' classes."""
_PROJECTIONS = (("q_proj", "k_proj", "v_proj"), ("qkv_proj",))
_GATES_AND_UPS = (("gate_proj", "up_proj"), ("gate_up_proj",))
"""Names of linear layers with the same inputs, apart or joined by transformers."""


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
        make_layer = FusedFeatureLayer if hasattr(layer, "hidden_norm") else FusedLayer
        layers[index] = make_layer(layer, make_linear)
    decoder.norm = FusedNorm(decoder.norm, _kind_of(layers[0].library_layer).adds_one)
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
        and all(isinstance(layer, FusedLayer) and layer.is_compiled for layer in decoder.layers)
        and all(_kind_of(layer.library_layer).plain for layer in decoder.layers)
        and isinstance(decoder.norm, FusedNorm)
        and isinstance(decoder.rotary_emb, RotaryAngles)
        and isinstance(getattr(head, "product", None), CompiledProduct)
    )


def _kind_of(layer: nn.Module) -> LayerKind:
    return KINDS[type(layer).__name__]


def _can_fuse(layer: nn.Module) -> bool:
    if type(layer).__name__ not in KINDS:
        return False
    kind, attention, mlp = _kind_of(layer), layer.self_attn, layer.mlp
    names = kind.input_norm, kind.output_norm, kind.attended_norm, kind.forwarded_norm
    norms = [getattr(layer, name) for name in names if name is not None]
    rotary = _rotary_of(kind, attention)
    return (
        attention.head_dim % (2 * LANES) == 0
        and attention.head_dim <= compiled_attention.MOST_DIM
        and rotary % (2 * LANES) == 0
        and all(norm.weight.numel() % LANES == 0 for norm in norms)
        and len({_eps_of(norm) for norm in norms}) == 1
        and _outputs_of(mlp, _GATES_AND_UPS) % (2 * LANES) == 0
        and _gate_of(mlp) is not None
        and (not isinstance(attention.o_proj, SummedLinear) or _splits(attention))
    )


def _outputs_of(parent: nn.Module, choices: Sequence[tuple[str, ...]]) -> int:
    """Outputs of the linear layers with the same inputs, apart or joined."""
    return sum(getattr(parent, name).out_features for name in _names_of(parent, choices))


def _splits(attention: nn.Module) -> bool:
    """Whether a rank's part of an attention is an attention of fewer heads."""
    return hasattr(attention, "q_proj") and (
        not hasattr(attention, "q_norm") or attention.q_norm.weight.numel() == attention.head_dim
    )


def _gate_of(mlp: nn.Module) -> str | None:
    """What the gate of a feed-forward block is activated by; None if compiled code does not have it."""
    found = getattr(mlp, "act_fn", None) or getattr(mlp, "activation_fn", None)
    return _GATES.get(type(found))


def _rotary_of(kind: LayerKind, attention: nn.Module) -> int:
    """Leading elements of a head that are rotated."""
    if not kind.rotates(attention):
        return 0
    rope = getattr(attention.config, "rope_parameters", None) or {}
    return int(attention.head_dim * rope.get("partial_rotary_factor", 1.0))


def _names_of(parent: nn.Module, choices: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    return next(names for names in choices if hasattr(parent, names[0]))


def _eps_of(norm: nn.Module) -> float:
    return float(norm.variance_epsilon if hasattr(norm, "variance_epsilon") else norm.eps)


def _weight_of(norm: nn.Module, adds_one: bool) -> torch.Tensor:
    """The factors that a norm multiplies by, float32."""
    weight = norm.weight.data.float()
    return 1.0 + weight if adds_one else weight.contiguous()


class FusedNorm(nn.Module):
    """A root mean square norm."""

    def __init__(self, norm: nn.Module, adds_one: bool = False):
        """adds_one: whether 1 is added to the weights"""
        super().__init__()
        self.library_norm = norm
        self.eps = _eps_of(norm)
        self.factors: torch.Tensor
        """float32 [width]"""
        self.register_buffer("factors", _weight_of(norm, adds_one), persistent=False)
        self.wide = False
        """Whether the results of a residual stream are float32, unrounded as the stream is."""

    def forward(self, inputs: torch.Tensor, wanted: torch.Tensor | None = None) -> torch.Tensor:
        """inputs [..., width] -> the same shape. wanted: rows, int64 [n], of inputs [1, rows, width]; all by default"""
        stream = current_pass().shared if self.wide and in_packed_pass() else None
        whole, dtype = inputs, inputs.dtype
        if isinstance(stream, ResidualStream) and stream.hidden is inputs:
            whole, dtype = stream.values.unsqueeze(0), torch.float32
        if wanted is not None:
            whole = whole[:, wanted]
        flat = whole.reshape(-1, whole.shape[-1])
        return rms_norm(flat.float(), self.factors, self.eps, dtype).view_as(whole)


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
        attention, mlp, kind = layer.self_attn, layer.mlp, _kind_of(layer)
        self.library_layer = layer
        self._config = attention.config
        self._index = attention.layer_idx
        dtype = next(layer.parameters()).dtype

        def norm(name: str | None) -> Norm | None:
            if name is None:
                return None
            found = getattr(layer, name)
            return _weight_of(found, kind.adds_one), _eps_of(found)

        head_norms = None
        if hasattr(attention, "q_norm"):
            query, key = attention.q_norm, attention.k_norm
            head_norms = _weight_of(query, kind.adds_one), _weight_of(key, kind.adds_one), _eps_of(query)
        activation = _gate_of(mlp)
        assert activation is not None, "see _can_fuse"
        dim = attention.head_dim
        kv_heads = attention.config.num_key_value_heads
        if hasattr(attention, "k_proj"):
            kv_heads = attention.k_proj.out_features // dim  # of this rank
        self.project = _joined(attention, _names_of(attention, _PROJECTIONS), make_linear)
        self.output = _last(attention, "o_proj", make_linear)
        self.gate_and_up = _joined(mlp, _names_of(mlp, _GATES_AND_UPS), make_linear)
        self.down = _last(mlp, "down_proj", make_linear)
        self._parts = LayerParts(
            project=self.project,
            output=self.output,
            gate_and_up=self.gate_and_up,
            down=self.down,
            input_norm=norm(kind.input_norm),
            output_norm=norm(kind.output_norm),
            attended_norm=norm(kind.attended_norm),
            forwarded_norm=norm(kind.forwarded_norm),
            head_norms=head_norms,
            dtype=dtype,
            kv_heads=kv_heads,
            dim=dim,
            rotary=_rotary_of(kind, attention),
            scaling=attention.scaling,
            window=kind.window(attention),
            softcap=getattr(attention, "attn_logit_softcapping", None),
            multiplier=float(getattr(layer, "residual_multiplier", 1.0)),
            gate=activation,
        )
        self.compiled = CompiledLayer(self._parts) if can_compile(self._parts) else None
        for linear in self._parts.linears:
            if are_compiled([linear]):
                for part in parts_of(linear):
                    part.product.wide = True

    @property
    def is_compiled(self) -> bool:
        """Whether compiled code computes the layer, by `run_compiled`."""
        return self.compiled is not None

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
        if self.is_compiled:
            self.run_compiled(hidden_states, position_embeddings, under_way)
            return hidden_states
        shared = under_way.shared
        if not isinstance(shared, ResidualStream) or shared.hidden is not hidden_states:
            shared = under_way.shared = ResidualStream(hidden_states, hidden_states[0].float(), [])
        self._in_parts(shared.values, position_embeddings)
        return hidden_states if hidden_states.dtype == torch.float32 else hidden_states.copy_(shared.values)

    def run_compiled(self, hidden: torch.Tensor, angles: Angles, under_way: ForwardPass) -> None:
        """Overwrites hidden [1, rows, width] with the output of a compiled layer. angles: as for `forward`."""
        assert self.compiled is not None, "such layers run in parts"
        self.compiled.forward(hidden, angles, under_way, self._index)

    def _in_parts(
        self,
        residual: torch.Tensor,
        position_embeddings: tuple[torch.Tensor, torch.Tensor],
        inputs: torch.Tensor | None = None,
    ) -> None:
        """Runs the layer as separate operations. Overwrites residual, float32 [rows, width].

        inputs: the attention's inputs, float32 [rows, inputs]; by default the normalised residual.
        """
        under_way, parts = current_pass(), self._parts
        batch, cache = under_way.packed_batch, under_way.cache
        cosines, sines = (each[0].float().contiguous() for each in position_embeddings)
        like = residual.new_empty(parts.kv_heads, 0, parts.dim, dtype=parts.dtype)
        keys, values = cache.layer(self._index, like, like)
        if inputs is None:
            inputs = _normed(residual, parts.input_norm)
        projected = _product(self.project, inputs, like.dtype)
        query = rope(
            projected, cosines, sines, parts.head_norms, batch.slots, keys, values, parts.scaling, parts.rotary
        )
        seen = compiled_attention.attend(batch.slot_lanes, query, keys, values, parts.window, parts.softcap, None)
        attended = _product(self.output, seen.view(len(residual), -1), like.dtype)
        residual += _normed(attended, parts.attended_norm) * parts.multiplier
        gate_and_up = _product(self.gate_and_up, _normed(residual, parts.output_norm), like.dtype)
        forwarded = _product(self.down, gate(gate_and_up, parts.gate), like.dtype)
        residual += _normed(forwarded, parts.forwarded_norm) * parts.multiplier


class FusedFeatureLayer(FusedLayer):
    """A fused layer that reads features (`drafters/eagle/eagle_model.py`), always as separate operations."""

    def __init__(self, layer: nn.Module, make_linear: MakeLinear):
        super().__init__(layer, make_linear)
        self.hidden_norm = FusedNorm(layer.hidden_norm)
        self._norm_before_residual = bool(layer.norm_before_residual)
        self.compiled = None
        self._is_compiled = can_compile(self._parts)

    @property
    def is_compiled(self) -> bool:
        """Whether compiled code computes the layer, if in several calls."""
        return self._is_compiled

    def forward(
        self,
        hidden_states: torch.Tensor,
        *args: object,
        position_embeddings: tuple[torch.Tensor, torch.Tensor],
        **kwargs: object,
    ) -> torch.Tensor:
        """Overwrites and returns hidden_states, embeddings [1, rows, width]. position_embeddings: as for FusedLayer."""
        self.run_compiled(hidden_states, position_embeddings, current_pass())
        return hidden_states

    def run_compiled(self, hidden: torch.Tensor, angles: Angles, under_way: ForwardPass) -> None:
        """Overwrites hidden, embeddings [1, rows, width], with the layer's output. angles: as for `forward`."""
        features = under_way.packed_batch.features
        assert features is not None, "the drafter sets them"
        residual = features.float()
        normed = self.hidden_norm(residual)
        if self._norm_before_residual:
            residual = normed.clone()
        embedded = _normed(hidden[0].float(), self._parts.input_norm)
        self._in_parts(residual, angles, torch.cat([embedded, normed], dim=1))
        hidden[0].copy_(residual)


def _normed(rows: torch.Tensor, norm: Norm | None) -> torch.Tensor:
    """rows: float32 [rows, width] -> the same, normed if there is a norm"""
    return rows if norm is None else rms_norm(rows, *norm)


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
