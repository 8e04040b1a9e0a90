"""A decoder layer of the Llama kind in one compiled call, in bfloat16. See decoder_layer.c.

The same parts as one by one, with the same bits. What it saves is the time between them: a call from Python takes
microseconds, many more of them when a step has just read a model's weights through all caches, and meanwhile other
threads have nothing to do.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import nn

from speculative_engine.kernels.attention import ScratchSize
from speculative_engine.kernels.gemm import CompiledGemm
from speculative_engine.kernels.gemm_int8 import CompiledGemmInt8
from speculative_engine.kernels.library import gemm_kind, loaded
from speculative_engine.model.packed_attention import ForwardPass


class _Linear(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("weight", "scales", "bias")),
        *((name, ctypes.c_int64) for name in ("outputs", "inputs")),
    )


class _Layer(ctypes.Structure):
    _fields_ = (
        *((name, _Linear) for name in ("project", "output", "gate_and_up", "down")),
        *((name, ctypes.c_void_p) for name in ("input_norm", "output_norm", "query_norm", "key_norm")),
        *((name, ctypes.c_int64) for name in ("heads", "kv_heads", "dim", "window")),
        *((name, ctypes.c_float) for name in ("input_eps", "output_eps", "head_eps", "scale")),
        ("kind", ctypes.c_int32),
    )


class _Pass(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("hidden", "cosines", "sines")),
        *((name, ctypes.c_void_p) for name in ("slots", "seen", "lanes", "lane_rows", "counts")),
        *((name, ctypes.c_void_p) for name in ("narrow", "wide", "gated", "query", "attended", "scores")),
        *((name, ctypes.c_int64) for name in ("rows", "capacity", "longest", "lane_count", "scratch_size")),
        ("threads", ctypes.c_int32),
    )


Angles = tuple[torch.Tensor, torch.Tensor]
"""Cosines and sines, bfloat16 [1, rows, dim]."""


class _Shared(NamedTuple):
    """What is the same for all layers of a forward pass, which change the same tensor one after the other."""

    hidden: torch.Tensor
    angles: Angles
    held: tuple[object, ...]
    """What is pointed into."""
    about: _Pass
    address: int


@dataclass(frozen=True, slots=True)
class LayerParts:
    """What a layer is made of. Norms are weights and epsilons."""

    project: nn.Module
    """Linear layers, each with `product`, a compiled one, and `bias`."""
    output: nn.Module
    gate_and_up: nn.Module
    down: nn.Module
    input_norm: tuple[torch.Tensor, float]
    output_norm: tuple[torch.Tensor, float]
    head_norms: tuple[torch.Tensor, torch.Tensor, float] | None
    """Of query heads and key heads, and the epsilon of both."""
    kv_heads: int
    dim: int
    scaling: float
    window: int | None

    @property
    def linears(self) -> tuple[nn.Module, ...]:
        """The linear layers."""
        return self.project, self.output, self.gate_and_up, self.down


class CompiledLayer:
    """A decoder layer; holds on to what it is made of."""

    def __init__(self, parts: LayerParts):
        """parts: for which `can_compile`"""
        self._parts = parts
        query_norm, key_norm, head_eps = parts.head_norms or (None, None, 0.0)
        heads = parts.output.product.inputs // parts.dim
        self._heads = heads
        self.call = _Layer(
            *(_linear(linear) for linear in parts.linears),
            parts.input_norm[0].data_ptr(), parts.output_norm[0].data_ptr(), _pointer(query_norm), _pointer(key_norm),
            heads, parts.kv_heads, parts.dim, parts.window or 0,
            parts.input_norm[1], parts.output_norm[1], head_eps, parts.scaling,
            gemm_kind(),
        )  # fmt: skip
        self._address = ctypes.addressof(self.call)
        self._narrow = max(parts.project.product.inputs, heads * parts.dim)
        self._wide = max(linear.product.outputs for linear in parts.linears)
        self._like = parts.input_norm[0].new_empty(parts.kv_heads, 0, parts.dim)

    def forward(self, hidden: torch.Tensor, angles: Angles, under_way: ForwardPass, index: int) -> None:
        """Change `hidden`, bfloat16 [1, rows, width], to what the layer makes of it; writes keys and values.

        index: which of the model's layers this is.
        """
        shared = under_way.shared
        if not isinstance(shared, _Shared) or shared.hidden is not hidden or shared.angles is not angles:
            shared = under_way.shared = self._share(hidden, angles, under_way)
        keys, values = under_way.cache.layer(index, self._like, self._like)
        loaded().draftwire_decoder_layer(self._address, shared.address, keys.data_ptr(), values.data_ptr())

    def _share(self, hidden: torch.Tensor, angles: Angles, under_way: ForwardPass) -> _Shared:
        batch, cache = under_way.packed_batch, under_way.cache
        rows, heads, dim = hidden.shape[1], self._heads, self._parts.dim
        cosines, sines = (each[0].contiguous() for each in angles)
        lanes, threads = batch.slot_lanes, torch.get_num_threads()
        room = ScratchSize.of(lanes, heads // self._parts.kv_heads)
        narrow = cache.scratch("narrow", (rows, self._narrow), hidden)
        wide = cache.scratch("wide", (rows, self._wide), hidden)
        gated = cache.scratch("gated", (rows, self._parts.down.product.inputs), hidden)
        single = hidden.new_empty(0, dtype=torch.float32)
        query = cache.scratch("query", (heads, rows, dim), single)
        attended = cache.scratch("attended", (rows, heads, dim), single)
        scores = cache.scratch("row scores", (threads, room.scores), single)
        about = _Pass(
            hidden.data_ptr(), cosines.data_ptr(), sines.data_ptr(),
            batch.slots.data_ptr(), lanes.seen.ctypes.data, lanes.lanes.ctypes.data, lanes.rows.ctypes.data,
            lanes.counts.ctypes.data,
            *(each.data_ptr() for each in (narrow, wide, gated, query, attended, scores)),
            rows, cache.capacity + 1, room.longest, len(lanes.lanes), room.scores,
            threads,
        )  # fmt: skip
        return _Shared(hidden, angles, (cosines, sines, batch), about, ctypes.addressof(about))


def can_compile(parts: LayerParts) -> bool:
    """Whether there is a compiled call for a layer: its products are compiled, for any number of rows, and no rank has
    to be heard between them."""
    kinds = (CompiledGemm, CompiledGemmInt8)
    return all(isinstance(getattr(linear, "product", None), kinds) for linear in parts.linears)


def _linear(linear: nn.Module) -> _Linear:
    product = linear.product
    scales = product.scales.data_ptr() if isinstance(product, CompiledGemmInt8) else None
    return _Linear(product.stored.data_ptr(), scales, _pointer(linear.bias), product.outputs, product.inputs)


def _pointer(tensor: torch.Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()
