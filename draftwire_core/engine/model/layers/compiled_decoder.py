"""A pass through plain layers from tokens to logits in a few compiled calls, over memory that is kept between passes.

It computes what `CompiledPass.logits` computes by modules, to the bit. These make some forty small tensors a pass,
which takes longer than it seems: a step has just read the model's weights through all caches, torch's code included.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from draftwire_core.engine.kernels.attention import ScratchSize
from draftwire_core.engine.kernels.library import gemm_kind, loaded
from draftwire_core.engine.kernels.products.gemm_blocks import FORMATS
from draftwire_core.engine.kernels.structs import WEIGHT_TYPES, Angles, Gemm, Pass
from draftwire_core.engine.kv.kv_slots import KvCache
from draftwire_core.engine.model.attention.rotary_angles import RotaryAngles
from draftwire_core.engine.model.features.taps import TapReading
from draftwire_core.engine.model.layers.decoder_layer import LayersTogether
from draftwire_core.engine.model.layers.fused_layer import FusedNorm
from draftwire_core.engine.model.linear.block_linear import StoredEmbedding
from draftwire_core.engine.model.linear.block_weight import BlockWeight
from draftwire_core.engine.model.linear.linear_structs import are_compiled, pointer
from draftwire_core.engine.model.packed_batch import PackedBatch

_INT64, _FLOAT, _BF16 = 8, 4, 2
"""Bytes of an element."""
_STAGGER = 112
"""Elements between the starts of arrays within a page, as of `KvCache.scratch`."""
_ROWS_ONE_BY_ONE = 16
"""Most rows whose embeddings are looked up by a call each."""


class _EmbeddedBlocks(NamedTuple):
    """An embedding in blocks, as compiled code reads it."""

    weight: BlockWeight
    address: int
    row_bytes: int
    units: int
    """Of a row."""
    size: int
    """Bytes of a unit."""
    inputs: int
    """Values of a unit."""
    number: int
    """The library's number for the type."""

    @classmethod
    def of(cls, embedding: nn.Module) -> _EmbeddedBlocks | None:
        """Returns those of an embedding; None for one that is looked up by its module alone."""
        stored = embedding.stored if isinstance(embedding, StoredEmbedding) else None
        if not isinstance(stored, BlockWeight) or not stored.raw.is_contiguous():
            return None
        form, row_bytes = FORMATS[stored.kind], int(stored.raw.shape[1])
        number = WEIGHT_TYPES.index(stored.kind)
        return cls(stored, stored.raw.data_ptr(), row_bytes, row_bytes // form.size, form.size, form.inputs, number)

    def look_up(self, tokens: Sequence[int], to: int, step: int) -> None:
        """Writes the values of tokens to the address `to`, those of each `step` bytes after the last one's. Raises
        IndexError for a token that is not there."""
        values = loaded().draftwire_block_values
        for token in tokens:
            if not 0 <= token < self.weight.outputs:
                raise IndexError(f"token {token} of an embedding of {self.weight.outputs}")
            values(self.address + token * self.row_bytes, to, self.units, self.size, self.inputs, self.number)
            to += step


class _Memory:
    """The working memory of passes, and the structs that point to it."""

    def __init__(self, decoder: CompiledDecoder, rows: int, scores: int):
        """rows: most rows of a pass. scores: floats of all threads' attention scores."""
        self.rows, self.scores = rows, scores
        self._held: list[torch.Tensor] = []
        room, width = decoder.layers.room, decoder.width
        self._hidden = self._take(rows * width, torch.bfloat16).view(rows, width)
        self._residual = self._take(rows * width).view(rows, width)
        self.hidden, self.residual = self._hidden.data_ptr(), self._residual.data_ptr()
        self._views: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._normed = self._take(rows * width).view(rows, width)
        self.normed, self.working = self._normed.data_ptr(), self._address(rows * room.inputs)
        sizes = room.inputs, room.product, room.gated, room.heads, room.heads
        shared = [*(self._address(rows * size) for size in sizes), self._address(scores), self.working]
        angles, passes = [], []
        for kind, frequencies in decoder.angles.frequencies.items():
            dim = 2 * len(frequencies)
            cosines, sines = self._address(rows * dim), self._address(rows * dim)
            scaling = decoder.angles.scalings[kind]
            angles.append(Angles(None, frequencies.data_ptr(), cosines, sines, 0, dim, scaling, 0))
            passes.append(Pass(self.hidden, self.residual, cosines, sines, *[None] * 5, *shared))
        self.angles, self.passes = (Angles * len(angles))(*angles), (Pass * len(passes))(*passes)

    def views(self, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The hidden states, bfloat16 [rows, width], and the residual stream, float32."""
        found = self._views.get(rows)
        if found is None:
            found = self._views[rows] = self._hidden[:rows], self._residual[:rows]
        return found

    def head_inputs(self, rows: int) -> torch.Tensor:
        """A copy of the first rows of `normed`, bfloat16 [rows, width]."""
        return self._normed[:rows].to(torch.bfloat16, copy=True)

    def _take(self, size: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        offset = _STAGGER * (1 + len(self._held))
        self._held.append(torch.empty(size + offset, dtype=dtype)[offset:])
        return self._held[-1]

    def _address(self, size: int) -> int:
        address: int = self._take(size).data_ptr()
        return address


class CompiledDecoder:
    """The modules of a model whose layers are all plain."""

    def __init__(
        self, embedding: nn.Module, angles: RotaryAngles, layers: LayersTogether, norm: FusedNorm, head: nn.Module
    ):
        """norm, head: of which `takes` is true"""
        self.angles, self.layers = angles, layers
        self.width = len(norm.factors)
        self._embedding, self._held = embedding, (norm, head)
        """The modules whose memory compiled code reads."""
        self._blocks = _EmbeddedBlocks.of(embedding)
        self._scale: float | None = getattr(embedding, "scale", None)
        self._factors, self._eps = norm.factors.data_ptr(), norm.eps
        product = head.product
        self._outputs = product.outputs
        self._product = Gemm(
            None, product.stored.data_ptr(), pointer(product.scales), pointer(head.bias), None, None,
            0, product.outputs, product.outputs, product.inputs, product.group, product.number, 1, 1,
        )  # fmt: skip
        self._product_address = ctypes.addressof(self._product)
        self._kind = gemm_kind()
        self._memory: _Memory | None = None

    @staticmethod
    def takes(norm: nn.Module, head: nn.Module) -> bool:
        """Whether compiled code computes the last norm and the head in float32."""
        return isinstance(norm, FusedNorm) and norm.wide and are_compiled([head]) and head.product.wide

    def logits(self, batch: PackedBatch, cache: KvCache, reading: TapReading | None = None) -> torch.Tensor:
        """Runs a pass: writes the rows' keys and values and returns float32 logits [wanted rows, vocabulary].

        reading: takes the hidden states that enter some of the layers.
        """
        library, threads = loaded(), torch.get_num_threads()
        rows, wanted, lanes = len(batch), len(batch.wanted), batch.slot_lanes
        size = ScratchSize.of(lanes, self.layers.room.shared, threads)
        self.layers.place(cache)
        memory = self._memory_for(max(rows, wanted), threads * size.scores)
        hidden, residual = memory.views(rows)
        positions = _address(batch.numbers) + _INT64 * rows
        slots = positions + _INT64 * rows
        if self._blocks is not None and rows <= _ROWS_ONE_BY_ONE:
            self._blocks.look_up(batch.numbers[0].tolist(), memory.hidden, _BF16 * self.width)
            if self._scale is not None:
                hidden.mul_(self._scale)
        else:
            with torch.no_grad():
                hidden.copy_(self._embedding(batch.token_ids))
        residual.copy_(hidden)
        seen, rows_of, counts, spans = map(_address, (lanes.seen, lanes.rows, lanes.counts, lanes.lanes))
        lane_count = len(lanes.lanes)
        for angles in memory.angles:
            angles.positions, angles.rows = positions, rows
            library.draftwire_angles(ctypes.addressof(angles), threads)
        for about in memory.passes:
            about.slots, about.seen, about.lanes, about.lane_rows, about.counts = slots, seen, spans, rows_of, counts
            about.rows, about.longest, about.lane_count = rows, size.longest, lane_count
            about.scratch_size, about.threads = size.scores, threads
            about.capacity, about.kv_type = cache.capacity + 1, self.layers.kv_type
        # Made before the layers run, which drive torch's code from the caches.
        logits = torch.empty(wanted, self._outputs, dtype=torch.float32)
        count = len(self.layers)
        for begin, end in [(0, count)] if reading is None else reading.between(count, hidden):
            self.layers.call(begin, end, memory.passes)
        if wanted:
            self._head_of(memory, residual, batch, logits, threads)
        return logits

    def head_inputs(self, count: int) -> torch.Tensor:
        """Returns the output head's inputs in the last pass, bfloat16 [count, width]. count: of its logits."""
        if not count:
            return torch.empty(0, self.width, dtype=torch.bfloat16)
        assert self._memory is not None, "there were logits"
        return self._memory.head_inputs(count)

    def _head_of(
        self, memory: _Memory, residual: torch.Tensor, batch: PackedBatch, logits: torch.Tensor, threads: int
    ) -> None:
        library, wanted = loaded(), batch.wanted
        first, count = wanted[0], len(wanted)
        asked = memory.residual + _FLOAT * self.width * first
        if wanted != list(range(first, first + count)):
            gathered = residual.index_select(0, batch.logit_rows)
            asked = gathered.data_ptr()
        library.draftwire_rms_norm(asked, self._factors, memory.normed, count, self.width, self._eps, 0, 0, 0, threads)
        product = self._product
        product.rows, product.working = memory.normed, memory.working
        product.out, product.row_count = logits.data_ptr(), count
        library.draftwire_gemm(self._product_address, self._kind, threads)

    def _memory_for(self, rows: int, scores: int) -> _Memory:
        """The memory for a pass, with room for longer ones if it has to be made."""
        memory = self._memory
        if memory is None or rows > memory.rows or scores > memory.scores:
            least = (0, 0) if memory is None else (memory.rows, memory.scores)
            with torch.inference_mode(False):  # the memory is written to in either mode
                memory = _Memory(self, max(_power_of_two(rows), least[0]), max(_power_of_two(scores), least[1]))
            self._memory = memory
        return memory


def _address(numbers: np.ndarray) -> int:
    # `ctypes.data` makes three objects first.
    address: int = numbers.__array_interface__["data"][0]
    return address


def _power_of_two(least: int) -> int:
    return 1 << (least - 1).bit_length()
