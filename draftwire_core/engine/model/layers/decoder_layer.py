"""The blocks of a decoder layer in one compiled call (`csrc/layers/decoder_layer.c`).

Everything between their products is float32, which transformers rounds to bfloat16. Rounding the residual stream would
be an error that grows with the number of layers; rounding the rest adds a third to the error of products by 8-bit rows.

It gives the same bits as one call per operation, and saves the time between calls, in which other threads idle. A call
from Python takes microseconds, and many more right after a step has read a model's weights through all caches.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch

from draftwire_core.engine.kernels.attention import ScratchSize
from draftwire_core.engine.kernels.kv_rows import KV_TYPES
from draftwire_core.engine.kernels.library import gemm_kind, loaded
from draftwire_core.engine.kernels.structs import GATES, Layer, LayerCall, Linear, Pass
from draftwire_core.engine.kv.kv_slots import KvCache
from draftwire_core.engine.model.attention.packed_attention import ForwardPass
from draftwire_core.engine.model.layers.delta_block import DeltaBlock
from draftwire_core.engine.model.layers.layer_parts import Angles, LayerParts, Norm
from draftwire_core.engine.model.linear.linear_structs import LinearStructs, are_compiled, pointer


class Room(NamedTuple):
    """Working memory that layers need, in elements a row."""

    inputs: int
    """Of a linear layer."""
    product: int
    """Outputs of a linear layer."""
    gated: int
    heads: int
    """Of all heads of attention."""
    shared: int
    """Query heads per key-value head."""

    @classmethod
    def of(cls, parts: LayerParts) -> Room:
        """The room for a layer."""
        linears, attention = parts.linears, parts.attention
        return cls(
            max((linear.in_features for linear in linears), default=0),
            max((linear.out_features for linear in linears), default=0),
            max(
                0 if parts.forward is None else parts.forward.down.in_features,
                0 if parts.tokens is None else 2 * parts.tokens.output.in_features,
            ),
            0 if attention is None else attention.output.in_features,
            0 if attention is None else attention.heads // attention.kv_heads,
        )

    @classmethod
    def of_all(cls, rooms: Iterable[Room]) -> Room:
        """The room for any of several layers."""
        return cls(*map(max, zip(*rooms, strict=True)))


class _Call(NamedTuple):
    """The part of a call that is the same for all layers of a forward pass with the same angles."""

    angles: Angles | None
    held: tuple[object, ...]
    """Objects whose memory `about` points to, kept alive."""
    about: Pass
    address: int


class ResidualStream(NamedTuple):
    """The residual stream of a forward pass whose layers all overwrite one tensor."""

    hidden: torch.Tensor
    """The tensor [1, rows, width]: `values`, rounded to its dtype."""
    values: torch.Tensor
    """float32 [rows, width]"""
    calls: list[_Call]
    """Calls of compiled layers."""

    def call(self, angles: Angles | None) -> _Call | None:
        """The call with these angles, if a layer has had them before."""
        return next((call for call in self.calls if call.angles is angles), None)


class CompiledLayer:
    """Blocks of a decoder layer that run as one compiled call; keeps their parts alive."""

    def __init__(self, parts: LayerParts, net: DeltaBlock | None = None):
        """parts: supported by `can_compile`. net: that of its parts"""
        self.room = Room.of(parts)
        """The room that the working memory has at least: of all layers of the model, which share it."""
        attention, forward, tokens = parts.attention, parts.forward, parts.tokens
        blocks = (
            (None, None) if attention is None else (attention.project, attention.output),
            (None, None) if forward is None else (forward.gate_and_up, forward.down),
            (None, None) if tokens is None else (tokens.gate, tokens.output),
        )
        present = [linear for block in blocks for linear in block if linear is not None]
        self._linears = LinearStructs(present)
        structs = iter(self._linears.array)
        linears = [Linear() if linear is None else next(structs) for block in blocks for linear in block]
        norms = (
            None if attention is None else attention.input_norm,
            None if forward is None else forward.input_norm,
            None if attention is None else attention.output_norm,
            None if forward is None else forward.output_norm,
            None if tokens is None else tokens.output_norm,
            None if parts.features is None else parts.features.norm,
        )
        query_norm, key_norm, head_eps = (attention and attention.head_norms) or (None, None, 0.0)
        sinks = None if attention is None else attention.sinks
        self._parts, self._net = parts, net
        self.call = Layer(
            *linears,
            *(None if norm is None else norm[0].data_ptr() for norm in norms),
            pointer(query_norm), pointer(key_norm), pointer(None if attention is None else attention.value_norm),
            pointer(sinks), parts.width,
            *((0,) * 5 if attention is None else (
                attention.heads, attention.kv_heads, attention.dim, attention.rotary, attention.window or 0
            )),
            _eps(norms[:1]), _eps(norms[1:]), head_eps,
            *((0.0, 0.0) if attention is None else (attention.scaling, attention.softcap or 0.0)),
            parts.multiplier, parts.factor, GATES.index(parts.gate),
            attention is not None and query_norm is not None and len(query_norm) != attention.dim,
            *((0, 0) if attention is None else (attention.gated, attention.kv_parts)),
            parts.features is not None and parts.features.normed_residual, gemm_kind(),
        )  # fmt: skip
        self.address = ctypes.addressof(self.call)
        self.is_plain = net is None and attention is not None and parts.tokens is None and parts.features is None
        """Plain layers have attention and read the residual stream alone; `LayersTogether` takes them."""
        self._like: torch.Tensor | None = None
        if attention is not None:
            self._like = torch.empty(attention.kv_heads, 0, attention.dim, dtype=parts.dtype)

    def residual(self, hidden: torch.Tensor, under_way: ForwardPass) -> torch.Tensor:
        """The residual stream, float32 [rows, width], of a pass whose layers overwrite `hidden` [1, rows, width]."""
        return self._shared(hidden, under_way).values

    def forward(
        self, hidden: torch.Tensor, angles: Angles | None, under_way: ForwardPass, beside: torch.Tensor | None = None
    ) -> None:
        """Moves the residual stream on by the layer's blocks, and writes keys and values. If the layer ends with one of
        the blocks, overwrites `hidden`, bfloat16 [1, rows, width], with its output.

        beside: what the layer reads next to the residual stream, [1, rows, inputs]: features, or inputs that depend on
        the tokens' ids; None if it reads neither.
        """
        keys, values = self.keys_and_values(under_way.cache)
        call = self._call_of(hidden, angles, under_way)
        call.about.kv_type = 0 if keys is None else KV_TYPES[keys.dtype]
        if beside is not None:
            assert beside.dtype == torch.bfloat16
            assert beside.stride(2) == 1
        if self._net is not None:
            self._net.forward(self.address, call.address, under_way, self._parts.dtype)
        loaded().draftwire_decoder_layer(
            self.address, call.address, pointer(keys), pointer(values), pointer(beside),
            0 if beside is None else beside.stride(1),
        )  # fmt: skip

    def keys_and_values(self, cache: KvCache) -> tuple[torch.Tensor, torch.Tensor] | tuple[None, None]:
        """Returns its tensors of a cache, none without attention."""
        attention = self._parts.attention
        if attention is None:
            return None, None
        assert self._like is not None
        return cache.layer(attention.kv_layer, self._like, self._like)

    def _call_of(self, hidden: torch.Tensor, angles: Angles | None, under_way: ForwardPass) -> _Call:
        shared = self._shared(hidden, under_way)
        call = shared.call(angles)
        if call is None:
            call = self._call(shared, angles, under_way)
            shared.calls.append(call)
        return call

    def _shared(self, hidden: torch.Tensor, under_way: ForwardPass) -> ResidualStream:
        shared = under_way.shared
        if not isinstance(shared, ResidualStream) or shared.hidden is not hidden:
            single = hidden.new_empty(0, dtype=torch.float32)
            residual = under_way.cache.scratch("residual", hidden.shape[1:], single).copy_(hidden[0])
            shared = under_way.shared = ResidualStream(hidden, residual, [])
        return shared

    def _call(self, shared: ResidualStream, angles: Angles | None, under_way: ForwardPass) -> _Call:
        batch, cache, hidden, room = under_way.packed_batch, under_way.cache, shared.hidden, self.room
        rows = hidden.shape[1]
        cosines, sines = (None, None) if angles is None else (each[0].float().contiguous() for each in angles)
        lanes, threads = batch.slot_lanes, torch.get_num_threads()
        size = ScratchSize.of(lanes, room.shared, threads)
        single = hidden.new_empty(0, dtype=torch.float32)
        sizes = {
            "normed": rows * room.inputs, "product": rows * room.product, "gated": rows * room.gated,
            "query": rows * room.heads, "attended": rows * room.heads, "row scores": threads * size.scores,
            "working": rows * room.inputs,
        }  # fmt: skip
        about = Pass(
            hidden.data_ptr(), shared.values.data_ptr(), pointer(cosines), pointer(sines),
            batch.slots.data_ptr(), lanes.seen.ctypes.data, lanes.lanes.ctypes.data, lanes.rows.ctypes.data,
            lanes.counts.ctypes.data,
            *(cache.scratch_address(name, count, single) for name, count in sizes.items()),
            rows, cache.capacity + 1, size.longest, len(lanes.lanes), size.scores,
            threads, 0,
        )  # fmt: skip
        return _Call(angles, (cosines, sines, batch), about, ctypes.addressof(about))


class LayersTogether:
    """Plain layers that run one after the other, as `CompiledLayer.forward` does, in one call. Meanwhile other threads
    may have Python's interpreter lock."""

    def __init__(self, layers: Sequence[CompiledLayer], angles_of: Sequence[int]):
        """angles_of: the index of each layer's angles"""
        self._layers, self._angles_of = layers, angles_of
        self.room = layers[0].room
        """The room that all of them share."""
        self._calls = (LayerCall * len(layers))()
        self._cache: weakref.ref[KvCache] | None = None
        """The cache that the calls are made for."""
        self.kv_type = 0
        """The library's number for the type of keys and values."""

    def __len__(self) -> int:
        return len(self._layers)

    def run(self, begin: int, end: int, hidden: torch.Tensor, angles: Sequence[Angles], under_way: ForwardPass) -> None:
        """Runs the layers from `begin` to `end` - 1. They overwrite hidden, bfloat16 [1, rows, width]."""
        self.place(under_way.cache)
        calls = [self._layers[0]._call_of(hidden, each, under_way) for each in angles]
        for each in calls:
            each.about.kv_type = self.kv_type
        self.call(begin, end, (Pass * len(calls))(*(each.about for each in calls)))

    def call(self, begin: int, end: int, passes: ctypes.Array[Pass]) -> None:
        """Runs the layers from `begin` to `end` - 1 over the cache that was placed last. passes: with the angles of
        each index."""
        first = ctypes.addressof(self._calls) + begin * ctypes.sizeof(LayerCall)
        loaded().draftwire_decoder_layers(first, end - begin, ctypes.addressof(passes))

    def place(self, cache: KvCache) -> None:
        """Makes the calls for a cache, if they are not."""
        if self._cache is not None and self._cache() is cache:
            return
        for call, layer, which in zip(self._calls, self._layers, self._angles_of, strict=True):
            keys, values = layer.keys_and_values(cache)
            assert keys is not None, "plain layers have attention"
            assert values is not None
            call.layer, call.keys, call.values = layer.address, keys.data_ptr(), values.data_ptr()
            call.angles = which
            self.kv_type = KV_TYPES[keys.dtype]
        self._cache = weakref.ref(cache)


def _eps(norms: Iterable[Norm | None]) -> float:
    return next((norm[1] for norm in norms if norm is not None), 0.0)


def can_compile(parts: LayerParts) -> bool:
    """Whether a layer's blocks can run as one compiled call: their gemms are compiled and no ranks exchange data
    between them."""
    return parts.dtype == torch.bfloat16 and are_compiled(parts.linears)
