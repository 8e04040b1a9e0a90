"""A decoder layer in one compiled call (`csrc/decoder_layer.c`).

Everything between its products is float32, which transformers rounds to bfloat16. Rounding the residual stream would be
an error that grows with the number of layers; rounding the rest adds a third to the error of products by 8-bit rows.

It gives the same bits as one call per operation, and saves the time between calls, in which other threads idle. A call
from Python takes microseconds, and many more right after a step has read a model's weights through all caches.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import nn

from speculative_engine.kernels.attention import ScratchSize
from speculative_engine.kernels.kv_rows import KV_TYPES
from speculative_engine.kernels.library import gemm_kind, loaded
from speculative_engine.kernels.structs import GATES, Layer, Pass
from speculative_engine.model.linear.linear_structs import LinearStructs, are_compiled, pointer
from speculative_engine.model.packed_attention import ForwardPass

Angles = tuple[torch.Tensor, torch.Tensor]
"""Cosines and sines [1, rows, dim]."""


class _Call(NamedTuple):
    """The part of a call that is the same for all layers of a forward pass with the same angles."""

    angles: Angles
    held: tuple[object, ...]
    """Objects whose memory `about` points to, kept alive."""
    about: Pass
    address: int


class ResidualStream(NamedTuple):
    """The residual stream of a forward pass whose layers all overwrite one tensor."""

    hidden: torch.Tensor
    """That tensor [1, rows, width]: `values`, rounded to its dtype."""
    values: torch.Tensor
    """float32 [rows, width]"""
    calls: list[_Call]
    """Those of compiled layers."""

    def call(self, angles: Angles) -> _Call | None:
        """The call with these angles, if a layer has had them before."""
        return next((call for call in self.calls if call.angles is angles), None)


Norm = tuple[torch.Tensor, float]
"""The weight of a root mean square norm, float32, and its epsilon."""


@dataclass(frozen=True, slots=True)
class LayerParts:
    """The parts of a decoder layer."""

    project: nn.Module
    """The first of four linear layers, each with `in_features` and `out_features`. Parts that can be compiled have a
    `bias` and a compiled `product`."""
    output: nn.Module
    gate_and_up: nn.Module
    down: nn.Module
    input_norm: Norm | None
    """Of the inputs of attention."""
    output_norm: Norm | None
    """Of the inputs of the feed-forward block."""
    attended_norm: Norm | None
    """Of the outputs of attention. All norms after the first have the same epsilon."""
    forwarded_norm: Norm | None
    """Of the outputs of the feed-forward block."""
    head_norms: tuple[torch.Tensor, torch.Tensor, float] | None
    """Weights of the norms of queries and keys, of each head or of all at once, float32, and the epsilon of both; None
    without these norms."""
    dtype: torch.dtype
    """The model's."""
    kv_heads: int
    dim: int
    rotary: int
    """Leading elements of a head that are rotated; 0 for none."""
    scaling: float
    window: int | None
    softcap: float | None
    multiplier: float
    """Of the outputs of attention and of the feed-forward block."""
    gate: str
    """What the gate is activated by, one of GATES."""

    @property
    def linears(self) -> tuple[nn.Module, ...]:
        """The four linear layers."""
        return self.project, self.output, self.gate_and_up, self.down


class CompiledLayer:
    """A decoder layer that runs as one compiled call; keeps its parts alive."""

    def __init__(self, parts: LayerParts):
        """parts: supported by `can_compile`"""
        self._parts = parts
        query_norm, key_norm, head_eps = parts.head_norms or (None, None, 0.0)
        norms = parts.input_norm, parts.output_norm, parts.attended_norm, parts.forwarded_norm
        output_eps = next((norm[1] for norm in norms[1:] if norm is not None), 0.0)
        heads = parts.output.in_features // parts.dim
        self._heads = heads
        self._linears = LinearStructs(parts.linears)
        self.call = Layer(
            *self._linears.array,
            *(None if norm is None else norm[0].data_ptr() for norm in norms), pointer(query_norm), pointer(key_norm),
            heads, parts.kv_heads, parts.dim, parts.rotary, parts.window or 0,
            0.0 if parts.input_norm is None else parts.input_norm[1], output_eps, head_eps, parts.scaling,
            parts.softcap or 0.0, parts.multiplier,
            GATES.index(parts.gate), query_norm is not None and len(query_norm) != parts.dim, gemm_kind(),
        )  # fmt: skip
        self._address = ctypes.addressof(self.call)
        self._most_inputs = max(linear.in_features for linear in parts.linears)
        self._most_outputs = max(linear.out_features for linear in parts.linears)
        self._like = torch.empty(parts.kv_heads, 0, parts.dim, dtype=parts.dtype)

    def forward(self, hidden: torch.Tensor, angles: Angles, under_way: ForwardPass, index: int) -> None:
        """Overwrites `hidden`, bfloat16 [1, rows, width], with the layer's output; writes keys and values.

        index: the layer's index in the model.
        """
        keys, values = under_way.cache.layer(index, self._like, self._like)
        shared = under_way.shared
        if not isinstance(shared, ResidualStream) or shared.hidden is not hidden:
            single = hidden.new_empty(0, dtype=torch.float32)
            residual = under_way.cache.scratch("residual", hidden.shape[1:], single).copy_(hidden[0])
            shared = under_way.shared = ResidualStream(hidden, residual, [])
        call = shared.call(angles)
        if call is None:
            call = self._call(shared, angles, under_way, KV_TYPES[keys.dtype])
            shared.calls.append(call)
        loaded().draftwire_decoder_layer(self._address, call.address, keys.data_ptr(), values.data_ptr())

    def _call(self, shared: ResidualStream, angles: Angles, under_way: ForwardPass, kv_type: int) -> _Call:
        batch, cache, hidden = under_way.packed_batch, under_way.cache, shared.hidden
        rows, heads, dim = hidden.shape[1], self._heads, self._parts.dim
        cosines, sines = (each[0].float().contiguous() for each in angles)
        lanes, threads = batch.slot_lanes, torch.get_num_threads()
        size = ScratchSize.of(lanes, heads // self._parts.kv_heads)
        single = hidden.new_empty(0, dtype=torch.float32)
        normed = cache.scratch("normed", hidden.shape[1:], single)
        product = cache.scratch("product", (rows, self._most_outputs), single)
        gated = cache.scratch("gated", (rows, self._parts.down.in_features), single)
        query = cache.scratch("query", (heads, rows, dim), single)
        attended = cache.scratch("attended", (rows, heads, dim), single)
        scores = cache.scratch("row scores", (threads, size.scores), single)
        working = cache.scratch("working", (rows, self._most_inputs), single)
        about = Pass(
            hidden.data_ptr(), shared.values.data_ptr(), cosines.data_ptr(), sines.data_ptr(),
            batch.slots.data_ptr(), lanes.seen.ctypes.data, lanes.lanes.ctypes.data, lanes.rows.ctypes.data,
            lanes.counts.ctypes.data,
            *(each.data_ptr() for each in (normed, product, gated, query, attended, scores, working)),
            rows, cache.capacity + 1, size.longest, len(lanes.lanes), size.scores,
            threads, kv_type,
        )  # fmt: skip
        return _Call(angles, (cosines, sines, batch), about, ctypes.addressof(about))


def can_compile(parts: LayerParts) -> bool:
    """Whether a layer can run as one compiled call: its gemms are compiled and no ranks exchange data between them."""
    return are_compiled(parts.linears)
